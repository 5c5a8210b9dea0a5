"""Boolean columns pushed through a body: which of its outputs' entries read which of its inputs'.

The local structures of the body's equations are patterns. One column for each entry of an input
that moves goes through them, within a bound on the work of the outermost loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import numpy as np

from ..edges.layout import term_positions
from ..edges.terms import Structure, Term
from .bodies import Body
from .lowering import pieces_of
from .possible_values import Possible, PossibleValues

__all__ = ["MAX_HELD", "Patterns", "Pushed", "TooLarge", "columns_of", "identities", "limited"]

#: By input and output: a boolean array (entries of the output, entries of the input).
Patterns = dict[tuple[int, int], np.ndarray]

#: Most entries of a variable times columns that are pushed through a body.
MAX_HELD = 1 << 20
#: Most values of a structure's terms whose positions are listed.
MAX_LISTED = 1 << 20
#: Work that one loop or branch is worth, those inside of it included: numbers that are read.
MAX_WORK = 1 << 27
#: What going through an arrow costs beside its numbers, and asking a rule again.
ARROW, QUESTION = 1 << 12, 1 << 17
#: Multiplications of a product of matrices that take as long as reading one number.
PRODUCT = 16

#: The work that is left to the outermost loop that is looked at.
_left: ContextVar[list[int] | None] = ContextVar("work_left", default=None)


class TooLarge(Exception):
    """A map whose entries are not told apart."""


@contextmanager
def limited() -> Iterator[None]:
    """Give the outermost loop its share of work."""
    if _left.get() is not None:
        yield
        return
    token = _left.set([MAX_WORK])
    try:
        yield
    finally:
        _left.reset(token)


def _spend(work: int) -> None:
    left = _left.get()
    assert left is not None
    left[0] -= work
    if left[0] < 0:
        raise TooLarge


class Pushed:
    """A body as a map of boolean columns."""

    def __init__(self, body: Body, given: Mapping[int, Possible]):
        """Args: the body, and what is known of those of its inputs whose values may change."""
        self.body = body
        self.sizes = [math.prod(v.shape) for v in body.listing.variables]
        equations = body.listing.equations
        moved = {body.listing.inputs[k] for k in given}
        for equation in equations:
            if not moved.isdisjoint(a for a in equation.inputs if isinstance(a, int)):
                moved.update(equation.outputs)
        #: Equations whose structure may change with the integers.
        self.changing = [
            equation
            for equation in equations
            if any(equation.active)
            and any(
                isinstance(atom, int) and atom in moved and atom not in body.listing.active
                for atom in map(body.listing.value, equation.inputs)
                if atom is not None
            )
        ]
        changed = {output for equation in self.changing for output in equation.outputs}
        self.fixed = [
            (u, v, _entries(structure)) for u, v, structure in body.arrows if v not in changed
        ]

    def step(
        self, state: dict[int, np.ndarray], count: int, values: PossibleValues | None = None
    ) -> dict[int, np.ndarray]:
        """Columns of the outputs, from those of the inputs (by position) that move.

        Args:
            state: arrays (entries, columns); an input that is not there does not move.
            count: number of columns.
            values: what is known of the integers at this step, where structures change with them.
        """
        held = {self.body.inputs[position]: columns for position, columns in state.items()}
        arrows = self.fixed
        if values is not None and self.changing:
            arrows = sorted([*arrows, *self._changed(values)], key=lambda arrow: arrow[1])
        for u, v, (rows, columns) in arrows:
            if u not in held:
                continue
            if v not in held:
                if self.sizes[v] * count > MAX_HELD:
                    raise TooLarge
                held[v] = np.zeros((self.sizes[v], count), bool)
            _spread(held[u], rows, columns, held[v])
        return {
            k: held[variable]
            for k, variable in enumerate(self.body.outputs)
            if variable is not None and variable in held
        }

    def _changed(
        self, values: PossibleValues
    ) -> list[tuple[int, int, tuple[np.ndarray, np.ndarray]]]:
        variables = self.body.listing.variables
        found = []
        for equation in self.changing:
            _spend(QUESTION)
            for (u, v), pieces in pieces_of(self.body.listing, equation, values).items():
                terms = [piece.term for piece in pieces]
                found.append((u, v, _positions(terms, variables[v].shape, variables[u].shape)))
        return found


@lru_cache(maxsize=4096)
def _entries(structure: Structure) -> tuple[np.ndarray, np.ndarray]:
    return _positions(structure.terms, structure.out_shape, structure.in_shape)


def _positions(
    terms: Any, out_shape: tuple[int, ...], in_shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the entries of some terms, each once."""
    if sum(term.entries for term in terms) > MAX_LISTED:
        raise TooLarge
    found = [_listed(term, (*out_shape, *in_shape)) for term in terms]
    flat = np.unique(np.concatenate(found)) if len(found) > 1 else found[0]
    rows, columns = np.divmod(flat, max(1, math.prod(in_shape)))
    return rows, columns


def _listed(term: Term, shape: tuple[int, ...]) -> np.ndarray:
    flat, valid = term_positions(term, shape)
    return np.unique(flat[valid])


def _spread(source: np.ndarray, rows: np.ndarray, columns: np.ndarray, target: np.ndarray) -> None:
    """Add to each row of `target` the rows of `source` that it reads."""
    if not len(rows):
        return
    if (np.diff(rows) > 0).all():
        _spend(ARROW + len(rows) * source.shape[1])
        target[rows] |= source[columns]
        return
    _spend(ARROW + target.shape[0] * source.size // PRODUCT)
    matrix = np.zeros((target.shape[0], source.shape[0]), np.float32)
    matrix[rows, columns] = 1
    target |= matrix @ source.astype(np.float32) > 0


def columns_of(body: Body, first: int = 0) -> tuple[dict[int, slice], int]:
    """The columns of each input that moves, and their number."""
    places: dict[int, slice] = {}
    count = 0
    for i in range(first, len(body.inputs)):
        size = math.prod(body.listing.variables[body.inputs[i]].shape)
        if body.moves[i] and size:
            places[i] = slice(count, count + size)
            count += size
    if count * max((s.stop - s.start for s in places.values()), default=0) > MAX_HELD:
        raise TooLarge
    return places, count


def identities(places: dict[int, slice], count: int) -> dict[int, np.ndarray]:
    """The columns of every input that moves at their start."""
    state = {}
    for i, place in places.items():
        state[i] = np.zeros((place.stop - place.start, count), bool)
        state[i][:, place] = np.eye(place.stop - place.start, dtype=bool)
    return state
