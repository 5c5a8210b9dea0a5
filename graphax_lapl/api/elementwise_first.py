"""Orders that put together what lies between two products, entry by entry, before all others.

An activation is several elementwise equations, the slope of each a vector. Pulled back through them
one by one, a matrix is scaled as often; multiplied first they are one vector, which scales it once.
"""

from __future__ import annotations

import math
from typing import Any

from ..graph.computational_graph import ComputationalGraph
from .orders import EliminationOrder

__all__ = ["elementwise_first"]

#: What stands between activations.
PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})


def elementwise_first(graph: ComputationalGraph, order: EliminationOrder) -> list[EliminationOrder]:
    """An order with vertices between elementwise arrows of arrays in front.

    A vertex of which more arrows than before would be left stays where it is, and so do all where
    the function has no products of matrices.

    Args:
        graph: the graph.
        order: of its vertices.

    Returns:
        One order, or none where no vertex is of that kind.
    """
    if not any(vertex.primitive in PRODUCTS for vertex in graph.vertices):
        return []
    first = _between_products(graph)
    if not first:
        return []
    vertices = (*first, *(v for v in order.vertices if v not in first))
    return [EliminationOrder(vertices, order.fingerprint, f"elementwise, then {order.method}")]


def _between_products(graph: ComputationalGraph) -> dict[int, None]:
    """Vertices that only elementwise arrows enter or leave, the last ones first."""
    before: dict[Any, set[Any]] = {name: set() for name in graph.by_name}
    behind: dict[Any, set[Any]] = {name: set() for name in graph.by_name}
    others: set[Any] = set()
    for (u, v), arrow in graph.arrows.items():
        behind[u].add(v)
        before[v].add(u)
        size = math.prod(graph.by_name[u].shape)
        entries = all(math.prod(term.sizes) <= size for term in arrow.structure.terms)
        if size == 1 or size != math.prod(graph.by_name[v].shape) or not entries:
            others |= {u, v}
    found: dict[int, None] = {}
    for vertex in reversed(graph.eliminable):
        into, out = before[vertex], behind[vertex]
        if vertex in others or len(into) * len(out) > len(into) + len(out):
            continue
        found[vertex] = None
        for u in into:
            behind[u] = (behind[u] - {vertex}) | out
        for v in out:
            before[v] = (before[v] - {vertex}) | into
    return found
