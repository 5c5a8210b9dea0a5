"""Products of matrices whose derivatives see all rows of a batch as one axis."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero, zero_from_primal

from ..edges.operations import Einsum
from .arrays import SMALL_PRODUCT, read, scaled
from .holding import BARRIERS_STAND, held, linear_barrier, tangents_held

__all__ = ["as_exact", "matrix_product", "sum_with_weights", "vector_first"]

Dimensions = Any


def vector_first(
    dot: Callable[..., Array],
    left: Array,
    right: Array,
    dimension_numbers: Dimensions,
    precision: Any = None,
    **params: Any,
) -> Array:
    """A product as the function has it; of a matrix and a vector, with the vector on the left.

    A batch of vectors times a matrix that is shared has the free axes of the left operand first.
    On the right the batch would come last, and everything that reads a sample's numbers would read
    them with strides of the batch's size.

    Args:
        dot: `lax.dot_general`, or something like it.
        left: an array.
        right: an array.
        dimension_numbers: as for `lax.dot_general`.
        precision: as for `lax.dot_general`.
        params: further parameters of it.
    """
    (summed, also), (batch, _) = dimension_numbers
    if not batch and len(also) == right.ndim and len(summed) < left.ndim:
        left, right, dimension_numbers = right, left, ((also, summed), ((), ()))
        if isinstance(precision, tuple):
            precision = precision[::-1]
    return dot(left, right, dimension_numbers, precision=precision, **params)


def matrix_product(
    left: Array,
    right: Array,
    dimension_numbers: Dimensions,
    *,
    stored: bool = False,
    numbers_summed: bool = False,
    **params: Any,
) -> Array:
    """`lax.dot_general`, with a better derivative where the right operand is shared by a batch.

    The gradient of weights is `x^T g`, summed over rows and batch. JAX's transposition rule asks
    for a product that is contracted over both axes, and for that XLA writes `g` transposed. Where
    `jax.vmap` has made the batch the first axis of `x`, batch and rows are taken as one axis
    instead, which moves nothing, and XLA's libraries read either operand as it lies.

    Elsewhere the two derivatives of a product of two matrices read `g` in two orders of its axes.

    Where the left operand's first axis is contracted, the product is one for each sample, with the
    shared matrix on the left (see `_turned_product`).

    Args:
        left: an array.
        right: an array.
        dimension_numbers: as for `lax.dot_general`.
        stored: whether what is read in two orders is in memory before (see `tangents_held`).
        numbers_summed: whether a dot product is a sum of products (see `_sum_of_products`).
        params: further parameters of it.
    """
    contracting, (batch, _) = dimension_numbers
    summed = len(contracting[0])
    if numbers_summed and left.ndim == right.ndim == summed and as_exact(left, right):
        order = [contracting[1][contracting[0].index(axis)] for axis in range(summed)]
        number: Array = _sum_of_products(left, lax.transpose(right, order))
        return number
    rows = left.ndim - summed
    ordered = tuple(contracting[0]) == tuple(range(rows, left.ndim))
    stored = stored and not batch and rows > 0 and right.ndim > summed
    dimensions = tuple(tuple(map(tuple, pair)) for pair in dimension_numbers)
    given = tuple(sorted(params.items()))
    if _contracts_first_axis(left, right, dimensions) and params.get("out_sharding") is None:
        turned: Array = _turned_product(dimensions, stored, given)(left, right)
        return turned
    if batch or not ordered or not rows or params.get("out_sharding") is not None:
        plain: Array = lax.dot_general(left, right, dimension_numbers, **params)
        return tangents_held(plain) if stored else plain
    result: Array = _product(dimensions, stored, given)(left, right)
    return result


def _contracts_first_axis(left: Array, right: Array, dimensions: Dimensions) -> bool:
    """Whether the rows of a matrix meet those of one that is no larger, to be repeated.

    Small products have an axis of length one in front: the form for matrices that every sample has
    of its own (`emit/arrays.py`).
    """
    units = left.ndim - 2
    work = math.prod((*left.shape, *right.shape))
    return (
        right.ndim == 2
        and right.size <= left.size
        and (units == 0 or (units == 1 and left.shape[0] == 1))
        and dimensions[0][0] == (units,)
        and not dimensions[1][0]
        and (units == 1 or work > SMALL_PRODUCT * left.shape[0])
    )


def as_exact(left: Array, right: Array) -> bool:
    """Whether a sum of products is as exact as a dot product."""
    return left.dtype == right.dtype and left.dtype in (jnp.float32, jnp.float64)


def sum_with_weights(operation: Einsum, operands: Sequence[Array]) -> Array:
    """The sum of all products of rows with weights that are the same for every row.

    The rows are in memory before: the library that sums evaluates what it finds in front of a sum
    together with it, exponentials and quotients of all layers more slowly than XLA's loops do.
    """
    sizes = dict(operation.sizes)
    views = [read(x, own, sizes) for x, own in zip(operands, operation.reads, strict=True)]
    (rows, names), (weights, own) = sorted(views, key=lambda view: -len(view[1]))
    places = [names.index(name) for name in own]
    weights = lax.transpose(weights, sorted(range(len(own)), key=places.__getitem__))
    weights = lax.expand_dims(weights, [k for k in range(len(names)) if k not in places])
    return scaled(_sum_of_products(held(rows), weights), operation.coefficient)


@jax.custom_jvp
def _sum_of_products(left: Array, right: Array) -> Array:
    """The dot product of two arrays, as a sum; axes of length one are repeated.

    XLA's library takes a sum with what is summed, also where one array is shared by a batch. A
    product of a matrix and a vector is a kernel to compile instead, and one for each derivative.
    """
    return _summed(left, right)


def _summed(left: Array, right: Array) -> Array:
    shape = jnp.broadcast_shapes(left.shape, right.shape)
    repeated = [jnp.broadcast_to(x, shape) for x in (left, right)]
    return lax.reduce_sum(lax.mul(*repeated), range(len(shape)))


def _of_sum(primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Any]:
    """Value and tangent; what the cotangents are made of has no reader in common with the value.

    The library takes a repeated array into its sum only where nothing else reads it.
    """
    out = _sum_of_products(*primals)
    parts: list[Array] = []
    for tangent, other in zip(tangents, primals[::-1], strict=True):
        if isinstance(tangent, SymbolicZero):
            continue
        if BARRIERS_STAND:
            tangent, other = linear_barrier(tangent), linear_barrier(other)
        part = _summed(tangent, other)
        parts.append(linear_barrier(part) if BARRIERS_STAND and not parts else part)
    if not parts:
        return out, zero_from_primal(out, symbolic_zeros=True)
    return out, functools.reduce(lax.add, parts)


_sum_of_products.defjvp(_of_sum, symbolic_zeros=True)


@functools.lru_cache(maxsize=256)
def _product(
    dimension_numbers: Dimensions, stored: bool, params: tuple[tuple[str, Any], ...]
) -> Callable[[Array, Array], Array]:
    """The product with a rule for `jax.jvp`; the left operand's contracted axes are its last."""
    given = dict(params)
    summed = len(dimension_numbers[0][0])
    first = (tuple(range(1, 1 + summed)), dimension_numbers[0][1])

    def plain(left: Array, right: Array) -> Array:
        result: Array = lax.dot_general(left, right, dimension_numbers, **given)
        return result

    def of_matrix(left: Array, right: Array) -> Array:
        result: Array = lax.dot_general(left, right, (first, ((), ())), **given)
        return result

    @jax.custom_jvp
    def product(left: Array, right: Array) -> Array:
        return plain(left, right)

    def differentiated(primals: Any, tangents: Any) -> tuple[Array, Any]:
        left, right = primals
        out = product(left, right)
        parts = []
        apart = False
        if not isinstance(tangents[0], SymbolicZero):
            parts.append(plain(tangents[0], right))
        if not isinstance(tangents[1], SymbolicZero):
            part, together = _rows_together(plain, of_matrix, summed, left, tangents[1])
            parts.append(part)
            apart = stored and not together and len(parts) > 1
        if not parts:
            return out, zero_from_primal(out, symbolic_zeros=True)
        tangent = functools.reduce(lax.add, parts)
        return out, linear_barrier(tangent) if apart else tangent

    product.defjvp(differentiated, symbolic_zeros=True)
    return product


@functools.lru_cache(maxsize=256)
def _turned_product(
    dimension_numbers: Dimensions, stored: bool, params: tuple[tuple[str, Any], ...]
) -> Callable[[Array, Array], Array]:
    """The product of the first axis of a matrix that each sample has with a matrix that all share.

    As one product for the whole batch it has the samples between its axes: the left operand and the
    result are written transposed, and once more in the derivatives. A product for each sample with
    the shared matrix on the left reads and writes all of them as they lie.
    """
    given = dict(params)
    axis = dimension_numbers[0][1][0]
    swapped = dict(given)
    if isinstance(given.get("precision"), tuple):
        swapped["precision"] = given["precision"][::-1]

    def plain(left: Array, right: Array) -> Array:
        result: Array = lax.dot_general(left, right, dimension_numbers, **given)
        return result

    def of_samples(left: Array, right: Array) -> Array:
        first = right if axis == 1 else lax.transpose(right, (1, 0))
        size, *units, rows, columns = left.shape
        matrices = lax.reshape(left, (size, rows, columns)) if units else left
        repeated = lax.broadcast_in_dim(first, (size, *first.shape), (1, 2))
        each = lax.dot_general(repeated, matrices, (((2,), (1,)), ((0,), (0,))), **swapped)
        turned = lax.transpose(each, (0, 2, 1))
        return lax.expand_dims(turned, range(1, 1 + len(units)))

    @jax.custom_jvp
    def product(left: Array, right: Array) -> Array:
        return _together(plain, of_samples, left, right)[0]

    def differentiated(primals: Any, tangents: Any) -> tuple[Array, Any]:
        left, right = primals
        out = product(left, right)
        parts = []
        if not isinstance(tangents[0], SymbolicZero):
            parts.append(_together(plain, of_samples, tangents[0], right))
        if not isinstance(tangents[1], SymbolicZero):
            parts.append(_together(plain, of_samples, left, tangents[1]))
        if not parts:
            return out, zero_from_primal(out, symbolic_zeros=True)
        tangent = functools.reduce(lax.add, [part for part, _ in parts])
        apart = stored and not all(together for _, together in parts)
        return out, linear_barrier(tangent) if apart else tangent

    product.defjvp(differentiated, symbolic_zeros=True)
    return product


def _rows_together(
    plain: Callable[..., Array],
    of_matrix: Callable[..., Array],
    summed: int,
    left: Array,
    right: Array,
) -> tuple[Array, bool]:
    """The product, under `jax.vmap` over the left operand with rows and batch as one axis.

    Returns:
        The product, and whether rows and batch are one axis.
    """

    def together(left: Array, right: Array) -> Array:
        result = of_matrix(lax.collapse(left, 0, left.ndim - summed), right)
        return lax.reshape(result, (*left.shape[: left.ndim - summed], *result.shape[1:]))

    return _together(plain, together, left, right)


def _together(
    plain: Callable[..., Array], together: Callable[..., Array], left: Array, right: Array
) -> tuple[Array, bool]:
    """A product, under `jax.vmap` over the left operand alone in a form for all samples.

    A function with a rule for `jax.vmap` has no transpose. The rule is therefore used where
    batching is the innermost transformation, so that it has run when the call returns and what it
    emitted is all that is left; elsewhere the call's result is dropped.

    Args:
        plain: the product of a sample.
        together: the product of all samples; the first axis of the left operand counts them.
        left: an array.
        right: an array.

    Returns:
        The product, and whether it has the form for all samples.
    """
    ran: list[bool] = []

    @custom_vmap
    def product(left: Array, right: Array) -> Array:
        return plain(left, right)

    @product.def_vmap
    def _(size: int, batched: list[bool], left: Array, right: Array) -> tuple[Array, bool]:
        del size
        ran.append(batched[0] and not batched[1])
        if not ran[-1]:
            axes = [0 if along else None for along in batched]
            return jax.vmap(plain, in_axes=axes)(left, right), True
        return together(left, right), True

    result: Array = product(left, right)
    return (result, ran[-1]) if ran else (plain(left, right), False)
