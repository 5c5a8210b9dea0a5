"""Values in coordinate order: reads from the concatenated terms, layer by layer.

One gather from one concatenation is a single fused pass, split between threads, and for long
results faster than interleaving the terms by padding, stacking, transposing or strided updates
(about 0.4, 0.7, 0.9 and 0.5 of its speed was measured on a tridiagonal matrix of 10^5 rows). For
shorter ones stacking the terms as columns is about twice as fast (10^4 rows). Every element of the
result evaluates its own producers, so a `cosh` that three terms share would be evaluated three
times as often; programs hold such arrays (`emit.holding`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.layout import Layer, Placement, coordinate_layout
from ..edges.runs import Run
from ..edges.terms import Structure
from .arrays import promoted
from .holding import held
from .placed import ADDED, ENTRIES

__all__ = ["MAX_GATHERED", "gathered_dense", "is_gathered", "placed"]

#: Up to so many entries are interleaved where the layout allows it; XLA splits larger gathers
#: between threads, and does not gain by splitting an interleaving loop.
MAX_INTERLEAVED = 5 << 13

#: Layers of up to so many entries are read whole: a scatter is a kernel of its own.
MAX_PASS = 1 << 11

#: Matrices of up to so many numbers, in at least so many terms, are read entry by entry.
MAX_GATHERED = 1 << 14
MIN_GATHERED_TERMS = 4
#: Larger ones of which at most one number in so many is an entry are zeros with entries set.
SPARSE = 16


def is_gathered(structure: Structure) -> bool:
    """Whether a dense matrix is better made of its entries than written term by term.

    So it is where many terms would each pass over a matrix that is mostly zero.
    """
    terms = sum(1 for term in structure.terms if term.position_labels)
    if terms < MIN_GATHERED_TERMS:
        return False
    if structure.size > MAX_GATHERED:
        few = SPARSE * sum(term.entries for term in structure.terms) <= structure.size
        return few and structure.size < 2**31  # positions are numbers of 32 bits
    return 2 * len(coordinate_layout(structure).indices) <= structure.size


def gathered_dense(
    structure: Structure, how: Placement, arrays: Sequence[Array], dtype: Any
) -> Array:
    """The dense array, axes (output..., input...), from the entries that `how` makes of arrays."""
    layout = coordinate_layout(structure)
    shape = (*structure.out_shape, *structure.in_shape)
    places = np.ravel_multi_index(tuple(layout.indices.T), shape)
    entries = placed(how, arrays, dtype)
    if structure.size > MAX_GATHERED:
        dense = lax.scatter(
            jnp.zeros((structure.size,), entries.dtype),
            places.astype(np.int32)[:, None],
            entries,
            ADDED,
            indices_are_sorted=bool((np.diff(places) > 0).all()),
            unique_indices=True,
            mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
        )
        return lax.reshape(dense, shape)
    reads = np.full(structure.size, len(places), np.int32)
    reads[places] = np.arange(len(places))
    padded = lax.concatenate([entries, jnp.zeros((1,), entries.dtype)], 0)
    return lax.reshape(_read(padded, reads), shape)


def placed(how: Placement, values: Sequence[Array], dtype: Any) -> Array:
    """The entries that a placement makes from arrays.

    Args:
        how: the placement; it counts the elements of all arrays one after the other.
        values: the arrays, read in C order.
        dtype: dtype of the result.

    Returns:
        Array of shape `(how.count,)`.
    """
    if not how.layers or not how.count:
        return jnp.zeros((how.count,), dtype)
    flat = [lax.reshape(value, (math.prod(value.shape),)) for value in promoted(values)]
    if len(how.layers) == 1 and _is_interleaved(how.layers[0], how.count):
        whole = _interleaved(how.layers[0], flat)
        return whole if whole.dtype == dtype else lax.convert_element_type(whole, dtype)
    joined = lax.concatenate(flat, 0) if len(flat) > 1 else flat[0]
    if len(how.layers) > 1 and len(flat) > 1:
        joined = held(joined)
    total: Array | None = None
    for layer in how.layers:
        part = _layer(layer, joined, how.count)
        if total is None:
            total = part
        elif layer.unique:
            total = lax.add(total, part)
        else:
            total = _scatter_add(total, layer, joined)
    assert total is not None
    return total if total.dtype == dtype else lax.convert_element_type(total, dtype)


def _is_interleaved(layer: Layer, count: int) -> bool:
    """Whether a layer is written stretch by stretch.

    A single sequence is copied whatever its length (a band on a ring, 5 x 10^4 entries: 20 us
    instead of 64), and columns of one number cost next to nothing.
    """
    moving = sum(
        run.rows * sum(step != 0 for _, step in run.columns)
        for run in layer.runs
        if len(run.columns) > 1
    )
    return bool(layer.runs) and (count <= MAX_INTERLEAVED or 2 * moving <= MAX_INTERLEAVED)


def _interleaved(layer: Layer, pieces: Sequence[Array]) -> Array:
    """The entries of a layer, stretch by stretch, columns side by side."""
    ends = np.cumsum([piece.shape[0] for piece in pieces])
    parts = []
    for run in layer.runs:
        if not run.columns:
            parts.append(_gathered(pieces, ends, layer.reads[run.first : run.last]))
            continue
        blocks = [_block(pieces, ends, *column, run.rows, width) for column, width in _abreast(run)]
        side_by_side = lax.concatenate(blocks, 1) if len(blocks) > 1 else blocks[0]
        parts.append(lax.reshape(side_by_side, (run.last - run.first,)))
    return lax.concatenate(parts, 0) if len(parts) > 1 else parts[0]


def _abreast(run: Run) -> list[tuple[tuple[int, int], int]]:
    """Columns that lie side by side in what they are read from: the first of them, how many.

    XLA fuses a concatenation of few operands only, and a block of an array is one.
    """
    found: list[tuple[tuple[int, int], int]] = []
    for start, step in run.columns:
        if found:
            (first, own), width = found[-1]
            if (start, step) == (first + width, own) and width < step:
                found[-1] = (first, own), width + 1
                continue
        found.append(((start, step), 1))
    return found


def _block(
    pieces: Sequence[Array], ends: np.ndarray, start: int, step: int, count: int, width: int
) -> Array:
    """Positions `start + step * k + l` of the joined pieces, for each l < width a column."""
    piece, other = np.searchsorted(ends, [start, start + step * (count - 1) + width - 1], "right")
    if piece == other and width > 1:
        begin = start - (int(ends[piece]) - pieces[piece].shape[0])
        missing = max(0, begin + step * count - pieces[piece].shape[0])
        whole = pieces[piece]
        if missing:  # the last row ends before the next would begin
            whole = lax.pad(whole, np.zeros((), whole.dtype), [(0, missing, 0)])
        rows = lax.reshape(lax.slice(whole, (begin,), (begin + step * count,)), (count, step))
        return lax.slice_in_dim(rows, 0, width, axis=1)
    columns = [_sequence(pieces, ends, start + k, step, count) for k in range(width)]
    columns = [lax.expand_dims(column, (1,)) for column in columns]
    return lax.concatenate(columns, 1) if width > 1 else columns[0]


def _sequence(
    pieces: Sequence[Array], ends: np.ndarray, start: int, step: int, count: int
) -> Array:
    """Positions `start + step * k` of the joined pieces."""
    last = start + step * (count - 1)
    piece, other = np.searchsorted(ends, [start, last], side="right")
    if piece != other or step < 0:
        return _gathered(pieces, ends, start + step * np.arange(count))
    begin = start - (int(ends[piece]) - pieces[piece].shape[0])
    if step == 0:
        return lax.broadcast_in_dim(
            lax.slice(pieces[piece], (begin,), (begin + 1,)), (count,), (0,)
        )
    return lax.slice(pieces[piece], (begin,), (begin + last - start + 1,), (step,))


def _gathered(pieces: Sequence[Array], ends: np.ndarray, reads: np.ndarray) -> Array:
    """Positions of the joined pieces, of each only the stretch that is read."""
    owners = np.searchsorted(ends, reads, side="right")
    parts, moved, total = [], np.zeros(len(reads), np.int32), 0
    for owner in np.unique(owners):
        here = owners == owner
        low, high = int(reads[here].min()), int(reads[here].max()) + 1
        begin = low - (int(ends[owner]) - pieces[owner].shape[0])
        parts.append(lax.slice(pieces[owner], (begin,), (begin + high - low,)))
        moved[here] = reads[here] - low + total
        total += high - low
    return _read(lax.concatenate(parts, 0) if len(parts) > 1 else parts[0], moved)


def _layer(layer: Layer, joined: Array, count: int) -> Array:
    """An array of `count` entries, zero where the layer has none."""
    if layer.entries is None:
        return _read(joined, layer.reads)
    first, size = int(layer.entries[0]), len(layer.entries)
    if int(layer.entries[-1]) - first + 1 == size:
        values = _read(joined, layer.reads)
        return lax.pad(values, np.zeros((), values.dtype), [(first, count - first - size, 0)])
    # A whole pass of reads, those without a value from an appended zero.
    if count <= MAX_PASS or 2 * size >= count:
        reads = np.full(count, joined.shape[0], layer.reads.dtype)
        reads[layer.entries] = layer.reads
        return _read(lax.concatenate([joined, jnp.zeros((1,), joined.dtype)], 0), reads)
    return _scatter_add(jnp.zeros((count,), joined.dtype), layer, joined)


def _read(joined: Array, reads: np.ndarray) -> Array:
    first, size = int(reads[0]), len(reads)
    if (reads == np.arange(first, first + size)).all():
        return joined if size == joined.shape[0] else lax.slice(joined, (first,), (first + size,))
    return lax.gather(
        joined, reads[:, None], ENTRIES, (1,), mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS
    )


def _scatter_add(base: Array, layer: Layer, joined: Array) -> Array:
    assert layer.entries is not None
    return lax.scatter_add(
        base,
        layer.entries[:, None],
        _read(joined, layer.reads),
        ADDED,
        indices_are_sorted=True,
        unique_indices=layer.unique,
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )
