"""What a search for an order returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from elimination_orders import report
from elimination_orders.graph import EliminationGraph, Vertex
from elimination_orders.objectives import Objective

__all__ = ["HistoryEntry", "OrderResult"]


@dataclass(frozen=True)
class HistoryEntry:
    """An improvement of the best order during a search.

    Args:
        cost: cost of the new best order.
        evaluations: orders evaluated until then.
        seconds: time since the search began.
        method: what found it.
    """

    cost: float
    evaluations: int
    seconds: float
    method: str


@dataclass(frozen=True)
class OrderResult:
    """An elimination order and how it was found.

    Args:
        order: eliminable vertices, first eliminated first.
        cost: cost of the order in the unit of the objective.
        method: name of what found the order.
        objective: name of the objective.
        lower_bound: no order costs less than this; 0 if nothing better is known.
        optimal: whether the order is proved to be of least cost.
        history: improvements in the order in which they were found; the last one is the result.
        seconds: duration of the search.
        evaluations: number of orders that were evaluated.
        graph: what the order is for.
        reference: the objective itself.
    """

    order: tuple[Vertex, ...]
    cost: float
    method: str
    objective: str = "muls"
    lower_bound: float = 0
    optimal: bool = False
    history: tuple[HistoryEntry, ...] = field(default=(), repr=False)
    seconds: float = 0.0
    evaluations: int = 1
    graph: EliminationGraph | None = field(default=None, repr=False, compare=False)
    reference: Objective | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        """The result beside forward, reverse and Markowitz."""
        return repr(self) if self.graph is None else report.compare_table(self)

    def steps(self, limit: int | None = 20) -> str:
        """A table with a line for every elimination, at most `limit` of them."""
        return report.step_table(self, limit)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the graph, in plain types; vertices as they are."""
        return {
            "order": list(self.order),
            "cost": self.cost,
            "method": self.method,
            "objective": self.objective,
            "lower_bound": self.lower_bound,
            "optimal": self.optimal,
            "history": [asdict(entry) for entry in self.history],
            "seconds": self.seconds,
            "evaluations": self.evaluations,
        }

    def plot_history(self) -> tuple[Any, Any]:
        """Best cost against orders evaluated; returns figure and axes of matplotlib."""
        return report.plot_history(self)

    def plot_steps(self, *others: str) -> tuple[Any, Any]:
        """Accumulated cost beside other orders; returns figure and axes of matplotlib."""
        return report.plot_steps(self, *others)

    def plot_graph(self) -> tuple[Any, Any]:
        """The graph layered by elimination step; returns figure and axes of matplotlib."""
        return report.plot_graph(self)

    def __len__(self) -> int:
        """Number of eliminations."""
        return len(self.order)

    def __iter__(self) -> Iterator[Vertex]:
        """The vertices, first eliminated first: a result may stand wherever an order may."""
        return iter(self.order)

    def __repr__(self) -> str:
        proof = ", optimal" if self.optimal else ""
        return (
            f"OrderResult({len(self.order)} vertices, {self.cost:g} {self.objective}, "
            f"by {self.method}{proof})"
        )
