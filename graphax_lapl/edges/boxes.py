"""Boxes of labels: half-open intervals, one per label."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .values import immutable, lazy

__all__ = ["Box", "bounding", "difference", "intersect"]


@immutable
class Box:
    """All labels with `starts <= label < ends`."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @lazy
    def extents(self) -> tuple[int, ...]:
        """Number of values of each label."""
        return tuple([end - start for start, end in zip(self.starts, self.ends, strict=True)])

    @property
    def volume(self) -> int:
        """Number of assignments."""
        return math.prod(self.extents)

    def side(self, name: int) -> tuple[int, int]:
        """The interval of one label."""
        return self.starts[name], self.ends[name]


def bounding(first: Box, second: Box) -> Box:
    """The smallest box that holds both."""
    return Box(
        tuple(map(min, first.starts, second.starts)), tuple(map(max, first.ends, second.ends))
    )


def intersect(first: Box, second: Box) -> Box | None:
    """What two boxes share, None where they share nothing."""
    shared = Box(
        tuple(map(max, first.starts, second.starts)), tuple(map(min, first.ends, second.ends))
    )
    return shared if min(shared.extents, default=1) > 0 else None


def difference(boxes: Iterable[Box], removed: Box) -> list[Box]:
    """Disjoint boxes that make up what is left of disjoint `boxes` without `removed`."""
    left: list[Box] = []
    for box in boxes:
        shared = intersect(box, removed)
        if shared is None:
            left.append(box)
            continue
        starts, ends = list(box.starts), list(box.ends)
        for n, (low, high) in enumerate(zip(shared.starts, shared.ends, strict=True)):
            if starts[n] < low:
                left.append(Box(tuple(starts), (*ends[:n], low, *ends[n + 1 :])))
            if high < ends[n]:
                left.append(Box((*starts[:n], high, *starts[n + 1 :]), tuple(ends)))
            starts[n], ends[n] = low, high
    return left
