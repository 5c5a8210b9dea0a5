r"""Eliminations that can be done before any search without losing the optimum; independent parts.

Write ``G/X`` for the graph after eliminating the set X: it has an edge u -> w if and only if there
is a path from u to w through X.  Let b(v) be the bound of `elimination_orders.bounds`: no
elimination of v ever costs less.  The rules for plain multiplication counts, each applied until
none fits:

*Free.*  A vertex without predecessors or without successors costs nothing now, and taking its edges
away never raises the degree of another.

*No fill.*  If eliminating v adds no edge and costs b(v), it may come first.  Proof: take any order
and move v to the front.  v costs no more than before.  Any other vertex w that used to come after v
sees the same graph; one that used to come before v, at the set X, sees ``G - v`` with X eliminated,
because no edge was added; its neighbours there are a subset of those in ``G/X``.

*Input chain.*  If the only predecessor of v is an input u and v costs b(v), it may come first.
Proof: as above; a vertex w that used to come before v now sees u where it saw v, since u is never
eliminated: its predecessors change from P to P - v + u, which is not more, its successors are the
same, and successors of u are never multiplied.

*Output chain.*  The same, for a single successor that is a pure output.

*Parts.*  Two eliminable vertices that no path of eliminable vertices joins (regardless of the
direction of the edges) never see each other, because a predecessor or successor can only be reached
through eliminated vertices.  Each part can be ordered by itself.  Under an algebra this holds only
if no two parts add to the same edge; elsewhere sums between inputs and outputs are counted in every
part, but always as many.

*Chains* of vertices with one predecessor and one successor anywhere, and *false twins* (the same
predecessors and the same successors) eliminated one after the other, lose nothing in any of some
hundred thousand random graphs against exact optima, and for twins Bentert et al. (arXiv 2506.17521)
have a proof; the first is offered as a heuristic (``chains=True``), the second shrinks exact
searches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from elimination_orders.bitgraph import BitProblem, BitState, bits
from elimination_orders.bounds import disjoint_paths

__all__ = ["Reduction", "false_twins", "independent_parts", "reduce_problem"]

#: Bounds are computed for graphs up to this size; beyond it only the rules that need none are used.
MAX_SIZE = 300


@dataclass(frozen=True)
class Reduction:
    """What is left of a problem.

    Args:
        prefix: vertices to eliminate first, in this order.
        cost: of the prefix.
        parts: vertices that are left, by independent part.
        state: the problem after the prefix.
        lossless: whether an optimal order begins like this.
    """

    prefix: tuple[int, ...]
    cost: float
    parts: tuple[tuple[int, ...], ...]
    state: Any
    lossless: bool

    @property
    def n_left(self) -> int:
        """Number of vertices that a search still has to order."""
        return sum(map(len, self.parts))


def reduce_problem(problem: Any, chains: bool = False) -> Reduction:
    """Apply all rules of this module.

    The rules that eliminate are for the count of all products; under other objectives a problem is
    only taken apart, and under objectives that are no sums not even that.

    Args:
        problem: a numbered problem.
        chains: whether to eliminate all chains too, which is not proved to be lossless.
    """
    state = problem.start()
    everything = range(problem.n)
    if not isinstance(problem, BitProblem):
        objective = problem.objective
        takes_apart = objective.combine == "sum" and objective.is_algebra_cost
        parts = independent_parts(state, everything) if takes_apart else []
        if not parts or _share_edges(state, parts):
            parts = [tuple(everything)] if problem.n else []
        return Reduction((), 0, tuple(parts), state, lossless=True)
    if problem.effective_weights[1:] != (0, 0):
        parts = independent_parts(state, everything)
        return Reduction((), 0, tuple(parts), state, lossless=True)

    prefix: list[int] = []
    cost = 0
    left = dict.fromkeys(everything)
    queue = list(everything)
    while queue:
        retry: dict[int, None] = {}
        for vertex in queue:
            if vertex not in left or not _may_come_first(problem, state, vertex, chains):
                continue
            retry.update(dict.fromkeys(bits(_around(state, vertex))))
            cost += state.eliminate(vertex)
            prefix.append(vertex)
            del left[vertex]
        queue = [vertex for vertex in sorted(retry) if vertex in left]
    parts = independent_parts(state, left)
    return Reduction(tuple(prefix), cost, tuple(parts), state, lossless=not chains)


def _around(state: BitState, vertex: int) -> int:
    """Vertices whose rules may apply after `vertex` is gone: up to two edges away."""
    near = state.pred[vertex] | state.succ[vertex]
    far = near
    for other in bits(near):
        far |= state.pred[other] | state.succ[other]
    return far


def _may_come_first(problem: BitProblem, state: BitState, vertex: int, chains: bool) -> bool:
    if problem.kept >> vertex & 1:
        return False
    before, after = state.pred[vertex], state.succ[vertex]
    p, s = before.bit_count(), after.bit_count()
    if p == 0 or s == 0:
        return True
    inner = (1 << problem.n) - 1
    at_end = (p == 1 and not before & inner) or (s == 1 and not after & inner)
    if p == s == 1 and (at_end or chains):
        return _is_useful(problem, state, vertex)
    if not at_end and state.fill(vertex):
        return False
    if problem.size > MAX_SIZE:
        return False
    outer = (1 << problem.size) - 1 ^ inner
    sinks = (outer | problem.kept) & ~(1 << vertex)
    return (
        disjoint_paths(state.pred, vertex, outer) == p
        and disjoint_paths(state.succ, vertex, sinks) == s
    )


def _is_useful(problem: BitProblem, state: BitState, vertex: int) -> bool:
    """Whether `vertex` lies between a source and a sink; if not it becomes free by and by."""
    if problem.size > MAX_SIZE:
        return True
    inner = (1 << problem.n) - 1
    outer = (1 << problem.size) - 1 ^ inner
    return bool(
        disjoint_paths(state.pred, vertex, outer)
        and disjoint_paths(state.succ, vertex, (outer | problem.kept) & ~(1 << vertex))
    )


def _share_edges(state: Any, parts: list[tuple[int, ...]]) -> bool:
    """Whether two parts may add to the same edge, or one to an edge that is there already.

    An algebra may charge a sum according to what was added before, so that such parts are not
    independent.
    """
    seen: set[tuple[int, int]] = set()
    for part in parts:
        inside = set(part)
        sources = {u for v in part for u in state.pred[v] if u not in inside}
        sinks = {w for v in part for w in state.succ[v] if w not in inside}
        sinks |= inside & state.problem.kept
        pairs = {(u, w) for u in sources for w in sinks}
        if len(parts) > 1 and (
            not seen.isdisjoint(pairs) or any(w in state.succ[u] for u, w in pairs)
        ):
            return True
        seen |= pairs
    return False


def independent_parts(state: Any, members: Iterable[int]) -> list[tuple[int, ...]]:
    """`members` by connected component of the graph that they span; larger parts first."""
    left = dict.fromkeys(members)
    parts = []
    for first in list(left):
        if first not in left:
            continue
        del left[first]
        part = [first]
        for vertex in part:
            for other in state.neighbours(vertex):
                if other in left:
                    del left[other]
                    part.append(other)
        parts.append(tuple(sorted(part)))
    return sorted(parts, key=lambda part: (-len(part), part))


def false_twins(problem: BitProblem) -> list[tuple[int, ...]]:
    """Eliminable vertices grouped by equal predecessors and successors; most groups have one.

    Outputs with successors stay alone.
    """
    groups: dict[tuple[int, int, int], list[int]] = {}
    for vertex in range(problem.n):
        alone = vertex + 1 if problem.kept >> vertex & 1 else 0
        groups.setdefault((problem.pred[vertex], problem.succ[vertex], alone), []).append(vertex)
    return [tuple(group) for group in groups.values()]
