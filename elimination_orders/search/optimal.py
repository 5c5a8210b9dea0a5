"""Orders that are proved to be of least cost.

The problem is reduced and taken apart; small parts are solved by dynamic programming over subsets,
larger ones by branch and bound over sets of eliminated vertices with the flow bound of
`elimination_orders.bounds`.  In branch and bound a vertex that may come first by one of the rules
of `elimination_orders.reductions` is the only branch.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

from elimination_orders.bitgraph import BitProblem
from elimination_orders.bounds import lower_bound, vertex_bounds
from elimination_orders.checks import check_between
from elimination_orders.reductions import false_twins, first_settled, reduce_problem
from elimination_orders.search.annealing import Annealing
from elimination_orders.search.base import Search, Strategy
from elimination_orders.search.subset_dp import solve_by_subsets
from elimination_orders.search.window import require_sum

__all__ = ["Optimal", "solve_part"]

#: A part with at most so many vertices is solved by dynamic programming over subsets.
EXACT_LENGTH = 16


@dataclass(frozen=True)
class Optimal(Strategy):
    """Search with a proof.

    The result says whether the proof was complete (``.optimal``) and gives the best lower bound.

    Args:
        max_states: partial eliminations that branch and bound may look at, for each part.
    """

    max_states: int = 400

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("max_states", self.max_states, 0)

    def run(self, search: Search) -> None:
        """Find a good order, then prove it or find a better one."""
        require_sum(search.problem, self.name)
        problem = search.problem
        reduction = reduce_problem(problem)
        orders = []
        gap: float = 0
        for section in reduction.sections:
            if section.problem is not None:
                cost, best, least = solve_part(search, section.problem, self.max_states)
                orders.append(best)
                gap += cost - least
        order = reduction.join(orders)
        # Sums at the edges between inputs and outputs are counted in every part, always as many, so
        # that the costs of the parts may add up to more or less than the whole; what they are above
        # their bounds adds up.
        search.lower_bound = max(search.lower_bound, problem.evaluate(order) - gap)
        search.try_order(order, "reduction and subsets")


def solve_part(search: Search, part: Any, max_states: int) -> tuple[float, list[int], float]:
    """Solve an independent part of a problem as far as it goes.

    Args:
        search: lends its budget and counts the work.
        part: the part as a problem of its own.
        max_states: limit of branch and bound.

    Returns:
        Cost and order of the best found, and a lower bound.
    """
    if part.n <= EXACT_LENGTH:
        cost, order = solve_by_subsets(part)
        search.evaluations += 1 << part.n
        return cost, order, cost
    inner = search.part(part, limit=400 * part.n)
    inner.lower_bound = lower_bound(part)
    Annealing().run(inner)
    search.evaluations += inner.evaluations
    cost, order = inner.best_cost, list(inner.best_order or range(part.n))
    least: float = inner.lower_bound
    if cost > least and isinstance(part, BitProblem) and part.effective_weights[1:] == (0, 0):
        least, better = _branch_and_bound(search, part, cost, max_states)
        if better is not None:
            order = better
            cost = part.evaluate(order)
    return cost, order, min(least, cost)


def _branch_and_bound(
    search: Search, problem: BitProblem, upper: float, max_states: int
) -> tuple[float, list[int] | None]:
    """Best-first search over sets of eliminated vertices.

    A set enters with the bounds of its parent, which never grow smaller by an elimination; its own,
    which take flows to compute, are found when its turn comes.

    Returns:
        A lower bound, which is the optimum if the search ran to its end, and an order that is
        cheaper than `upper` if there is one.
    """
    bounds = vertex_bounds(problem)
    # (bound, minus depth, number, eliminated set, cost so far, order, whether the bound is its own)
    heap: list[tuple[float, int, int, int, float, tuple[int, ...], bool]] = []
    heap.append((sum(bounds), 0, 0, 0, 0.0, (), True))
    cheapest: dict[int, float] = {0: 0}
    looked_at = 0
    while heap:
        bound, _, number, done, cost, order, own = heapq.heappop(heap)
        if bound >= upper:
            return upper, None
        if len(order) == problem.n:
            return cost, list(order)
        if cost > cheapest[done]:
            continue
        if looked_at >= max_states or search.is_over():
            return bound, None
        looked_at += 1
        search.evaluations += 1
        state = problem.start()
        for vertex in order:
            state.eliminate(vertex)
        left = [v for v in range(problem.n) if not done >> v & 1]
        part, _ = problem.window(state, left)
        bounds = vertex_bounds(part)
        if not own and cost + sum(bounds) > bound:
            entry = (cost + sum(bounds), -len(order), number, done, cost, order, True)
            heapq.heappush(heap, entry)
            continue
        first = first_settled(part)
        # A vertex that may come first without loss leaves nothing to branch on.
        for group in false_twins(part) if first is None else [(first,)]:
            state = part.start()
            total = cost
            after = done
            for vertex in group:
                total += state.eliminate(vertex)
                after |= 1 << left[vertex]
            if total >= cheapest.get(after, math.inf):
                continue
            cheapest[after] = total
            known = total + sum(b for v, b in enumerate(bounds) if v not in group)
            longer = (*order, *(left[vertex] for vertex in group))
            heapq.heappush(heap, (known, -len(longer), len(cheapest), after, total, longer, False))
    return upper, None
