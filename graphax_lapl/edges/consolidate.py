"""Terms of one kind that lie side by side become one term, so that stencils stay banded.

Two affine terms are of one *kind* when their labels move through the matrix by the same vectors.
They then lie in one lattice, each in a box of it: the diagonals of `x[1:] + x[:-1]` differ by where
they start. Boxes are joined where their union holds the same positions, no more: what the
bounding box adds must lie outside the matrix.

When the terms of a sum are many, neighbouring diagonals become a band: one more label `k`,

    out = a,  in = a + k + offset,  factor v[a, k]

so that a stencil applied many times holds as many terms as one applied once, and not their square.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .boxes import Box, bounding, difference, intersect
from .contract import materialize_all, multiply_out
from .draft import Draft, DraftFactor
from .limits import common_limits
from .maps import IndexMap, label
from .merge import Item, plain_value
from .operations import Overlay, Patch, RecipeWriter
from .terms import Factor, Number, Term
from .values import immutable

__all__ = ["consolidate"]

#: Sums of more terms than this are searched for bands, and joined where they merely touch.
CROWD = 12
#: Fewest parallel lines that become a band.
MIN_BAND = 3
#: Largest share of a joined box that may lie outside the matrix.
MAX_IDLE = 0.5

Vector = tuple[int, ...]


@immutable
class Frame:
    """How the labels of a term move through the matrix.

    Where two labels are digits of one position (`3 a + b`, b below 3), the position yields the
    higher one; what it leaves of the lower one tells lines apart.

    Attributes:
        vectors: for each label its stride along every dimension of the matrix.
        anchors: (label, dimension) pairs in the order in which a position yields the labels.
        conj: whether the terms act on the conjugate of a complex input.
    """

    vectors: tuple[Vector, ...]
    anchors: tuple[tuple[int, int], ...]
    conj: bool

    @classmethod
    def of(cls, extents: Mapping[Vector, int], conj: bool) -> Frame | None:
        """The frame of labels with these vectors and extents.

        None where positions do not yield the labels one by one.
        """
        ordered = tuple(sorted(extents, reverse=True))
        unsolved, anchors = set(range(len(ordered))), []
        rank = len(ordered[0]) if ordered else 0
        progress = True
        while unsolved and progress:
            progress = False
            for dimension in range(rank):
                alone = [n for n in unsolved if ordered[n][dimension]]
                if len(alone) == 1:
                    anchors.append((alone[0], dimension))
                    unsolved.remove(alone[0])
                    progress = True
                elif len(alone) == 2:
                    high, low = sorted(alone, key=lambda n: -abs(ordered[n][dimension]))
                    step, unit = ordered[high][dimension], ordered[low][dimension]
                    if step % unit == 0 and step // unit == extents[ordered[low]]:
                        anchors.append((high, dimension))
                        unsolved -= {high, low}
                        progress = True
        return None if unsolved else cls(ordered, tuple(anchors), conj)

    def locate(self, offsets: Vector) -> tuple[Vector, Vector]:
        """The labels at a position of the matrix, and what of it they do not reach."""
        rest, starts = list(offsets), [0] * len(self.vectors)
        for name, dimension in self.anchors:
            starts[name] = start = rest[dimension] // self.vectors[name][dimension]
            if start:
                rest = [r - start * s for r, s in zip(rest, self.vectors[name], strict=True)]
        return tuple(starts), tuple(rest)


Line = tuple[Frame, Vector]


@dataclass(eq=False)
class Group:
    """Terms on one line, to become one term: the box that they fill, and their own boxes."""

    box: Box
    members: list[tuple[Item, Box]]

    @property
    def constant(self) -> Number | None:
        """The number that the box is full of, None where it holds different ones."""
        numbers = {term.coefficient for (term, _), _ in self.members if not term.factors}
        if len(numbers) == 1 and all(not term.factors for (term, _), _ in self.members):
            return next(iter(numbers))
        return None


def consolidate(items: list[Item], shape: Sequence[int], writer: RecipeWriter) -> list[Item]:
    """Join the terms of a sum where that adds no position and does not enlarge their values.

    Args:
        items: terms of different patterns.
        shape: extents of the matrix (output..., input...).
        writer: takes the steps that assemble the values of joined terms.
    """
    if len(items) < 2:
        return items
    crowded = len(items) > CROWD
    lines: dict[Line, list[tuple[Item, dict[Vector, int], Vector]]] = {}
    result: list[Item] = []
    chosen: list[tuple[Item, dict[Vector, int], Vector, Frame]] = []
    for item in items:
        placed = _placed(item[0])
        if placed is None:
            result.append(item)
        else:
            chosen.append((item, *placed))
    frames = {frame for *_, frame in chosen}
    lines_of = [(frame, frame.locate(offsets)[1]) for _, _, offsets, frame in chosen]
    if len(frames) < 2 and not crowded and len({rest for _, rest in lines_of}) == len(chosen):
        return [*result, *[item for item, *_ in chosen]]  # all on lines of their own
    bands = _bands(chosen) if crowded else {}
    targets = sorted(
        {line[0] for line in bands.values()} | frames, key=lambda frame: -len(frame.vectors)
    )
    occupied = {*bands.values(), *lines_of}
    for (item, moves, offsets, _), own in zip(chosen, lines_of, strict=True):
        line, starts = _home(moves, offsets, own, targets, occupied, bands)
        lines.setdefault(line, []).append((item, moves, starts))
    for line, members in lines.items():
        if len(members) == 1:
            result.append(members[0][0])
            continue
        boxed = [(item, _box(item[0], moves, starts, line[0])) for item, moves, starts in members]
        for group in _joined(line, boxed, shape, crowded):
            alone = len(group.members) == 1
            result.append(group.members[0][0] if alone else _written(line, group, shape, writer))
    return result


def _box(term: Term, moves: dict[Vector, int], starts: Vector, frame: Frame) -> Box:
    """The labels of a frame that a term takes, from where it starts."""
    extents = [term.sizes[moves[v]] if v in moves else 1 for v in frame.vectors]
    return Box(starts, tuple([s + e for s, e in zip(starts, extents, strict=True)]))


def _moves(term: Term) -> dict[Vector, int] | None:
    """The labels of a term by the vectors along which they move; None where it is not joined."""
    maps = (*term.out, *term.into)
    if any(f.opaque for f in term.factors) or not term.is_affine:
        return None
    used = term.value_labels
    if not used <= term.position_labels or math.prod(term.sizes[n] for n in used) > term.stored:
        return None  # a lazy product, smaller than what it stands for
    moves = {tuple(axis.stride(n) or 0 for axis in maps): n for n in term.labels}
    return moves if len(moves) == len(term.sizes) else None


@lru_cache(maxsize=1 << 14)
def _placed(term: Term) -> tuple[dict[Vector, int], Vector, Frame] | None:
    """The labels of a term by their vectors, its offsets and its frame; None without a frame."""
    moves = _moves(term)
    if moves is None:
        return None
    frame = Frame.of({v: term.sizes[n] for v, n in moves.items()}, term.conj)
    offsets = tuple(axis.offset for axis in (*term.out, *term.into))
    return None if frame is None else (moves, offsets, frame)


def _bands(
    chosen: Sequence[tuple[Item, dict[Vector, int], Vector, Frame]],
) -> dict[Line, Line]:
    """For lines next to each other the line, with one more label, that holds them all."""
    residuals: dict[Frame, set[Vector]] = {}
    for _, _, offsets, frame in chosen:
        residuals.setdefault(frame, set()).add(frame.locate(offsets)[1])
    bands: dict[Line, Line] = {}
    for frame, found in residuals.items():
        if not frame.vectors or len(found) < MIN_BAND or len(frame.anchors) < len(frame.vectors):
            continue
        # All bands lie along one dimension, the last that has any; others would cross them.
        by_dimension = [(d, _runs(found, d)) for d in reversed(range(len(frame.vectors[0])))]
        dimension, runs = next((entry for entry in by_dimension if entry[1]), (0, []))
        for run in runs:
            along = tuple(int(d == dimension) for d in range(len(run[0])))
            wider = Frame.of(dict.fromkeys((*frame.vectors, along), 0), frame.conj)
            if wider is None or along in frame.vectors:
                continue
            lines = {wider.locate(residual)[1] for residual in run}
            if len(lines) == 1:
                band = (wider, lines.pop())
                bands.update({(frame, residual): band for residual in run})
    return bands


def _runs(found: set[Vector], dimension: int) -> list[list[Vector]]:
    """Lines next to each other along one dimension, at least `MIN_BAND` of them."""
    parallel: dict[Vector, list[Vector]] = {}
    for residual in sorted(found, key=lambda r: r[dimension]):
        others = (*residual[:dimension], *residual[dimension + 1 :])
        parallel.setdefault(others, []).append(residual)
    runs = []
    for line in parallel.values():
        run = line[:1]
        for residual in line[1:]:
            if residual[dimension] - run[-1][dimension] > 1:
                runs.append(run)
                run = []
            run.append(residual)
        runs.append(run)
    return [run for run in runs if len(run) >= MIN_BAND]


def _home(
    moves: dict[Vector, int],
    offsets: Vector,
    own: Line,
    targets: Sequence[Frame],
    occupied: set[Line],
    bands: dict[Line, Line],
) -> tuple[Line, Vector]:
    """The line that a term belongs to, and where it starts there."""
    if own in bands:
        wider = bands[own][0]
        starts, rest = wider.locate(offsets)
        return (wider, rest), starts
    for target in targets:  # a term with fewer labels may lie on the line of a larger one
        if target.conj != own[0].conj or not moves.keys() <= set(target.vectors):
            continue
        starts, rest = target.locate(offsets)
        if (target, rest) in occupied:
            return (target, rest), starts
    raise AssertionError("a term lies on its own line")


def _joined(
    line: Line, members: list[tuple[Item, Box]], shape: Sequence[int], crowded: bool
) -> list[Group]:
    """Groups of members that become one term each."""
    groups = [Group(box, [(item, box)]) for item, box in members]
    groups.sort(key=lambda group: -group.box.volume)
    changed = len(groups) > 1
    while changed:
        changed = False
        kept: list[Group] = []
        for group in groups:
            host = next((g for g in kept if _joinable(line, g, group, shape, crowded)), None)
            if host is None:
                kept.append(group)
            else:
                host.box = bounding(host.box, group.box)
                host.members += group.members
                changed = True
        groups = kept
        changed = changed and len(groups) > 1
    return groups


def _joinable(line: Line, first: Group, second: Group, shape: Sequence[int], crowded: bool) -> bool:
    union = bounding(first.box, second.box)
    overlap = intersect(first.box, second.box)
    same = first.constant is not None and first.constant == second.constant
    if not (same and overlap is None):
        constants = all(not t.factors for g in (first, second) for (t, _), _ in g.members)
        if not crowded and (overlap is None or constants):
            return False
        stored = sum(t.stored for g in (first, second) for (t, _), _ in g.members)
        if not crowded and union.volume > stored:
            return False
    missing = difference([union], first.box)
    missing = difference(missing, second.box)
    if sum(box.volume for box in missing) > MAX_IDLE * union.volume:
        return False
    return all(_outside(line, box, shape) for box in missing)


def _outside(line: Line, box: Box, shape: Sequence[int]) -> bool:
    """Whether a box of labels lies outside the matrix along one dimension."""
    frame, origin = line
    for dimension, extent in enumerate(shape):
        low = high = origin[dimension]
        for vector, start, end in zip(frame.vectors, box.starts, box.ends, strict=True):
            reach = (vector[dimension] * start, vector[dimension] * (end - 1))
            low, high = low + min(reach), high + max(reach)
        if high < 0 or low >= extent:
            return True
    return False


def _written(line: Line, group: Group, shape: Sequence[int], writer: RecipeWriter) -> Item:
    """The term of a group, with one factor assembled from the members' values."""
    frame, origin = line
    box = group.box
    names = range(len(frame.vectors))
    sizes = dict(enumerate(box.extents))
    offsets = [
        o + sum(start * v[d] for start, v in zip(box.starts, frame.vectors, strict=True))
        for d, o in enumerate(origin)
    ]
    maps = [
        IndexMap(offset, tuple((n, frame.vectors[n][d]) for n in names if frame.vectors[n][d]))
        for d, offset in enumerate(offsets)
    ]
    head = group.members[0][0][0]
    rank = len(head.out)
    merged = Draft(sizes, maps[:rank], maps[rank:], [], conj=head.conj)
    if group.constant is not None and _disjoint(group):
        merged.coefficient = group.constant
    else:
        merged.coefficient = _overlaid(line, group, merged, writer)
        parts = [term for (term, _), _ in group.members]
        if any(term.limits for term in parts):
            merged.limits = common_limits(merged, parts, tuple(shape))
    finished = merged.finish()
    assert finished is not None
    return finished


def _disjoint(group: Group) -> bool:
    boxes = [box for _, box in group.members]
    return all(intersect(a, b) is None for a, b in itertools.combinations(boxes, 2))


def _overlaid(line: Line, group: Group, merged: Draft, writer: RecipeWriter) -> Number:
    """Give a draft the factor that holds all members' values; the coefficient that is left."""
    frame = line[0]
    vectors = {vector: n for n, vector in enumerate(frame.vectors)}
    found: list[tuple[Number, tuple[int, ...] | None, Box]] = []
    operands: list[int] = []
    needed: set[int] = set()
    for (term, own), box in group.members:
        needed |= {n for n in merged.sizes if box.side(n) != group.box.side(n)}
        if not term.factors:
            found.append((term.coefficient, None, box))
            continue
        draft = Draft.of(term, own)
        materialize_all(draft, writer)
        multiply_out(draft, writer)
        operand, labels = plain_value(draft, writer)
        moves = {n: vector for vector, n in (_moves(term) or {}).items()}
        places = tuple(vectors[moves[n]] for n in labels)
        needed |= set(places)
        operands.append(operand)
        found.append((draft.coefficient, places, box))
    common: Number = 1
    real = not any(isinstance(c, complex) for c, *_ in found)
    if real and all(p is not None and abs(c) == abs(found[0][0]) for c, p, _ in found):
        common = found[0][0]
        found = [(1 if c == common else -1, places, box) for c, places, box in found]
    output = tuple(sorted(needed))
    patches = tuple(
        Patch(
            coefficient,
            places,
            tuple(box.starts[n] - group.box.starts[n] for n in output),
            tuple(box.extents[n] for n in output),
        )
        for coefficient, places, box in found
    )
    operation = Overlay(patches, tuple((n, merged.sizes[n]) for n in output))
    value = writer.add(operation, operands)
    factor = Factor(tuple(label(n) for n in output), operation.shape)
    merged.factors = [DraftFactor(value, factor)]
    return common
