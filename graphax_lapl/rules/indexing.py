"""Gather, scatter and dynamic slices.

Indices that are known while planning become static positions; those of a gather, and of the gather
that mirrors a scatter, are found in numpy (`positions.py`), which compiles nothing. Of indices that
are only known at run time, what values they may take decides (`reach.py`): few are a piece each,
many leave an opaque map, diagonal along untouched dimensions and zero where no index reaches. What
an assignment keeps of its operand is a diagonal of zeros and ones either way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.maps import from_values, label
from ..edges.terms import Factor
from ..graph.gathers import MODES, gathered_positions, mirrored_gather
from .opaque import fallback
from .positions import last_written, placed, written_positions
from .possible_values import Possible
from .reach import MAX_LISTED, Slices, box_choices, row_choices, weighted
from .registry import defrule
from .site import Local, Piece, Site, axes_of


@defrule("gather")
def _gather(site: Site, i: int, k: int) -> list[Piece]:
    """Each output entry reads one input entry, or the fill value."""
    numbers, sizes, mode = (
        site.params[name] for name in ("dimension_numbers", "slice_sizes", "mode")
    )
    if _too_large(site) or mode not in MODES:
        return site.opaque(i, k)
    indices, shape, out = site.settled(1), site.shape(0), site.out_shape
    if indices is not None:
        return placed(site, out, gathered_positions(shape, indices, numbers, sizes, mode), shape)
    batch = [d for d in range(len(out)) if d not in numbers.offset_dims]
    choices = row_choices(site, 1, site.outputs[0].dtype)
    if choices is not None and len(choices.there) * math.prod(out) <= MAX_LISTED:
        pieces = []
        for c, starts in enumerate(choices.starts):
            read = gathered_positions(shape, starts, numbers, sizes, mode)
            read[~_along(choices.there[c], out, batch)] = -1
            pieces += weighted(placed(site, out, read, shape), choices.weight, c, batch, True)
        return pieces
    pairs, slices = _slices(site, numbers, sizes, len(out), 0)
    return site.opaque(i, k, *pairs, limits=slices.limits())


@defrule("dynamic_slice")
def _dynamic_slice(site: Site, i: int, k: int) -> list[Piece]:
    """A slice whose start is moved inside the array."""
    shape, window = site.shape(0), site.out_shape
    rank, last = len(shape), [n - m for n, m in zip(shape, window, strict=True)]
    axes = axes_of(rank)
    choices = _box(site, 1, last)
    if choices is None:
        whole = [d for d in range(rank) if not last[d]]
        return site.opaque(i, k, whole, whole, limits=_box_slices(site, 1, rank, 0).limits())
    starts, weight = choices
    pieces = []
    for c, start in enumerate(starts):
        into = [label(d, 1, first) for d, first in enumerate(start)]
        own = site.piece(window, axes, into)
        pieces += own if weight is None else weighted(own, weight, c, (), True)
    return pieces


@defrule("dynamic_update_slice")
def _dynamic_update_slice(site: Site, i: int, k: int) -> list[Piece]:
    """The update fills a box; the operand is kept around it."""
    shape, window = site.shape(0), site.shape(1)
    rank, last = len(shape), [n - m for n, m in zip(shape, window, strict=True)]
    choices = _box(site, 2, last)
    if i == 0:
        return _around_box(site, choices)
    if choices is None:
        whole = [d for d in range(rank) if not last[d]]
        limits = _box_slices(site, 2, 0, rank).limits()
        return site.opaque(i, k, whole, whole, limits=limits)
    starts, weight = choices
    pieces = []
    for c, start in enumerate(starts):
        out = [label(d, 1, first) for d, first in enumerate(start)]
        own = site.piece(window, out, axes_of(rank))
        pieces += own if weight is None else weighted(own, weight, c, (), True)
    return pieces


def _around_box(site: Site, choices: tuple[np.ndarray, Local | None] | None) -> list[Piece]:
    """What is kept of an operand: all that no start overwrites, none of what all of them do."""
    shape, window = site.shape(0), site.shape(1)
    rank, last = len(shape), [n - m for n, m in zip(shape, window, strict=True)]
    low, high = [0] * rank, list(last)
    for d, limit in enumerate(last):
        possible = site.possible(2 + d)
        if possible is not None:
            low[d], high[d] = (int(np.clip(n, 0, limit)) for n in (possible.low, possible.high))
    box = [first + size - start for first, size, start in zip(low, window, high, strict=True)]
    sure = all(size > 0 for size in box)
    pieces: list[Piece] = []
    for d in range(rank if sure else 0):  # outside along d, inside along all dimensions before it
        for start, size in ((0, high[d]), (high[d] + box[d], shape[d] - high[d] - box[d])):
            sizes = [*box[:d], size, *shape[d + 1 :]]
            axes = [label(e, 1, high[e]) for e in range(d)]
            axes += [label(d, 1, start), *axes_of(rank - d - 1, d + 1)]
            pieces += site.piece(sizes, axes, axes)
    if not sure:
        pieces = site.piece(shape, axes_of(rank), axes_of(rank))
    if choices is not None and choices[1] is None:
        return pieces

    def kept(*starts: Array) -> Array:
        ones = lax.full(shape, 1, site.outputs[0].dtype)
        return lax.dynamic_update_slice(ones, lax.full(window, 0, ones.dtype), starts)

    arguments = tuple(site.value(2 + d) for d in range(rank))
    return _masked(pieces, Local("kept", kept, arguments, shape, "constant", True))


def _masked(pieces: Sequence[Piece], mask: Local) -> list[Piece]:
    """Pieces without factors, times a mask of the shape of the output."""
    return [
        Piece(replace(p.term, factors=(Factor(p.term.out, mask.shape),)), (mask,)) for p in pieces
    ]


def _box(site: Site, first: int, last: Sequence[int]) -> tuple[np.ndarray, Local | None] | None:
    """The few possible starts of a box inside an array, with their weights; None for many.

    Without weights where there is one only.
    """
    choices = box_choices(site, first, last, site.outputs[0].dtype)
    if choices is None:
        return None
    return choices.starts, choices.weight if len(choices.starts) > 1 else None


def _box_slices(site: Site, first: int, array: int, window: int) -> Slices:
    """The one slice of a dynamic slice; `array` and `window` number the first dimension of each."""
    shape = site.shape(0)
    rank = len(shape)
    sizes = site.out_shape if first == 1 else site.shape(1)
    starts = {d: p for d in range(rank) if (p := site.possible(first + d)) is not None}
    return Slices(
        shape, sizes, starts, False, range(array, array + rank), range(window, window + rank), ()
    )


@defrule("scatter-add", "scatter_add", "scatter-sub", "scatter_sub")
def _scatter_add(site: Site, i: int, k: int) -> list[Piece]:
    """The operand stays; each update is added to one entry, or dropped."""
    if i == 0:
        axes = axes_of(len(site.out_shape))
        return site.piece(site.out_shape, axes, axes)
    if _too_large(site) or site.params["mode"] not in MODES:
        return site.opaque(i, k)
    sign = -1 if "sub" in site.name else 1
    indices = site.settled(1)
    if indices is not None:
        return _updates(site, written_positions(site, indices), sign)
    choices = row_choices(site, 1, site.outputs[0].dtype)
    updates = site.shape(2)
    if choices is not None and len(choices.there) * math.prod(updates) <= MAX_LISTED:
        windows = site.params["dimension_numbers"].update_window_dims
        batch = [d for d in range(len(updates)) if d not in windows]
        pieces = []
        for c, starts in enumerate(choices.starts):
            written = written_positions(site, starts)
            written[~_along(choices.there[c], updates, batch)] = -1
            pieces += weighted(_updates(site, written, sign), choices.weight, c, batch, False)
        return pieces
    return _opaque_updates(site, k)


def _updates(site: Site, written: np.ndarray, coefficient: int = 1) -> list[Piece]:
    """Each update at the flat position that it is written to."""
    shapes = site.shape(2), site.shape(0)
    return placed(site, shapes[0], written, shapes[1], swapped=True, coefficient=coefficient)


def _opaque_updates(site: Site, k: int) -> list[Piece]:
    """What becomes of updates that are written nobody knows where, though not everywhere."""
    shape, rank = site.shape(0), len(site.shape(0))
    numbers, sizes = mirrored_gather(site.params["dimension_numbers"], shape, site.shape(2))
    (array, window), slices = _slices(site, numbers, sizes, 0, rank)
    return site.opaque(2, k, window, array, limits=slices.limits())


@defrule("scatter-mul", "scatter_mul")
def _scatter_mul(site: Site, i: int, k: int) -> list[Piece]:
    """Each entry of the operand is multiplied by its updates; each update by its entry."""
    indices = site.settled(1)
    if i == 0:

        def multiplied(updates: jax.Array, *given: jax.Array) -> jax.Array:
            ones = lax.full(site.shape(0), 1, updates.dtype)
            params = site.equation.primitive.get_bind_params(site.params)
            places = indices if indices is not None else given[0]
            return site.equation.primitive.bind(ones, places, updates, **params)

        arguments = (site.value(2), *([] if indices is not None else [site.value(1)]))
        return site.diagonal(0, site.local("products", multiplied, *arguments, shape=site.shape(0)))
    plain = site.params["mode"] in MODES and site.params["unique_indices"]
    if indices is None or _too_large(site) or not plain:
        return fallback(site, i, k)
    pieces = []
    for piece in _updates(site, written_positions(site, indices)):
        factor = Factor(piece.term.out, site.shape(0))
        pieces.append(Piece(replace(piece.term, factors=(factor,)), (site.value(0),)))
    return pieces


@defrule("scatter-min", "scatter_min", "scatter-max", "scatter_max")
def _scatter_extremum(site: Site, i: int, k: int) -> list[Piece]:
    """An entry is shared by what attains it: the operand's entry and its updates."""

    def shares(*values: jax.Array) -> jax.Array:
        def along(x: jax.Array) -> jax.Array:
            result: jax.Array = site.equation.evaluate(*values[:i], x, *values[i + 1 :])[k]
            return result

        # Each input stands in one entry at most, so a sum over outputs is its share there.
        out, pull = jax.vjp(along, values[i])
        return pull(lax.full_like(out, 1))[0]

    arguments = (site.value(0), site.value(1), site.value(2))
    weights = Local(f"d{site.name}", shares, arguments, site.shape(i), "constant")
    if i == 0:
        return site.diagonal(0, weights)
    if _too_large(site) or site.params["mode"] not in MODES:
        return site.opaque(i, k)
    indices = site.settled(1)
    if indices is None:
        return _opaque_updates(site, k)
    pieces = []
    for piece in _updates(site, written_positions(site, indices)):
        factor = Factor(piece.term.into, site.shape(2))
        pieces.append(Piece(replace(piece.term, factors=(factor,)), (weights,)))
    return pieces


@defrule("scatter")
def _scatter(site: Site, i: int, k: int) -> list[Piece]:
    """The last update of an entry replaces it."""
    if _too_large(site):
        return site.opaque(i, k)
    indices = site.settled(1)
    if indices is None:
        return _traced_scatter(site, i, k)
    winner = last_written(site, indices)
    places = np.nonzero(winner < 0 if i == 0 else winner >= 0)
    if not len(places[0]):
        return []
    if i == 0 and len(places[0]) == winner.size:
        axes = axes_of(winner.ndim)
        return site.piece(winner.shape, axes, axes)
    out = [from_values(0, place) for place in places]
    if i == 0:
        return site.piece([len(places[0])], out, out)
    sources = np.unravel_index(winner[places], site.shape(2)) if site.shape(2) else ()
    return site.piece([len(places[0])], out, [from_values(0, s) for s in sources])


def _traced_scatter(site: Site, i: int, k: int) -> list[Piece]:
    """An assignment at indices that are only known at run time."""
    shape, updates = site.shape(0), site.shape(2)
    dtype = site.outputs[0].dtype
    params = site.equation.primitive.get_bind_params(site.params)

    def winners(indices: Array) -> Array:
        """Number of the update that an entry holds; -1 for none."""
        numbers = lax.iota(np.int32, math.prod(updates)).reshape(updates)
        nobody = lax.full(shape, -1, np.int32)
        return site.equation.primitive.bind(nobody, indices, numbers, **params)

    if i == 0:

        def kept(indices: Array) -> Array:
            return (winners(indices) < 0).astype(dtype)

        return site.diagonal(0, Local("kept", kept, (site.value(1),), shape, "constant", True))
    if site.params["mode"] not in MODES:
        return site.opaque(i, k)
    choices = row_choices(site, 1, dtype)
    if choices is None or len(choices.there) * math.prod(updates) > MAX_LISTED:
        return _opaque_updates(site, k)
    windows = site.params["dimension_numbers"].update_window_dims
    batch = [d for d in range(len(updates)) if d not in windows]
    numbers = np.arange(math.prod(updates)).reshape(updates)
    pieces = []
    for c, starts in enumerate(choices.starts):
        written = written_positions(site, starts)
        written[~_along(choices.there[c], updates, batch)] = -1

        def remains(
            indices: Array, weight: Array, c: int = c, written: np.ndarray = written
        ) -> Array:
            held = winners(indices).reshape(-1)[jnp.asarray(np.maximum(written, 0))]
            own = lax.broadcast_in_dim(weight[c], updates, batch)
            return own * (held == jnp.asarray(numbers)).astype(dtype)

        local = Local(
            "remains", remains, (site.value(1), choices.weight), updates, "constant", True
        )
        for piece in _updates(site, written):
            factor = Factor(piece.term.into, updates)
            pieces.append(Piece(replace(piece.term, factors=(factor,)), (local,)))
    return pieces


def _along(there: np.ndarray, shape: Sequence[int], batch: Sequence[int]) -> np.ndarray:
    """An array of the given dimensions, repeated along the others of `shape`."""
    own = [shape[d] if d in batch else 1 for d in range(len(shape))]
    return np.broadcast_to(there.reshape(own), tuple(shape))


def _slices(
    site: Site, numbers: lax.GatherDimensionNumbers, sizes: Sequence[int], array: int, window: int
) -> tuple[tuple[list[int], list[int]], Slices]:
    """Slices that operand 1 says the starts of, and what is diagonal about them.

    Args:
        site: a gather or scatter.
        numbers: of the gather, or of the one that mirrors the scatter.
        sizes: of the slices.
        array: number of the array's first dimension in the map, its output's counted first.
        window: number of the slices' first dimension.

    Returns:
        Pairs of dimensions (of the array, of the slices) that are copied whole or run together, and
        the slices.
    """
    shape, possible = site.shape(0), site.possible(1)
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = dict(
        zip((d for d in range(len(shape)) if d not in gone), numbers.offset_dims, strict=True)
    )
    rank = len(site.shape(1)) - 1 + len(numbers.offset_dims)
    batch = [d for d in range(rank) if d not in numbers.offset_dims]
    pairs = {d: out for d, out in kept.items() if sizes[d] == shape[d]}
    for d, along in zip(
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
    ):
        pairs[d] = batch[along]
    starts: dict[int, Possible] = {}
    if possible is not None:
        columns = np.arange(possible.low.size).reshape(possible.shape)
        for column, d in enumerate(numbers.start_index_map):
            if d not in pairs:
                starts[d] = possible.taken(columns[..., column])
    return (list(pairs), list(pairs.values())), Slices(
        shape,
        sizes,
        starts,
        site.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP,
        range(array, array + len(shape)),
        [window + kept[d] if d in kept else None for d in range(len(shape))],
        [window + d for d in batch],
    )


def _too_large(site: Site) -> bool:
    return max(math.prod(t.shape) for t in (*site.inputs, *site.outputs)) >= 2**31
