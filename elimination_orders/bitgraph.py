"""Scalar graphs as bit sets: the fast inner loop of the searches.

Vertices are numbered; the eliminable ones are ``0 .. n-1`` in topological order, the others follow.
A row is a Python integer whose bit ``j`` says whether there is an edge to (or from) vertex ``j``.
Eliminating a vertex joins rows, its cost is a product of two population counts.

The state after some eliminations depends on the *set* of eliminated vertices only, not on their
order: an edge ``u -> w`` exists if and only if there is a path from u to w through eliminated
vertices.  Everything in the search modules that evaluates only part of an order rests on this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from elimination_orders.graph import EliminationGraph

__all__ = ["BitProblem", "BitState", "bits"]


def bits(row: int) -> Iterator[int]:
    """Positions of the set bits of `row`, lowest first."""
    while row:
        low = row & -row
        yield low.bit_length() - 1
        row ^= low


@dataclass(frozen=True)
class BitProblem:
    """A scalar elimination problem with a linear cost, in numbers.

    The cost of eliminating a vertex with p predecessors and s successors is
    ``w_all * p * s + w_variable * q + w_add * a``, where q counts the products that are neither a
    copy or sign (a factor is a unit) nor folded (both factors are constants) and a counts the sums
    of parallel edges.

    Args:
        n: number of eliminable vertices.
        pred: row of predecessors by vertex.
        succ: row of successors by vertex.
        kept: eliminable outputs, whose incoming edges survive their elimination, as a row.
        unit: row of successors over a unit edge by vertex.
        constant: row of successors over a unit or constant edge by vertex.
        weights: (w_all, w_variable, w_add).
    """

    n: int
    pred: tuple[int, ...]
    succ: tuple[int, ...]
    kept: int
    unit: tuple[int, ...]
    constant: tuple[int, ...]
    weights: tuple[int, int, int]

    @classmethod
    def from_graph(
        cls, graph: EliminationGraph, weights: tuple[int, int, int] = (1, 0, 0)
    ) -> BitProblem:
        """The problem of a scalar `graph`.

        Args:
            graph: a graph without an algebra.
            weights: see the class.
        """
        vertices = [*graph.eliminable]
        vertices += [vertex for vertex in graph.vertices if not graph.is_eliminable(vertex)]
        number = {vertex: i for i, vertex in enumerate(vertices)}
        size = len(vertices)
        pred, succ, unit, constant = ([0] * size for _ in range(4))
        for (u, v), kind in graph._edges.items():
            i, j = number[u], number[v]
            succ[i] |= 1 << j
            pred[j] |= 1 << i
            if kind == "unit":
                unit[i] |= 1 << j
            if kind != "variable":
                constant[i] |= 1 << j
        kept = 0
        for i, vertex in enumerate(graph.eliminable):
            if graph.is_output(vertex):
                kept |= 1 << i
        return cls(
            n=len(graph.eliminable),
            pred=tuple(pred),
            succ=tuple(succ),
            kept=kept,
            unit=tuple(unit),
            constant=tuple(constant),
            weights=weights,
        )

    @property
    def size(self) -> int:
        """Number of vertices, eliminable or not."""
        return len(self.pred)

    @property
    def tracks_kinds(self) -> bool:
        """Whether the kinds of the edges have an influence on the cost."""
        return self.weights[1] != 0 and any(self.constant)

    @property
    def effective_weights(self) -> tuple[int, int, int]:
        """The weights, with w_variable counted under w_all where every edge is variable."""
        w_all, w_variable, w_add = self.weights
        return (w_all, w_variable, w_add) if self.tracks_kinds else (w_all + w_variable, 0, w_add)

    def structure(self) -> BitProblem:
        """The problem itself, with the plain count of products for a cost."""
        return replace(self, weights=(1, 0, 0))

    def start(self) -> BitState:
        """The state in which nothing is eliminated."""
        return BitState(self)

    def evaluate(self, order: Sequence[int]) -> int:
        """Cost of eliminating the vertices of `order`, which need not be all."""
        eliminate = self.start().eliminate
        return sum(map(eliminate, order))

    def evaluate_below(self, order: Sequence[int], bound: float) -> float:
        """Cost of `order`, or infinity as soon as it is known not to be below `bound`."""
        eliminate = self.start().eliminate
        total = 0
        for vertex in order:
            total += eliminate(vertex)
            if total >= bound:
                return math.inf
        return total

    def step_costs(self, order: Sequence[int]) -> list[int]:
        """Cost of every elimination of `order`."""
        return list(map(self.start().eliminate, order))

    def window(self, state: BitState, members: Sequence[int]) -> tuple[BitProblem, list[int]]:
        """The part of a state that the elimination of a few vertices can see.

        Args:
            state: a state of this problem.
            members: vertices that are not eliminated in `state`.

        Returns:
            A problem whose eliminable vertices are `members`, in this order, and whose other
            vertices are their neighbours; and the numbers of all its vertices in this problem.
            Eliminating members costs the same in both, in any order.
        """
        inside = 0
        for vertex in members:
            inside |= 1 << vertex
        around = 0
        for vertex in members:
            around |= state.pred[vertex] | state.succ[vertex]
        numbers = [*members, *bits(around & ~inside)]
        local = {vertex: i for i, vertex in enumerate(numbers)}
        region = around | inside
        tracks = self.tracks_kinds

        def translate(row: int) -> int:
            result = 0
            for vertex in bits(row & region):
                result |= 1 << local[vertex]
            return result

        size = len(numbers)
        if self.weights[2] or tracks:
            # Edges between neighbours decide whether a product is added to something.
            succ = [translate(state.succ[vertex]) for vertex in numbers]
        else:
            succ = [translate(state.succ[vertex]) for vertex in members]
            succ += [translate(state.succ[vertex] & inside) for vertex in numbers[len(members) :]]
        pred = [0] * size
        for i, row in enumerate(succ):
            for j in bits(row):
                pred[j] |= 1 << i
        unit, constant = [0] * size, [0] * size
        if tracks:
            unit = [translate(state.unit[vertex]) for vertex in numbers]
            constant = [translate(state.constant[vertex]) for vertex in numbers]
        problem = BitProblem(
            n=len(members),
            pred=tuple(pred),
            succ=tuple(succ),
            kept=translate(self.kept & inside),
            unit=tuple(unit),
            constant=tuple(constant),
            weights=self.weights,
        )
        return problem, numbers


class BitState:
    """A partially eliminated `BitProblem`.

    Args:
        problem: the problem to start from.
    """

    __slots__ = ("constant", "kept", "pred", "succ", "tracks", "unit", "weights")

    def __init__(self, problem: BitProblem) -> None:
        self.pred = list(problem.pred)
        self.succ = list(problem.succ)
        self.tracks = problem.tracks_kinds
        self.unit = list(problem.unit) if self.tracks else []
        self.constant = list(problem.constant) if self.tracks else []
        self.kept = problem.kept
        self.weights = problem.effective_weights

    def copy(self) -> BitState:
        """An independent state, equal to this one."""
        other = object.__new__(BitState)
        other.pred = self.pred[:]
        other.succ = self.succ[:]
        other.tracks = self.tracks
        other.unit = self.unit[:]
        other.constant = self.constant[:]
        other.kept = self.kept
        other.weights = self.weights
        return other

    def neighbours(self, vertex: int) -> Iterator[int]:
        """Predecessors and successors of `vertex`."""
        return bits(self.pred[vertex] | self.succ[vertex])

    def degree(self, vertex: int) -> int:
        """Markowitz degree: number of predecessors times number of successors."""
        return self.pred[vertex].bit_count() * self.succ[vertex].bit_count()

    def fill(self, vertex: int) -> int:
        """Number of edges that the elimination of `vertex` would add."""
        after = self.succ[vertex]
        return sum((after & ~self.succ[p]).bit_count() for p in bits(self.pred[vertex]))

    def cost(self, vertex: int) -> int:
        """Cost of eliminating `vertex` now."""
        w_all, w_variable, w_add = self.weights
        before, after = self.pred[vertex], self.succ[vertex]
        result = w_all * before.bit_count() * after.bit_count()
        if w_variable:
            result += w_variable * self._variable_products(vertex)
        if w_add:
            result += w_add * sum((self.succ[p] & after).bit_count() for p in bits(before))
        return result

    def eliminate(self, vertex: int) -> int:
        """Eliminate `vertex` and return the cost."""
        pred, succ = self.pred, self.succ
        before, after = pred[vertex], succ[vertex]
        w_all, w_variable, w_add = self.weights
        if w_variable:
            result = w_variable * self._update_kinds(vertex)
            if w_all:
                result += w_all * before.bit_count() * after.bit_count()
        else:
            result = w_all * before.bit_count() * after.bit_count()
        keep = self.kept >> vertex & 1
        bit = 1 << vertex
        rest = before
        while rest:
            low = rest & -rest
            rest ^= low
            p = low.bit_length() - 1
            row = succ[p]
            if w_add:
                result += w_add * (row & after).bit_count()
            row |= after
            # Predecessors and successors have the bit set, so that a difference clears it.
            succ[p] = row if keep else row ^ bit
        while after:
            low = after & -after
            after ^= low
            s = low.bit_length() - 1
            pred[s] = (pred[s] ^ bit) | before
        succ[vertex] = 0
        if not keep:
            pred[vertex] = 0
        return result

    def _variable_products(self, vertex: int) -> int:
        """Products at `vertex` that are neither copies nor folded."""
        unit, constant = self.unit, self.constant
        after = self.succ[vertex]
        s_plain = (after & ~unit[vertex]).bit_count()
        s_constant = (constant[vertex] & ~unit[vertex]).bit_count()
        p_plain = p_constant = 0
        bit = 1 << vertex
        rest = self.pred[vertex]
        while rest:
            low = rest & -rest
            rest ^= low
            p = low.bit_length() - 1
            if not unit[p] & bit:
                p_plain += 1
                if constant[p] & bit:
                    p_constant += 1
        return p_plain * s_plain - p_constant * s_constant

    def _update_kinds(self, vertex: int) -> int:
        """Kinds of the edges beside `vertex` after its elimination, which is still to come.

        Returns:
            The products that are neither copies nor folded, as `_variable_products`.
        """
        unit, constant, succ = self.unit, self.constant, self.succ
        after, rest = succ[vertex], self.pred[vertex]
        own_unit, own_constant = unit[vertex], constant[vertex]
        bit = 1 << vertex
        cleared = ~after if self.kept & bit else ~(after | bit)
        p_plain = p_constant = 0
        while rest:
            low = rest & -rest
            rest ^= low
            p = low.bit_length() - 1
            units, constants = unit[p], constant[p]
            if not constants & bit:
                p_plain += 1
                if constants:
                    unit[p], constant[p] = units & cleared, constants & cleared
                continue
            # Whatever else there is in `after` becomes a sum, hence variable.
            fresh = after & ~succ[p]
            constant[p] = constants & cleared | own_constant & fresh
            if units & bit:
                unit[p] = units & cleared | own_unit & fresh
            else:
                p_plain += 1
                p_constant += 1
                unit[p] = units & cleared
        unit[vertex] = constant[vertex] = 0
        s_plain = (after & ~own_unit).bit_count()
        return p_plain * s_plain - p_constant * (own_constant & ~own_unit).bit_count()
