"""Placing entries of a dense array where only a table knows their positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.layout import MAX_LAYERS, term_positions
from ..edges.maps import IndexMap
from ..edges.terms import Term
from .arrays import broadcast_labels
from .gpu_batches import is_gpu

__all__ = ["placed_by_tables"]

#: Windows are gathered where there are at most so many times as many places as entries.
MAX_PLACES = 16
#: Numbers are on a GPU, in matrices of up to so many entries: 17 us instead of 175 where a hundred
#: thousand samples have 32 of 128 each (H100, H200).
MAX_NUMBERS = 1 << 14


def placed_by_tables(
    term: Term, values: Array, names: tuple[int, ...], shape: tuple[int, ...]
) -> Array:
    """One term whose entries stand where static tables say, as a dense array.

    The last dimensions, where a label of its own runs along each, are a window, which tables place
    as a whole: the features of a pair of nodes. Every place reads the few windows that stand there.
    A scatter goes number by number on one core; it is what is left where there are many more places
    than windows, or where tables place numbers. A GPU reads small matrices of numbers, too.

    Args:
        term: the term.
        values: the product of its factors.
        names: the labels of the axes of that product.
        shape: shape of the result.
    """
    window = _window(term, shape)
    reads_numbers = is_gpu() and math.prod(shape) <= MAX_NUMBERS
    table = _table(term, window, shape) if window or reads_numbers else None
    if table is None:
        return _scattered(term, values, names, shape)
    labels, target, reads = table
    sizes = dict(enumerate(term.sizes))
    extents = shape[len(shape) - len(window) :]
    rows = broadcast_labels(values, names, (*labels, *window), sizes)
    rows = lax.reshape(rows, (len(target), *extents))
    return lax.reshape(_gathered(rows, target, reads), shape)


def _window(term: Term, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Labels that run along the last dimensions from end to end, and along no other one."""
    maps: Sequence[IndexMap] = (*term.out, *term.into)
    found: tuple[int, ...] = ()
    for axis, extent in zip(reversed(maps), reversed(shape), strict=True):
        if len(axis.parts) != 1 or axis.offset:
            break
        ((name, stride),) = axis.parts
        alone = sum(name in other.labels for other in maps) == 1
        if extent == 1 or not alone or stride != 1 or term.sizes[name] != extent:
            break
        found = (name, *found)
    return found


def _table(
    term: Term, window: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], np.ndarray, np.ndarray] | None:
    """Where windows stand, None where that is no matter of a few reads for each place.

    Returns:
        The labels that count the windows; the place of each; for some layers and every place the
        window that stands there, -1 where there is none.
    """
    maps: Sequence[IndexMap] = (*term.out, *term.into)
    sizes = dict(enumerate(term.sizes))
    labels = tuple(sorted(term.position_labels - set(window)))
    target = np.zeros([sizes[name] for name in labels], np.int64)
    kept = len(shape) - len(window)
    for axis, extent in zip(maps[:kept], shape[:kept], strict=True):
        position = axis.evaluate(labels, sizes)
        if (position < 0).any() or (position >= extent).any():
            return None
        target = target * extent + position
    target = target.ravel()
    count = math.prod(shape[:kept])
    if count > MAX_PLACES * len(target):
        return None
    order = np.argsort(target, kind="stable")
    layer = np.arange(len(target)) - np.searchsorted(target[order], target[order])
    depth = int(layer.max(initial=0)) + 1
    if depth > MAX_LAYERS or count * depth > MAX_PLACES * len(target):
        return None
    reads = np.full((depth, count), -1)
    reads[layer, target[order]] = order
    return labels, target, reads


def _gathered(rows: Array, target: np.ndarray, reads: np.ndarray) -> Array:
    """The sum of rows at each place; its derivative is a scatter, whose transpose reads rows."""

    def scattered(rows: Array) -> Array:
        empty = jnp.zeros((reads.shape[1], *rows.shape[1:]), rows.dtype)
        return empty.at[target.astype(np.uint32)].add(
            rows, mode="promise_in_bounds", unique_indices=len(reads) == 1
        )

    @jax.custom_jvp
    def gathered(rows: Array) -> Array:
        layers = [_layer(rows, layer) for layer in reads]
        total = layers[0]
        for layer in layers[1:]:
            total = lax.add(total, layer)
        return total

    gathered.defjvp(lambda primals, tangents: (gathered(*primals), scattered(*tangents)))
    result: Array = gathered(rows)
    return result


def _layer(rows: Array, layer: np.ndarray) -> Array:
    # Unsigned, so that no kernel asks whether a place counts from the end.
    places = np.maximum(layer, 0).astype(np.uint32)
    found = rows.at[places].get(mode="promise_in_bounds")
    if (layer >= 0).all():
        return found
    there = lax.broadcast_in_dim(jnp.asarray(layer >= 0), found.shape, (0,))
    return lax.select(there, found, lax.full_like(found, 0))


def _scattered(term: Term, values: Array, names: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """All entries, number by number."""
    sizes = dict(enumerate(term.sizes))
    labels = tuple(sorted(term.position_labels))
    target, valid = term_positions(term, shape)
    chosen = np.flatnonzero(valid)
    spread = lax.reshape(broadcast_labels(values, names, labels, sizes), target.shape)
    if len(chosen) < len(target):
        spread = spread.at[chosen].get(mode="promise_in_bounds")
        target = target[chosen]
    dense = jnp.zeros(math.prod(shape), values.dtype)
    unique = len(np.unique(target)) == len(target)
    dense = dense.at[target].add(spread, mode="promise_in_bounds", unique_indices=unique)
    return lax.reshape(dense, shape)
