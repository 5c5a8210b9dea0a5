"""Limits that no inequality says: a boolean table over several labels.

The map of a branch that is `sin(x)` on one side and `roll(x)` on the other has entries on two
diagonals. No index map is negative exactly elsewhere, so a term may have, among its limits, a table
of where it has entries. It stands wherever an index map does: its value is zero where there may be
an entry, and minus one elsewhere. A sum over a label joins all that is known along it, which is the
boolean product of two patterns.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import numpy as np

from .maps import IndexMap, label
from .values import immutable, lazy

__all__ = ["MAX_MASK", "Limit", "Mask", "either", "joined", "pattern_mask", "tabulated"]

#: Largest table (entries) that is kept.
MAX_MASK = 1 << 18
#: Largest box of labels (assignments) over which several limits are read together.
MAX_BOX = 1 << 20


class _Marks:
    """A static boolean array that is hashable by content."""

    __slots__ = ("_digest", "_hash", "some", "values", "whole")

    def __init__(self, values: np.ndarray):
        self.values = np.array(values, dtype=bool)
        self.values.setflags(write=False)
        self.whole, self.some = bool(self.values.all()), bool(self.values.any())
        packed = hashlib.blake2b(np.packbits(self.values).tobytes(), digest_size=16)
        self._digest = (self.values.shape, packed.digest())
        self._hash = hash(self._digest)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Marks) and self._digest == other._digest


@immutable
class Mask:
    """A static table of where a term has entries, read through index maps as a factor is.

    Attributes:
        axes: an index map per dimension of the table; beyond the table there is no entry.
        marks: the table.
    """

    axes: tuple[IndexMap, ...]
    marks: _Marks

    @lazy
    def labels(self) -> tuple[int, ...]:
        """The labels that the mask depends on, ascending."""
        return tuple(sorted({name for axis in self.axes for name in axis.labels}))

    def stride(self, name: int) -> int | None:
        """As of an index map: 0 where the label is absent, None where it goes through a table."""
        return None if name in self.labels else 0

    def bounds(self, sizes: Mapping[int, int]) -> tuple[int, int]:
        """Bounds of its values."""
        del sizes
        return 0 if self.marks.whole else -1, 0 if self.marks.some else -1

    def there(self, order: Sequence[int], sizes: Mapping[int, int]) -> np.ndarray:
        """Whether there may be entries, over the box of the labels in `order`."""
        table = self.marks.values
        inside = np.ones((1,) * len(order), bool)
        places = []
        for axis, extent in zip(self.axes, table.shape, strict=True):
            place = axis.evaluate(order, sizes)
            if place.min() < 0 or place.max() >= extent:
                inside = inside & (place >= 0) & (place < extent)
                place = np.clip(place, 0, extent - 1)
            places.append(place)
        found: np.ndarray = inside & table[tuple(places)]
        return found

    def evaluate(self, order: Sequence[int], sizes: Mapping[int, int]) -> np.ndarray:
        """Zero where there may be entries and minus one elsewhere, over the box of the labels."""
        return self.there(order, sizes).astype(np.int64) - 1

    def renamed(self, names: Mapping[int, int]) -> Mask:
        """The same mask with labels renamed, of which two may become one."""
        return Mask(tuple(axis.renamed(names) for axis in self.axes), self.marks)

    def substituted(self, name: int, expression: IndexMap, sizes: Mapping[int, int]) -> Mask | None:
        """Replace a label; None where that has no closed form, as of an index map."""
        if name not in self.labels:
            return self
        axes = []
        for axis in self.axes:
            moved = axis.substituted(name, expression, sizes)
            if moved is None:
                return None
            axes.append(moved)
        return Mask(tuple(axes), self.marks)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.marks.values.shape))
        return f"{int(self.marks.values.sum())} of {shape} at [{', '.join(map(repr, self.axes))}]"


#: What a term may know of where it is zero: where an index map is negative, or a mask says so.
Limit = IndexMap | Mask


def pattern_mask(pattern: np.ndarray) -> Mask:
    """The mask of a pattern with a label per dimension."""
    return Mask(tuple(label(d) for d in range(pattern.ndim)), _Marks(pattern))


def joined(
    limits: Sequence[Limit], sizes: Mapping[int, int], summed: int | None = None
) -> list[Limit]:
    """What some limits say together, as one mask; of a label that is summed over, after the sum.

    Args:
        limits: they hold all at once.
        sizes: of their labels.
        summed: a label that a sum has been taken over.

    Returns:
        One mask, or none where it would be too large or says nothing.
    """
    names = sorted({name for limit in limits for name in limit.labels})
    box = math.prod(sizes[name] for name in names)
    kept = [name for name in names if name != summed]
    if box > MAX_BOX or math.prod(sizes[name] for name in kept) > MAX_MASK:
        return []
    there = np.ones([sizes[name] for name in names], bool)
    for limit in limits:
        there &= limit.evaluate(names, sizes) >= 0
    if summed in names:
        there = np.asarray(there.any(axis=names.index(summed)))
    if there.all():
        return []
    return [pattern_mask(there).renamed(dict(enumerate(kept)))]


def either(
    cases: Sequence[Sequence[Limit]], sizes: Mapping[int, int], shared: Sequence[Limit]
) -> list[Limit]:
    """What holds where the limits of one case or those of another hold, beyond those of all.

    Args:
        cases: for each the limits that hold at once.
        sizes: of the labels.
        shared: limits that are in all cases.

    Returns:
        One mask, or none where it would be too large or says no more.
    """
    own = [[limit for limit in limits if limit not in shared] for limits in cases]
    names = sorted({name for limits in own for limit in limits for name in limit.labels})
    if not all(own) or math.prod(sizes[name] for name in names) > MAX_MASK:
        return []
    there = np.zeros([sizes[name] for name in names], bool)
    for limits in own:
        case = np.ones(there.shape, bool)
        for limit in limits:
            case &= limit.evaluate(names, sizes) >= 0
        there |= case
    return [] if there.all() else [pattern_mask(there).renamed(dict(enumerate(names)))]


def tabulated(limits: Sequence[Limit], sizes: Mapping[int, int]) -> list[Limit]:
    """The same limits with at most one mask for each set of labels, over plain labels.

    Masks that are too large for it, and those that say nothing, are left out.
    """
    groups: dict[tuple[int, ...], list[Limit]] = {}
    for limit in limits:
        if isinstance(limit, Mask):
            groups.setdefault(limit.labels, []).append(limit)
    kept: list[Limit] = [limit for limit in limits if isinstance(limit, IndexMap)]
    for names, masks in groups.items():
        plain = tuple(map(label, names))
        (first, *rest) = masks
        assert isinstance(first, Mask)
        extents = tuple(sizes[name] for name in names)
        if not rest and first.axes == plain and first.marks.values.shape == extents:
            kept += [] if first.marks.whole else [first]
        else:
            kept += joined(masks, sizes)
    return kept
