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

*Segments*, parts with one way in and one way out, may be eliminated before the rest, each in an
order of its own: see `elimination_orders.segments` for the conditions and the proof.

*Chains* of vertices with one predecessor and one successor anywhere, and *false twins* (the same
predecessors and the same successors) eliminated one after the other, lose nothing in any of some
hundred thousand random graphs against exact optima, and for twins Bentert et al. (arXiv 2506.17521)
have a proof; the first is offered as a heuristic (``chains=True``), the second shrinks exact
searches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from elimination_orders.bitgraph import BitProblem, BitState, bits
from elimination_orders.bounds import disjoint_paths
from elimination_orders.segments import find_segments

__all__ = [
    "Reduction",
    "Section",
    "false_twins",
    "first_settled",
    "independent_parts",
    "reduce_problem",
]

#: Bounds are computed for graphs up to this size; beyond it only the rules that need none are used.
MAX_SIZE = 300


@dataclass(frozen=True)
class Section:
    """Vertices that are eliminated one after the other.

    Args:
        vertices: numbers in the whole problem; in their final order if `problem` is None.
        problem: the problem of ordering them, in which vertex i is ``vertices[i]``; None if their
            order is settled.
        cost: of the settled vertices; 0 if there is a problem.
    """

    vertices: tuple[int, ...]
    problem: Any = None
    cost: float = 0


@dataclass(frozen=True)
class Reduction:
    """A problem taken apart.

    Args:
        sections: to be eliminated in this order; what is inside one does not depend on the order
            inside another.
        lossless: whether an optimal order of every section gives an optimal order of the whole.
    """

    sections: tuple[Section, ...]
    lossless: bool

    @property
    def cost(self) -> float:
        """Cost of the vertices whose order is settled."""
        return sum(section.cost for section in self.sections)

    @property
    def n_left(self) -> int:
        """Number of vertices that a search still has to order."""
        return sum(len(s.vertices) for s in self.sections if s.problem is not None)

    def join(self, orders: Sequence[Sequence[int]]) -> list[int]:
        """The order of the whole problem.

        Args:
            orders: for every section with a problem an order of that problem.
        """
        found = iter(orders)
        joined: list[int] = []
        for section in self.sections:
            if section.problem is None:
                joined += section.vertices
            else:
                joined += [section.vertices[i] for i in next(found)]
        return joined


def reduce_problem(problem: Any, chains: bool = False) -> Reduction:
    """Apply all rules of this module.

    The rules that eliminate are for the count of all products; under other objectives a problem is
    only taken apart, and under objectives that are no sums not even that.

    Args:
        problem: a numbered problem.
        chains: whether to eliminate all chains too, which is not proved to be lossless.
    """
    state = problem.start()
    everything = tuple(range(problem.n))
    if not isinstance(problem, BitProblem):
        objective = problem.objective
        takes_apart = objective.combine == "sum" and objective.is_algebra_cost
        parts = independent_parts(state, everything) if takes_apart else []
        if not parts or _share_edges(state, parts):
            parts = [everything] if problem.n else []
        return Reduction(_sections(problem, state, parts), lossless=True)
    if problem.effective_weights[1:] != (0, 0):
        parts = independent_parts(state, everything)
        return Reduction(_sections(problem, state, parts), lossless=True)

    sections: list[Section] = []
    left = dict.fromkeys(everything)
    queue: Iterable[int] = everything
    while left:
        settled, cost = _settle(problem, state, left, queue, chains)
        if settled:
            sections.append(Section(tuple(settled), None, cost))
        if problem.size > MAX_SIZE:
            break
        segments = find_segments(state, tuple(left), problem.n)
        if not segments:
            break
        touched = 0
        for segment in segments:
            sections += _sections(problem, state, independent_parts(state, segment))
            for vertex in segment:
                touched |= state.pred[vertex] | state.succ[vertex]
                state.eliminate(vertex)
                del left[vertex]
        queue = [vertex for vertex in left if touched >> vertex & 1]
    sections += _sections(problem, state, independent_parts(state, left))
    return Reduction(tuple(sections), lossless=not chains)


def first_settled(problem: BitProblem) -> int | None:
    """A vertex that may come first by a rule, in a problem that counts all products; or None."""
    state = problem.start()
    for vertex in range(problem.n):
        if _may_come_first(problem, state, vertex, chains=False):
            return vertex
    return None


def _sections(problem: Any, state: Any, parts: list[tuple[int, ...]]) -> tuple[Section, ...]:
    return tuple(Section(part, problem.window(state, part)[0]) for part in parts)


def _settle(
    problem: BitProblem,
    state: BitState,
    left: dict[int, None],
    queue: Iterable[int],
    chains: bool,
) -> tuple[list[int], int]:
    """Eliminate vertices that may come first until no rule fits; returns them and their cost."""
    settled: list[int] = []
    cost = 0
    while queue:
        retry: dict[int, None] = {}
        for vertex in queue:
            if vertex not in left or not _may_come_first(problem, state, vertex, chains):
                continue
            retry.update(dict.fromkeys(bits(_around(state, vertex))))
            cost += state.eliminate(vertex)
            settled.append(vertex)
            del left[vertex]
        queue = [vertex for vertex in sorted(retry) if vertex in left]
    return settled, cost


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
