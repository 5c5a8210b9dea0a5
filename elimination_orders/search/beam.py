"""Beam search: the cheapest partial eliminations, one vertex deeper at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elimination_orders.checks import check_between
from elimination_orders.search.base import Search, Strategy

__all__ = ["Beam"]


@dataclass(frozen=True)
class Beam(Strategy):
    """Keep the `width` best sets of eliminated vertices of every size.

    Two orders of the same set lead to the same graph, hence only the cheaper one is kept.  Partial
    eliminations are ranked by their cost so far plus what the vertices that are left would cost if
    they were eliminated now.

    Args:
        width: partial eliminations kept.
        branch: vertices of least degree tried next from each.
    """

    width: int = 16
    branch: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("width", self.width, 1)
        check_between("branch", self.branch, 1)

    def run(self, search: Search) -> None:
        """Search once; the work is about ``n * width * branch`` eliminations."""
        problem = search.problem
        combine = getattr(getattr(problem, "objective", None), "combine", "sum")
        # An entry is (rank, eliminated set, number, order, state, degrees).
        state = problem.start()
        degrees = {v: state.degree(v) for v in range(problem.n)}
        beam: list[tuple[float, int, float | None, list[int], Any, dict[int, float]]] = [
            (0, 0, None, [], state, degrees)
        ]
        for _ in range(problem.n):
            options: dict[int, tuple[float, int, float | None, list[int], Any, int, Any]] = {}
            for _, done, number, order, state, degrees in beam:
                # Ties to the latest vertex, as for Markowitz.
                best = sorted(degrees, key=lambda v: (degrees[v], -v))[: self.branch]
                for vertex in best:
                    total = _combine(combine, number, state.cost(vertex))
                    rank = total + sum(degrees.values()) - degrees[vertex]
                    key = done | 1 << vertex
                    if key not in options or rank < options[key][0]:
                        options[key] = (rank, key, total, order, state, vertex, degrees)
            chosen = sorted(options.values(), key=lambda option: option[:2])[: self.width]
            beam = []
            for rank, key, cost, order, state, vertex, degrees in chosen:
                near = [v for v in state.neighbours(vertex) if v in degrees]
                state = state.copy()
                state.eliminate(vertex)
                degrees = {v: degree for v, degree in degrees.items() if v != vertex}
                degrees.update({v: state.degree(v) for v in near})
                beam.append((rank, key, cost, [*order, vertex], state, degrees))
            if search.best_order is not None and search.is_over():
                return
        for _, _, _, order, _, _ in beam:
            search.try_order(order, "beam")


def _combine(how: str, number: float | None, score: float) -> float:
    if number is None:
        return score
    return number + score if how == "sum" else (max if how == "max" else min)(number, score)
