"""Reductions over axes, and cumulative ones along an axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from jax import Array, lax

from ..edges.maps import from_values
from .registry import defrule
from .site import Local, Piece, Site, axes_of, not_before

__all__ = ["weighted"]


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
    return weighted(
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


def weighted(site: Site, reference: Local) -> list[Piece]:
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
