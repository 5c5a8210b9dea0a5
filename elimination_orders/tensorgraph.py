"""Graphs whose edges have an algebra, numbered for the searches.

The counterpart of `bitgraph` for anything that a linear count over bit sets cannot express: tensor
graphs, and scalar graphs under an objective of the caller's own.  States share the rows that they
have in common: an elimination replaces rows and never changes one, so that a copy is cheap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from elimination_orders.algebra import EdgeAlgebra
from elimination_orders.bitgraph import BitProblem
from elimination_orders.graph import EliminationGraph, Vertex
from elimination_orders.objectives import Objective
from elimination_orders.state import EliminationStep, Update, edge_size

__all__ = ["TensorProblem", "TensorState", "number_problem"]

Row = dict[int, Any]


def number_problem(graph: EliminationGraph, objective: Objective) -> BitProblem | TensorProblem:
    """The numbered form of `graph` in which searches minimise `objective` fastest.

    Vertex ``i`` of the result is ``graph.eliminable[i]``.
    """
    if graph.is_scalar and objective.weights is not None:
        return BitProblem.from_graph(graph, objective.weights)
    return TensorProblem.from_graph(graph, objective)


class TensorProblem:
    """An elimination problem whose edges are the objects of an algebra.

    Args:
        n: number of eliminable vertices, which come first.
        succ: for every vertex its successors with the edges to them.
        pred: for every vertex its predecessors with the edges from them.
        kept: eliminable vertices whose incoming edges survive their elimination.
        algebra: of the edges.
        objective: gives a number to every elimination.
        names: vertices of the original graph, for objectives that look at them.
    """

    def __init__(
        self,
        n: int,
        succ: Sequence[Row],
        pred: Sequence[Row],
        kept: frozenset[int],
        algebra: EdgeAlgebra,
        objective: Objective,
        names: Sequence[Vertex],
    ) -> None:
        self.n = n
        self.succ = succ
        self.pred = pred
        self.kept = kept
        self.algebra = algebra
        self.objective = objective
        self.names = names
        self.n_edges = sum(map(len, succ))
        self.plain = objective.is_algebra_cost

    @classmethod
    def from_graph(cls, graph: EliminationGraph, objective: Objective) -> TensorProblem:
        """The problem of `graph` under `objective`."""
        names = [*graph.eliminable]
        names += [vertex for vertex in graph.vertices if not graph.is_eliminable(vertex)]
        number = {vertex: i for i, vertex in enumerate(names)}
        state = objective.start(graph)
        return cls(
            n=len(graph.eliminable),
            succ=[{number[w]: e for w, e in state.succ[v].items()} for v in names],
            pred=[{number[u]: e for u, e in state.pred[v].items()} for v in names],
            kept=frozenset(i for i, v in enumerate(graph.eliminable) if graph.is_output(v)),
            algebra=state.algebra,
            objective=objective,
            names=names,
        )

    @property
    def size(self) -> int:
        """Number of vertices, eliminable or not."""
        return len(self.succ)

    def structure(self) -> BitProblem:
        """The scalar problem on the same graph: what counts of neighbours see."""
        pred = tuple(sum(1 << u for u in row) for row in self.pred)
        succ = tuple(sum(1 << w for w in row) for row in self.succ)
        nothing = (0,) * self.size
        kept = sum(1 << v for v in self.kept)
        return BitProblem(self.n, pred, succ, kept, nothing, nothing, (1, 0, 0))

    def start(self) -> TensorState:
        """The state in which nothing is eliminated."""
        return TensorState(self)

    def step_costs(self, order: Sequence[int]) -> list[float]:
        """Number given to every elimination of `order`."""
        return list(map(self.start().eliminate, order))

    def evaluate(self, order: Sequence[int]) -> float:
        """Objective of `order`, which need not name all vertices."""
        return self.objective.total(self.step_costs(order))

    def evaluate_below(self, order: Sequence[int], bound: float) -> float:
        """Objective of `order`, or infinity as soon as it is known not to be below `bound`.

        Objectives other than the cost of the algebra are always computed to the end.
        """
        if not self.plain:
            return self.evaluate(order)
        eliminate = self.start().eliminate
        total: float = 0
        for vertex in order:
            total += eliminate(vertex)
            if total >= bound:
                return math.inf
        return total

    def window(self, state: TensorState, members: Sequence[int]) -> tuple[TensorProblem, list[int]]:
        """The part of a state that the elimination of a few vertices can see.

        As `BitProblem.window`.  Objectives that count the edges of the whole graph are off by a
        constant in it.
        """
        inside = set(members)
        around: dict[int, None] = {}
        for vertex in members:
            around.update(dict.fromkeys(state.pred[vertex]))
            around.update(dict.fromkeys(state.succ[vertex]))
        numbers = [*members, *(vertex for vertex in around if vertex not in inside)]
        local = {vertex: i for i, vertex in enumerate(numbers)}

        def translate(row: Row) -> Row:
            if len(row) > len(local):
                return {local[v]: row[v] for v in numbers if v in row}
            return {local[v]: edge for v, edge in row.items() if v in local}

        problem = TensorProblem(
            n=len(members),
            succ=[translate(state.succ[vertex]) for vertex in numbers],
            pred=[translate(state.pred[vertex]) for vertex in numbers],
            kept=frozenset(local[v] for v in members if v in self.kept),
            algebra=self.algebra,
            objective=self.objective,
            names=[self.names[vertex] for vertex in numbers],
        )
        return problem, numbers


class TensorState:
    """A partially eliminated `TensorProblem`.

    Args:
        problem: the problem to start from.
    """

    __slots__ = ("n_edges", "pred", "problem", "succ")

    def __init__(self, problem: TensorProblem) -> None:
        self.problem = problem
        self.succ = list(problem.succ)
        self.pred = list(problem.pred)
        self.n_edges = problem.n_edges

    def copy(self) -> TensorState:
        """An independent state, equal to this one."""
        other = object.__new__(TensorState)
        other.problem = self.problem
        other.succ = self.succ[:]
        other.pred = self.pred[:]
        other.n_edges = self.n_edges
        return other

    def neighbours(self, vertex: int) -> Iterable[int]:
        """Predecessors and successors of `vertex`."""
        return [*self.pred[vertex], *self.succ[vertex]]

    def degree(self, vertex: int) -> float:
        """Cost of the products at `vertex` alone, which depends on nothing but its own edges.

        A product counts for one more than it costs: those with identities are free, and
        eliminating all sums of a residual network first would connect everything with everything.
        """
        compose = self.problem.algebra.compose
        outward = self.succ[vertex].values()
        return sum(
            1 + compose(outer, inner)[1]
            for inner in self.pred[vertex].values()
            for outer in outward
        )

    def cost(self, vertex: int) -> float:
        """Number that the objective gives to the elimination of `vertex` now."""
        if not self.problem.plain:
            return self.copy().eliminate(vertex)
        compose, merge = self.problem.algebra.compose, self.problem.algebra.merge
        total: float = 0
        outward = self.succ[vertex].items()
        for predecessor, inner in self.pred[vertex].items():
            row = self.succ[predecessor]
            for successor, outer in outward:
                product, cost = compose(outer, inner)
                total += cost
                if product is not None and successor in row:
                    total += merge(row[successor], product)[1]
        return total

    def eliminate(self, vertex: int) -> float:
        """Eliminate `vertex` and return the number that the objective gives to that."""
        problem = self.problem
        compose, merge = problem.algebra.compose, problem.algebra.merge
        updates: list[Update] | None = None if problem.plain else []
        names = problem.names
        succ, pred = self.succ, self.pred
        inward, outward = pred[vertex], succ[vertex]
        keep = vertex in problem.kept
        columns = {successor: dict(pred[successor]) for successor in outward}
        for column in columns.values():
            del column[vertex]
        total: float = 0
        fill = additions = 0
        for predecessor, inner in inward.items():
            row = dict(succ[predecessor])
            if not keep:
                del row[vertex]
            for successor, outer in outward.items():
                product, cost = compose(outer, inner)
                existing = row.get(successor)
                result = existing
                if product is not None:
                    if existing is None:
                        result = product
                        fill += 1
                    else:
                        result, extra = merge(existing, product)
                        cost += extra
                        additions += 1
                    row[successor] = result
                    columns[successor][predecessor] = result
                total += cost
                if updates is not None:
                    updates.append(
                        Update(
                            names[predecessor],
                            names[successor],
                            inner,
                            outer,
                            product,
                            existing,
                            result,
                            cost,
                        )
                    )
            succ[predecessor] = row
        for successor, column in columns.items():
            pred[successor] = column
        succ[vertex] = {}
        removed = len(outward)
        if not keep:
            pred[vertex] = {}
            removed += len(inward)
        self.n_edges += fill - removed
        if updates is None:
            return total
        step = EliminationStep(
            vertex=names[vertex],
            predecessors=len(inward),
            successors=len(outward),
            cost=total,
            additions=additions,
            fill=fill,
            edges=self.n_edges,
            live_bytes=self._live_bytes(inward, outward, keep),
            updates=tuple(updates),
        )
        return problem.objective.score(step)

    def _live_bytes(self, inward: Row, outward: Row, keep: bool) -> int | None:
        """Bytes of all edges at the widest moment of the elimination that was just done."""
        if not self.problem.objective.needs_bytes:
            return None
        size = edge_size(self.problem.algebra)
        going = [*outward.values(), *(() if keep else inward.values())]
        here = sum(size(edge) for row in self.succ for edge in row.values())
        return here + sum(map(size, going))
