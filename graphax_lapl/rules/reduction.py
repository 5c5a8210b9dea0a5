"""Reductions over axes, and cumulative ones along an axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from jax import Array, lax

from ..edges.maps import from_values
from ..graph.inline import Rewritten
from ..graph.listing import Variable
from .registry import defrule
from .site import Local, Piece, Site, axes_of, not_before


@defrule("reduce_sum")
def _reduce_sum(site: Site, i: int, k: int) -> list[Piece]:
    """Every input counts once."""
    del i, k
    shape = site.shape(0)
    axes = axes_of(len(shape))
    return site.piece(shape, [a for d, a in enumerate(axes) if d not in site.params["axes"]], axes)


@defrule("reduce_max", "reduce_min")
def _reduce_extremum(site: Site, i: int, k: int) -> list[Piece]:
    """The chosen entries share one evenly, as JAX has it."""
    del i, k
    share = _shares(tuple(site.params["axes"]))
    return _weighted(
        site, Local(f"d{site.name}", share, (site.value(0), site.out()), site.shape(0), "constant")
    )


@lru_cache(maxsize=256)
def _shares(reduced: tuple[int, ...]) -> Callable[[Array, Array], Array]:
    def share(x: Array, out: Array) -> Array:
        kept = tuple(d for d in range(x.ndim) if d not in reduced)
        chosen = lax.eq(x, lax.broadcast_in_dim(out, x.shape, kept)).astype(x.dtype)
        count = lax.reduce_sum(chosen, reduced)
        return chosen / lax.broadcast_in_dim(count, x.shape, kept)

    return share


@defrule("reduce_prod")
def _reduce_prod(site: Site, i: int, k: int) -> list[Piece]:
    """The product of all other entries, exact where some are zero."""
    del i, k
    others = _products_of_others(tuple(site.params["axes"]))
    return _weighted(site, Local("prod of others", others, (site.value(0),), site.shape(0)))


#: Products of up to so many factors are written out where two derivatives are taken.
MAX_FACTORS = 8


def rewritten_product(
    name: str, params: dict[str, Any], operand: Variable | None, orders: int
) -> Rewritten | None:
    """What stands in the place of a product of a few factors, None for all else.

    As multiplications, each factor meets its own columns only: of factors that depend on different
    inputs these are disjoint, and no second derivative is taken of the cumulative products.

    Args:
        name: of the primitive.
        params: its parameters.
        operand: its operand.
        orders: how often it is differentiated.
    """
    if name != "reduce_prod" or orders < 2 or operand is None:
        return None
    reduced = tuple(params["axes"])
    count = math.prod(operand.shape[d] for d in reduced)
    return Rewritten(_multiplied(reduced)) if 0 < count <= MAX_FACTORS else None


@lru_cache(maxsize=256)
def _multiplied(reduced: tuple[int, ...]) -> Callable[[Array], list[Array]]:
    def product(x: Array) -> list[Array]:
        factors = []
        for place in itertools.product(*(range(x.shape[d]) for d in reduced)):
            factor = x
            for d, k in zip(reduced, place, strict=True):
                factor = lax.slice_in_dim(factor, k, k + 1, axis=d)
            factors.append(lax.squeeze(factor, reduced))
        while len(factors) > 1:
            odd = factors[len(factors) & ~1 :]
            factors = [*map(lax.mul, factors[:-1:2], factors[1::2]), *odd]
        return factors

    return product


@lru_cache(maxsize=256)
def _products_of_others(reduced: tuple[int, ...]) -> Callable[[Array], Array]:
    def others(x: Array) -> Array:
        kept = tuple(d for d in range(x.ndim) if d not in reduced)
        order = (*kept, *reduced)
        moved = lax.transpose(x, order)
        count = math.prod(x.shape[d] for d in reduced)
        flat = lax.reshape(moved, (*(x.shape[d] for d in kept), count))
        axis = len(kept)
        ones = lax.slice_in_dim(lax.full_like(flat, 1), 0, min(1, count), axis=axis)
        before = lax.cumprod(flat, axis=axis)
        after = lax.cumprod(flat, axis=axis, reverse=True)
        before = lax.concatenate([ones, lax.slice_in_dim(before, 0, count - 1, axis=axis)], axis)
        after = lax.concatenate([lax.slice_in_dim(after, 1, count, axis=axis), ones], axis)
        product = lax.reshape(lax.mul(before, after), moved.shape)
        return lax.transpose(product, [order.index(d) for d in range(x.ndim)])

    return others


def _weighted(site: Site, reference: Local) -> list[Piece]:
    """A reduction whose inputs count with a weight each."""
    shape = site.shape(0)
    axes = axes_of(len(shape))
    out = [a for d, a in enumerate(axes) if d not in site.params["axes"]]
    return site.piece(shape, out, axes, [site.factor(reference, axes, shape)])


#: Cumulative sums up to this length keep their triangle; longer ones their linear-time form.
MAX_TRIANGLE = 16


@defrule("cumsum")
def _cumsum(site: Site, i: int, k: int) -> list[Piece]:
    """Every input counts once in all outputs that follow it."""
    axis, shape = site.params["axis"], site.out_shape
    length = shape[axis]
    if length > MAX_TRIANGLE:
        return _cumulative(site, i, k)
    later, earlier = np.tril_indices(length)
    if site.params["reverse"]:
        later, earlier = earlier, later
    sizes = [len(later) if d == axis else size for d, size in enumerate(shape)]
    out, into = axes_of(len(shape)), axes_of(len(shape))
    out[axis], into[axis] = from_values(axis, later), from_values(axis, earlier)
    return site.piece(sizes, out, into)


@defrule("cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(site: Site, i: int, k: int) -> list[Piece]:
    """A triangle along one axis, by JAX's own linear-time derivative; diagonal along all others."""
    axis, rank = site.params["axis"], len(site.out_shape)
    others = [d for d in range(rank) if d != axis]
    ordered = (rank + axis, axis) if site.params["reverse"] else (axis, rank + axis)
    return site.opaque(i, k, others, others, limits=[not_before(*ordered)])


@defrule("sort")
def _sort(site: Site, i: int, k: int) -> list[Piece]:
    """A permutation along one axis, the same for every operand."""
    if i != k:
        return []
    axis = site.params["dimension"]
    others = [d for d in range(len(site.out_shape)) if d != axis]
    return site.opaque(i, k, others, others)
