"""Random bodies of loops, branches and functions: a program inside a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from tests.random_operations import contractions, elementwise, indexing, reductions, shaping
from tests.random_operations.builder import NotApplicable, ProgramBuilder

STRAIGHT_LINE = [
    entry
    for family in (elementwise, elementwise, reductions, contractions, shaping, indexing)
    for entry in family.operation.entries
]
"""What a body is made of; elementwise operations twice, since most bodies are small."""

MAX_ATTEMPTS = 40


def random_body(
    builder: ProgramBuilder,
    operands: list[tuple[int, ...]],
    results: list[tuple[int, ...]],
    *,
    steps: int = 3,
) -> Callable[..., tuple[Any, ...]]:
    """A random function of float64 arrays, whose results stay within ``[-1.5, 1.5]``.

    Args:
        builder: source of randomness and of the size limit.
        operands: shapes of the arguments.
        results: shapes of the results; each has the shape of an operand, or is a scalar.
        steps: largest number of drawn operations.
    """
    inner = ProgramBuilder(builder.rng, max_size=builder.max_size, depth=builder.depth + 1)
    for shape in operands:
        inner.add_input(shape, np.float64, 1.5)
    weights = np.array([weight for weight, _ in STRAIGHT_LINE])
    wanted = builder.integer(1, steps)
    for _ in range(MAX_ATTEMPTS):
        if not wanted:
            break
        _, operation = STRAIGHT_LINE[
            int(builder.rng.choice(len(weights), p=weights / weights.sum()))
        ]
        try:
            operation(inner)
        except NotApplicable:
            continue
        wanted -= 1
    ends = [_of_shape(inner, shape) for shape in results]

    def body(*values: Any) -> tuple[Any, ...]:
        environment = dict(enumerate(values))
        inner.run(range(len(inner.steps)), environment)
        return tuple(jnp.asarray(environment[end]) for end in ends)

    return body


def _of_shape(inner: ProgramBuilder, shape: tuple[int, ...]) -> int:
    """The latest value of a shape, made small; a sum of the latest one where there is none."""
    found = [v for v in inner.values if v.shape == shape and v.dtype == np.float64]
    if not found and shape == ():
        last = inner.pick()
        found = [inner.apply("mean", lambda x: jnp.sum(x) / max(1, x.size), last, bound=1.5)]
    if not found:
        raise NotApplicable
    value = found[-1]
    return inner.squash(value, 1.5).index if value.bound > 1.5 else value.index
