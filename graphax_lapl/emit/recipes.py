"""Running a recipe of the edge algebra on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import Array

from ..edges.operations import Assemble, Combine, Einsum, Recipe
from ..errors import InternalError
from .arrays import combine, einsum
from .assembly import assemble

__all__ = ["run_recipe"]


def run_recipe(recipe: Recipe, operands: Sequence[Array], dtype: Any) -> list[Array]:
    """The factors of a recipe's result; `dtype` where no operand says it.

    The operands are arrays: a recipe that applies opaque maps is run by its program.
    """
    values = list(operands)
    for operation, positions in recipe.steps:
        inputs = [values[p] for p in positions]
        if isinstance(operation, Einsum):
            values.append(einsum(operation, inputs))
        elif isinstance(operation, Combine):
            values.append(combine(operation, inputs))
        elif isinstance(operation, Assemble):
            values.append(assemble(operation.structure, inputs, dtype))
        else:
            raise InternalError(f"A recipe of arrays holds {type(operation).__name__}.")
    return [values[p] for p in recipe.operands]
