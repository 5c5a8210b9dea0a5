"""Sums of sparse results, and their products with arrays and with one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..edges.algebra import compose
from ..edges.sparse_form import dense_form, merged, value_structure
from ..edges.terms import Structure, intern_structure
from ..emit.assembly import assemble
from ..emit.recipes import run_recipe
from ..emit.stored import broadcast_values
from ..errors import InvalidTypeError

__all__ = ["added", "product_with_array", "product_with_sparse", "refuse_sum"]


def refuse_sum(other: Any) -> Any:
    """What the sum of a sparse Jacobian and something else is: NotImplemented.

    Raises:
        InvalidTypeError: for an array, which would make the sum dense.
    """
    if not hasattr(other, "ndim"):
        return NotImplemented
    raise InvalidTypeError(
        f"The sum of a SparseJacobian and an array of shape {np.shape(other)} would be dense: "
        "write J.todense() + x for it. For a sparse one differentiate the sum: the Jacobian of "
        "x - dt * f(x) is I - dt J."
    )


def added(
    structures: Sequence[Structure],
    arrays: Sequence[Sequence[Array]],
    sources: Sequence[Sequence[int]],
    values: Callable[[], Sequence[Array]],
) -> tuple[Structure, list[Array], tuple[int, ...]]:
    """The sum of stored structures; terms of one pattern are added, the others share arrays.

    Args:
        structures: one factor per term.
        arrays: of each structure what its terms read.
        sources: of each structure for every term which of its arrays it reads.
        values: gives the values of all terms of all structures, one axis per label; asked only
            where terms are added.

    Returns:
        The sum, its arrays, and for every term which of them it reads.
    """
    structure, groups = merged(structures)
    every: list[Array] = [array for own in arrays for array in own]
    starts = [sum(len(own) for own in arrays[:k]) for k in range(len(arrays))]
    read = [start + k for start, own in zip(starts, sources, strict=True) for k in own]
    found = []
    spread = values() if any(len(group) > 1 for group in groups) else ()
    for first, *rest in groups:
        if rest:
            every.append(sum((spread[k] for k in rest), spread[first]))
        found.append(len(every) - 1 if rest else read[first])
    used = sorted(set(found))
    return structure, [every[k] for k in used], tuple(used.index(k) for k in found)


def product_with_array(
    structure: Structure, operands: Sequence[Array], x: Array, dtype: Any
) -> Array:
    """The input dimensions of a stored structure contracted with the leading ones of `x`.

    Args:
        structure: one factor per term.
        operands: the array of each term.
        x: shape `(*in_shape, *columns)`.
        dtype: of the result.

    Returns:
        Array of shape `(*out_shape, *columns)`.
    """
    columns = x.shape[len(structure.in_shape) :]
    shape = (*structure.out_shape, *columns)
    if not structure.terms or 0 in (*structure.out_shape, *x.shape):
        return jnp.zeros(shape, dtype)
    recipe = compose(_of_numbers(structure), dense_form(structure.in_shape, columns))
    if recipe.result is None:
        return jnp.zeros(shape, dtype)
    values = [jnp.astype(value, dtype) for value in (*operands, x)]
    return assemble(recipe.result, run_recipe(recipe, values, dtype), dtype)


def product_with_sparse(
    outer: Structure,
    outer_operands: Sequence[Array],
    inner: Structure,
    inner_operands: Sequence[Array],
    dtype: Any,
) -> tuple[Structure, list[Array]]:
    """The product of two stored structures, `outer` after `inner`, as a stored structure.

    Nothing dense is built but where the algebra finds no sparse form of the product; see
    `edges.algebra.compose`.

    Returns:
        A structure with one factor per term, and the array of each.
    """
    shapes = (outer.out_shape, inner.in_shape)
    if not outer.terms or not inner.terms or 0 in (*shapes[0], *shapes[1]):
        return intern_structure(*shapes, ()), []
    recipe = compose(_of_numbers(outer), _of_numbers(inner))
    if recipe.result is None:
        return intern_structure(*shapes, ()), []
    values = [jnp.astype(value, dtype) for value in (*outer_operands, *inner_operands)]
    factors = iter(run_recipe(recipe, values, dtype))
    arrays = []
    for term in recipe.result.terms:
        own = [next(factors) for _ in term.factors]
        arrays.append(broadcast_values(term, own, dtype))
    return value_structure(recipe.result), arrays


def _of_numbers(structure: Structure) -> Structure:
    """The structure with entries that act as numbers, whatever kind of derivative they are."""
    return intern_structure(structure.out_shape, structure.in_shape, structure.terms)
