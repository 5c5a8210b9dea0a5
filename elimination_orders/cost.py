"""The cost of an elimination order, in total and vertex by vertex."""

from __future__ import annotations

from collections.abc import Iterable

from elimination_orders.graph import EliminationGraph, Vertex
from elimination_orders.objectives import Objective, Score, resolve_objective
from elimination_orders.state import EliminationStep

__all__ = ["elimination_cost", "elimination_trace"]


def elimination_cost(
    graph: EliminationGraph,
    order: Iterable[Vertex],
    objective: str | Objective | Score = "muls",
) -> float:
    """Cost of eliminating the vertices of `graph` in `order`.

    Under ``"muls"`` a scalar vertex with p predecessors and s successors costs p * s
    multiplications (Griewank and Walther, Evaluating Derivatives, 2nd ed., ch. 9); a graph with an
    algebra costs what its algebra says.

    Args:
        graph: the graph to eliminate from.
        order: every eliminable vertex once, first eliminated first.
        objective: what to measure, see `resolve_objective`.

    Returns:
        The cost in the unit of the objective; an int where all its parts are.

    Raises:
        InvalidOrderError: if `order` does not name every eliminable vertex once.
        InvalidObjectiveError: if the objective is unknown.
    """
    objective = resolve_objective(objective)
    steps = elimination_trace(graph, order, objective)
    return objective.total(objective.score(step) for step in steps)


def elimination_trace(
    graph: EliminationGraph,
    order: Iterable[Vertex],
    objective: str | Objective | Score = "muls",
) -> list[EliminationStep]:
    """What every single elimination of `order` does, in order.

    Args:
        graph: the graph to eliminate from.
        order: every eliminable vertex once, first eliminated first.
        objective: decides the algebra under which a scalar graph is eliminated.

    Raises:
        InvalidOrderError: if `order` does not name every eliminable vertex once.
        InvalidObjectiveError: if the objective is unknown.
    """
    order = graph.check_order(order)
    state = resolve_objective(objective).start(graph)
    return [state.eliminate(vertex) for vertex in order]
