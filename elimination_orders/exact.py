"""Exact search for orders of edges and of faces on small graphs.

Both searches are A*: states in the order of what they cost plus a lower bound of what is left.
Three things keep the number of states small, and none of them loses the optimum.

*Twins.*  Inputs with the same intermediate successors are one input with a weight; so are outputs
with the same intermediate predecessors.  A product is of one input at most.  Of two twin inputs,
take the one at which the products of some order are cheaper and treat the other in the same way:
the products at neither are as before, and no sum of equal edges is lost, because a sum requires
equality at both.

*Equal states.*  What is left to do does not depend on names: states that differ by a renaming of
inputs, outputs or edges are one.  Edges from inputs to outputs are left out.

*Lower bound.*  Every entry of the Jacobian to which a path of several edges leads takes at least
one multiplication, by which it is complete or added to.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from elimination_orders.beyond import (
    EdgeStep,
    FaceStep,
    FineResult,
    Label,
    _clean,
    _require_pure_outputs,
)
from elimination_orders.errors import InvalidOrderError
from elimination_orders.graph import EliminationGraph, Vertex
from elimination_orders.program import edge_program, face_program

__all__ = ["find_edge_order", "find_face_order"]


#: Larger graphs are refused at once: the search could not end.
MAX_EDGES = 40


def find_edge_order(graph: EliminationGraph, max_states: int = 200_000) -> FineResult:
    """A cheapest sequence of edge eliminations, by multiplications.

    Args:
        graph: a small graph: about 12 edges without twins take a second, 16 may take minutes, more
            than 40 are refused.  Outputs may not have successors.
        max_states: give up after so many states.

    Returns:
        Steps, cost and program; the cost is proved to be the least.

    Raises:
        InvalidOrderError: if the graph is too large, the search was given up, or an output has
            successors.
    """
    _require_pure_outputs(graph)
    problem = _Weighted(graph)
    path, cost, states = _a_star(
        problem.edge_state(), _edge_key(problem), _edge_moves(problem), problem.left, max_states
    )
    steps = [step for moves in path for step in problem.expand_edge(moves)]
    return FineResult(tuple(steps), cost, states, edge_program(graph, steps))


def find_face_order(graph: EliminationGraph, max_states: int = 50_000) -> FineResult:
    """A cheapest sequence of face eliminations, by multiplications.

    Args:
        graph: a small graph: about 10 edges without twins take a second, 12 may take minutes, more
            than 40 are refused.  Outputs may not have successors.
        max_states: give up after so many states.

    Returns:
        Steps, cost and program; the cost is proved to be the least.

    Raises:
        InvalidOrderError: if the graph is too large, the search was given up, or an output has
            successors.
    """
    _require_pure_outputs(graph)
    problem = _Weighted(graph)
    start, labels = problem.face_state()
    path, cost, states = _a_star(start, lambda state: state, _face_moves, _faces_left, max_states)
    steps: list[FaceStep] = []
    state = start
    for first, second in path:
        steps.extend(problem.expand_face(labels[first], labels[second]))
        state, labels = _eliminate(state, first, second, labels)
    return FineResult(tuple(steps), cost, states, face_program(graph, steps))


class _EdgeState(NamedTuple):
    """Bit sets of intermediate vertices."""

    inner: tuple[int, ...]  # successors of every intermediate vertex
    inputs: tuple[int, ...]  # successors of every input
    outputs: tuple[int, ...]  # predecessors of every output


class _Weighted:
    """A graph without twins: a representative of every class, with the size of the class."""

    def __init__(self, graph: EliminationGraph) -> None:
        self.middle = [v for v in graph.vertices if v in set(graph.eliminable)]
        middle = set(self.middle)
        edges = _clean(frozenset(graph._edges), frozenset(middle))
        self.edges = [pair for pair in graph._edges if pair in edges and middle & set(pair)]
        self.inputs = _classes(
            (x, frozenset(w for u, w in self.edges if u == x)) for x in graph.inputs
        )
        self.outputs = _classes(
            (y, frozenset(u for u, w in self.edges if w == y)) for y in graph.outputs
        )
        self.x_weights = [len(names) for names in self.inputs]
        self.y_weights = [len(names) for names in self.outputs]
        kept = {names[0] for names in (*self.inputs, *self.outputs)} | middle
        self.edges = [(u, w) for u, w in self.edges if u in kept and w in kept]
        if len(self.edges) > MAX_EDGES:
            raise InvalidOrderError(
                f"graph: exact search over edges or faces is for at most {MAX_EDGES} edges, and "
                f"{len(self.edges)} are left without twins. Use find_order, or cut the graph."
            )
        self.twins = {names[0]: names for names in (*self.inputs, *self.outputs)}

    # -- edges -------------------------------------------------------------------------------------

    def edge_state(self) -> _EdgeState:
        bit = {v: 1 << i for i, v in enumerate(self.middle)}

        def after(u: Vertex) -> int:
            return sum(bit[w] for t, w in self.edges if t == u and w in bit)

        return _EdgeState(
            tuple(map(after, self.middle)),
            tuple(after(names[0]) for names in self.inputs),
            tuple(sum(bit[t] for t, w in self.edges if w == names[0]) for names in self.outputs),
        )

    def left(self, state: _EdgeState) -> int:
        """Entries of the Jacobian to which paths through intermediate vertices lead."""
        total = 0
        for successors, weight in zip(state.inputs, self.x_weights, strict=True):
            reached = successors
            # Intermediate vertices are numbered in topological order.
            for v, after in enumerate(state.inner):
                if reached >> v & 1:
                    reached |= after
            total += weight * sum(
                w for mask, w in zip(state.outputs, self.y_weights, strict=True) if mask & reached
            )
        return total

    def expand_edge(self, move: tuple[str, tuple[str, int], tuple[str, int]]) -> list[EdgeStep]:
        kind, source, target = move
        return [
            EdgeStep("front" if kind == "front" else "back", (u, w))
            for u in self._names(source)
            for w in self._names(target)
        ]

    def _names(self, end: tuple[str, int]) -> list[Vertex]:
        group, i = end
        return (
            {"x": self.inputs, "y": self.outputs}[group][i] if group in "xy" else [self.middle[i]]
        )

    # -- faces -------------------------------------------------------------------------------------

    def face_state(self) -> tuple[_FaceState, tuple[Any, ...]]:
        labels: list[Any] = [*(("in", n[0]) for n in self.inputs)]
        labels += [("out", names[0]) for names in self.outputs]
        labels += [frozenset({pair}) for pair in self.edges]
        kinds = [(1, w) for w in self.x_weights] + [(2, w) for w in self.y_weights]
        kinds += [(0, 1)] * len(self.edges)
        n_ends = len(self.inputs) + len(self.outputs)
        after = [0] * len(labels)
        for i, (u, w) in enumerate(self.edges, start=n_ends):
            for j, label in enumerate(labels):
                if (j >= n_ends and self.edges[j - n_ends][0] == w) or label == ("out", w):
                    after[i] |= 1 << j
                if label == ("in", u):
                    after[j] |= 1 << i
        return _tidy(kinds, after, labels)

    def expand_face(self, first: Label, second: Label) -> Iterator[FaceStep]:
        source = next(iter(first))[0]
        target = next(iter(second))[-1]
        for x in self.twins.get(source, [source]):
            for y in self.twins.get(target, [target]):
                yield FaceStep(
                    frozenset((x, *path[1:]) for path in first),
                    frozenset((*path[:-1], y) for path in second),
                )


def _classes(named: Iterable[tuple[Vertex, frozenset[Vertex]]]) -> list[list[Vertex]]:
    found: dict[frozenset[Vertex], list[Vertex]] = {}
    for vertex, neighbours in named:
        if neighbours:
            found.setdefault(neighbours, []).append(vertex)
    return list(found.values())


# -- moves of edges --------------------------------------------------------------------------------


def _edge_key(problem: _Weighted) -> Callable[[_EdgeState], Hashable]:
    def key(state: _EdgeState) -> Hashable:
        return (
            state.inner,
            tuple(sorted(zip(state.inputs, problem.x_weights, strict=True))),
            tuple(sorted(zip(state.outputs, problem.y_weights, strict=True))),
        )

    return key


def _edge_moves(
    problem: _Weighted,
) -> Callable[[_EdgeState], Iterator[tuple[int, Any, _EdgeState]]]:
    x_weights, y_weights = problem.x_weights, problem.y_weights

    def moves(state: _EdgeState) -> Iterator[tuple[int, Any, _EdgeState]]:
        inner, inputs, outputs = state
        for v in range(len(inner)):
            bit = 1 << v
            fan_out = inner[v].bit_count() + sum(
                w for mask, w in zip(outputs, y_weights, strict=True) if mask & bit
            )
            before = sum(1 << t for t, mask in enumerate(inner) if mask & bit)
            fan_in = before.bit_count() + sum(
                w for mask, w in zip(inputs, x_weights, strict=True) if mask & bit
            )
            if not fan_in:
                continue
            # Front elimination of the edges into v.
            for i, mask in enumerate(inputs):
                if mask & bit:
                    new = _put(inputs, i, (mask & ~bit) | inner[v])
                    after = _tidy_edges(inner, new, outputs)
                    yield x_weights[i] * fan_out, ("front", ("x", i), ("v", v)), after
            for t, mask in enumerate(inner):
                if mask & bit:
                    new = _put(inner, t, (mask & ~bit) | inner[v])
                    ends = tuple(m | 1 << t if m & bit else m for m in outputs)
                    after = _tidy_edges(new, inputs, ends)
                    yield fan_out, ("front", ("v", t), ("v", v)), after
            # Back elimination of the edges out of v.
            for j, mask in enumerate(outputs):
                if mask & bit:
                    new = _put(outputs, j, (mask & ~bit) | before)
                    after = _tidy_edges(inner, inputs, new)
                    yield y_weights[j] * fan_in, ("back", ("v", v), ("y", j)), after
            for t in range(len(inner)):
                if inner[v] >> t & 1:
                    new = tuple(m | 1 << t if m & bit else m for m in inner)
                    new = _put(new, v, new[v] & ~(1 << t))
                    starts = tuple(m | 1 << t if m & bit else m for m in inputs)
                    after = _tidy_edges(new, starts, outputs)
                    yield fan_in, ("back", ("v", v), ("v", t)), after

    return moves


def _put(masks: tuple[int, ...], place: int, mask: int) -> tuple[int, ...]:
    return (*masks[:place], mask, *masks[place + 1 :])


def _tidy_edges(
    inner: tuple[int, ...], inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> _EdgeState:
    """Without the edges at vertices that nothing leads to or from."""
    # One sweep each way does it, because vertices are numbered in topological order.
    reached = 0
    for mask in inputs:
        reached |= mask
    for v, mask in enumerate(inner):
        if reached >> v & 1:
            reached |= mask
    needed = 0
    for mask in outputs:
        needed |= mask
    for v in range(len(inner) - 1, -1, -1):
        if inner[v] & needed:
            needed |= 1 << v
    live = reached & needed
    return _EdgeState(
        tuple(mask & live if live >> v & 1 else 0 for v, mask in enumerate(inner)),
        tuple(mask & live for mask in inputs),
        tuple(mask & live for mask in outputs),
    )


# -- moves of faces --------------------------------------------------------------------------------


class _FaceState(NamedTuple):
    """The line graph in canonical numbering."""

    kinds: tuple[tuple[int, int], ...]  # (0, 1) an edge, (1, weight) an input, (2, weight) output
    after: tuple[int, ...]  # bit sets of successors


def _face_moves(state: _FaceState) -> Iterator[tuple[int, tuple[int, int], _FaceState]]:
    kinds, after = state
    x_weight = [1] * len(kinds)
    y_weight = [1] * len(kinds)
    for i, (kind, weight) in enumerate(kinds):
        for j in _bits(after[i]):
            if kind == 1:
                x_weight[j] = weight
            if kinds[j][0] == 2:
                y_weight[i] = kinds[j][1]
    for i, (kind, _) in enumerate(kinds):
        if kind == 0:
            for j in _bits(after[i]):
                if kinds[j][0] == 0:
                    yield x_weight[i] * y_weight[j], (i, j), _eliminate(state, i, j)[0]


def _eliminate(
    state: _FaceState, first: int, second: int, labels: tuple[Any, ...] | None = None
) -> tuple[_FaceState, tuple[Any, ...]]:
    """The state without a face, and the labels in its numbering."""
    new = 1 << len(state.after)
    after = [mask | new if mask >> first & 1 else mask for mask in state.after]
    after[first] &= ~(1 << second)
    after.append(state.after[second])
    names: list[Any] = [None] * len(after)
    if labels is not None:
        # Paths meet at a vertex: the last of the first is the first of the second.
        product = frozenset((*a, *b[1:]) for a in labels[first] for b in labels[second])
        names = [*labels, product]
    return _tidy([*state.kinds, (0, 1)], after, names)


def _tidy(
    kinds: list[tuple[int, int]], after: list[int], labels: list[Any]
) -> tuple[_FaceState, tuple[Any, ...]]:
    """Drop dead ends, add up equal edges, and number canonically."""
    n = len(kinds)
    alive = [i for i in range(n) if kinds[i][0] == 0]
    while True:
        before = [0] * n
        for i in range(n):
            for j in _bits(after[i]):
                before[j] |= 1 << i
        gone = 0
        known: dict[tuple[int, int], int] = {}
        for i in alive:
            twin = i
            if before[i] and after[i]:
                twin = known.setdefault((before[i], after[i]), i)
                if twin == i:
                    continue
                if labels[i] is not None:
                    labels[twin] = labels[twin] | labels[i]
            gone |= 1 << i
            after[i] = 0
        if not gone:
            break
        after = [mask & ~gone for mask in after]
        alive = [i for i in alive if not gone >> i & 1]
    kept = [i for i in range(n) if kinds[i][0] or i in set(alive)]
    order = _canonical(kept, kinds, before, after)
    place = {i: k for k, i in enumerate(order)}
    state = _FaceState(
        tuple(kinds[i] for i in order),
        tuple(sum(1 << place[j] for j in _bits(after[i])) for i in order),
    )
    return state, tuple(labels[i] for i in order)


def _canonical(
    kept: list[int], kinds: list[tuple[int, int]], before: list[int], after: list[int]
) -> list[int]:
    """An order that depends on names only where colours cannot tell two edges apart.

    Colour refinement; of the first colour with several members, one is then given a colour of its
    own.  Where the members are not equivalent, equal states may be taken for different ones, which
    costs time and nothing else.
    """
    parents = {i: list(_bits(before[i])) for i in kept}
    children = {i: list(_bits(after[i])) for i in kept}
    colour: dict[int, Any] = {i: kinds[i] for i in kept}
    n_colours = 0
    while True:
        values = sorted(set(colour.values()))
        rank = {value: k for k, value in enumerate(values)}
        colour = {i: rank[colour[i]] for i in kept}
        if len(values) == len(kept):
            return sorted(kept, key=colour.__getitem__)
        if len(values) == n_colours:
            counts = sorted(colour.values())
            tied = next(a for a, b in itertools.pairwise(counts) if a == b)
            chosen = next(i for i in kept if colour[i] == tied)
            colour = {i: 2 * colour[i] + (i != chosen) for i in kept}
            n_colours = 0
            continue
        n_colours = len(values)
        colour = {
            i: (
                colour[i],
                tuple(sorted([colour[j] for j in parents[i]])),
                tuple(sorted([colour[j] for j in children[i]])),
            )
            for i in kept
        }


def _faces_left(state: _FaceState) -> int:
    """Entries of the Jacobian to which faces lead."""
    kinds, after = state
    total = 0
    for i, (kind, weight) in enumerate(kinds):
        if kind != 1:
            continue
        todo = 0
        for j in _bits(after[i]):
            todo |= after[j]
        # Outputs that an edge leads to at once are complete unless a face leads there too.
        reached = 0
        edges = sum(1 << j for j in _bits(todo) if kinds[j][0] == 0)
        while edges:
            low = edges & -edges
            reached |= low
            edges = (edges | after[low.bit_length() - 1]) & ~reached
        ends = [j for j in _bits(reached) if kinds[j][0] == 2]
        total += weight * sum(kinds[j][1] for j in ends)
    return total


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


# -- search ----------------------------------------------------------------------------------------


def _a_star(
    start: Any,
    key: Callable[[Any], Hashable],
    moves: Callable[[Any], Iterable[tuple[int, Any, Any]]],
    bound: Callable[[Any], int],
    max_states: int,
) -> tuple[list[Any], int, int]:
    """Moves of a cheapest path to a state with bound 0, its cost, and the number of states.

    The bound never falls by more than a move costs, so that a state is final when it is reached.
    """
    number = itertools.count()
    first = key(start)
    best: dict[Hashable, int] = {first: 0}
    came: dict[Hashable, tuple[Any, Hashable]] = {}
    heap: list[tuple[int, int, int, int, Any, Hashable]] = []
    estimate = bound(start)
    heapq.heappush(heap, (estimate, estimate, next(number), 0, start, first))
    bounds = {first: estimate}
    states = 0
    while heap:
        _, left, _, cost, state, name = heapq.heappop(heap)
        if cost > best[name]:
            continue
        states += 1
        if not left:
            path = []
            while name != first:
                move, name = came[name]
                path.append(move)
            return path[::-1], cost, states
        if states > max_states:
            break
        for extra, move, after in moves(state):
            total = cost + extra
            after_name = key(after)
            if total < best.get(after_name, total + 1):
                best[after_name] = total
                came[after_name] = (move, name)
                if after_name not in bounds:
                    bounds[after_name] = bound(after)
                left_after = bounds[after_name]
                heapq.heappush(
                    heap,
                    (total + left_after, left_after, next(number), total, after, after_name),
                )
    raise InvalidOrderError(
        f"max_states: no order was proved within {max_states} states. Give more, or use "
        "find_order: exact search over edges and faces is for small graphs."
    )
