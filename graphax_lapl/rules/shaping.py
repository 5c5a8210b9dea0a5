"""Primitives that only move entries: every partial is a term without factors."""

from __future__ import annotations

import itertools
import math

import numpy as np

from ..edges.boxes import Box, difference
from ..edges.maps import IndexMap, constant, from_values, label
from .registry import defrule
from .site import Piece, Site, axes_of


@defrule("broadcast_in_dim")
def _broadcast_in_dim(site: Site, i: int, k: int) -> list[Piece]:
    """Every output along a new or stretched dimension is the same input."""
    del i, k
    shape, source = site.out_shape, site.shape(0)
    axes = axes_of(len(shape))
    into = [
        constant(0) if source[d] == 1 else axes[dimension]
        for d, dimension in enumerate(site.params["broadcast_dimensions"])
    ]
    return site.piece(shape, axes, into)


@defrule("reshape")
def _reshape(site: Site, i: int, k: int) -> list[Piece]:
    """Both sides count through the same flat positions, in the digits of their shapes."""
    del i, k
    source, target = site.shape(0), site.out_shape
    if site.params.get("dimensions") is not None:
        source = tuple(source[d] for d in site.params["dimensions"])
    if math.prod(source) == 0:
        return []
    # Dimensions of size one stay at position zero; the others are cut into blocks that hold the
    # same number of elements on both sides.
    out, into = [constant(0)] * len(target), [constant(0)] * len(source)
    sizes: list[int] = []
    first = [d for d, size in enumerate(target) if size != 1]
    second = [d for d, size in enumerate(source) if size != 1]
    while first:
        block_out, block_in = [first.pop(0)], [second.pop(0)]
        while True:
            count_out = math.prod(target[d] for d in block_out)
            count_in = math.prod(source[d] for d in block_in)
            if count_out == count_in:
                break
            if count_out < count_in:
                block_out.append(first.pop(0))
            else:
                block_in.append(second.pop(0))
        maps_out, maps_in, digits = _segment(
            [target[d] for d in block_out], [source[d] for d in block_in], len(sizes)
        )
        for d, axis in zip(block_out, maps_out, strict=True):
            out[d] = axis
        for d, axis in zip(block_in, maps_in, strict=True):
            into[d] = axis
        sizes += digits
    if site.params.get("dimensions") is not None:
        unpermuted = list(into)
        for place, d in enumerate(site.params["dimensions"]):
            unpermuted[d] = into[place]
        into = unpermuted
    return site.piece(sizes, out, into)


def _segment(
    size_out: list[int], size_in: list[int], first: int
) -> tuple[list[IndexMap], list[IndexMap], list[int]]:
    """Maps of one block of dimensions with the same number of elements on both sides."""
    total = math.prod(size_out)
    strides_out, strides_in = _strides(size_out), _strides(size_in)
    breaks = sorted({total, *strides_out, *strides_in}, reverse=True)
    if all(a % b == 0 for a, b in itertools.pairwise(breaks)):
        sizes = [a // b for a, b in itertools.pairwise(breaks)]
        units = breaks[1:]
        return (
            [
                _digits(n, s, units, sizes, first)
                for n, s in zip(size_out, strides_out, strict=True)
            ],
            [_digits(n, s, units, sizes, first) for n, s in zip(size_in, strides_in, strict=True)],
            sizes,
        )
    flat = np.arange(total)
    return (
        [from_values(first, d) for d in np.unravel_index(flat, size_out)],
        [from_values(first, d) for d in np.unravel_index(flat, size_in)],
        [total],
    )


def _strides(sizes: list[int]) -> list[int]:
    return [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]


def _digits(size: int, stride: int, units: list[int], sizes: list[int], first: int) -> IndexMap:
    """The position along a dimension of `size` and flat `stride`, in mixed-radix digits."""
    parts = [
        (first + k, unit // stride)
        for k, unit in enumerate(units)
        if stride <= unit < stride * size and sizes[k] > 1
    ]
    return IndexMap(0, tuple(parts))


@defrule("squeeze")
def _squeeze(site: Site, i: int, k: int) -> list[Piece]:
    """Dimensions of size one go."""
    del i, k
    shape = site.shape(0)
    dropped = {d % len(shape) for d in site.params["dimensions"]}
    axes = axes_of(len(shape))
    return site.piece(shape, [a for d, a in enumerate(axes) if d not in dropped], axes)


@defrule("expand_dims")
def _expand_dims(site: Site, i: int, k: int) -> list[Piece]:
    """Dimensions of size one come."""
    del i, k
    shape = site.out_shape
    new = {d % len(shape) for d in site.params["dimensions"]}
    axes = axes_of(len(shape))
    return site.piece(shape, axes, [a for d, a in enumerate(axes) if d not in new])


@defrule("transpose")
def _transpose(site: Site, i: int, k: int) -> list[Piece]:
    """Output dimension d is input dimension permutation[d]."""
    del i, k
    shape = site.out_shape
    axes = axes_of(len(shape))
    into = list(axes)
    for d, source in enumerate(site.params["permutation"]):
        into[source] = axes[d]
    return site.piece(shape, axes, into)


@defrule("rev")
def _rev(site: Site, i: int, k: int) -> list[Piece]:
    """Positions count down along the reversed dimensions."""
    del i, k
    shape = site.out_shape
    axes = axes_of(len(shape))
    into = [
        label(d, -1, shape[d] - 1) if d in site.params["dimensions"] else axes[d]
        for d in range(len(shape))
    ]
    return site.piece(shape, axes, into)


@defrule("slice")
def _slice(site: Site, i: int, k: int) -> list[Piece]:
    """Input position start + stride * output position."""
    del i, k
    shape = site.out_shape
    strides = site.params["strides"] or (1,) * len(shape)
    into = [
        label(d, stride, start)
        for d, (start, stride) in enumerate(zip(site.params["start_indices"], strides, strict=True))
    ]
    return site.piece(shape, axes_of(len(shape)), into)


@defrule("pad")
def _pad(site: Site, i: int, k: int) -> list[Piece]:
    """The operand lands at low + (interior + 1) * position; the padding value everywhere else."""
    del k
    source, target = site.shape(0), site.out_shape
    config = site.params["padding_config"]
    sizes, out, into = [], [], []
    for d, (low, _, interior) in enumerate(config):
        step = interior + 1
        # Negative padding crops: keep the positions that land inside.
        first = max(0, -(low // step))
        last = min(source[d] - 1, (target[d] - 1 - low) // step)
        sizes.append(max(0, last - first + 1))
        out.append(label(d, step, low + step * first))
        into.append(label(d, 1, first))
    inside = site.piece(sizes, out, into)
    if i == 0:
        return inside
    whole = Box((0,) * len(target), target)
    if 0 in sizes:
        return _filled(site, whole)
    ends = (
        axis.bounds({d: size})[1] + 1 for d, (axis, size) in enumerate(zip(out, sizes, strict=True))
    )
    around = Box(tuple(axis.offset for axis in out), tuple(ends))
    border = [piece for box in difference([whole], around) for piece in _filled(site, box)]
    if all(interior == 0 for *_, interior in config):
        return border
    return border + _filled(site, around) + site.piece(sizes, out, [], coefficient=-1)


def _filled(site: Site, box: Box) -> list[Piece]:
    """One in a box of the output, for a scalar input."""
    return site.piece(box.extents, [label(d, 1, low) for d, low in enumerate(box.starts)], [])


@defrule("concatenate")
def _concatenate(site: Site, i: int, k: int) -> list[Piece]:
    """Operand i starts where the ones before it end."""
    del k
    dimension = site.params["dimension"]
    start = sum(site.shape(j)[dimension] for j in range(i))
    shape = site.shape(i)
    out = [label(d, 1, start if d == dimension else 0) for d in range(len(shape))]
    return site.piece(shape, out, axes_of(len(shape)))


@defrule("split")
def _split(site: Site, i: int, k: int) -> list[Piece]:
    """Output k starts where the ones before it end."""
    del i
    axis = site.params["axis"]
    start = sum(site.params["sizes"][:k])
    shape = site.outputs[k].shape
    into = [label(d, 1, start if d == axis else 0) for d in range(len(shape))]
    return site.piece(shape, axes_of(len(shape)), into)


@defrule("tile")
def _tile(site: Site, i: int, k: int) -> list[Piece]:
    """Output position repetition * size + input position."""
    del i, k
    source = site.shape(0)
    repeats = site.params["reps"]
    rank = len(source)
    out = [
        IndexMap(0, ((d, 1), (rank + d, size))) if repeats[d] > 1 else label(d)
        for d, size in enumerate(source)
    ]
    return site.piece((*source, *repeats), out, axes_of(rank))


@defrule(
    "copy",
    "reduce_precision",
    "name",
    "device_put",
    "optimization_barrier",
    "sharding_constraint",
    "layout_constraint",
    "mesh_cast",
    "reshard",
    "pvary",
    "pcast",
)
def _identity(site: Site, i: int, k: int) -> list[Piece]:
    """Output i is input i."""
    return _same(site, i) if i == k else []


def _same(site: Site, i: int) -> list[Piece]:
    axes = axes_of(len(site.shape(i)))
    return site.piece(site.shape(i), axes, axes)


@defrule("stack")
def _stack(site: Site, i: int, k: int) -> list[Piece]:
    """Operand i is position i of the new dimension."""
    del k
    axis = site.params["axis"]
    shape = site.shape(i)
    axes = axes_of(len(shape))
    return site.piece(shape, [*axes[:axis], constant(i), *axes[axis:]], axes)


@defrule("unstack")
def _unstack(site: Site, i: int, k: int) -> list[Piece]:
    """Output k is position k of the dimension that goes."""
    axis = site.params["axis"]
    shape = site.outputs[k].shape
    axes = axes_of(len(shape))
    return site.piece(shape, axes, [*axes[:axis], constant(k), *axes[axis:]])
