"""Writing values side by side and over each other: the values of joined terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.operations import Overlay
from .arrays import broadcast_labels, promoted, promoted_dtype, scaled
from .holding import linear_barrier
from .packing import FUSED, MAX_PACKED, packed

__all__ = ["Box", "Patch", "apart", "filled", "overlay"]

#: More entries are in memory before they are packed. A concatenation branches for each operand, and
#: LLVM compiles what several are made of for each: 30 seconds for 130 entries of a circuit's
#: Hessian, 2 without.
MAX_UNWRITTEN = 32


@dataclass(eq=False)
class Box:
    """Where something stands: the first positions, and those behind the last ones."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(eq=False)
class Patch(Box):
    """An array in its box."""

    value: Array


Boxed = TypeVar("Boxed", bound=Box)


def overlay(operation: Overlay, operands: Sequence[Array], dtype: np.dtype) -> Array:
    """Evaluate one overlay of a program; `dtype` where no operand says it."""
    output = tuple(name for name, _ in operation.sizes)
    kinds = [value.dtype for value in operands] or [np.dtype(dtype)]
    if any(isinstance(p.coefficient, complex) for p in operation.patches):
        kinds.append(np.dtype(np.complex64))
    kind = promoted_dtype(*kinds)
    moving = iter(operands)
    patches = []
    for patch in operation.patches:
        if patch.labels is None:
            value = jnp.full(patch.extents, np.asarray(patch.coefficient).astype(kind))
        else:
            sizes = dict(zip(output, patch.extents, strict=True))
            value = scaled(next(moving), patch.coefficient)
            if value.dtype != kind:
                value = lax.convert_element_type(value, kind)
            value = broadcast_labels(value, patch.labels, output, sizes)
        ends = tuple(s + e for s, e in zip(patch.starts, patch.extents, strict=True))
        patches.append(Patch(patch.starts, ends, value))
    return filled(patches, (0,) * len(output), operation.shape)


def filled(patches: list[Patch], starts: tuple[int, ...], ends: tuple[int, ...]) -> Array:
    """The sum of patches over the box from `starts` to `ends`.

    Patches apart from each other along some axis are concatenated; only those that overlap are
    padded and added. Of many that overlap, single entries are packed.
    """
    patches = _same_boxes_added(patches)
    if len(patches) == 1:
        return _padded(patches[0], starts, ends)
    for axis in range(len(starts)):
        clusters = apart(patches, axis)
        if len(clusters) == 1:
            continue
        pieces, reached = [], starts[axis]
        for cluster in clusters:
            low = min(p.starts[axis] for p in cluster)
            high = max(p.ends[axis] for p in cluster)
            if low > reached:
                pieces.append(_zeros(cluster[0].value.dtype, starts, ends, axis, low - reached))
            pieces.append(filled(cluster, _with(starts, axis, low), _with(ends, axis, high)))
            reached = high
        if reached < ends[axis]:
            kind = patches[0].value.dtype
            pieces.append(_zeros(kind, starts, ends, axis, ends[axis] - reached))
        return lax.concatenate(pieces, axis)
    if len(patches) > FUSED:
        patches = _entries_packed(patches, starts, ends)
    total = _padded(patches[0], starts, ends)
    for patch in patches[1:]:
        total = lax.add(total, _padded(patch, starts, ends))
    return total


def _entries_packed(
    patches: list[Patch], starts: tuple[int, ...], ends: tuple[int, ...]
) -> list[Patch]:
    """The patches, those of one entry as one: each of a sum is a branch in every entry of it."""
    entries = [patch for patch in patches if patch.value.size == 1]
    shape = [end - start for start, end in zip(starts, ends, strict=True)]
    if len(entries) <= FUSED or math.prod(shape) > MAX_PACKED:
        return patches
    numbers: dict[int, Array] = {}
    for patch in entries:
        own = [k - start for k, start in zip(patch.starts, starts, strict=True)]
        value = lax.reshape(patch.value, ())
        place = int(np.ravel_multi_index(own, shape))
        numbers[place] = linear_barrier(value) if len(entries) > MAX_UNWRITTEN else value
    whole = packed({place: numbers[place] for place in sorted(numbers)}, math.prod(shape))
    rest = [patch for patch in patches if patch.value.size != 1]
    return [*rest, Patch(starts, ends, lax.reshape(whole, shape))]


def _same_boxes_added(patches: list[Patch]) -> list[Patch]:
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], Patch] = {}
    for patch in patches:
        box = (patch.starts, patch.ends)
        if box in found:
            total = lax.add(*promoted([found[box].value, patch.value]))
            patch = Patch(patch.starts, patch.ends, total)
        found[box] = patch
    return list(found.values())


def apart(boxes: Sequence[Boxed], axis: int) -> list[list[Boxed]]:
    """Clusters of boxes that do not overlap along an axis, in order."""
    clusters: list[list[Boxed]] = []
    reached = -1
    for box in sorted(boxes, key=lambda box: box.starts[axis]):
        if clusters and box.starts[axis] < reached:
            clusters[-1].append(box)
        else:
            clusters.append([box])
        reached = max(reached, box.ends[axis])
    return clusters


def _padded(patch: Patch, starts: tuple[int, ...], ends: tuple[int, ...]) -> Array:
    config = [
        (own - start, end - own_end, 0)
        for own, start, own_end, end in zip(patch.starts, starts, patch.ends, ends, strict=True)
    ]
    if all(entry == (0, 0, 0) for entry in config):
        return patch.value
    return lax.pad(patch.value, np.zeros((), patch.value.dtype), config)


def _zeros(
    kind: np.dtype, starts: tuple[int, ...], ends: tuple[int, ...], axis: int, count: int
) -> Array:
    shape = [end - start for start, end in zip(starts, ends, strict=True)]
    shape[axis] = count
    return jnp.zeros(shape, kind)


def _with(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])
