"""Products of all entries along some axes.

A product is linear in each of its factors, whose partials are the products of all others. Where two
derivatives are taken, one half of the factors is multiplied with the other, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from jax import Array, lax

from ..graph.inline import Rewritten
from ..graph.listing import Variable
from .reduction import weighted
from .registry import defrule
from .site import Local, Piece, Site

__all__ = ["rewritten_product"]


@defrule("reduce_prod")
def _reduce_prod(site: Site, i: int, k: int) -> list[Piece]:
    """The product of all other entries, exact where some are zero."""
    del i, k
    others = _products_of_others(tuple(site.params["axes"]))
    return weighted(site, Local("prod of others", others, (site.value(0),), site.shape(0)))


#: Products of up to so many factors are written out where two derivatives are taken, and where each
#: second derivative is wanted, which are most of the square of their number.
MAX_FACTORS, MAX_FACTORS_OF_HESSIANS = 1024, 8


def rewritten_product(
    name: str, params: dict[str, Any], operand: Variable | None, orders: int, entries: bool
) -> Rewritten | None:
    """What stands in the place of a product of not very many factors, None for all else.

    As multiplications of halves, each factor meets its own columns only: of factors that depend on
    different inputs these are disjoint, and no second derivative is taken of cumulative products.

    Args:
        name: of the primitive.
        params: its parameters.
        operand: its operand.
        orders: how often it is differentiated.
        entries: whether all second derivatives are wanted, and not sums of them.
    """
    if name != "reduce_prod" or orders < 2 or operand is None:
        return None
    reduced = tuple(params["axes"])
    count = math.prod(operand.shape[d] for d in reduced)
    most = MAX_FACTORS_OF_HESSIANS if entries else MAX_FACTORS
    return Rewritten(_multiplied(reduced)) if 0 < count <= most else None


@lru_cache(maxsize=256)
def _multiplied(reduced: tuple[int, ...]) -> Callable[[Array], list[Array]]:
    def product(x: Array) -> list[Array]:
        kept = tuple(d for d in range(x.ndim) if d not in reduced)
        count = math.prod(x.shape[d] for d in reduced)
        half = lax.reshape(
            lax.transpose(x, (*reduced, *kept)), (count, *(x.shape[d] for d in kept))
        )
        single = []
        while count > 1:
            if count % 2:
                single.append(lax.index_in_dim(half, count - 1, 0, keepdims=False))
            count //= 2
            half = lax.mul(
                lax.slice_in_dim(half, 0, count), lax.slice_in_dim(half, count, 2 * count)
            )
        found = lax.squeeze(half, (0,))
        for factor in single:
            found = lax.mul(found, factor)
        return [found]

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
