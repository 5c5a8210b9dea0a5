"""Which entries of a loop's or branch's results depend on which entries of its inputs.

The local structures of a body's equations are patterns. Boolean columns, one per entry of an input,
are pushed through them: through all branches of a `cond`, whose patterns are joined; through a
`while` until nothing new is reached; through the steps of a `scan` one by one. Where the
integers of a step are known (a counter, an array of positions), the equations that read them are
looked at again for each step, so that `x.at[i].set(...)` in a loop over i has the entries of its
steps, not all of them.

This is done for small maps only (see the limits below): larger ones are diagonal along some
dimensions and full along the others (`control_flow.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ..edges.layout import term_positions
from ..edges.masks import MAX_MASK
from ..edges.terms import Structure, Term
from ..edges.unify import Unsolvable
from ..errors import GraphaxLaplError
from ..graph.listing import Equation, scan_counts
from .bodies import Body, body_of, jaxprs_of
from .integer_ranges import STEPS, of_table, padded
from .lowering import pieces_of
from .possible_values import MAX_INTEGERS, Possible, PossibleValues
from .site import Site

__all__ = ["Patterns", "entry_patterns", "given_integers", "through_body"]

#: By input and output: a boolean array (entries of the output, entries of the input).
Patterns = dict[tuple[int, int], np.ndarray]

#: Most entries of a variable times columns that are pushed through a body.
MAX_HELD = 1 << 20
#: Longest loop whose integers are followed through all steps at once.
MAX_STEPS = 1 << 12
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


class _TooLarge(Exception):
    """A map whose entries are not told apart."""


@contextmanager
def _limited() -> Iterator[None]:
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
        raise _TooLarge


#: Bounds of integer inputs by position: the position, and the bytes of both bounds.
Given = tuple[tuple[int, tuple[int, ...], bytes, bytes], ...]


def given_integers(site: Site) -> Given:
    """What the integer operands of an equation may be, where that is known."""
    found = []
    for position in range(len(site.inputs)):
        shape = site.shape(position)
        if site.inputs[position].differentiable or math.prod(shape) > MAX_INTEGERS:
            continue
        possible = site.possible(position)
        if possible is not None and possible.low.size:
            low, high = map(np.ascontiguousarray, (possible.low, possible.high))
            found.append((position, shape, low.tobytes(), high.tobytes()))
    return tuple(found)


def _unpacked(given: Given) -> dict[int, Possible]:
    return {
        position: Possible(*(np.frombuffer(side, np.int64).reshape(shape) for side in bounds))
        for position, shape, *bounds in given
    }


@lru_cache(maxsize=256)
def entry_patterns(equation: Equation, given: Given) -> Patterns:
    """Patterns of the maps of a `scan`, `while` or `cond`.

    Args:
        equation: the equation.
        given: what is known of its integers.

    Returns:
        Those that are small enough; where nothing is known of a map, it is not among them.
    """
    find = {"scan": _scan, "while": _while, "cond": _cond}[equation.name]
    inner = jaxprs_of(equation)[0].jaxpr
    sizes = [_size(v) for v in inner.invars]
    largest = max((_size(v) for v in inner.outvars), default=0)
    if not any(size > 0 and size * largest <= MAX_MASK for size in sizes):
        return {}
    try:
        with _limited():
            return find(equation, _unpacked(given))
    except (GraphaxLaplError, NotImplementedError, Unsolvable, _TooLarge):
        return {}


def _size(variable: Any) -> int:
    return math.prod(getattr(variable.aval, "shape", (0,)))


class _Pushed:
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
                    raise _TooLarge
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
        raise _TooLarge
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


def _columns(body: Body, first: int = 0) -> tuple[dict[int, slice], int]:
    """The columns of each input that moves, and their number."""
    places: dict[int, slice] = {}
    count = 0
    for i in range(first, len(body.inputs)):
        size = math.prod(body.listing.variables[body.inputs[i]].shape)
        if body.moves[i] and size:
            places[i] = slice(count, count + size)
            count += size
    if count * max((s.stop - s.start for s in places.values()), default=0) > MAX_HELD:
        raise _TooLarge
    return places, count


def _identities(places: dict[int, slice], count: int) -> dict[int, np.ndarray]:
    """The columns of every input that moves at their start."""
    state = {}
    for i, place in places.items():
        state[i] = np.zeros((place.stop - place.start, count), bool)
        state[i][:, place] = np.eye(place.stop - place.start, dtype=bool)
    return state


def through_body(body: Body) -> Patterns:
    """Patterns of what is evaluated once.

    Raises:
        GraphaxLaplError: what a rule raises.
    """
    try:
        with _limited():
            places, count = _columns(body)
            out = _Pushed(body, {}).step(_identities(places, count), count)
    except _TooLarge:
        return {}
    return {(i, k): out[k][:, place] for i, place in places.items() for k in out}


def _cond(equation: Equation, given: dict[int, Possible]) -> Patterns:
    """What any branch reads that may be taken."""
    count = len(jaxprs_of(equation))
    branches = range(count)
    index = given.pop(0, None)
    if index is not None:
        low, high = (int(np.clip(n, 0, count - 1)) for n in (index.low, index.high))
        branches = branches[low : high + 1]
    operands = {k - 1: possible for k, possible in given.items()}
    found: Patterns = {}
    for branch in branches:
        for (i, k), pattern in through_body(body_of(equation, branch, operands)).items():
            known = found.get((i + 1, k))
            found[i + 1, k] = pattern if known is None else known | pattern
    return found


def _while(equation: Equation, given: dict[int, Possible]) -> Patterns:
    """What any number of steps reads, none included."""
    constants, skipped = (equation.params[name] for name in ("body_nconsts", "cond_nconsts"))
    operands = {k - skipped: p for k, p in given.items() if skipped <= k < skipped + constants}
    body = body_of(equation, 0, operands)
    places, count = _columns(body)
    pushed = _Pushed(body, {})
    state = _identities(places, count)
    _until_settled(pushed, state, constants, count)
    return {
        (i + skipped, k): state[constants + k][:, place]
        for i, place in places.items()
        for k in range(len(body.outputs))
        if constants + k in state
    }


def _until_settled(
    pushed: _Pushed,
    state: dict[int, np.ndarray],
    constants: int,
    count: int,
) -> dict[int, np.ndarray]:
    """Add to the carries of a state what further steps reach; the outputs of the last step."""
    carries = range(constants, len(pushed.body.inputs))
    while True:
        out = pushed.step(state, count)
        grown = False
        for place in carries:
            columns = out.get(place - constants)
            if columns is None:
                continue
            before = state.get(place)
            if before is None:
                state[place] = columns.copy()
                grown = True
            elif (columns & ~before).any():
                state[place] = before | columns
                grown = True
        if not grown:
            return out


def _scan(equation: Equation, given: dict[int, Possible]) -> Patterns:
    """What each step reads; `given` are the integers of all steps."""
    counts = scan_counts(equation.params)
    if counts is None or not equation.params["length"]:
        return {}
    constants, carries = counts
    return _Scan(equation, constants, carries, given).patterns()


class _Scan:
    """The steps of a `scan`: its state, and what is told of its outputs."""

    def __init__(
        self, equation: Equation, constants: int, carries: int, given: dict[int, Possible]
    ):
        self.length, self.reverse = equation.params["length"], equation.params["reverse"]
        self.constants, self.mapped = constants, constants + carries
        self.carries = carries
        self.given = given
        # Integers of a single step are those of any step to a body that is looked at once.
        fixed = {k: p for k, p in given.items() if k < constants}
        self.body = body_of(equation, 0, fixed)
        moving = [k for k in given if k >= constants]
        self.pushed = _Pushed(self.body, {k: given[k] for k in moving})

    def patterns(self) -> Patterns:
        """By input and output."""
        if self.pushed.changing:
            return self._apart()
        return self._alike()

    def _order(self) -> range:
        steps = range(self.length)
        return steps[::-1] if self.reverse else steps

    def _row(self, k: int) -> int:
        return math.prod(self.body.shape(k))

    def _alike(self) -> Patterns:
        """All steps are alike: what is read at one step comes out at steps so many later."""
        places, count = _columns(self.body)
        state = _identities(places, count)
        stacked = [k for k in range(self.carries, len(self.body.outputs))]
        history: list[dict[int, np.ndarray]] = []
        carried: list[dict[int, np.ndarray]] = []
        for step in range(self.length):
            out = self.pushed.step(state, count)
            history.append({k: out[k] for k in stacked if k in out})
            new = {i: state[i] for i in state if i < self.constants}
            new |= {self.constants + k: out[k] for k in range(self.carries) if k in out}
            carried.append({k: out[k] for k in range(self.carries) if k in out})
            settled = step > 0 and new.keys() == state.keys()
            settled = settled and all((new[i] == state[i]).all() for i in new)
            state = new
            if settled:
                break
        # Later steps are like the last one: nothing is read from `history` beyond it.
        last = len(history) - 1
        found: Patterns = {}
        for i, place in places.items():
            for k in range(len(self.body.outputs)):
                rows = [
                    (carried if k < self.carries else history)[min(t, last)].get(k)
                    for t in range(self.length)
                ]
                made = self._placed(i, k, place, rows)
                if made is not None:
                    found[i, k] = made
        return found

    def _placed(
        self, i: int, k: int, place: slice, by_step: list[np.ndarray | None]
    ) -> np.ndarray | None:
        """The pattern from one input to one output, from those after any number of steps."""
        steps, width, height = self.length, place.stop - place.start, self._row(k)
        if all(columns is None for columns in by_step):
            return None
        inward, outward = i >= self.mapped, k >= self.carries
        size = height * (steps if outward else 1) * width * (steps if inward else 1)
        if size > MAX_MASK:
            return None
        blocks = np.zeros((steps, height, width), bool)
        for t, columns in enumerate(by_step):
            if columns is not None:
                blocks[t] = columns[:, place]
        if outward and inward:
            result = np.zeros((steps, height, steps, width), bool)
            for late in range(steps):
                for t in range(late + 1):
                    result[late, :, late - t] = blocks[t]
            if self.reverse:
                result = result[::-1, :, ::-1]
            return result.reshape(steps * height, steps * width)
        if outward:
            return (blocks[::-1] if self.reverse else blocks).reshape(steps * height, width)
        if inward:
            arrived = blocks if self.reverse else blocks[::-1]
            return np.moveaxis(arrived, 0, 1).reshape(height, steps * width)
        return blocks[-1]

    def _values(self) -> Iterator[PossibleValues]:
        """What is known of the integers at each step, in order."""
        tables = self._tables()
        if tables is not None:
            whole = self.body.values(tables)
            for row in range(self.length):
                alone = {k: table.at_row(row) for k, table in tables.items()}
                yield whole.at_row(row, partial(self.body.values, alone))
            return
        integers = {k: p for k, p in self.given.items() if k < self.mapped}
        for step in self._order():
            mapped = {k: p.at_step(step) for k, p in self.given.items() if k >= self.mapped}
            values = self.body.values(integers | mapped)
            yield values
            integers = {k: p for k, p in integers.items() if k < self.constants}
            integers |= self._carried(values)

    def _carried(self, values: PossibleValues) -> dict[int, Possible]:
        """The integers that a step passes on, by the input of the next one."""
        found = values.outputs(range(self.carries))
        return {self.constants + k: possible for k, possible in found.items()}

    def _tables(self) -> dict[int, Possible] | None:
        """The integers of all steps, a row for each in order; None where they are not settled.

        Those that are carried are taken to grow by what they grow by in the first step; whether
        they do in all others is seen from what follows from that.
        """
        if any((possible.low != possible.high).any() for possible in self.given.values()):
            return None
        start = {k: p for k, p in self.given.items() if k < self.mapped}
        mapped = {k: p for k, p in self.given.items() if k >= self.mapped}
        order = self._order()
        first = {k: possible.at_step(order[0]) for k, possible in mapped.items()}
        following = self._carried(self.body.values(start | first))
        carried = {k for k in start if k >= self.constants}
        if following.keys() != carried or self.length > MAX_STEPS:
            return None
        tables = {k: possible for k, possible in start.items() if k < self.constants}
        rows = {k: possible.low[order] for k, possible in mapped.items()}
        steps = np.arange(self.length)
        for k in carried:
            growth = following[k].low - start[k].low
            rows[k] = start[k].low + steps.reshape(-1, *(1,) * growth.ndim) * growth
        for k, row in rows.items():
            dtype = self.body.listing.variables[self.body.listing.inputs[k]].dtype
            tables[k] = of_table(row.astype(dtype), np.full(row.shape[1:], STEPS, np.int64))
        values = self.body.values(tables)
        for k in carried:
            found = values.of(self.body.listing.outputs[k - self.constants])
            if found is None or not found.is_told_by(STEPS) or found.values is None:
                return None
            if (padded(found.values, self.length)[:-1] != rows[k][1:]).any():
                return None
        return tables

    def _apart(self) -> Patterns:
        """Steps differ by their integers: each input of each step has columns of its own."""
        places: dict[int, slice] = {}
        count = 0
        shapes = [self.body.listing.variables[v].shape for v in self.body.inputs]
        for i, shape in enumerate(shapes):
            size = math.prod(shape) * (self.length if i >= self.mapped else 1)
            if self.body.moves[i] and size:
                places[i] = slice(count, count + size)
                count += size
        if count * max((s.stop - s.start for s in places.values()), default=0) > MAX_HELD:
            raise _TooLarge
        state = _identities({i: p for i, p in places.items() if i < self.mapped}, count)
        rows: dict[int, np.ndarray] = {}
        for step, values in zip(self._order(), self._values(), strict=True):
            for i, place in places.items():
                if i >= self.mapped:
                    width = (place.stop - place.start) // self.length
                    state[i] = np.zeros((width, count), bool)
                    start = place.start + step * width
                    state[i][:, start : start + width] = np.eye(width, dtype=bool)
            out = self.pushed.step(state, count, values)
            for k in range(self.carries, len(self.body.outputs)):
                if k in out:
                    height = self._row(k)
                    if k not in rows:
                        if height * self.length * count > MAX_HELD:
                            raise _TooLarge
                        rows[k] = np.zeros((self.length, height, count), bool)
                    rows[k][step] = out[k]
            for k in range(self.carries):
                state.pop(self.constants + k, None)
                if k in out:
                    state[self.constants + k] = out[k]
        found: Patterns = {
            (i, k): state[self.constants + k][:, place]
            for i, place in places.items()
            for k in range(self.carries)
            if self.constants + k in state
        }
        for k, stacked in rows.items():
            flat = stacked.reshape(-1, count)
            found |= {(i, k): flat[:, place] for i, place in places.items()}
        return found
