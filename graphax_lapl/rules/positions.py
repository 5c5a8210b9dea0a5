"""The terms that join entries to the positions that they read, or are written to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jax import lax

from ..edges.maps import IndexMap, constant, from_values
from ..graph.gathers import gathered_positions, mirrored_gather
from .site import Piece, Site, axes_of

__all__ = ["last_written", "placed", "separated", "written_positions"]


def written_positions(site: Site, indices: np.ndarray) -> np.ndarray:
    """For every update of a scatter the flat position that it goes to; -1 where it is dropped.

    It is what the gather reads that mirrors the scatter.
    """
    numbers, sizes = mirrored_gather(site.params["dimension_numbers"], site.shape(0), site.shape(2))
    return gathered_positions(site.shape(0), indices, numbers, sizes, site.params["mode"])


def last_written(site: Site, indices: np.ndarray) -> np.ndarray:
    """For every entry of a scatter's operand the number of the update that it holds; -1 for none.

    Slices are written in the order of their indices, so that the last one stays.
    """
    shape, updates = site.shape(0), site.shape(2)
    holder = np.full(math.prod(shape), -1, np.int64)
    if math.prod(updates):
        dimensions = site.params["dimension_numbers"]
        numbers, sizes = mirrored_gather(dimensions, shape, updates)
        mode = site.params["mode"]
        if mode != lax.GatherScatterMode.CLIP:
            mode = lax.GatherScatterMode.FILL_OR_DROP
        windows = dimensions.update_window_dims
        order = [*(d for d in range(len(updates)) if d not in windows), *windows]
        positions = gathered_positions(shape, indices, numbers, sizes, mode)
        written = positions.transpose(order).ravel()
        update = np.arange(written.size).reshape(updates).transpose(order).ravel()
        holder[written[written >= 0]] = update[written >= 0]
    return holder.reshape(shape)


def placed(
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
        places = np.nonzero(positions >= 0) if positions.ndim else ()
        if not places or not len(places[0]):
            return []
        targets = np.unravel_index(positions[places], other_shape)
        return piece(
            [len(places[0])],
            [from_values(0, place) for place in places],
            [from_values(0, target) for target in targets],
        )
    rank = len(shape)
    coordinates = np.unravel_index(positions, other_shape)
    separable = [separated(c) for c in coordinates]
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
        maps = separated(flat)
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


def _every_entry(
    shape: Sequence[int],
    coordinates: Sequence[np.ndarray],
    piece: Callable[[list[int], list[IndexMap], list[IndexMap]], list[Piece]],
) -> list[Piece]:
    """One label over all entries."""
    places = np.unravel_index(np.arange(math.prod(shape)), shape)
    return piece(
        [math.prod(shape)],
        [from_values(0, place) for place in places],
        [from_values(0, coordinate.ravel()) for coordinate in coordinates],
    )


def separated(values: np.ndarray) -> IndexMap | None:
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
