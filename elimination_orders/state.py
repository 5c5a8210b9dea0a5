"""A partially eliminated graph.

`EliminationState` is the one place where the meaning of an elimination is written down.  The cost
of an order, the heuristics and whoever turns an order into a program all drive it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from elimination_orders.algebra import EdgeAlgebra, LiteratureAlgebra, MemoizedAlgebra
from elimination_orders.errors import InvalidObjectiveError, InvalidOrderError
from elimination_orders.graph import EliminationGraph, Vertex

__all__ = ["EliminationState", "EliminationStep", "Update", "edge_size"]


class Update(NamedTuple):
    """One product of an elimination: predecessor -> vertex -> successor becomes one edge."""

    predecessor: Vertex
    successor: Vertex
    inner: Any  #: partial on predecessor -> vertex
    outer: Any  #: partial on vertex -> successor
    product: Any  #: outer times inner; None where structurally zero
    existing: Any  #: partial that stood on predecessor -> successor; None where there was no edge
    result: Any  #: partial that stands there now; None where there is still no edge
    cost: float  #: cost of the product and of the sum, in the unit of the algebra


class EliminationStep(NamedTuple):
    """What the elimination of one vertex did."""

    vertex: Vertex
    predecessors: int
    successors: int
    cost: float  #: products and sums, in the unit of the algebra
    additions: int  #: sums of parallel edges
    fill: int  #: edges that were not there before
    edges: int  #: edges that are left
    live_bytes: int | None  #: bytes of all edges at the widest moment; None if not asked for
    updates: tuple[Update, ...]


def edge_size(algebra: Any) -> Callable[[Any], int]:
    """The function of an algebra that says how many bytes an edge occupies.

    Raises:
        InvalidObjectiveError: if the algebra has none.
    """
    size = getattr(algebra, "size", None)
    if size is None and isinstance(algebra, MemoizedAlgebra):
        size = getattr(algebra.wrapped, "size", None)
    if size is None:
        raise InvalidObjectiveError(
            "objective: counts bytes, but the algebra of the graph has no method size(edge). Add "
            "one that returns the bytes of an edge, or choose another objective."
        )
    return size


class EliminationState:
    """A graph of which some vertices are already eliminated.

    The graph it starts from is never changed.

    Args:
        graph: the graph to start from.
        algebra: how edges are multiplied and added; by default the algebra of the graph, and for a
            scalar graph the convention of the literature.
        count_bytes: whether every step should say how many bytes are alive.

    Raises:
        InvalidObjectiveError: if bytes are to be counted and the algebra knows no sizes.
    """

    def __init__(
        self,
        graph: EliminationGraph,
        algebra: EdgeAlgebra | None = None,
        *,
        count_bytes: bool = False,
    ) -> None:
        self.graph = graph
        if algebra is None:
            algebra = graph._algebra
        elif not isinstance(algebra, (LiteratureAlgebra, MemoizedAlgebra)):
            algebra = MemoizedAlgebra(algebra)
        self.algebra: EdgeAlgebra = algebra
        self.pred: dict[Vertex, dict[Vertex, Any]] = {
            vertex: dict(edges) for vertex, edges in graph._pred.items()
        }
        self.succ: dict[Vertex, dict[Vertex, Any]] = {
            vertex: dict(edges) for vertex, edges in graph._succ.items()
        }
        self.remaining: dict[Vertex, None] = dict.fromkeys(graph.eliminable)
        self.n_edges = sum(map(len, self.succ.values()))
        self._size = edge_size(algebra) if count_bytes else None
        self._bytes = 0
        if self._size is not None:
            self._bytes = sum(
                self._size(edge) for row in self.succ.values() for edge in row.values()
            )

    def copy(self) -> EliminationState:
        """An independent state, equal to this one."""
        other = object.__new__(EliminationState)
        other.graph = self.graph
        other.algebra = self.algebra
        other.pred = {vertex: dict(edges) for vertex, edges in self.pred.items()}
        other.succ = {vertex: dict(edges) for vertex, edges in self.succ.items()}
        other.remaining = dict(self.remaining)
        other.n_edges = self.n_edges
        other._size = self._size
        other._bytes = self._bytes
        return other

    def degree(self, vertex: Vertex) -> int:
        """Markowitz degree: number of predecessors times number of successors."""
        return len(self.pred[vertex]) * len(self.succ[vertex])

    def cost(self, vertex: Vertex) -> float:
        """Cost of eliminating `vertex` now, in the unit of the algebra; nothing is changed."""
        return sum(update.cost for update in self._updates(vertex))

    def eliminate(self, vertex: Vertex) -> EliminationStep:
        """Eliminate `vertex`.

        The edges into an output are kept, see `EliminationGraph`.

        Args:
            vertex: an eliminable vertex that is not eliminated yet.

        Returns:
            What was done; ``updates`` lists every (predecessor, successor) pair, predecessors in
            the outer loop.

        Raises:
            InvalidOrderError: if `vertex` cannot be eliminated, or was eliminated before.
        """
        if vertex not in self.remaining:
            if self.graph.is_eliminable(vertex):
                raise InvalidOrderError(
                    f"vertex: {vertex!r} is already eliminated. Eliminate every vertex once."
                )
            raise InvalidOrderError(
                f"vertex: {vertex!r} is not an eliminable vertex of {self.graph!r}. Expected one "
                "of graph.eliminable."
            )
        updates = tuple(self._updates(vertex))
        before = self.n_edges
        additions = fill = 0
        for update in updates:
            if update.product is None:
                continue
            if update.existing is None:
                fill += 1
            else:
                additions += 1
            self.succ[update.predecessor][update.successor] = update.result
            self.pred[update.successor][update.predecessor] = update.result
        inward, outward = self.pred[vertex], self.succ[vertex]
        live_bytes = self._count_bytes(vertex, updates)
        step_predecessors, step_successors = len(inward), len(outward)
        removed = len(outward)
        for successor in outward:
            del self.pred[successor][vertex]
        self.succ[vertex] = {}
        if not self.graph.is_output(vertex):
            removed += len(inward)
            for predecessor in inward:
                del self.succ[predecessor][vertex]
            self.pred[vertex] = {}
        del self.remaining[vertex]
        self.n_edges = before + fill - removed
        return EliminationStep(
            vertex=vertex,
            predecessors=step_predecessors,
            successors=step_successors,
            cost=sum(update.cost for update in updates),
            additions=additions,
            fill=fill,
            edges=self.n_edges,
            live_bytes=live_bytes,
            updates=updates,
        )

    def jacobian(self) -> dict[tuple[Vertex, Vertex], Any]:
        """Edges from inputs to outputs as they stand; the Jacobian once nothing remains.

        Returns:
            Partial by pair ``(input, output)``; pairs that do not depend on each other are absent.
        """
        outputs = set(self.graph.outputs)
        return {
            (source, target): edge
            for source in self.graph.inputs
            for target, edge in self.succ[source].items()
            if target in outputs
        }

    def _count_bytes(self, vertex: Vertex, updates: tuple[Update, ...]) -> int | None:
        """Bytes alive while `vertex` is eliminated: the new edges are there, the old ones still."""
        size = self._size
        if size is None:
            return None
        for update in updates:
            if update.product is not None:
                self._bytes += size(update.result)
                self._bytes -= 0 if update.existing is None else size(update.existing)
        live = self._bytes
        self._bytes -= sum(map(size, self.succ[vertex].values()))
        if not self.graph.is_output(vertex):
            self._bytes -= sum(map(size, self.pred[vertex].values()))
        return live

    def _updates(self, vertex: Vertex) -> Iterator[Update]:
        compose, merge = self.algebra.compose, self.algebra.merge
        outward = self.succ[vertex].items()
        for predecessor, inner in self.pred[vertex].items():
            beside = self.succ[predecessor]
            for successor, outer in outward:
                product, cost = compose(outer, inner)
                existing = beside.get(successor)
                if product is None:
                    result = existing
                elif existing is None:
                    result = product
                else:
                    result, extra = merge(existing, product)
                    cost += extra
                yield Update(predecessor, successor, inner, outer, product, existing, result, cost)
