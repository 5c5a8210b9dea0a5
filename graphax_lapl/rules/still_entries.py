"""Entries of arrays that do not move, because an entry is subtracted from itself.

Differences of all pairs, `x[:, None] - x[None]`, are zero where a particle meets itself, and so are
the derivatives of all that is computed from them there: one minus one. Where a large number
multiplies the two first, as the slope of `sqrt(sum(d**2) + 1e-12)` at zero does, what is left of
their difference after rounding is no zero. So the partials along such entries are zeros from where
their values could be large, and second derivatives are told which entries of their vertex stay.

Only what can be read from the local partials is found: entries that are moved about, one array
subtracted from another, and what depends on nothing but entries that do not move.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..edges.maps import IndexMap
from ..edges.terms import Factor, Term
from ..graph.listing import Equation, Listing
from ..graph.numpy_values import MOVES
from .site import Known, Piece, Primal

__all__ = ["StillEntries", "keep_still"]

#: Largest array (entries) that is looked at, and most entries of a table of positions.
MAX_ENTRIES = 1 << 16
#: The name of an entry that does not move.
STILL = -1
#: Primitives whose result holds entries of their operands, and those that make zeros of zeros.
COPYING = MOVES | {"concatenate", "copy", "expand_dims", "gather", "split", "stack", "tile"}
HOMOGENEOUS = COPYING | {"dot_general", "neg", "reduce_sum"}

#: Pieces of local partials by (from, to), in order of evaluation.
Pieces = dict[tuple[int, int], list[Piece]]


@dataclass
class StillEntries:
    """What is known of entries that do not move, as tables that are True there.

    Attributes:
        at: by vertex, all that is known.
        cancelling: by vertex, those whose derivatives are zero only after terms cancel.
        curved: by vertex, those of what is computed from such entries.
    """

    at: dict[int, np.ndarray] = field(default_factory=dict)
    cancelling: dict[int, np.ndarray] = field(default_factory=dict)
    curved: dict[int, np.ndarray] = field(default_factory=dict)


def keep_still(pieces: Pieces, makers: Mapping[int, Equation], listing: Listing) -> StillEntries:
    """Makes partials zero along entries that do not move, where they could be large.

    Args:
        pieces: of all local partials; some are replaced.
        makers: the equation that computes each vertex.
        listing: the flat program.
    """
    found = StillEntries()
    if not any(e.name == "sub" and all(e.active) for e in listing.equations):
        return found
    entering: dict[int, dict[int, list[Piece]]] = {}
    for (u, v), parts in pieces.items():
        entering.setdefault(v, {})[u] = parts
    names = _Names(entering, makers, listing)
    zeros: set[int] = set()
    for v in sorted(entering):
        into = entering[v]
        shape = listing.variables[v].shape
        many = math.prod(shape) > 1
        moving = names.differ(v) if many and _is_difference(into) else None
        if moving is not None and not moving.all():
            found.at[v] = found.cancelling[v] = ~moving
            if names.copied.issuperset(into):
                zeros.add(v)
            continue
        before = [u for u in into if u in found.cancelling]
        if found.at.keys().isdisjoint(into):
            continue
        moving = _reached(into, found.at, listing, shape)
        if moving is None or moving.all():
            still = None
        else:
            found.at[v] = still = ~moving
        if not before:
            continue
        cancels = False
        for u in before:
            varying = _varying(found.cancelling[u])
            if not _scales(into[u], varying):
                cancels = True
            elif not (u in zeros and _vanishes(into[u], zeros, u, found.at)):
                pieces[u, v] = into[u] = _kept(into[u], found.cancelling[u], varying, listing, v)
        if still is None:
            continue
        found.curved[v] = still
        if cancels:
            found.cancelling[v] = still
            if makers[v].name in HOMOGENEOUS and zeros.issuperset(into):
                zeros.add(v)
    return found


def _is_difference(into: Mapping[int, list[Piece]]) -> bool:
    """Whether one array is subtracted from another."""
    if len(into) != 2 or any(len(parts) != 1 for parts in into.values()):
        return False
    terms = [parts[0].term for parts in into.values()]
    return _plain(terms) and {term.coefficient for term in terms} == {-1, 1}


def _plain(terms: Sequence[Term]) -> bool:
    """Whether partials are real numbers."""
    return not any(t.factors or t.conj or np.iscomplexobj(t.coefficient) for t in terms)


def _varying(still: np.ndarray) -> list[int]:
    """The dimensions along which a table is not the same everywhere; all where it is True."""
    if still.all():
        return list(range(still.ndim))
    return [d for d in range(still.ndim) if (still != still.take([0], axis=d)).any()]


def _scales(parts: Sequence[Piece], varying: Sequence[int]) -> bool:
    """Whether a partial holds numbers of its own for entries that do not move."""
    for piece in parts:
        names = {name for d in varying for name, _ in piece.term.into[d].parts}
        if any(f.opaque is None and names & f.labels for f in piece.term.factors):
            return True
    return False


def _vanishes(
    parts: Sequence[Piece], zeros: set[int], u: int, still: Mapping[int, np.ndarray]
) -> bool:
    """Whether a partial along `u` is a value that is zero where `u` does not move."""
    return all(
        any(
            isinstance(r, Primal)
            and r.variable in zeros
            and np.array_equal(still[r.variable], still[u])
            for r in piece.references
        )
        for piece in parts
    )


def _kept(
    parts: Sequence[Piece], still: np.ndarray, varying: Sequence[int], listing: Listing, v: int
) -> list[Piece]:
    """A partial with zeros along entries that do not move."""
    chosen = tuple(slice(None) if d in varying else 0 for d in range(still.ndim))
    moving = Known((~still[chosen]).astype(listing.variables[v].dtype))
    made = []
    for piece in parts:
        factor = Factor(tuple(piece.term.into[d] for d in varying), moving.value.shape)
        term = replace(piece.term, factors=(*piece.term.factors, factor))
        made.append(Piece(term, (*piece.references, moving)))
    return made


class _Names:
    """Names of entries: what depends alike on the inputs has one.

    Attributes:
        copied: vertices whose values are those of the entries that their names come from.
    """

    def __init__(
        self,
        entering: Mapping[int, Mapping[int, list[Piece]]],
        makers: Mapping[int, Equation],
        listing: Listing,
    ):
        self.entering = entering
        self.makers = makers
        self.variables = listing.variables
        self.copied: set[int] = set()
        self.known: dict[int, np.ndarray | None] = {}

    def of(self, v: int) -> np.ndarray | None:
        """The names of the entries of a vertex; None for too large an array."""
        pending = [v]
        while pending:  # no recursion: loops that were written out move entries many times
            last = pending[-1]
            shape, into = self.variables[last].shape, self.movers(last)
            small = math.prod(shape) <= MAX_ENTRIES
            before = [u for u in into if u not in self.known] if small else []
            pending += before
            if not before:
                self.known[last] = self._named(last, into, shape) if small else None
                pending.pop()
        return self.known[v]

    def movers(self, v: int) -> Mapping[int, list[Piece]]:
        """The partials of a vertex, if all that they do is to move entries about."""
        into = self.entering.get(v, {})
        terms = [piece.term for parts in into.values() for piece in parts]
        return into if _plain(terms) and all(term.coefficient == 1 for term in terms) else {}

    def _named(self, v: int, into: Mapping[int, list[Piece]], shape: tuple[int, ...]) -> np.ndarray:
        moved = self._moved(into, shape) if into else None
        if moved is None or (self.makers[v].name in COPYING and self.copied.issuperset(into)):
            self.copied.add(v)
        if moved is None:
            return (v << 32) + np.arange(math.prod(shape)).reshape(shape)
        return moved

    def _moved(self, into: Mapping[int, list[Piece]], shape: tuple[int, ...]) -> np.ndarray | None:
        """Names that other vertices have given; None where several entries make up one."""
        names = np.full(math.prod(shape), STILL)
        written = np.zeros(names.size, int)
        for u, parts in into.items():
            before = self.known[u]
            for piece in parts:
                places = None
                if before is not None:
                    places = _places(piece.term, shape, before.shape)
                if before is None or places is None:
                    return None
                out, read = places
                np.add.at(written, out, 1)
                names[out] = before.ravel()[read]
        return names.reshape(shape) if written.max(initial=0) <= 1 else None

    def shift(self, v: int) -> tuple[int, tuple[int, ...]] | None:
        """The array that a vertex is a window of, and where; None where it is none."""
        start = [0] * len(self.variables[v].shape)
        while v in self.entering:
            pieces = [piece for parts in self.entering[v].values() for piece in parts]
            if not _plain([piece.term for piece in pieces]):
                break
            term = pieces[0].term
            if len(pieces) > 1:
                return None
            if term.coefficient != 1:
                break
            pairs = list(zip(term.out, term.into, strict=False))
            same = all(a.parts == b.parts and len(a.parts) <= 1 for a, b in pairs)
            if not same or len(term.out) != len(term.into):
                return None
            start = [at + b.offset - a.offset for at, (a, b) in zip(start, pairs, strict=True)]
            (v,) = self.entering[v]
        return v, tuple(start)

    def differ(self, v: int) -> np.ndarray | None:
        """Which entries of a difference move; None where that is not known, or all do."""
        windows = [self.shift(u) for u in self.entering[v]]
        if None not in windows and windows[0] != windows[1]:
            return None  # of two arrays, or the neighbours in one
        sides, shape = [], self.variables[v].shape
        for u, (piece,) in self.entering[v].items():
            names = self.of(u)
            places = None if names is None else _places(piece.term, shape, names.shape)
            if names is None or places is None:
                return None
            side = np.full(math.prod(shape), STILL)
            side[places[0]] = names.ravel()[places[1]]
            sides.append(side)
        return np.asarray(sides[0] != sides[1]).reshape(shape)


def _places(
    term: Term, shape: tuple[int, ...], before: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Where the entries of a term stand, and what they read; None where they are too many."""
    if math.prod(term.sizes) > MAX_ENTRIES:
        return None
    order, sizes = list(term.labels), dict(enumerate(term.sizes))
    out, inside = _evaluated(term.out, shape, order, sizes)
    read, also = _evaluated(term.into, before, order, sizes)
    inside &= also
    return out[inside], read[inside]


def _evaluated(
    axes: Sequence[IndexMap], shape: Sequence[int], order: list[int], sizes: Mapping[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Flat positions over a box of labels, and which of them lie inside of the array."""
    box = tuple(sizes[name] for name in order)
    flat, inside = np.zeros(box, int), np.ones(box, bool)
    for axis, size in zip(axes, shape, strict=True):
        place = axis.evaluate(order, sizes)
        flat = flat * size + place
        inside &= (place >= 0) & (place < size)
    return flat, inside


def _reached(
    into: Mapping[int, list[Piece]],
    still: Mapping[int, np.ndarray],
    listing: Listing,
    shape: tuple[int, ...],
) -> np.ndarray | None:
    """Which entries of a vertex depend on one that moves; None where that is not known."""
    if math.prod(shape) > MAX_ENTRIES:
        return None
    moving = np.zeros(shape, bool)
    for u, parts in into.items():
        size = listing.variables[u].shape
        if math.prod(size) > MAX_ENTRIES:
            return None
        before = ~still[u] if u in still else np.ones(size, bool)
        if not all(_mark(piece.term, before, moving) for piece in parts):
            return None
    return moving


def _mark(term: Term, before: np.ndarray, moving: np.ndarray) -> bool:
    """Marks what a term reaches from what moves; False where its positions are too many."""
    sizes = dict(enumerate(term.sizes))
    read, written = (
        sorted({name for axis in axes for name, _ in axis.parts}) for axes in (term.into, term.out)
    )
    if any(math.prod(sizes[n] for n in names) > MAX_ENTRIES for names in (read, written)):
        return False
    places, inside = _evaluated(term.into, before.shape, read, sizes)
    table: np.ndarray[Any, Any] = np.zeros(inside.shape, bool)
    table[inside] = before.ravel()[places[inside]]
    # A label of the input alone is summed, one of the output alone repeats what it reads.
    summed = tuple(k for k, name in enumerate(read) if name not in written)
    table = np.asarray(table.any(summed))
    table = table.reshape([sizes[name] if name in read else 1 for name in written])
    places, inside = _evaluated(term.out, moving.shape, written, sizes)
    moving.reshape(-1)[places[np.logical_and(inside, table)]] = True
    return True
