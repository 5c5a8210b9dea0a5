"""Parts of a function that treat the rows of some arrays independently of one another.

An energy is often a sum of one function per bond, angle, face or observation: affine maps (slices,
gathers, differences) lay out the operands of every row side by side, a function of few numbers is
applied to each, and the results are added up. In terms of the arrays at this *cut* the second
derivative is a small dense block per row. Found from structure alone: which dimensions hold the row
is known at the cut and followed through the equations, as for the bodies of loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ..edges.maps import IndexMap
from ..edges.terms import Structure
from ..graph.listing import Equation
from ..rules.bodies import partners
from ..rules.lowering import closure
from ..rules.registry import find_user_rule
from ..rules.second_order import SecondOrderGraph

__all__ = ["Rows", "rows_before"]

#: Where an array holds the row: a dimension, and what its position is divided by.
Place = tuple[int, int]

#: Most numbers of a row: so many products are taken at once.
MAX_WIDTH = 64


@dataclass(frozen=True)
class Rows:
    """A function of the rows of some arrays, summed.

    Attributes:
        moving: the variables at the cut.
        batch: for each of them the dimensions that hold the row, in one order.
        equations: what is done to them, up to the end.
        captured: other variables that these equations read.
        width: numbers per row.
        work: elements that the equations compute.
    """

    moving: tuple[int, ...]
    batch: tuple[tuple[int, ...], ...]
    equations: tuple[Equation, ...]
    captured: tuple[int, ...]
    width: int
    work: int


def rows_before(second: SecondOrderGraph, end: int) -> list[Rows] | None:
    """The parts that make up all of the second derivative of a scalar, None where there are none.

    Args:
        second: the graph of second order.
        end: variable of an output.
    """
    finder = _Finder(second, end)
    if second.listing.variables[end].shape or not finder.is_plain() or end in finder.affine:
        return None
    parts = finder.parts(finder.innermost_cut())
    cut = None if parts is None else finder.lifted(parts)
    return parts if cut is None else finder.parts(cut) or parts


class _Finder:
    """The vertices before an output, and what is linear in what."""

    def __init__(self, second: SecondOrderGraph, end: int):
        self.second, self.end = second, end
        self.listing = second.listing
        self.arrows: dict[tuple[int, int], Structure] = {
            pair: arrow.recipe.result
            for pair, arrow in second.arrows.items()
            if arrow.recipe.result is not None
        }
        self.before: dict[int, list[int]] = {}
        for u, v in self.arrows:
            self.before.setdefault(v, []).append(u)
        inside = closure([end], self.before)
        self.order = sorted(inside)
        self.after: dict[int, list[int]] = {v: [] for v in self.order}
        for u, v in self.arrows:
            if v in inside:
                self.after[u].append(v)
        self.curved = {v for v in self.order if second.curvatures.get(v)}
        self.affine: set[int] = set()
        for v in self.order:
            fixed = v not in self.curved and all(u in self.affine for u in self.before.get(v, ()))
            if v in second.inputs or fixed:
                self.affine.add(v)
        #: Vertices that the output is linear in, and that are linear in those before: rows may mix.
        self.loose: set[int] = set()
        for v in reversed(self.order):
            if v not in self.curved and all(w in self.loose for w in self.after[v]):
                self.loose.add(v)

    def is_plain(self) -> bool:
        """Whether differentiating the values as they are computed gives the derivative meant.

        Rules of users, and functions with their own, may say otherwise.
        """
        listing = self.listing
        if listing.moves_with or any(listing.variables[v].is_complex for v in self.order):
            return False
        return not any(v in listing.value_of or v in listing.vertex_of for v in self.order)

    def innermost_cut(self) -> tuple[int, ...]:
        """Affine vertices that nonlinear ones read."""
        return tuple(
            u
            for u in self.order
            if u in self.affine
            and any(w not in self.affine and w not in self.loose for w in self.after[u])
        )

    def lifted(self, parts: Iterable[Rows]) -> tuple[int, ...] | None:
        """The cut with components of one array replaced by that array; None where there are none.

        A row's numbers then lie in few arrays, whose second derivatives are few blocks.
        """
        changed = False
        result: list[int] = []
        for part in parts:
            batch = dict(zip(part.moving, part.batch, strict=True))
            while True:
                above: dict[int, dict[int, tuple[int, ...]]] = {}
                for u in batch:
                    sources = self.before.get(u, ())
                    if u not in self.second.inputs and len(sources) == 1:
                        place = self.rows_above(sources[0], u, batch[u])
                        if place is not None:
                            above.setdefault(sources[0], {})[u] = place
                for source, below in above.items():
                    places = {*below.values(), *([batch[source]] if source in batch else [])}
                    joined = {*below, source} & batch.keys()
                    before = sum(1 + self.row_width(u, batch[u]) for u in joined)
                    place = next(iter(places))
                    if len(places) == 1 and 1 + self.row_width(source, place) <= before:
                        batch = {u: dims for u, dims in batch.items() if u not in joined}
                        batch[source] = place
                        changed = True
                        break
                else:
                    break
            result += batch
        return tuple(sorted(set(result))) if changed else None

    def rows_above(self, source: int, u: int, batch: tuple[int, ...]) -> tuple[int, ...] | None:
        """The dimensions of a source at whose position those that hold the row of u are."""
        structure, found = self.arrows[source, u], []
        for out in batch:
            size = structure.out_shape[out]
            same = [
                into
                for into, extent in enumerate(structure.in_shape)
                if extent == size and out in partners(structure, into)
            ]
            if len(same) != 1:
                return None
            found += same
        return tuple(found)

    def row_width(self, u: int, batch: Iterable[int]) -> int:
        """Numbers of an array per row."""
        shape = self.listing.variables[u].shape
        return math.prod(size for d, size in enumerate(shape) if d not in tuple(batch))

    def parts(self, cut: tuple[int, ...]) -> list[Rows] | None:
        """One part for each set of vertices of the cut that meet in nonlinear equations."""
        # Vertices that nonlinear ones read otherwise than through the cut, and those after these.
        leading = set(self.curved)
        for v in reversed(self.order):
            if any(w in leading and w not in cut for w in self.after[v]):
                leading.add(v)
        reached: dict[int, set[int]] = {}
        for v in self.order:
            if v not in cut and (v in leading or v in self.loose):
                found = set().union(
                    *({u} if u in cut else reached.get(u, set()) for u in self.before.get(v, ()))
                )
                if found:
                    reached[v] = found
        tied = [(v, found) for v, found in reached.items() if v not in self.loose]
        result: list[Rows] = []
        for members in _components([found for _, found in tied]):
            places = {v: found for v, found in tied if found <= members}
            part = self.part(tuple(sorted(members)), places, reached)
            if part is None:
                return None
            result.append(part)
        return result or None

    def part(
        self, moving: tuple[int, ...], places: Mapping[int, set[int]], reached: dict[int, set[int]]
    ) -> Rows | None:
        """The rows of some vertices of the cut, None where they mix or are too wide."""
        inner = {v for v, found in reached.items() if found & set(moving)}
        shapes = {u: self.listing.variables[u].shape for u in moving}
        batch: dict[int, list[int]] = {u: [] for u in moving}
        first = moving[0]
        held = {
            (u, d): self.held(u, d, moving, inner)
            for u in moving
            for d, size in enumerate(shapes[u])
            if size != 1
        }
        for d in range(len(shapes[first])):
            chosen = self.matching(first, d, moving, places, held, batch)
            if chosen is not None:
                for u, dimension in chosen.items():
                    batch[u].append(dimension)
        if not batch[first]:
            return None
        width = sum(self.row_width(u, batch[u]) for u in moving)
        if width > MAX_WIDTH:
            return None
        equations = [e for e in self.listing.equations if inner.intersection(e.outputs)]
        if any(e.effects or find_user_rule(e.primitive, e.params) for e in equations):
            return None
        made = {*inner, *moving}
        read = [
            atom
            for e in equations
            for atom in map(self.listing.value, e.inputs)
            if isinstance(atom, int) and atom not in made
        ]
        return Rows(
            moving,
            tuple(tuple(batch[u]) for u in moving),
            tuple(equations),
            tuple(dict.fromkeys(read)),
            width,
            sum(math.prod(self.listing.variables[v].shape) for v in inner),
        )

    def held(
        self, start: int, dimension: int, moving: tuple[int, ...], inner: set[int]
    ) -> dict[int, frozenset[Place]]:
        """For every vertex that an array of the cut moves, where it holds the row."""
        held = {start: frozenset({(dimension, 1)})}
        for v in self.order:
            if v not in inner:
                continue
            for u in self.before[v]:
                if u not in held or (u in moving and u != start):
                    continue
                found = frozenset(
                    out for into in held[u] for out in _places(self.arrows[u, v], *into)
                )
                held[v] = held[v] & found if v in held else found
        return held

    def matching(
        self,
        first: int,
        dimension: int,
        moving: tuple[int, ...],
        places: Mapping[int, set[int]],
        held: Mapping[tuple[int, int], dict[int, frozenset[Place]]],
        taken: Mapping[int, list[int]],
    ) -> dict[int, int] | None:
        """A dimension of every array that holds the same row at all nonlinear equations."""
        if (first, dimension) not in held:
            return None
        chosen = {first: dimension}
        common = {v: held[first, dimension][v] for v, found in places.items() if first in found}
        if not all(common.values()):
            return None
        remaining = [u for u in moving if u != first]
        while remaining:
            u = next((u for u in remaining if any(u in places[v] for v in common)), None)
            if u is None:
                return None
            own = [v for v, found in places.items() if u in found]
            for (other, d), aligned in held.items():
                if other != u or d in taken[u]:
                    continue
                meets = {v: aligned[v] & common.get(v, aligned[v]) for v in own}
                if all(meets.values()):
                    chosen[u] = d
                    common.update(meets)
                    break
            else:
                return None
            remaining.remove(u)
        return chosen


@lru_cache(maxsize=4096)
def _places(structure: Structure, into: int, unit: int) -> frozenset[Place]:
    """Where the output of a map holds the row that its input holds at `(into, unit)`."""
    found = None
    for term in structure.terms:
        sizes = dict(enumerate(term.sizes))
        own = {(out, unit) for out, axis in enumerate(term.out) if axis == term.into[into]}
        row = _quotient(term.into[into], unit, sizes)
        if row is not None:
            own.update(
                (out, step)
                for out, axis in enumerate(term.out)
                for step in {1, *(abs(s) for _, s in axis.parts if isinstance(s, int))}
                if _quotient(axis, step, sizes) == row
            )
        found = own if found is None else found & own
    return frozenset(found or ())


def _quotient(axis: IndexMap, unit: int, sizes: dict[int, int]) -> IndexMap | None:
    """The position divided by a unit, rounded down; None where that is not a map."""
    if unit == 1:
        return axis
    if not axis.is_affine:
        return None
    high = tuple((n, s // unit) for n, s in axis.parts if s % unit == 0)  # type: ignore[operator]
    offset = axis.offset - axis.offset % unit
    low = IndexMap(axis.offset - offset, tuple((n, s) for n, s in axis.parts if s % unit))  # type: ignore[operator]
    first, last = low.bounds(sizes)
    return IndexMap(offset // unit, high) if first >= 0 and last < unit else None


def _components(ties: Iterable[set[int]]) -> list[set[int]]:
    """Sets of vertices that are tied together; those that nothing ties are left out."""
    groups: list[set[int]] = []
    for tie in ties:
        joined = set(tie)
        rest = []
        for group in groups:
            if group & joined:
                joined |= group
            else:
                rest.append(group)
        groups = [*rest, joined]
    return groups
