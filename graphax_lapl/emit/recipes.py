"""Running a recipe of the edge algebra on arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import Array, lax

from ..edges.operations import (
    Assemble,
    Combine,
    Einsum,
    Operation,
    Overlay,
    Recipe,
)
from .arrays import at_least, combine, einsum
from .assembly import assemble
from .opaque import apply_opaque
from .overlay import overlay

__all__ = ["operate", "run_recipe"]


def run_recipe(recipe: Recipe, operands: Sequence[Any], dtype: Any) -> list[Any]:
    """The factors of a recipe's result, as precise as `dtype`, which is that of the edge's end."""
    values = list(operands)
    for operation, positions in recipe.steps:
        values.append(operate(operation, [values[p] for p in positions], dtype))
    return [values[p] for p in recipe.operands]


def operate(
    operation: Operation,
    values: Sequence[Any],
    dtype: Any,
    dot: Callable[..., Array] = lax.dot_general,
) -> Array:
    """Carry one operation out on arrays (and opaque linear maps); `dot` as for `einsum`."""
    if isinstance(operation, Einsum):
        return einsum(operation, at_least(values, dtype), dot)
    if isinstance(operation, Combine):
        return combine(operation, at_least(values, dtype))
    if isinstance(operation, Overlay):
        return overlay(operation, values, dtype)
    if isinstance(operation, Assemble):
        return assemble(operation.structure, values, dtype)
    return apply_opaque(operation, *values)
