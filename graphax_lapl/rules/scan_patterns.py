"""Which entries the steps of a `scan` read, one step after the other.

Where the integers of a step are known (a counter, an array of positions), the equations that read
them are looked at again for each step, so that `x.at[i].set(...)` in a loop over i has the entries
of its steps, not all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from ..edges.masks import MAX_MASK
from ..graph.listing import Equation
from .bodies import body_of
from .boolean_columns import MAX_HELD, Patterns, Pushed, TooLarge, columns_of, identities
from .integer_ranges import STEPS, of_table, padded
from .possible_values import Possible, PossibleValues

__all__ = ["ScanSteps"]

#: Longest loop whose integers are followed through all steps at once.
MAX_STEPS = 1 << 12


class ScanSteps:
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
        self.pushed = Pushed(self.body, {k: given[k] for k in moving})

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
        places, count = columns_of(self.body)
        state = identities(places, count)
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
            raise TooLarge
        state = identities({i: p for i, p in places.items() if i < self.mapped}, count)
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
                            raise TooLarge
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
