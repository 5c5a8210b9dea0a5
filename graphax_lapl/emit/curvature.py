"""Second derivatives of single equations at run time, summed over columns.

In closed form where there is one (`factorizations.py`), else by `jvp` of `jvp` along each column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..errors import no_rule_refused
from ..program.instructions import CurvatureInstruction
from ..rules.opaque import needs_all_tangents, runs_rules
from .factorizations import summed_second_derivative
from .opaque import differentiable

__all__ = ["second_derivative"]


def second_derivative(instruction: CurvatureInstruction, operands: Sequence[Array]) -> Array:
    """An equation's second derivative, summed over the columns that it moves along."""
    moving = iter(operands)
    values = [
        next(moving) if there else jnp.zeros(type_.shape, type_.dtype)
        for there, type_ in zip(instruction.present, instruction.types, strict=True)
    ]
    tangents = [next(moving) if there else None for there in instruction.tangents]
    changes = [next(moving) if there else None for there in instruction.moving]
    solution = [next(moving) if there else None for there in instruction.solution]
    columns = next(array for array in tangents if array is not None)
    count = math.prod(columns.shape[: instruction.rank])

    def flat(columns: Sequence[Array | None]) -> list[Array | None]:
        """Columns as one axis, of the dtype of what they move."""
        return [
            None if array is None else array.reshape(count, *value.shape).astype(value.dtype)
            for array, value in zip(columns, values, strict=True)
        ]

    equation, out = instruction.equation, instruction.out
    given = flat(tangents)
    others = [
        same if other is array else new
        for same, array, other, new in zip(given, tangents, changes, flat(changes), strict=True)
    ]
    first, second = (
        None if array is None else array.reshape(count, *array.shape[instruction.rank :])
        for array in solution
    )
    own = (first, first if solution[0] is solution[1] else second)
    closed = summed_second_derivative(equation, out, values, given, others, own)
    if closed is not None:
        return closed
    if needs_all_tangents(instruction.equation):
        # Zero columns for the operands that do not move.
        leading = columns.shape[: instruction.rank]
        for k in differentiable(values):
            still = jnp.zeros((*leading, *values[k].shape), values[k].dtype)
            if changes[k] is None and instruction.present[k]:
                changes[k] = still
    chosen = [k for k, array in enumerate(tangents) if array is not None]
    moved = [k for k, array in enumerate(changes) if array is not None]

    def evaluate(point: list[Array]) -> Array:
        return equation.evaluate(*point)[out]

    def along(tangent: list[Array], change: list[Array]) -> Array:
        def pushed(*place: Array) -> Array:
            point = list(values)
            for k, value in zip(moved, place, strict=True):
                point[k] = value
            if all(instruction.present[k] for k in chosen):

                def inner(*x: Array) -> Array:
                    inside = list(point)
                    for k, value in zip(chosen, x, strict=True):
                        inside[k] = value
                    return evaluate(inside)

                return jax.jvp(inner, tuple(point[k] for k in chosen), tuple(tangent))[1]
            for k, value in zip(chosen, tangent, strict=True):
                point[k] = value  # the equation is linear in these
            return evaluate(point)

        return jax.jvp(pushed, tuple(values[k] for k in moved), tuple(change))[1]

    what = f"'{equation.name}' has no second derivative"
    rules_run = runs_rules(equation.name, equation.params)
    with no_rule_refused(what, equation.source, rules_run=rules_run):
        curved = jax.vmap(along)(_there(flat(tangents)), _there(flat(changes)))
    return lax.reduce_sum(curved, [0])


def _there(columns: Sequence[Array | None]) -> list[Array]:
    return [array for array in columns if array is not None]
