"""Simulated annealing as a strategy: schedules, restarts, and windows for long orders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elimination_orders.checks import check_between
from elimination_orders.heuristics import HEURISTICS, check_names
from elimination_orders.search.annealer import make_annealer
from elimination_orders.search.base import Search, Strategy

__all__ = ["Annealing", "anneal"]

#: Longer orders are annealed window by window: the states kept for an order grow as its cube.
MAX_LENGTH = 400


@dataclass(frozen=True)
class Annealing(Strategy):
    """Simulated annealing with restarts.

    Every round lowers the temperature geometrically from `hot` to `cold` times the best cost, and
    starts from a heuristic order in turn or from the best order so far.  Without any limit the
    search ends after ``max_evaluations``, by default 1000 per vertex.

    Args:
        starts: names of heuristics; rounds start from them in turn.
        round_evaluations: orders per vertex in the first round; later rounds are longer.
        hot: first temperature, as a fraction of the best cost.
        cold: last temperature, as a fraction of the best cost.
        levels: number of temperatures of a round.
        window: eliminations annealed at a time when an order is too long to be annealed as a whole.
    """

    starts: tuple[str, ...] = ("eliad", "markowitz", "reverse", "lowest_fill")
    round_evaluations: int = 200
    hot: float = 0.02
    cold: float = 0.0001
    levels: int = 50
    window: int = 80

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("starts", self.starts)
        check_between("round_evaluations", self.round_evaluations, 1)
        check_between("hot", self.hot, 0.0)
        check_between("cold", self.cold, 0.0)
        check_between("levels", self.levels, 1)
        check_between("window", self.window, 2)

    def run(self, search: Search) -> None:
        """Anneal until the budget is spent."""
        problem = search.problem
        for start in self.starts:
            if search.best_order is None or not search.is_over():
                search.try_order(HEURISTICS[start](problem), start)
        if problem.n < 2 or (problem.n > MAX_LENGTH and not search.is_sum):
            return
        limit = search.evaluations + (
            search.remaining if search.budget.is_limited else 1000 * problem.n
        )
        turn = 0
        per_vertex: float = self.round_evaluations
        while search.evaluations < limit and not search.is_over():
            share = min(per_vertex * problem.n, limit - search.evaluations)
            if problem.n > MAX_LENGTH:
                self._sweep(search, share, turn)
            else:
                # Every other round starts from the best order.
                start = self.starts[turn // 2 % len(self.starts)] if self.starts else "best"
                if turn % 2 == 1 or start == "best":
                    start, order = "best", list(search.best_order or ())
                else:
                    order = HEURISTICS[start](problem)
                anneal(search, order, int(share), turn, self, f"annealing from {start}")
            turn += 1
            per_vertex *= 1.5

    def _sweep(self, search: Search, evaluations: float, turn: int) -> None:
        """Anneal the best order window by window, from its first elimination to its last."""
        problem = search.problem
        order = list(search.best_order or ())
        step = self.window // 2
        # Windows of successive sweeps are shifted against each other.
        places = range(-(turn % 2) * (step // 2), len(order), step)
        share = max(self.levels, int(evaluations / len(places)))
        state = problem.start()
        total: float = 0
        for place in places:
            lo = max(0, place)
            members = order[lo : place + self.window]
            if len(members) > 1 and not search.is_over():
                # Numbered topologically, as the annealer expects it.
                numbers = sorted(members)
                part, _ = problem.window(state, numbers)
                inner = search.part(part)
                start = [numbers.index(vertex) for vertex in members]
                inner.try_order(start, "order")
                anneal(inner, start, share, place + turn, self, "annealing")
                search.evaluations += inner.evaluations - 1
                best = inner.best_order or start
                order[lo : lo + len(members)] = [numbers[i] for i in best]
            total += sum(state.eliminate(vertex) for vertex in order[lo : place + step])
            search.show()
        search.offer(order, total, "annealing by windows")


def anneal(
    search: Search, order: list[int], evaluations: int, salt: int, settings: Any, method: str
) -> None:
    """One round of annealing.

    Args:
        search: receives what is found.
        order: where to start.
        evaluations: moves to try.
        salt: distinguishes rounds of one seed.
        settings: an `Annealing`, for the schedule.
        method: under which orders are offered.
    """
    annealer = make_annealer(search.problem, order, search.seed * 1_000_003 + salt)
    levels = max(1, min(settings.levels, evaluations))
    before = search.evaluations
    for level in range(levels):
        fraction = settings.hot * (settings.cold / settings.hot) ** (level / max(1, levels - 1))
        # Rounded: the last digit of a power may differ between mathematical libraries.
        temperature = float(f"{annealer.best_cost * fraction:.6g}")
        annealer.run(temperature, evaluations // levels)
        search.evaluations = before + annealer.evaluations
        if annealer.best_cost < search.best_cost:
            search.offer(annealer.best_order, annealer.best_cost, method)
        search.show(f"T={temperature:.1e}")
        if search.is_over():
            break
