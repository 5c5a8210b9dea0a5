"""Simulated annealing over orders, evaluating only what a move changes.

A move permutes a segment of the order.  The graph before and after the segment depends on the sets
of eliminated vertices alone, hence the steps outside keep their costs and only the segment is
evaluated, from a stored state, with an early exit at the bound of acceptance.

The random numbers, the moves and the arithmetic are fixed, so that a seed and a number of moves
determine the result on every machine, in Python and in the compiled kernel alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from elimination_orders.bitgraph import BitProblem
from elimination_orders.native import NativePlanner, kernel_available

__all__ = ["SURPRISE", "Annealer", "KernelAnnealer", "PythonAnnealer", "make_annealer"]

_MASK = (1 << 64) - 1

#: Quantiles of the exponential distribution, -log(u): a move that costs no more than temperature
#: times one of them is accepted, which is the rule of Metropolis with the draw made in advance.
#: Rounded, so that the last digit of a mathematical library has no influence.
SURPRISE: tuple[float, ...] = tuple(
    round(-math.log((2 * i + 1) / 2048) * 2**20) / 2**20 for i in range(1024)
)


class Annealer(Protocol):
    """An order under annealing."""

    evaluations: int
    cost: float
    best_cost: float
    best_order: list[int]

    def run(self, temperature: float, moves: int) -> None:
        """Try `moves` moves at `temperature` (in the unit of the cost)."""
        ...

    def set_order(self, order: Sequence[int]) -> None:
        """Go on from another order."""
        ...


def make_annealer(problem: Any, order: Sequence[int], seed: int) -> Annealer:
    """The fastest annealer there is for `problem`.

    Args:
        problem: a `BitProblem` or another problem with ``start()`` and ``n``.
        order: where to start.
        seed: of the random numbers.
    """
    if isinstance(problem, BitProblem) and kernel_available():
        return KernelAnnealer(problem, order, seed)
    return PythonAnnealer(problem, order, seed)


def first_random(seed: int) -> int:
    """State of the generator for a seed; neighbouring seeds are driven apart."""
    value = (seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK
    value = ((value ^ (value >> 31)) * 0xBF58476D1CE4E5B9) & _MASK
    return value ^ (value >> 29)


class KernelAnnealer:
    """`PythonAnnealer` in the compiled kernel."""

    def __init__(self, problem: BitProblem, order: Sequence[int], seed: int) -> None:
        self._planner = NativePlanner(problem)
        self._planner.anneal_begin(order, first_random(seed), SURPRISE)
        self._read()

    def set_order(self, order: Sequence[int]) -> None:
        """Go on from another order."""
        self._planner.anneal_set_order(order)
        self._read()

    def run(self, temperature: float, moves: int) -> None:
        """Try `moves` moves at `temperature`."""
        if self._planner.n > 1:
            self._planner.anneal_run(temperature, moves)
            self._read()

    def _read(self) -> None:
        self.cost: float = self._planner.anneal_cost()
        self.evaluations = self._planner.anneal_evaluations()
        self.best_cost: float
        self.best_cost, self.best_order = self._planner.anneal_best()


class PythonAnnealer:
    """An order with the state before each of its steps.

    Args:
        problem: any problem with ``n``, ``start()`` and states with ``copy`` and ``eliminate``.
        order: where to start.
        seed: of the random numbers.
    """

    def __init__(self, problem: Any, order: Sequence[int], seed: int) -> None:
        self._problem = problem
        objective = getattr(problem, "objective", None)
        self._total: Callable[[list[float]], float] | None = None
        if objective is not None and objective.combine != "sum":
            self._total = objective.total
        self._rng = first_random(seed)
        self.evaluations = 0
        self.best_cost: float = math.inf
        self.best_order: list[int] = []
        self.set_order(order)

    def set_order(self, order: Sequence[int]) -> None:
        """Go on from another order."""
        self._order = list(order)
        self._states, self._costs = [], []
        state = self._problem.start()
        for vertex in order:
            self._states.append(state)
            state = state.copy()
            self._costs.append(state.eliminate(vertex))
        self.cost: float = sum(self._costs) if self._total is None else self._total(self._costs)
        self._keep_best()

    def run(self, temperature: float, moves: int) -> None:
        """Try `moves` moves at `temperature`."""
        if len(self._order) < 2:
            return
        for _ in range(moves):
            proposal = self._propose()
            if proposal is None:
                continue
            lo, segment = proposal
            hi = lo + len(segment)
            slack = temperature * SURPRISE[self._draw() >> 21]
            self.evaluations += 1
            eliminate = self._states[lo].copy().eliminate
            if self._total is None:
                old = sum(self._costs[lo:hi])
                bound = old + slack
                total = 0
                for vertex in segment:
                    total += eliminate(vertex)
                    if total > bound:
                        break
                else:
                    self._accept(lo, segment, self.cost + (total - old))
            else:
                # A maximum or minimum over the steps: no part of the sum tells it early.
                scores = [eliminate(vertex) for vertex in segment]
                cost = self._total([*self._costs[:lo], *scores, *self._costs[hi:]])
                if cost <= self.cost + slack:
                    self._accept(lo, segment, cost)

    def _accept(self, lo: int, segment: list[int], cost: float) -> None:
        order, states, costs = self._order, self._states, self._costs
        hi = lo + len(segment)
        order[lo:hi] = segment
        state = states[lo]
        for place in range(lo, hi):
            states[place] = state
            state = state.copy()
            costs[place] = state.eliminate(order[place])
        self.cost = cost
        if self.cost < self.best_cost:
            self._keep_best()

    def _keep_best(self) -> None:
        if self.cost < self.best_cost:
            self.best_cost = self.cost
            self.best_order = list(self._order)

    def _draw(self) -> int:
        """31 random bits."""
        self._rng = (self._rng * 6364136223846793005 + 1442695040888963407) & _MASK
        return self._rng >> 33

    def _propose(self) -> tuple[int, list[int]] | None:
        """A place and the segment that would stand there; None if the draw led to no move.

        Out of 24 draws, 12 relocate one vertex (half of them within 8 places), 4 swap two, 4 move a
        block of 2 to 7 (a third of them reversed), and 4 gather a stretch of the topological order
        at one place or at an end.  The last kind changes the plan at large, such as which part of
        the graph is eliminated last; on layered graphs nothing else gets out of a poor one.
        """
        draw, order = self._draw, self._order
        n = len(order)
        kind = draw() * 24 >> 31
        i = draw() * n >> 31
        if kind < 12:
            if kind < 6:
                distance = (draw() * 16 >> 31) - 8
                j = i + distance + (distance >= 0)
                if j < 0 or j >= n:
                    return None
            else:
                j = draw() * n >> 31
                if i == j:
                    return None
            if i < j:
                return i, [*order[i + 1 : j + 1], order[i]]
            return j, [order[i], *order[j:i]]
        if kind < 16:
            j = draw() * n >> 31
            if i == j:
                return None
            lo, hi = (i, j) if i < j else (j, i)
            segment = order[lo : hi + 1]
            segment[0], segment[-1] = segment[-1], segment[0]
            return lo, segment
        if kind >= 20:
            return self._gather(i)
        length = 2 + (draw() * 6 >> 31)
        if i + length > n:
            return None
        j = draw() * (n - length + 1) >> 31
        if i == j:
            return None
        block = order[i : i + length]
        if draw() * 3 >> 31 == 0:
            block.reverse()
        if j < i:
            return j, block + order[j:i]
        return i, order[i + length : j + length] + block

    def _gather(self, first: int) -> tuple[int, list[int]] | None:
        """Bring the vertices from `first` on, which are neighbours topologically, together."""
        draw, order = self._draw, self._order
        n = len(order)
        length = 2 + (draw() * n >> 31)
        end = first + length
        if end > n:
            return None
        place = draw() * (n - length + 1) >> 31
        arrangement = draw() * 3 >> 31
        if draw() * 2 >> 31:
            place = 0 if draw() * 2 >> 31 else n - length
        if arrangement == 0:
            block = [vertex for vertex in order if first <= vertex < end]
        else:
            block = list(range(first, end) if arrangement == 1 else range(end - 1, first - 1, -1))
        others = [vertex for vertex in order if not first <= vertex < end]
        moved = others[:place] + block + others[place:]
        lo, hi = 0, n
        while lo < n and moved[lo] == order[lo]:
            lo += 1
        if lo == n:
            return None
        while moved[hi - 1] == order[hi - 1]:
            hi -= 1
        return lo, moved[lo:hi]
