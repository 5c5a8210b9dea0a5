"""Elimination orders that are built without search."""

from __future__ import annotations

import heapq

from elimination_orders.graph import EliminationGraph, Vertex
from elimination_orders.objectives import OBJECTIVES, Objective

__all__ = ["forward_order", "markowitz_order", "reverse_order"]


def forward_order(
    graph: EliminationGraph, objective: Objective = OBJECTIVES["muls"]
) -> tuple[Vertex, ...]:
    """Topological order: forward mode, with sparsity exploited.

    Args:
        graph: the graph to eliminate from.
        objective: ignored; every heuristic has the same signature.
    """
    return graph.eliminable


def reverse_order(
    graph: EliminationGraph, objective: Objective = OBJECTIVES["muls"]
) -> tuple[Vertex, ...]:
    """Reverse topological order: reverse mode, with sparsity exploited.

    Args:
        graph: the graph to eliminate from.
        objective: ignored; every heuristic has the same signature.
    """
    return graph.eliminable[::-1]


def markowitz_order(
    graph: EliminationGraph, objective: Objective = OBJECTIVES["muls"]
) -> tuple[Vertex, ...]:
    """Always a vertex of least Markowitz degree, of several the one that comes last in the graph.

    The degree is the number of predecessors times the number of successors.  On a graph with an
    algebra it is the cost of all products under that algebra.  Ties to the latest vertex were
    clearly better than ties to the earliest on the published graphs (221 instead of 288
    multiplications on a six-joint robot arm).

    Source: Markowitz 1957, for sparse matrices; Griewank and Reese 1991 for derivatives.

    Args:
        graph: the graph to eliminate from.
        objective: decides the algebra of the elimination on a scalar graph.
    """
    state = objective.start(graph)
    degree = state.degree if graph.is_scalar else state.composed_cost
    current = {vertex: degree(vertex) for vertex in graph.eliminable}
    heap = [(value, -graph.position(vertex)) for vertex, value in current.items()]
    heapq.heapify(heap)
    order: list[Vertex] = []
    while heap:
        value, negative_position = heapq.heappop(heap)
        vertex = graph.vertices[-negative_position]
        # An entry is out of date when its vertex is gone or has changed its degree since.
        if vertex not in state.remaining or current[vertex] != value:
            continue
        near = set(state.pred[vertex]) | set(state.succ[vertex])
        state.eliminate(vertex)
        order.append(vertex)
        for neighbour in near:
            if neighbour in state.remaining:
                new = degree(neighbour)
                if new != current[neighbour]:
                    current[neighbour] = new
                    heapq.heappush(heap, (new, -graph.position(neighbour)))
    return tuple(order)
