"""Lower bounds on the cost of every elimination order.

Whatever was eliminated before, the predecessors of a vertex v separate it from the inputs, and its
successors separate it from the outputs.  By Menger's theorem it therefore has at least as many
predecessors as there are paths from inputs to v that share no vertex but v, and likewise for its
successors.  The sum of the products of these two numbers bounds the number of multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elimination_orders.bitgraph import BitProblem, bits

__all__ = ["disjoint_paths", "lower_bound", "vertex_bounds"]

#: Above this size only the trivial bound of one multiplication per vertex is computed.
MAX_SIZE = 300


def lower_bound(problem: Any) -> int:
    """A number that no order of `problem` can go below.

    Args:
        problem: a numbered problem.  Where the cost is not a count of all products, 0 is returned.
    """
    if not isinstance(problem, BitProblem):
        return 0
    weight = problem.effective_weights[0]
    if weight == 0:
        return 0
    return weight * sum(vertex_bounds(problem))


def vertex_bounds(problem: BitProblem) -> list[int]:
    """For every eliminable vertex the least number of products that its elimination can take."""
    n, size = problem.n, problem.size
    if size > MAX_SIZE:
        return _useful(problem)
    inner = (1 << n) - 1
    outer = (1 << size) - 1 ^ inner
    result = []
    for vertex in range(n):
        if not problem.pred[vertex] or not problem.succ[vertex]:
            result.append(0)
            continue
        above = disjoint_paths(problem.pred, vertex, outer)
        # An output keeps a column of its own, so that a path may end there too.
        below = disjoint_paths(problem.succ, vertex, (outer | problem.kept) & ~(1 << vertex))
        result.append(above * below)
    return result


def _useful(problem: BitProblem) -> list[int]:
    """One for every vertex that lies between a source and a sink."""
    n = problem.n
    inner = (1 << n) - 1
    above, below = [False] * n, [False] * n
    for v in range(n):
        row = problem.pred[v]
        above[v] = bool(row & ~inner) or any(above[u] for u in bits(row & inner))
    for v in reversed(range(n)):
        row = problem.succ[v]
        below[v] = bool(row & ~inner) or any(
            below[w] or problem.kept >> w & 1 for w in bits(row & inner)
        )
    return [int(a and b) for a, b in zip(above, below, strict=True)]


def disjoint_paths(rows: Sequence[int], start: int, ends: int) -> int:
    """Number of paths from `start` to `ends` that have only `start` in common.

    Args:
        rows: neighbours of every vertex in the direction of the paths, as bit sets.
        start: where the paths begin.
        ends: vertices where a path ends, as a bit set.

    Returns:
        The maximum flow with unit capacities at the vertices, by augmenting paths.
    """
    before: dict[int, int] = {}  # previous vertex on the path through a vertex
    after: dict[int, int] = {}
    flow = 0
    while _augment(rows, start, ends, before, after):
        flow += 1
    return flow


def _augment(
    rows: Sequence[int], start: int, ends: int, before: dict[int, int], after: dict[int, int]
) -> bool:
    """Find one more path and enter it; says whether there was one.

    A vertex v is split into (v, 0), where paths come in, and (v, 1), where they go out; one path
    fits through.  The walk may go against a path, which takes that part of the path away.
    """
    parent: dict[tuple[int, int], tuple[int, int]] = {}
    queue = [(start, 1)]
    for node in queue:
        vertex, side = node
        if side == 1:
            steps = [(w, 0) for w in bits(rows[vertex]) if after.get(vertex) != w]
            if vertex in before:
                steps.append((vertex, 0))
        elif vertex in before:
            steps = [(before[vertex], 1)]
        elif ends >> vertex & 1:
            _enter(node, (start, 1), parent, before, after)
            return True
        else:
            steps = [(vertex, 1)]
        for step in steps:
            if step not in parent and step != (start, 1):
                parent[step] = node
                queue.append(step)
    return False


def _enter(
    node: tuple[int, int],
    root: tuple[int, int],
    parent: dict[tuple[int, int], tuple[int, int]],
    before: dict[int, int],
    after: dict[int, int],
) -> None:
    """Change the paths along the walk that ended in `node`."""
    taken, given_up = [], []
    while node != root:
        origin = parent[node]
        if origin[1] == 1 and node[1] == 0 and origin[0] != node[0]:
            taken.append((origin[0], node[0]))
        elif origin[1] == 0 and node[1] == 1 and origin[0] != node[0]:
            given_up.append((node[0], origin[0]))
        node = origin
    for u, v in given_up:
        if after.get(u) == v:
            del after[u]
        if before.get(v) == u:
            del before[v]
    for u, v in taken:
        before[v] = u
        if u != root[0]:
            after[u] = v
