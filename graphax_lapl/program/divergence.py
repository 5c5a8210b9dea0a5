"""The trace of a Jacobian, taken before the Jacobian is formed.

All vertices but one are eliminated. Of the last one, with arrows B into it and A out of it, only
`trace(A B) = sum_ij A_ij B_ji` is wanted: an elementwise product of two factors instead of their
matrix product. Blocks between different leaves never arise.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..edges.algebra import add, trace
from ..edges.bilinear import trace_product
from ..edges.operations import Recipe
from ..errors import InternalError
from ..graph.computational_graph import ComputationalGraph, VertexName
from .builder import Builder, Edge
from .instructions import Block, Program
from .tidying import tidied

__all__ = ["build_divergence"]


def build_divergence(
    graph: ComputationalGraph, order: Sequence[VertexName], places: Sequence[int]
) -> Program:
    """The program of `sum_k trace(d output leaf k / d input leaf places[k])`.

    Args:
        graph: the graph of a map whose output leaves have the shapes of its input leaves.
        order: a permutation of the eliminable vertices; the last one is not eliminated.
        places: for every output leaf the position of its input leaf in the graph.

    Returns:
        A program with one block, a scalar.
    """
    return _Divergence(graph).divergence(order, places)


class _Divergence(Builder):
    total: Edge | None = None

    def divergence(self, order: Sequence[VertexName], places: Sequence[int]) -> Program:
        if {*order} != {*self.graph.eliminable}:  # paths would be lost silently
            raise InternalError("The order does not hold the vertices of the graph.")
        edges, into = self.start()
        for vertex in order[:-1]:
            self.eliminate(vertex, edges, into)
        last = order[-1] if order else None
        first = self.graph.by_name[self.graph.inputs[0]]
        for place, end in zip(places, self.graph.outputs, strict=True):
            source = self.graph.inputs[place]
            if end is None:
                continue
            direct = edges[source].get(end)
            if direct is not None:
                self.include(trace(direct[0]), direct[1], first.dtype)
            if last is not None and end in edges[last] and last in edges[source]:
                outer, inner = edges[last][end], edges[source][last]
                recipe = trace_product(outer[0], inner[0])
                # XLA's library would take a chain of products, and the sum, as one expression.
                self.program.sums |= {
                    s for s in (*outer[1], *inner[1]) if self.program.slots[s].array
                }
                self.include(recipe, (*outer[1], *inner[1]), first.dtype)
        self.program.blocks = [[self.block(first.dtype)]]
        self.program.values = [self.value(atom) for atom in self.listing.outputs]
        inputs = [self.graph.by_name[name] for name in self.graph.inputs]
        moving = {self.value(vertex.variable) for vertex in inputs}
        return tidied(self.program, moving, trace=True)

    def block(self, dtype: object) -> Block:
        """The sum of all shares."""
        if self.total is None:
            return Block(None, (), (), (), dtype)
        structure, slots = self.total
        return Block(structure, slots, (), (), dtype)

    def include(self, recipe: Recipe, slots: Sequence[int], dtype: object) -> None:
        """Add a share of the trace."""
        self.program.local_cost = self.program.local_cost + recipe.cost
        if recipe.result is None:
            return
        share: Edge = (recipe.result, self.replay(recipe, slots, dtype, None))
        before = self.total
        if before is None:
            self.total = share
            return
        joined = add(before[0], share[0])
        self.program.local_cost = self.program.local_cost + joined.cost
        if joined.result is None:
            self.total = None
            return
        slots = self.replay(joined, (*before[1], *share[1]), dtype, None)
        self.total = (joined.result, slots)
