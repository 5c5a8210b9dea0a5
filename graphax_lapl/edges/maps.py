"""Index maps: how the labels of a term select a position along one dimension.

A map is `offset + sum(part(label))`, where each part is a stride times the label or a static
table looked up at the label. The plain case is one label with stride one and offset zero. Maps
are values: immutable, hashable, and known while planning.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter

import numpy as np

from .values import immutable, lazy

__all__ = ["IndexMap", "Part", "Table", "constant", "from_values", "label", "renamed"]


class Table:
    """A static one-dimensional integer array that is hashable by content."""

    __slots__ = ("_digest", "_hash", "values")

    def __init__(self, values: np.ndarray):
        """Keep a read-only copy of `values` (any integer dtype, shape `(n,)`)."""
        self.values = np.array(values, dtype=np.int64)
        self.values.setflags(write=False)
        self._digest = hashlib.blake2b(self.values.tobytes(), digest_size=16).digest()
        self._hash = hash(self._digest)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self._digest == other._digest

    def __repr__(self) -> str:
        head = ", ".join(map(str, self.values[:4]))
        return f"[{head}{', ...' if len(self.values) > 4 else ''}]"


Part = int | Table
_name = itemgetter(0)


@immutable
class IndexMap:
    """`offset + sum(parts)`: an integer for every assignment of the labels.

    Attributes:
        offset: the position when every stride part is zero.
        parts: `(label, stride or table)` pairs, sorted by label, each label once, no zero stride.
    """

    offset: int
    parts: tuple[tuple[int, Part], ...]

    @lazy
    def labels(self) -> tuple[int, ...]:
        """The labels that the map depends on."""
        return tuple([name for name, _ in self.parts])

    @lazy
    def is_affine(self) -> bool:
        """Whether no part is a table."""
        return all(isinstance(part, int) for _, part in self.parts)

    @lazy
    def is_label(self) -> bool:
        """Whether the map is one label, as it is."""
        return self.offset == 0 and len(self.parts) == 1 and self.parts[0][1] == 1

    def stride(self, name: int) -> int | None:
        """The stride of label `name`: 0 where absent, None where it goes through a table."""
        for other, part in self.parts:
            if other == name:
                return part if isinstance(part, int) else None
        return 0

    def is_plain(self, size: int, sizes: Mapping[int, int] | Sequence[int]) -> bool:
        """Whether the map is a single label that runs over a whole dimension of `size`."""
        return (
            self.offset == 0
            and len(self.parts) == 1
            and self.parts[0][1] == 1
            and sizes[self.parts[0][0]] == size
        )

    def bounds(self, sizes: Mapping[int, int] | Sequence[int]) -> tuple[int, int]:
        """The smallest and largest position over the box of labels (which must not be empty)."""
        if self.is_label:
            return 0, sizes[self.parts[0][0]] - 1
        low = high = self.offset
        for name, part in self.parts:
            if isinstance(part, int):
                reach = part * (sizes[name] - 1)
                low, high = low + min(reach, 0), high + max(reach, 0)
            else:
                low, high = low + int(part.values.min()), high + int(part.values.max())
        return low, high

    def evaluate(self, order: Sequence[int], sizes: Mapping[int, int]) -> np.ndarray:
        """Positions over the box of the labels in `order`, of size one where one is absent."""
        total = np.full((1,) * len(order), self.offset, dtype=np.int64)
        for name, part in self.parts:
            values = np.arange(sizes[name]) * part if isinstance(part, int) else part.values
            shape = [1] * len(order)
            shape[order.index(name)] = sizes[name]
            total = total + values.reshape(shape)
        return total

    def renamed(self, names: Mapping[int, int]) -> IndexMap:
        """The same map with labels renamed; labels not in `names` keep theirs.

        Raises:
            ValueError: where two labels would become one.
        """
        if len(self.parts) < 2:
            return renamed((self,), names)[0]
        parts = [(names.get(n, n), p) for n, p in self.parts]
        parts.sort(key=_name)
        if any(one[0] == other[0] for one, other in itertools.pairwise(parts)):
            raise ValueError(f"labels of {self} renamed to one: {names}")
        new = tuple(parts)
        return self if new == self.parts else IndexMap(self.offset, new)

    def shifted(self, amount: int) -> IndexMap:
        """The map plus a constant."""
        return IndexMap(self.offset + amount, self.parts) if amount else self

    def scaled(self, factor: int) -> IndexMap:
        """The map times a constant."""
        if factor == 1:
            return self
        if factor == 0:
            return constant(0)
        return IndexMap(
            self.offset * factor,
            tuple(
                (n, p * factor if isinstance(p, int) else Table(p.values * factor))
                for n, p in self.parts
            ),
        )

    def plus(self, other: IndexMap, sizes: Mapping[int, int]) -> IndexMap:
        """The sum of two maps; `sizes` are needed where a label has a stride and a table."""
        if not other.parts:
            return self.shifted(other.offset)
        if not self.parts:
            return other.shifted(self.offset)
        merged: dict[int, Part] = dict(self.parts)
        for name, part in other.parts:
            merged[name] = _add_parts(merged[name], part, sizes[name]) if name in merged else part
        return _normal(self.offset + other.offset, merged.items())

    def substituted(
        self, name: int, expression: IndexMap, sizes: Mapping[int, int]
    ) -> IndexMap | None:
        """Replace label `name` by `expression` (over other labels).

        Returns None where the label goes through a table and the expression has more than one
        label, which has no closed form. `sizes` are those of the expression's labels.
        """
        if name not in self.labels:
            return self
        part = dict(self.parts)[name]
        if len(self.parts) == 1 and isinstance(part, int):
            return expression.scaled(part).shifted(self.offset)
        rest = IndexMap(self.offset, tuple([item for item in self.parts if item[0] != name]))
        if isinstance(part, int):
            return rest.plus(expression.scaled(part), sizes)
        if not expression.parts:
            return rest.shifted(int(part.values[expression.offset]))
        if len(expression.parts) > 1:
            return None
        inner = expression.labels[0]
        looked_up = part.values[expression.evaluate([inner], sizes)]
        return rest.plus(from_values(inner, looked_up), sizes)

    def __repr__(self) -> str:
        words = [
            (f"{p}*" if p != 1 else "") + f"l{n}" if isinstance(p, int) else f"{p!r}[l{n}]"
            for n, p in self.parts
        ]
        if self.offset or not words:
            words.append(str(self.offset))
        return "+".join(words)


@lru_cache(maxsize=4096)
def constant(position: int) -> IndexMap:
    """The map that always selects `position`."""
    return IndexMap(int(position), ())


@lru_cache(maxsize=4096)
def label(name: int, stride: int = 1, offset: int = 0) -> IndexMap:
    """The affine map `offset + stride * label`."""
    return IndexMap(int(offset), ((name, int(stride)),)) if stride else constant(offset)


def renamed(axes: Iterable[IndexMap], names: Mapping[int, int]) -> list[IndexMap]:
    """Several maps with labels renamed, see `IndexMap.renamed`."""
    found = []
    for axis in axes:
        parts = axis.parts
        if len(parts) == 1:
            ((name, part),) = parts
            new = names.get(name, name)
            if new != name and isinstance(part, int):
                axis = label(new, part, axis.offset)
            elif new != name:
                axis = IndexMap(axis.offset, ((new, part),))
        elif parts:
            axis = axis.renamed(names)
        found.append(axis)
    return found


def from_values(name: int, values: np.ndarray) -> IndexMap:
    """The map of one label that takes the given `values`, affine where they are."""
    values = np.asarray(values, dtype=np.int64)
    if len(values) == 1:
        return constant(int(values[0]))
    steps = np.diff(values)
    if len(values) and (steps == steps[0]).all():
        return label(name, int(steps[0]), int(values[0]))
    return IndexMap(0, ((name, Table(values)),))


def _add_parts(first: Part, second: Part, size: int) -> Part:
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    arrays = [np.arange(size) * p if isinstance(p, int) else p.values for p in (first, second)]
    return Table(arrays[0] + arrays[1])


def _normal(offset: int, parts: Iterable[tuple[int, Part]]) -> IndexMap:
    kept: list[tuple[int, Part]] = []
    for name, part in sorted(parts, key=_name):
        if isinstance(part, Table):
            affine = from_values(name, part.values)
            offset += affine.offset
            kept.extend(affine.parts)
        elif part:
            kept.append((name, part))
    return IndexMap(offset, tuple(kept))
