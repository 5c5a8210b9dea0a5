"""Exact dynamic programming over a sliding window of consecutive eliminations.

The graph before and after a window depends only on the sets of eliminated vertices, so that the
best order within the window can be found by itself; sweeps go on until none changes anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elimination_orders.checks import check_between
from elimination_orders.errors import InvalidObjectiveError
from elimination_orders.heuristics import HEURISTICS, check_names
from elimination_orders.search.base import Search, Strategy
from elimination_orders.search.subset_dp import MAX_MEMBERS, solve_by_subsets

__all__ = ["WindowDP", "improve_by_windows", "require_sum"]


@dataclass(frozen=True)
class WindowDP(Strategy):
    """Sliding-window dynamic programming from several heuristic orders.

    Args:
        width: eliminations in a window; the work grows as 2 to this power.
        starts: names of the heuristics to start from.  The best start is often not the cheapest.
        sweeps: at most so many passes over an order.
    """

    width: int = 6
    starts: tuple[str, ...] = ("reverse", "eliad", "markowitz", "lowest_fill")
    sweeps: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("width", self.width, 2, MAX_MEMBERS)
        check_between("sweeps", self.sweeps, 1)
        check_names("starts", self.starts)

    def run(self, search: Search) -> None:
        """Improve every start until its windows are optimal."""
        require_sum(search.problem, self.name)
        for start in self.starts:
            if search.best_order is not None and search.is_over():
                return
            order = HEURISTICS[start](search.problem)
            search.try_order(order, start)
            improve_by_windows(search, order, self.width, self.sweeps, f"windows from {start}")


def require_sum(problem: Any, name: str) -> None:
    """Make sure that the cost of an order is the sum of its steps."""
    objective = getattr(problem, "objective", None)
    if objective is not None and objective.combine != "sum":
        raise InvalidObjectiveError(
            f"objective: {objective.name!r} is the {objective.combine} over the steps, and {name} "
            "needs a sum. Use 'beam', 'annealing' or 'search' for it."
        )


def improve_by_windows(
    search: Search, order: list[int], width: int, sweeps: int, method: str
) -> list[int]:
    """Make every window of an order optimal.

    Args:
        search: receives the improved orders; ends the sweeps when it is over.
        order: where to start.
        width: eliminations in a window.
        sweeps: at most so many passes.
        method: under which the orders are offered.

    Returns:
        The improved order.
    """
    problem = search.problem
    order = list(order)
    step = max(1, width // 3)
    for _ in range(sweeps):
        changed = False
        state = problem.start()
        for place in range(0, max(1, len(order) - width + step), step):
            members = order[place : place + width]
            if len(members) > 1:
                part, _ = problem.window(state, members)
                cost, best = solve_by_subsets(part)
                search.evaluations += 1
                if cost < part.evaluate(range(len(members))):
                    order[place : place + width] = [members[i] for i in best]
                    changed = True
            for vertex in order[place : place + step]:
                state.eliminate(vertex)
            if search.is_over():
                break
        search.offer(order, problem.evaluate(order), method)
        if not changed or search.is_over():
            break
    return order
