"""Objectives: what an order is judged by.

An objective sees one `EliminationStep` at a time and gives it a number; the numbers of an order are
combined by a sum, a maximum or a minimum.  The same object therefore serves as the local score of a
greedy choice, as the step of a dynamic programme and for the ranking of orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from elimination_orders.algebra import EdgeAlgebra, LiteratureAlgebra, UnitAwareAlgebra
from elimination_orders.checks import check_score
from elimination_orders.errors import InvalidObjectiveError
from elimination_orders.graph import EliminationGraph
from elimination_orders.state import EliminationState, EliminationStep

__all__ = ["OBJECTIVES", "Objective", "resolve_objective"]

Score = Callable[[EliminationStep], float]


@dataclass(frozen=True)
class Objective:
    """A measure of an elimination order; smaller is better.

    Args:
        name: for messages and tables.
        score: number given to one elimination.
        combine: how the numbers of an order become one.
        scalar_algebra: the algebra under which a scalar graph is eliminated.
        weights: where the score of a scalar graph is linear in its counts, the weights of all
            products, of those that are neither copies nor folded, and of the sums; the searches are
            much faster then.
        is_algebra_cost: whether the score is the cost under the algebra and nothing else.
        needs_bytes: whether the score reads ``live_bytes``.
    """

    name: str
    score: Score
    combine: Literal["sum", "max", "min"] = "sum"
    scalar_algebra: EdgeAlgebra | None = None
    weights: tuple[int, int, int] | None = None
    is_algebra_cost: bool = False
    needs_bytes: bool = False

    def start(self, graph: EliminationGraph) -> EliminationState:
        """A fresh state of `graph` under the algebra that this objective measures with."""
        algebra = self.scalar_algebra if graph.is_scalar else None
        return EliminationState(graph, algebra, count_bytes=self.needs_bytes)

    def total(self, scores: Iterable[float]) -> float:
        """The number of a whole order from those of its steps; 0 for an empty order."""
        if self.combine == "sum":
            return sum(scores)
        return (max if self.combine == "max" else min)(scores, default=0)


def _cost(step: EliminationStep) -> float:
    return step.cost


def _additions(step: EliminationStep) -> float:
    return step.additions


def _operations(step: EliminationStep) -> float:
    return step.cost + step.additions


def _edges(step: EliminationStep) -> float:
    return step.edges


def _bytes_moved(step: EliminationStep) -> float:
    # Every product and every sum reads two doubles and writes one.
    return 24 * (step.cost + step.additions)


def _live_bytes(step: EliminationStep) -> float:
    if step.live_bytes is None:
        raise AssertionError("bytes were not counted; please file a bug")
    return step.live_bytes


_LITERATURE = LiteratureAlgebra()
_UNIT_AWARE = UnitAwareAlgebra()

#: Objectives by name.  On a graph with an algebra, ``"muls"`` and ``"unit_muls"`` are the cost that
#: the algebra says.
OBJECTIVES: dict[str, Objective] = {
    "muls": Objective("muls", _cost, "sum", _LITERATURE, (1, 0, 0), is_algebra_cost=True),
    "unit_muls": Objective("unit_muls", _cost, "sum", _UNIT_AWARE, (0, 1, 0), is_algebra_cost=True),
    "adds": Objective("adds", _additions, "sum", _LITERATURE, (0, 0, 1)),
    "flops": Objective("flops", _operations, "sum", _UNIT_AWARE, (0, 1, 1)),
    "bytes": Objective("bytes", _bytes_moved, "sum", _UNIT_AWARE, (0, 24, 24)),
    "peak_bytes": Objective("peak_bytes", _live_bytes, "max", _LITERATURE, needs_bytes=True),
    "edges_left": Objective("edges_left", _edges, "min", _LITERATURE),
    "peak_edges": Objective("peak_edges", _edges, "max", _LITERATURE),
}

_ALIASES = {
    "mults": "muls",
    "multiplications": "muls",
    "cost": "muls",
    "unit": "unit_muls",
    "unit_aware": "unit_muls",
    "additions": "adds",
    "peak": "peak_bytes",
    "scarcity": "edges_left",
}


def resolve_objective(objective: str | Objective | Score) -> Objective:
    """The objective that a name, an objective or a callable stands for.

    Args:
        objective: a name of `OBJECTIVES` or an alias of one, an `Objective`, or a callable that
            gives a number to an `EliminationStep`; the numbers are summed.

    Raises:
        InvalidObjectiveError: if the name is unknown or the type is not one of these.
    """
    if isinstance(objective, Objective):
        return objective
    if isinstance(objective, str):
        name = objective.lower().replace("-", "_").replace(" ", "_")
        name = _ALIASES.get(name, name)
        if name in OBJECTIVES:
            return OBJECTIVES[name]
        raise InvalidObjectiveError(
            f"objective: unknown name {objective!r}. Expected one of "
            f"{', '.join(map(repr, OBJECTIVES))} (aliases: {', '.join(map(repr, _ALIASES))}), an "
            "Objective, or a callable that takes an EliminationStep."
        )
    if callable(objective):
        name, score = getattr(objective, "__name__", "custom"), objective
        return Objective(name, lambda step: check_score(name, score(step)))
    raise InvalidObjectiveError(
        f"objective: expected a name, an Objective or a callable, got {type(objective).__name__}."
    )
