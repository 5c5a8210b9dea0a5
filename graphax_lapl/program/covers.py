"""Covers: masks outside of which an array is zero, and how they are read.

A cover is a union of masks, each read over the labels of a product or the axes of a slot. Sums and
products carry covers along: products have those of all factors, sums what covers all summands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..edges.maps import IndexMap, constant

__all__ = ["Cover", "View", "exact_first", "joined", "moved"]

#: A cover is the union of so many masks at most.
MAX_UNION = 4


@dataclass(frozen=True)
class View:
    """How the mask in a slot is read: one map per axis, over labels (or a slot's axes).

    None stands for any position of an axis: a sum is zero where the mask of its summands is zero
    all along what is summed.
    """

    slot: int
    axes: tuple[IndexMap | None, ...]


#: Masks at least one of which is one wherever a slot is not zero.
Cover = frozenset[View]


def moved(cover: Cover, places: Mapping[int, IndexMap], sizes: Mapping[int, int]) -> Cover:
    """A cover with its labels replaced; an axis whose labels have no place is read anywhere."""

    def replaced(axis: IndexMap | None) -> IndexMap | None:
        if axis is None:
            return None
        total = constant(axis.offset)
        for name, part in axis.parts:
            if name not in places or not _is_within(part, places[name], sizes):
                return None
            step = IndexMap(0, ((name, part),)).substituted(name, places[name], sizes)
            if step is None:
                return None
            total = total.plus(step, sizes)
        return total

    return frozenset(View(view.slot, tuple(replaced(axis) for axis in view.axes)) for view in cover)


def exact_first(covers: Iterable[Cover]) -> list[Cover]:
    """Covers without repetition, those first that leave fewer axes open."""

    def count(cover: Cover) -> int:
        return sum(view.axes.count(None) for view in cover)

    return sorted(dict.fromkeys(covers), key=count)


def _is_within(part: Any, read: IndexMap, sizes: Mapping[int, int]) -> bool:
    """Whether a table is read at its entries alone; beside an array a factor is zero."""
    if isinstance(part, int):
        return True
    positions = read.evaluate(sorted(read.labels), sizes)
    return bool(positions.min() >= 0 and positions.max() < len(part.values))


def joined(known: Sequence[Sequence[Cover]]) -> list[Cover]:
    """What covers a sum: what covers all summands, else a union of what covers each."""
    if not all(known):
        return []
    shared = [cover for cover in known[0] if all(cover in own for own in known[1:])]
    if shared:
        return shared
    union = frozenset().union(*[own[0] for own in known])
    return [union] if len(union) <= MAX_UNION else []
