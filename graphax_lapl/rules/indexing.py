"""Gather, scatter and dynamic slices.

Indices that are known while planning become static positions; those of a gather, and of the gather
that mirrors a scatter, are found in numpy (`gathered_positions`), which compiles nothing. Indices
that are only known at run time leave an opaque map, diagonal along untouched dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np
from jax import lax

from ..edges.maps import IndexMap, constant, from_values, label
from ..edges.terms import Factor
from .opaque import fallback
from .registry import defrule
from .site import Local, Piece, Site, axes_of

#: How starts outside an array may be treated where their positions are known.
MODES = (
    lax.GatherScatterMode.CLIP,
    lax.GatherScatterMode.FILL_OR_DROP,
    lax.GatherScatterMode.PROMISE_IN_BOUNDS,
)


@defrule("gather")
def _gather(site: Site, i: int, k: int) -> list[Piece]:
    """Each output entry reads one input entry, or the fill value."""
    indices = site.known(1)
    if indices is None or _too_large(site) or site.params["mode"] not in MODES:
        return site.opaque(i, k, *_whole_slices(site))
    numbers, sizes = site.params["dimension_numbers"], site.params["slice_sizes"]
    read = gathered_positions(site.shape(0), indices, numbers, sizes, site.params["mode"])
    return _placed(site, site.out_shape, read, site.shape(0))


@defrule("dynamic_slice")
def _dynamic_slice(site: Site, i: int, k: int) -> list[Piece]:
    """A slice whose start is moved inside the array."""
    starts = [site.known(j) for j in range(1, len(site.inputs))]
    shape, window = site.shape(0), site.out_shape
    if any(start is None for start in starts):
        whole = [d for d in range(len(shape)) if shape[d] == window[d]]
        return site.opaque(i, k, whole, whole)
    into = [label(d, 1, _clamped(start, shape[d] - window[d])) for d, start in enumerate(starts)]
    return site.piece(window, axes_of(len(window)), into)


@defrule("dynamic_update_slice")
def _dynamic_update_slice(site: Site, i: int, k: int) -> list[Piece]:
    """The update fills a box; the operand is kept around it."""
    starts = [site.known(j) for j in range(2, len(site.inputs))]
    shape, window = site.shape(0), site.shape(1)
    if any(start is None for start in starts):
        whole = [d for d in range(len(shape)) if shape[d] == window[d]]
        return site.opaque(i, k, whole, whole)
    first = [_clamped(start, shape[d] - window[d]) for d, start in enumerate(starts)]
    rank = len(shape)
    if i == 1:
        return site.piece(window, [label(d, 1, first[d]) for d in range(rank)], axes_of(rank))
    pieces: list[Piece] = []
    for d in range(rank):  # outside along d, inside along all dimensions before it
        for start, size in ((0, first[d]), (first[d] + window[d], shape[d] - first[d] - window[d])):
            sizes = [*window[:d], size, *shape[d + 1 :]]
            axes = [label(e, 1, first[e]) for e in range(d)]
            axes += [label(d, 1, start), *axes_of(rank - d - 1, d + 1)]
            pieces += site.piece(sizes, axes, axes)
    return pieces


@defrule("scatter-add", "scatter_add", "scatter-sub", "scatter_sub")
def _scatter_add(site: Site, i: int, k: int) -> list[Piece]:
    """The operand stays; each update is added to one entry, or dropped."""
    if i == 0:
        axes = axes_of(len(site.out_shape))
        return site.piece(site.out_shape, axes, axes)
    indices = site.known(1)
    if indices is None or _too_large(site) or site.params["mode"] not in MODES:
        return site.opaque(i, k)
    written = _written(site, indices)
    sign = -1 if "sub" in site.name else 1
    pieces = _placed(site, site.shape(2), written, site.shape(0), swapped=True, coefficient=sign)
    return pieces


@defrule("scatter-mul", "scatter_mul")
def _scatter_mul(site: Site, i: int, k: int) -> list[Piece]:
    """Each entry of the operand is multiplied by its updates; each update by its entry."""
    if i == 0:

        def multiplied(indices: jax.Array, updates: jax.Array) -> jax.Array:
            ones = lax.full(site.shape(0), 1, updates.dtype)
            params = site.equation.primitive.get_bind_params(site.params)
            return site.equation.primitive.bind(ones, indices, updates, **params)

        arguments = (site.value(1), site.value(2))
        return site.diagonal(0, site.local("products", multiplied, *arguments, shape=site.shape(0)))
    indices = site.known(1)
    plain = site.params["mode"] in MODES and site.params["unique_indices"]
    if indices is None or _too_large(site) or not plain:
        return fallback(site, i, k)
    written = _written(site, indices)
    pieces = []
    for piece in _placed(site, site.shape(2), written, site.shape(0), swapped=True):
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
    indices = site.known(1)
    if indices is None or _too_large(site) or site.params["mode"] not in MODES:
        return site.opaque(i, k)
    pieces = []
    written = _written(site, indices)
    for piece in _placed(site, site.shape(2), written, site.shape(0), swapped=True):
        factor = Factor(piece.term.into, site.shape(2))
        pieces.append(Piece(replace(piece.term, factors=(factor,)), (weights,)))
    return pieces


@defrule("scatter")
def _scatter(site: Site, i: int, k: int) -> list[Piece]:
    """The last update of an entry replaces it."""
    indices = site.known(1)
    if indices is None or _too_large(site):
        return site.opaque(i, k)
    updates = np.arange(math.prod(site.shape(2)), dtype=np.int32).reshape(site.shape(2))
    winner = np.asarray(
        _concrete(
            lambda: site.equation.primitive.bind(
                np.full(site.shape(0), -1, np.int32),
                indices,
                updates,
                **site.equation.primitive.get_bind_params(site.params),
            )
        )
    )
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


def _clamped(start: np.ndarray | None, limit: int) -> int:
    assert start is not None
    return int(np.clip(int(start), 0, limit))


def _too_large(site: Site) -> bool:
    return max(math.prod(t.shape) for t in (*site.inputs, *site.outputs)) >= 2**31


def _concrete(fun):  # type: ignore[no-untyped-def]
    with jax.ensure_compile_time_eval():
        return fun()


def gathered_positions(
    shape: Sequence[int],
    indices: np.ndarray,
    numbers: lax.GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    mode: lax.GatherScatterMode,
) -> np.ndarray:
    """For every entry of a gather's result the flat position that it reads; -1 for none.

    Slices of `slice_sizes` are read at the starts that `indices` holds along its last dimension.
    Starts outside the array are moved inside, or with FILL_OR_DROP the whole slice is left out.

    Args:
        shape: of the array.
        indices: the starts.
        numbers: which dimensions are which, as for `jax.lax.gather`.
        slice_sizes: of the slices, by dimension of the array.
        mode: one of `MODES`.
    """
    batch = indices.shape[:-1]
    starts = [np.zeros(batch, np.int64) for _ in shape]
    for column, d in enumerate(numbers.start_index_map):
        starts[d] = indices[..., column].astype(np.int64)
    for d, along in zip(
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
    ):
        own = [-1 if axis == along else 1 for axis in range(len(batch))]
        starts[d] = np.broadcast_to(np.arange(batch[along]).reshape(own), batch)
    limits = [size - width for size, width in zip(shape, slice_sizes, strict=True)]
    inside = np.ones(batch, bool)
    if mode == lax.GatherScatterMode.FILL_OR_DROP:
        for start, limit in zip(starts, limits, strict=True):
            inside &= (start >= 0) & (start <= limit)
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window = [d for d in range(len(shape)) if d not in dropped]
    flat = np.zeros((*batch, *(slice_sizes[d] for d in window)), np.int64)
    for d, (start, limit) in enumerate(zip(starts, limits, strict=True)):
        stride = math.prod(shape[d + 1 :])
        flat += np.clip(start, 0, limit).reshape((*batch, *(1 for _ in window))) * stride
        if d in window:
            after = len(window) - window.index(d) - 1
            flat += np.arange(slice_sizes[d]).reshape(-1, *(1 for _ in range(after))) * stride
    flat[~inside] = -1
    batches, windows = iter(range(len(batch))), iter(range(len(batch), flat.ndim))
    axes = [next(windows if d in numbers.offset_dims else batches) for d in range(flat.ndim)]
    return flat.transpose(axes)


def _written(site: Site, indices: np.ndarray) -> np.ndarray:
    """For every update of a scatter the flat position that it goes to; -1 where it is dropped.

    It is what the gather reads that mirrors the scatter.
    """
    numbers = site.params["dimension_numbers"]
    windows = iter(site.shape(2)[d] for d in numbers.update_window_dims)
    whole = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    mirrored = lax.GatherDimensionNumbers(
        offset_dims=tuple(numbers.update_window_dims),
        collapsed_slice_dims=tuple(numbers.inserted_window_dims),
        start_index_map=tuple(numbers.scatter_dims_to_operand_dims),
        operand_batching_dims=tuple(numbers.operand_batching_dims),
        start_indices_batching_dims=tuple(numbers.scatter_indices_batching_dims),
    )
    sizes = [1 if d in whole else next(windows) for d in range(len(site.shape(0)))]
    return gathered_positions(site.shape(0), indices, mirrored, sizes, site.params["mode"])


def _placed(
    site: Site,
    shape: Sequence[int],
    positions: np.ndarray,
    other_shape: Sequence[int],
    swapped: bool = False,
    coefficient: int = 1,
) -> list[Piece]:
    """The term that joins entry e of an array of `shape` to flat position `positions[e]`.

    Position coordinates that depend on one dimension of `shape` only, or on several additively,
    keep one label per dimension; the others share one label over their joint box.
    """
    if 0 in shape or 0 in other_shape:
        return []

    def piece(sizes: list[int], near: list[IndexMap], far: list[IndexMap]) -> list[Piece]:
        out, into = (far, near) if swapped else (near, far)
        return site.piece(sizes, out, into, coefficient=coefficient)

    if (positions < 0).any():
        places = np.nonzero(positions >= 0)
        if not len(places[0]):
            return []
        targets = np.unravel_index(positions[places], other_shape)
        return piece(
            [len(places[0])],
            [from_values(0, place) for place in places],
            [from_values(0, target) for target in targets],
        )
    rank = len(shape)
    coordinates = np.unravel_index(positions, other_shape)
    separable = [_separated(c) for c in coordinates]
    joint: set[int] = set()
    for coordinate, maps in zip(coordinates, separable, strict=True):
        if maps is None:
            joint |= {d for d in range(rank) if (coordinate != coordinate.take([0], axis=d)).any()}
    if not joint:
        return piece(list(shape), axes_of(rank), [m for m in separable if m is not None])
    together = sorted(joint)
    box = [shape[d] for d in together]
    digits = np.unravel_index(np.arange(math.prod(box)), box)
    near = axes_of(rank)
    sizes = list(shape)
    new = rank
    sizes.append(math.prod(box))
    for d, digit in zip(together, digits, strict=True):
        near[d] = from_values(new, digit)
    far: list[IndexMap] = []
    for coordinate in coordinates:
        moved = np.moveaxis(coordinate, together, range(len(together)))
        flat = moved.reshape(math.prod(box), *(shape[d] for d in range(rank) if d not in joint))
        maps = _separated(flat)
        if maps is None:
            return _every_entry(shape, coordinates, piece)
        names = {0: new, **dict(enumerate((d for d in range(rank) if d not in joint), start=1))}
        far.append(maps.renamed(names))
    used = [d for d in range(rank + 1) if d not in joint]
    names = {old: position for position, old in enumerate(used)}
    return piece(
        [sizes[d] for d in used],
        [axis.renamed(names) for axis in near],
        [axis.renamed(names) for axis in far],
    )


def _every_entry(shape, coordinates, piece) -> list[Piece]:  # type: ignore[no-untyped-def]
    """One label over all entries."""
    places = np.unravel_index(np.arange(math.prod(shape)), shape)
    return piece(
        [math.prod(shape)],
        [from_values(0, place) for place in places],
        [from_values(0, coordinate.ravel()) for coordinate in coordinates],
    )


def _separated(values: np.ndarray) -> IndexMap | None:
    """`values` as a sum of functions of one index each, None where that is not so."""
    origin = int(values.flat[0])
    sizes = dict(enumerate(values.shape))
    total = constant(origin)
    for d in range(values.ndim):
        line = values[(0,) * d + (slice(None),) + (0,) * (values.ndim - d - 1)] - origin
        if line.any():
            total = total.plus(from_values(d, line), sizes)
    if (total.evaluate(range(values.ndim), sizes) == values).all():
        return total
    return None


def _whole_slices(site: Site) -> tuple[list[int], list[int]]:
    """Dimensions of a gather's operand that are copied whole, and where they land."""
    numbers = site.params["dimension_numbers"]
    shape = site.shape(0)
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [d for d in range(len(shape)) if d not in gone]
    pairs = [
        (d, out)
        for d, out in zip(kept, numbers.offset_dims, strict=True)
        if site.params["slice_sizes"][d] == shape[d]
    ]
    return [d for d, _ in pairs], [out for _, out in pairs]
