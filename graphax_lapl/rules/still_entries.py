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
MAX_ENTRIES = 1 << 18
#: The name of an entry that does not move.
STILL = -1
#: Primitives that make zeros of zeros.
HOMOGENEOUS = MOVES | {"concatenate", "dot_general", "neg", "reduce_sum", "stack"}

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
    names = _Names(entering, listing)
    zeros: set[int] = set()
    for v in sorted(entering):
        into = entering[v]
        shape = listing.variables[v].shape
        many = math.prod(shape) > 1
        moving = names.differ(v) if many and _is_difference(into) else None
        if moving is not None and not moving.all():
            found.at[v] = found.cancelling[v] = ~moving
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
            elif not (u in zeros and _vanishes(into[u], zeros)):
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
    """The dimensions along which a table is not the same everywhere."""
    return [d for d in range(still.ndim) if (still != still.take([0], axis=d)).any()]


def _scales(parts: Sequence[Piece], varying: Sequence[int]) -> bool:
    """Whether a partial holds numbers of its own for entries that do not move."""
    for piece in parts:
        names = {name for d in varying for name, _ in piece.term.into[d].parts}
        if any(f.opaque is None and names & f.labels for f in piece.term.factors):
            return True
    return False


def _vanishes(parts: Sequence[Piece], zeros: set[int]) -> bool:
    """Whether a partial is zero where values are that are zero."""
    return all(
        any(isinstance(r, Primal) and r.variable in zeros for r in piece.references)
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
    """Names of entries: those of one name are one entry of one array, moved about."""

    def __init__(self, entering: Mapping[int, Mapping[int, list[Piece]]], listing: Listing):
        self.entering = entering
        self.variables = listing.variables
        self.known: dict[int, np.ndarray | None] = {}

    def of(self, v: int) -> np.ndarray | None:
        """The names of the entries of a vertex; None for too large an array."""
        if v not in self.known:
            shape = self.variables[v].shape
            self.known[v] = None if math.prod(shape) > MAX_ENTRIES else self._moved(v, shape)
        return self.known[v]

    def _moved(self, v: int, shape: tuple[int, ...]) -> np.ndarray:
        own = (v << 32) + np.arange(math.prod(shape)).reshape(shape)
        into = self.entering.get(v, {})
        terms = [piece.term for parts in into.values() for piece in parts]
        if not _plain(terms) or any(term.coefficient != 1 for term in terms):
            return own
        names, written = np.full(shape, STILL), np.zeros(shape, int)
        for u, parts in into.items():
            before = self.of(u)
            for piece in parts:
                places = None
                if before is not None:
                    places = _places(piece.term, shape, before.shape)
                if before is None or places is None:
                    return own
                out, read = places
                np.add.at(written, out, 1)
                names[out] = before[read]
        return names if into and written.max(initial=0) <= 1 else own

    def differ(self, v: int) -> np.ndarray | None:
        """Which entries of a difference move; None where that is not known."""
        sides, shape = [], self.variables[v].shape
        for u, (piece,) in self.entering[v].items():
            names = self.of(u)
            places = None if names is None else _places(piece.term, shape, names.shape)
            if names is None or places is None:
                return None
            side = np.full(shape, STILL)
            side[places[0]] = names[places[1]]
            sides.append(side)
        return np.asarray(sides[0] != sides[1])


def _places(
    term: Term, shape: tuple[int, ...], before: tuple[int, ...]
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]] | None:
    """Where the entries of a term stand and what they read; None where they are too many."""
    if math.prod(term.sizes) > MAX_ENTRIES:
        return None
    order, sizes = list(term.labels), dict(enumerate(term.sizes))
    out, inside = _evaluated(term.out, shape, order, sizes)
    read, also = _evaluated(term.into, before, order, sizes)
    inside &= also
    return tuple(place[inside] for place in out), tuple(place[inside] for place in read)


def _evaluated(
    axes: Sequence[IndexMap], shape: Sequence[int], order: list[int], sizes: Mapping[int, int]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Positions over a box of labels, and which of them lie inside of the array."""
    box = tuple(sizes[name] for name in order)
    places = [np.broadcast_to(axis.evaluate(order, sizes), box) for axis in axes]
    inside = np.ones(box, bool)
    for place, size in zip(places, shape, strict=True):
        inside &= (place >= 0) & (place < size)
    return places, inside


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
    table[inside] = before[tuple(place[inside] for place in places)]
    # A label of the input alone is summed, one of the output alone repeats what it reads.
    summed = tuple(k for k, name in enumerate(read) if name not in written)
    table = np.asarray(table.any(summed))
    table = table.reshape([sizes[name] if name in read else 1 for name in written])
    places, inside = _evaluated(term.out, moving.shape, written, sizes)
    there = np.logical_and(inside, table)
    if there.any():
        moving[tuple(place[there] for place in places)] = True
    return True
