"""The line graph on bit sets: eliminations of vertices, edges and faces in one state.

A *label* is a partial derivative from one vertex to another.  A *face* is a pair of labels of which
the second follows the first; its elimination multiplies them.  At the start every edge is a label
and follows those that lead to where it begins.  Later two labels between the same vertices may
stand side by side, if they are continued differently; as soon as they precede and follow the same
labels they are added up.  A *move* eliminates all faces of one kind:

* `VertexMove`: at a vertex, which is the elimination of the vertex;
* `EdgeStep`: of the labels u -> v with those that follow (front) or precede (back);
* `PathMove`: of the labels u -> v with the labels v -> w.

A move to which nothing is left does nothing, so that any sequence of moves that names every
eliminable vertex accumulates the Jacobian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from elimination_orders.beyond import EdgeStep, Operation, Pair
from elimination_orders.bitgraph import bits
from elimination_orders.errors import InvalidOrderError
from elimination_orders.graph import EliminationGraph, Vertex

__all__ = ["DualProblem", "DualState", "Move", "PathMove", "VertexMove", "run_moves"]


class VertexMove(NamedTuple):
    """The elimination of what is left at a vertex."""

    vertex: Vertex


class PathMove(NamedTuple):
    """The product of what leads from `first` to `middle` with what leads on to `last`."""

    first: Vertex
    middle: Vertex
    last: Vertex


Move = VertexMove | EdgeStep | PathMove
Multiply = Callable[[Any, Any], tuple[Any, float]]


class DualProblem:
    """A graph with numbered vertices, and what products and sums of its partials are.

    Args:
        graph: the graph.
        partials: a value for every edge.
        multiply: (outer, inner) to their product and its cost; None is a structural zero.
        add: two values to their sum and its cost.
    """

    def __init__(
        self, graph: EliminationGraph, partials: Any, multiply: Multiply, add: Multiply
    ) -> None:
        self.graph = graph
        self.partials = partials
        self.multiply = multiply
        self.add = add
        self.number = {vertex: i for i, vertex in enumerate(graph.vertices)}

    def faces(self, state: DualState, move: Move) -> Iterator[tuple[int, int]]:
        """Pairs of labels (inner, outer) that a move multiplies."""
        number = self.number
        if isinstance(move, VertexMove):
            inner, outer = state.into[number[move.vertex]], -1
        elif isinstance(move, EdgeStep):
            u, v = (number[vertex] for vertex in move.edge)
            labels = state.out_of[u] & state.into[v]
            inner, outer = (labels, -1) if move.kind == "front" else (state.into[u], labels)
        else:
            u, v, w = (number[vertex] for vertex in move)
            inner = state.out_of[u] & state.into[v]
            outer = state.out_of[v] & state.into[w]
        # A label that follows nothing but leads to an output of the graph has no such pair.
        outer &= ~state.ends
        for a in bits(inner):
            for b in bits(state.succ[a] & outer):
                yield a, b


class DualState:
    """Labels with what precedes and what follows them, as bit sets.

    Inputs and outputs have labels of their own, which stand for the ends of all paths.

    Args:
        problem: the graph to start from.
    """

    __slots__ = (
        "ends",
        "into",
        "out_of",
        "pred",
        "problem",
        "source",
        "succ",
        "target",
        "touched",
        "values",
    )

    def __init__(self, problem: DualProblem) -> None:
        graph, number = problem.graph, problem.number
        self.problem = problem
        self.pred: list[int] = []
        self.succ: list[int] = []
        self.source: list[int] = []
        self.target: list[int] = []
        self.values: list[Any] = []
        self.into = [0] * len(number)
        self.out_of = [0] * len(number)
        self.touched = 0
        starts: dict[Vertex, int] = {}
        stops: dict[Vertex, int] = {}
        for table, vertices in ((starts, graph.inputs), (stops, graph.outputs)):
            for vertex in vertices:
                table[vertex] = self._label(-1, -1, None)
        self.ends = (1 << len(self.values)) - 1
        for u, v in graph._edges:
            label = self._label(number[u], number[v], problem.partials[u, v])
            self.out_of[number[u]] |= 1 << label
            self.into[number[v]] |= 1 << label
        first = len(starts) + len(stops)
        for label, (u, v) in enumerate(graph._edges, start=first):
            self.succ[label] = self.out_of[number[v]]
            self.pred[label] = self.into[number[u]]
            if u in starts:
                self.pred[label] |= 1 << starts[u]
                self.succ[starts[u]] |= 1 << label
            if v in stops:
                self.succ[label] |= 1 << stops[v]
                self.pred[stops[v]] |= 1 << label
        for label in range(first, len(self.values)):
            self._drop_if_dead(label)
        self.touched = 0

    def copy(self) -> DualState:
        """An independent state, equal to this one."""
        other = object.__new__(DualState)
        other.problem = self.problem
        other.ends = self.ends
        other.touched = 0
        for name in ("pred", "succ", "source", "target", "values", "into", "out_of"):
            setattr(other, name, getattr(self, name)[:])
        return other

    def apply(self, move: Move) -> float:
        """Carry out a move; returns its cost."""
        problem = self.problem
        cost: float = 0
        for a, b in list(problem.faces(self, move)):
            product, extra = problem.multiply(self.values[b], self.values[a])
            cost += extra
            self._replace_face(a, b, product)
        while self.touched:
            label = self.touched.bit_length() - 1
            self.touched ^= 1 << label
            cost += self._join(label)
        return cost

    def jacobian(self) -> dict[Pair, Any]:
        """Values by pair (input, output), once no face is left."""
        vertices = self.problem.graph.vertices
        found = {}
        for label in bits(self.living):
            pair = vertices[self.source[label]], vertices[self.target[label]]
            found[pair] = self.values[label]
        return found

    @property
    def living(self) -> int:
        """Labels that stand for partials and are not gone, as a bit set."""
        found = 0
        for row in self.into:
            found |= row
        return found

    def _label(self, source: int, target: int, value: Any) -> int:
        self.pred.append(0)
        self.succ.append(0)
        self.source.append(source)
        self.target.append(target)
        self.values.append(value)
        return len(self.values) - 1

    def _replace_face(self, a: int, b: int, product: Any) -> None:
        pred, succ = self.pred, self.succ
        if product is not None:
            source, target = self.source[a], self.target[b]
            new = self._label(source, target, product)
            bit = 1 << new
            pred[new], succ[new] = pred[a], succ[b]
            for p in bits(pred[a]):
                succ[p] |= bit
            for s in bits(succ[b]):
                pred[s] |= bit
            self.out_of[source] |= bit
            self.into[target] |= bit
            self.touched |= bit | pred[a] | succ[b]
        succ[a] ^= 1 << b
        pred[b] ^= 1 << a
        self.touched |= 1 << a | 1 << b
        self._drop_if_dead(a)
        self._drop_if_dead(b)

    def _drop_if_dead(self, label: int) -> None:
        """Remove a label that nothing leads to or from, and what is dead without it."""
        pred, succ = self.pred, self.succ
        stack = [label]
        while stack:
            label = stack.pop()
            bit = 1 << label
            if (pred[label] and succ[label]) or self.ends & bit:
                continue
            for p in bits(pred[label]):
                succ[p] ^= bit
                stack.append(p)
            for s in bits(succ[label]):
                pred[s] ^= bit
                stack.append(s)
            self.touched |= pred[label] | succ[label]
            self._forget(label)

    def _forget(self, label: int) -> None:
        gone = ~(1 << label)
        self.pred[label] = self.succ[label] = 0
        self.out_of[self.source[label]] &= gone
        self.into[self.target[label]] &= gone
        self.touched &= gone

    def _join(self, label: int) -> float:
        """Add a label to another one that precedes and follows the same labels, if there is one."""
        pred, succ = self.pred, self.succ
        if not succ[label] or not pred[label] or self.ends >> label & 1:
            return 0
        beside = self.out_of[self.source[label]] & self.into[self.target[label]]
        for twin in bits(beside & ~(1 << label)):
            if pred[twin] == pred[label] and succ[twin] == succ[label]:
                total, cost = self.problem.add(self.values[twin], self.values[label])
                self.values[twin] = total
                bit = 1 << label
                for p in bits(pred[label]):
                    succ[p] ^= bit
                for s in bits(succ[label]):
                    pred[s] ^= bit
                self.touched |= pred[label] | succ[label] | 1 << twin
                self._forget(label)
                return cost
        return 0


def run_moves(
    graph: EliminationGraph,
    partials: Mapping[Pair, Any],
    moves: Iterable[Move],
    multiply: Operation,
    add: Operation,
) -> dict[Pair, Any]:
    """Carry out moves with given products and sums.

    Args:
        graph: the graph.
        partials: a value for every edge.
        moves: among which every eliminable vertex is named.
        multiply: (outer, inner) to their product.
        add: two values to their sum.

    Returns:
        The Jacobian by pair (input, output).

    Raises:
        InvalidOrderError: if the moves leave faces.
    """
    problem = DualProblem(
        graph, partials, lambda b, a: (multiply(b, a), 0), lambda a, b: (add(a, b), 0)
    )
    state = DualState(problem)
    for move in moves:
        state.apply(move)
    if any(state.succ[label] & ~state.ends for label in bits(state.living)):
        raise InvalidOrderError("moves: leave faces. Name every eliminable vertex once.")
    jacobian = state.jacobian()
    return {pair: jacobian[pair] for pair in sorted(jacobian, key=repr)}
