"""Terms in parts of a matrix that lie beside each other, written part by part.

Padded into place and added up, all of them are asked for at every entry, and the kernel that reads
the sum branches for each of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import Array, lax

from ..edges.terms import Term
from .arrays import promoted

__all__ = ["beside_each_other"]

#: Most parts: XLA writes each operand of a longer concatenation to memory.
MAX_PARTS = 8

#: A term and the arrays of its factors.
Item = tuple[Term, Sequence[Array]]
#: Where a part begins and ends along a dimension, and its terms, counted from there.
Part = tuple[int, int, list[Item]]


def beside_each_other(
    items: Sequence[Item],
    shape: tuple[int, ...],
    written: Callable[[Sequence[Item], tuple[int, ...]], Array],
) -> Array | None:
    """The array of terms, part by part along a dimension; None where they are not so.

    Args:
        items: the terms with their operands.
        shape: of the array, (output..., input...).
        written: the array of some terms in a matrix of some shape.
    """
    found = [(_parts(items, shape[d], d), d) for d in range(len(shape))]
    parts, along = max(found, key=lambda item: len(item[0]), default=([], 0))
    if not 1 < len(parts) <= MAX_PARTS:
        return None
    arrays = [written(own, _with(shape, along, high - low)) for low, high, own in parts]
    pieces, reached = [], 0
    for (low, high, _), array in zip(parts, promoted(arrays), strict=True):
        if low > reached:
            pieces.append(jnp.zeros(_with(shape, along, low - reached), array.dtype))
        pieces.append(array)
        reached = high
    if shape[along] > reached:
        pieces.append(jnp.zeros(_with(shape, along, shape[along] - reached), pieces[0].dtype))
    return lax.concatenate(pieces, along)


def _parts(items: Sequence[Item], extent: int, dimension: int) -> list[Part]:
    """The terms in parts that lie apart along a dimension; none where that is not known of all."""
    found: list[Part] = []
    for term, operands in items:
        axis = (*term.out, *term.into)[dimension]
        if not axis.is_affine:
            return []
        low, high = axis.bounds(term.sizes)
        if low < 0 or high >= extent:
            return []
        found.append((low, high + 1, [(term, operands)]))
    joined: list[Part] = []
    for low, high, own in sorted(found, key=lambda part: part[0]):
        if joined and low < joined[-1][1]:
            begin, end, others = joined[-1]
            joined[-1] = begin, max(end, high), others + own
        else:
            joined.append((low, high, own))
    return [
        (low, high, [(_shifted(term, dimension, -low), operands) for term, operands in own])
        for low, high, own in joined
    ]


def _shifted(term: Term, dimension: int, by: int) -> Term:
    """A term at other positions along a dimension."""
    maps = [*term.out, *term.into]
    maps[dimension] = maps[dimension].shifted(by)
    split = len(term.out)
    return dataclasses.replace(term, out=tuple(maps[:split]), into=tuple(maps[split:]))


def _with(shape: tuple[int, ...], dimension: int, extent: int) -> tuple[int, ...]:
    return (*shape[:dimension], extent, *shape[dimension + 1 :])
