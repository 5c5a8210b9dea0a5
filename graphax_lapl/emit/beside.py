"""Terms in parts of a matrix that lie beside each other, written part by part.

Padded into place and added up, all of them are asked for at every entry, and the kernel that reads
the sum branches for each of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from jax import Array

from ..edges.terms import Term
from .arrays import promoted
from .overlay import Box, Patch, apart, filled

__all__ = ["beside_each_other"]

#: Most parts: XLA writes each operand of a longer concatenation to memory.
MAX_PARTS = 8

#: A term and the arrays of its factors.
Item = tuple[Term, Sequence[Array]]


def beside_each_other(
    items: Sequence[Item],
    shape: tuple[int, ...],
    written: Callable[[Sequence[Item], tuple[int, ...]], Array],
) -> Array | None:
    """The array of terms, each written in its box; None where these do not lie apart.

    Args:
        items: the terms with their operands.
        shape: of the array, (output..., input...).
        written: the array of some terms in a matrix of some shape.
    """
    boxes = [box for term, _ in items if (box := _box(term, shape)) is not None]
    parts = max((len(apart(boxes, axis)) for axis in range(len(shape))), default=0)
    if len(boxes) < len(items) or not 1 < parts <= MAX_PARTS:
        return None
    arrays = []
    for (term, operands), box in zip(items, boxes, strict=True):
        extents = [end - start for start, end in zip(box.starts, box.ends, strict=True)]
        arrays.append(written([(_within(term, box), operands)], tuple(extents)))
    patches = [
        Patch(box.starts, box.ends, array)
        for box, array in zip(boxes, promoted(arrays), strict=True)
    ]
    return filled(patches, (0,) * len(shape), shape)


def _box(term: Term, shape: tuple[int, ...]) -> Box | None:
    """Where a term stands; None where only a table tells, or it is cut off."""
    maps = (*term.out, *term.into)
    if not all(axis.is_affine for axis in maps):
        return None
    bounds = [axis.bounds(term.sizes) for axis in maps]
    if any(low < 0 or high >= n for (low, high), n in zip(bounds, shape, strict=True)):
        return None
    return Box(tuple(low for low, _ in bounds), tuple(high + 1 for _, high in bounds))


def _within(term: Term, box: Box) -> Term:
    """A term, counted from the first positions of its box."""
    maps = (*term.out, *term.into)
    moved = [axis.shifted(-start) for axis, start in zip(maps, box.starts, strict=True)]
    split = len(term.out)
    return dataclasses.replace(term, out=tuple(moved[:split]), into=tuple(moved[split:]))
