"""A term under construction: labels may be replaced, equations may still be open.

Composition, addition and contraction work on drafts and turn them into canonical terms at the
end. A draft refers to its factors' values by *operands* (small integers given by the recipe that
is being written), a finished term by position.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .maps import IndexMap, Part, constant, from_values, label, renamed
from .masks import Limit, Mask, joined, tabulated
from .terms import Factor, Number, Term

__all__ = ["Draft", "DraftFactor", "storage_order"]


@dataclass(eq=False)
class DraftFactor:
    """A factor together with the operand that holds its values."""

    operand: int
    factor: Factor

    @property
    def labels(self) -> frozenset[int]:
        """Labels that the factor depends on."""
        return self.factor.labels


@dataclass(eq=False)
class Draft:
    """A mutable term.

    `equations` are maps that must be zero for an assignment to count; `limits` as in a term;
    `extents` those of the matrix (output..., input...), where they are known.
    """

    sizes: dict[int, int]
    out: list[IndexMap]
    into: list[IndexMap]
    factors: list[DraftFactor]
    coefficient: Number = 1
    conj: bool = False
    equations: list[IndexMap] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    extents: tuple[int, ...] = ()

    @classmethod
    def of(cls, term: Term, operands: list[int], first_label: int = 0) -> Draft:
        """A draft of a finished term, with labels numbered from `first_label`."""
        if first_label:
            term = term.moved(tuple(range(first_label, first_label + len(term.sizes))))
        return cls(
            dict(enumerate(term.sizes, first_label)),
            list(term.out),
            list(term.into),
            [DraftFactor(operand, f) for operand, f in zip(operands, term.factors, strict=True)],
            term.coefficient,
            term.conj,
            limits=list(term.limits),
        )

    def copy(self) -> Draft:
        """An independent draft with the same contents."""
        return Draft(
            dict(self.sizes),
            list(self.out),
            list(self.into),
            [DraftFactor(f.operand, f.factor) for f in self.factors],
            self.coefficient,
            self.conj,
            list(self.equations),
            list(self.limits),
            self.extents,
        )

    @property
    def position_labels(self) -> set[int]:
        """Labels that occur in output or input maps."""
        return {name for axis in (*self.out, *self.into) for name, _ in axis.parts}

    def storage_order(self, labels: Collection[int]) -> tuple[int, ...]:
        """Labels as the axes of a product, see `storage_order`."""
        return storage_order(self.out, self.into, labels)

    def fresh(self, size: int) -> int:
        """Add a new label of `size`."""
        name = max(self.sizes, default=-1) + 1
        self.sizes[name] = size
        return name

    def bind(self, name: int, expression: IndexMap) -> bool:
        """Replace label `name` by `expression` everywhere and forget it.

        Returns False, leaving the draft as it was, where a table would need a joint label.
        """
        sizes = self.sizes

        def replaced(axes: list[IndexMap] | tuple[IndexMap, ...]) -> list[IndexMap] | None:
            result = []
            for axis in axes:
                new = axis.substituted(name, expression, sizes)
                if new is None:
                    return None
                result.append(new)
            return result

        out, into, equations = replaced(self.out), replaced(self.into), replaced(self.equations)
        if out is None or into is None or equations is None:
            return False
        factors = []
        for item in self.factors:
            if name in item.labels:
                axes = replaced(item.factor.axes)
                if axes is None:
                    return False
                item = DraftFactor(item.operand, item.factor.read(axes))
            factors.append(item)
        self.out, self.into, self.equations, self.factors = out, into, equations, factors
        if self.limits:
            limits = (limit.substituted(name, expression, sizes) for limit in self.limits)
            self.limits = [limit for limit in limits if limit is not None]
        del self.sizes[name]
        return True

    def forget(self, name: int) -> None:
        """Drop a label that has been summed over, with what limits say of it.

        Of two limits in which it has opposite signs a sum without it stays: from `a - k` and
        `k - b`, the limits of a product of triangles, `a - b`. Of masks their boolean product does.
        """
        if not self.limits:
            del self.sizes[name]
            return
        kept = [limit for limit in self.limits if name not in limit.labels]
        held = [limit for limit in self.limits if name in limit.labels]
        strides = [(limit, limit.stride(name)) for limit in held if isinstance(limit, IndexMap)]
        for above, up in strides:
            for below, down in strides:
                if up and down and up > 0 > down:
                    kept.append(above.scaled(-down).plus(below.scaled(up), self.sizes))
        if len(strides) < len(held):
            kept += joined(held, self.sizes, name)
        self.limits = list(dict.fromkeys(kept))
        del self.sizes[name]

    def restrict(self, name: int, low: int, size: int) -> None:
        """Keep only the values `low <= label < low + size` of a label, renumbered from zero."""
        if low == 0 and size == self.sizes[name]:
            return
        new = self.fresh(size)
        if not self.bind(name, label(new, 1, low) if size != 1 else constant(low)):
            raise AssertionError("a label can always be shifted")
        if size == 1:
            del self.sizes[new]

    def trim(self) -> bool:
        """Cut labels down to what lies in the matrix and within limits; False if nothing does."""
        changed = True
        while changed:
            changed = False
            axes, extents = [*self.out, *self.into, *self.limits], [*self.extents]
            extents += (limit.bounds(self.sizes)[1] + 1 for limit in self.limits)
            for axis, extent in zip(axes, extents, strict=True):
                low, high = axis.bounds(self.sizes)
                if low >= 0 and high < extent:
                    continue
                if high < 0 or low >= extent:
                    return False
                for name, part in () if isinstance(axis, Mask) else axis.parts:
                    if not isinstance(part, int):
                        continue
                    # What label `name` must make up for, given the best of all others.
                    reach = part * (self.sizes[name] - 1)
                    others_high, others_low = high - max(reach, 0), low - min(reach, 0)
                    first, last = self._between(name, part, -others_high, extent - 1 - others_low)
                    if first > last:
                        return False
                    if (first, last) != (0, self.sizes[name] - 1):
                        self.restrict(name, first, last - first + 1)
                        changed = True
                        break
                if changed:
                    break
        return True

    def _between(self, name: int, stride: int, low: int, high: int) -> tuple[int, int]:
        """First and last value of a label with `low <= stride * label <= high`."""
        if stride < 0:
            stride, low, high = -stride, -high, -low
        return max(0, -(-low // stride)), min(self.sizes[name] - 1, high // stride)

    def finish(self) -> tuple[Term, list[int]] | None:
        """The canonical term and its operands, or None where it is structurally zero."""
        if self.coefficient == 0 or 0 in self.sizes.values():
            return None
        names, plain = self._survey()
        if len(names) < len(self.sizes) or 1 in self.sizes.values():
            self.drop_trivial_labels()
            names, plain = self._survey()
        if not plain:
            self._flip_labels()
            self._fuse_labels()
            names, _ = self._survey()
        return self._number_labels(names)

    def _survey(self) -> tuple[dict[int, int], bool]:
        """Labels numbered by first appearance, and whether each map is one that ascends."""
        axes = [*self.out, *self.into]
        for item in self.factors:
            axes += item.factor.axes
        names = _by_appearance(axes)
        for axis in axes:
            parts = axis.parts
            if parts and (len(parts) > 1 or (isinstance(parts[0][1], int) and parts[0][1] < 0)):
                return names, False
        return names, True

    def drop_trivial_labels(self) -> None:
        """Fold labels that select nothing into the coefficient, and labels of size one away."""
        if not self.sizes:
            return
        used = self.position_labels.union(*[f.factor.labels for f in self.factors])
        if len(used) == len(self.sizes) and 1 not in self.sizes.values():
            return
        for name, size in list(self.sizes.items()):
            if name not in used:
                self.coefficient = self.coefficient * size
                self.forget(name)
            elif size == 1:
                self.bind(name, constant(0))

    def _flip_labels(self) -> None:
        """Let every label ascend in the first map where it stands."""
        maps = [*self.out, *self.into]
        falling = {n for a in maps for n, part in a.parts if isinstance(part, int) and part < 0}
        for name in [name for name in self.sizes if name in falling]:
            for axis in (*self.out, *self.into):
                stride = axis.stride(name)
                if stride is None or stride > 0:
                    break
                if stride < 0:
                    new = self.fresh(self.sizes[name])
                    self.bind(name, label(new, -1, self.sizes[name] - 1))
                    break

    def _fuse_labels(self) -> None:
        """Join `a` and `b` to one label where they only occur as `size_b * a + b`."""
        maps = [*self.out, *self.into, *(a for f in self.factors for a in f.factor.axes)]
        multiple = {n for axis in maps if len(axis.parts) > 1 for n in axis.labels}
        if len(multiple) < 2:
            return
        for major in sorted(multiple):
            for minor in sorted(multiple):
                if major == minor or major not in self.sizes or minor not in self.sizes:
                    continue
                if all(self._fusible(axis, major, minor) for axis in maps):
                    size = self.sizes[minor]
                    fused = self.fresh(self.sizes[major] * size)
                    self.limits = self._limits_fused(major, minor, fused)
                    # The fused label takes over the minor label's strides; the major's parts
                    # are then implied by it and vanish.
                    self.bind(major, constant(0))
                    self.bind(minor, label(fused))
                    return self._fuse_labels()
        return None

    def _limits_fused(self, major: int, minor: int, fused: int) -> list[Limit]:
        """Limits that stay when two labels become one, masks over both of them already with it."""
        kept: list[Limit] = []
        digits = np.divmod(np.arange(self.sizes[fused]), self.sizes[minor])
        for limit in self.limits:
            if isinstance(limit, IndexMap):
                kept += [limit] if self._fusible(limit, major, minor) else []
                continue
            moved: Limit | None = limit
            for name, digit in zip((major, minor), digits, strict=True):
                moved = moved and moved.substituted(name, from_values(fused, digit), self.sizes)
            kept += [] if moved is None else [moved]
        return kept

    def _fusible(self, axis: IndexMap, major: int, minor: int) -> bool:
        first, second = axis.stride(major), axis.stride(minor)
        return first is not None and second is not None and first == second * self.sizes[minor]

    def _number_labels(self, names: Mapping[int, int]) -> tuple[Term, list[int]] | None:
        """The term with labels renamed so; None for zero."""
        limits = self._sharp_limits() if self.limits else []
        if limits and any([isinstance(lim, Mask) and not lim.marks.some for lim in limits]):
            return None
        factors = [f.factor for f in self.factors]
        out, into = self.out, self.into
        if [*names] != [*names.values()]:
            out, into = renamed(out, names), renamed(into, names)
            factors = [f.read(renamed(f.axes, names)) for f in factors]
            limits = [limit.renamed(names) for limit in limits]
        term = Term(
            tuple([self.sizes[name] for name in names]),
            tuple(out),
            tuple(into),
            tuple(factors),
            self.coefficient,
            self.conj,
            tuple(limits),
        )
        return term, [f.operand for f in self.factors]

    def _sharp_limits(self) -> list[Limit]:
        """Limits that say something of positions, the sharpest of those with the same parts."""
        sharp: dict[object, Limit] = {}
        if not self.factors:
            return []
        positions = self.position_labels
        said = [limit for limit in self.limits if positions.issuperset(limit.labels)]
        for limit in tabulated(said, self.sizes):
            if isinstance(limit, Mask):
                sharp[limit] = limit
            elif limit.bounds(self.sizes)[0] < 0:
                other = sharp.get(limit.parts, limit)
                assert isinstance(other, IndexMap)
                sharp[limit.parts] = limit if limit.offset <= other.offset else other
        return list(sharp.values())

    def box(self, names: frozenset[int] | set[int]) -> int:
        """Number of assignments of the given labels."""
        return math.prod(self.sizes[name] for name in names)


def storage_order(
    out: Sequence[IndexMap], into: Sequence[IndexMap], labels: Collection[int]
) -> tuple[int, ...]:
    """Labels as the axes of a product: shared by output and input, input's, output's.

    A matrix is stored with the input's axes first. Composing from the left contracts its last
    axis, composing from the right its first one; both are plain matrix products. Within a side
    the labels stand as the array's axes do, so that a gradient is not transposed at the end.
    """
    if len(labels) < 2:
        return tuple(labels)
    inner, outer = _by_appearance(into), _by_appearance(out)
    shared = [n for n in inner if n in labels and n in outer]
    inputs = [n for n in inner if n in labels and n not in outer]
    outputs = [n for n in outer if n in labels and n not in inner]
    rest = [n for n in labels if n not in inner and n not in outer]
    return (*shared, *inputs, *outputs, *sorted(rest))


def _by_appearance(axes: Iterable[IndexMap]) -> dict[int, int]:
    """Labels numbered by first appearance, large strides first within a map."""
    names: dict[int, int] = {}
    for axis in axes:
        parts: Sequence[tuple[int, Part]] = axis.parts
        if len(parts) > 1:
            parts = sorted(parts, key=lambda p: -abs(p[1]) if isinstance(p[1], int) else 0)
        for name, _ in parts:
            if name not in names:
                names[name] = len(names)
    return names
