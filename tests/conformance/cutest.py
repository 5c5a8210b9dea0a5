"""The CUTEst problems of the package sif2jax as functions to differentiate."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from tests.cutest_checks import Target, two_points

try:
    import sif2jax
except ImportError as error:
    raise ImportError(
        "The CUTEst problems are those of the package sif2jax, which is not installed. "
        'Install the extra: python -m pip install -e ".[conformance]" (make conformance does).'
    ) from error

__all__ = ["LARGEST", "problem_names", "targets"]

#: Problems with more variables are left out: the dense reference takes too long.
LARGEST = 300


@functools.cache
def _problems() -> dict[str, Any]:
    return {problem.name: problem for problem in sif2jax.problems}


@functools.cache
def problem_names() -> tuple[str, ...]:
    """Names of all problems with at most `LARGEST` variables."""

    def size(problem: Any) -> int:
        leaves = jax.tree.leaves(jax.eval_shape(lambda: problem.y0))
        return sum(int(np.prod(leaf.shape)) for leaf in leaves)

    return tuple(sorted(n for n, problem in _problems().items() if size(problem) <= LARGEST))


def targets(name: str) -> Iterator[Target]:
    """The objective of a problem and its constraints, where it has any."""
    problem = _problems()[name]
    points = two_points(problem.y0)
    arguments = problem.args
    yield Target("objective", lambda y: problem.objective(y, arguments), points)
    if hasattr(problem, "constraint"):
        for kind, values in enumerate(jax.eval_shape(problem.constraint, problem.y0)):
            if values is not None:
                yield Target(
                    ("equality", "inequality")[kind],
                    lambda y, kind=kind: problem.constraint(y)[kind],
                    points,
                )
