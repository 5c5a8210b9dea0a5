r"""Orders for graphs that everything runs through in single vertices, by dynamic programming.

A *cut* is a vertex on every path from a source to a sink.  Between cuts lie stages, and the
Jacobian is a product with one factor for each, as in `elimination_orders.chain`.  Here the same
recursion is carried out with eliminations at their true costs, so that it serves numbers and
tensors alike.  With ``M[f, l]`` for the least cost of eliminating everything strictly inside the
stages f to l::

    M[k, k] = an order of the inside of stage k by itself
    M[f, l] = min(M[f, k-1] + M[k, l] + cost of cut k, for f < k <= l    (a product),
                  M[f, l-1] + cut l, then stage l forward                (a tangent),
                  M[f+1, l] + cut f+1, then stage f in reverse           (an adjoint))

Nothing runs past a cut, so that its elimination adds to no edge and its cost follows from the edges
into it, after the stages before, and those out of it, after the stages behind.

The result is an order like any other and not always the best one: it eliminates the inside of a
stage in a row, and of the orders of a stage by itself only a few are looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from elimination_orders.bitgraph import BitProblem, bits
from elimination_orders.chain import cut_places
from elimination_orders.search.subset_dp import solve_by_subsets

__all__ = ["chain_order"]

#: More cuts than this are thinned out: the work grows as the cube of their number.
MAX_CUTS = 64
#: Insides of stages up to this size are ordered exactly.
EXACT_LENGTH = 6


def chain_order(problem: Any, max_questions: int = 3000) -> list[int] | None:
    """An order that eliminates stage by stage and brackets the stages well.

    Args:
        problem: a numbered problem with a cost that is a sum.
        max_questions: new products and sums that the algebra of a graph may be asked for.

    Returns:
        The order; None if there are no two cuts, or the algebra was asked too often.
    """
    structure = problem.structure()
    live = _live(structure)
    cuts = [v for v in _cuts(structure, live) if live >> v & 1]
    if len(cuts) < 2:
        return None
    if len(cuts) > MAX_CUTS:
        cuts = [cuts[i * len(cuts) // MAX_CUTS] for i in range(MAX_CUTS)]
    dead = [v for v in range(problem.n) if not live >> v & 1]
    bounds = [-1, *cuts, problem.n]
    stages = [
        [v for v in range(low + 1, high) if live >> v & 1]
        for low, high in itertools.pairwise(bounds)
    ]
    start = problem.start()
    for vertex in dead:
        start.eliminate(vertex)
    inside = _best_bracketing(problem, start, cuts, stages, max_questions)
    return None if inside is None else dead + inside


def _best_bracketing(
    problem: Any,
    start: Any,
    cuts: Sequence[int],
    stages: Sequence[Sequence[int]],
    max_questions: int,
) -> list[int] | None:
    algebra = getattr(problem, "algebra", None)
    asked = getattr(algebra, "questions", 0)
    join_cost = _join_cost(problem)
    costs: dict[tuple[int, int], float] = {}
    orders: dict[tuple[int, int], list[int]] = {}
    states: dict[tuple[int, int], Any] = {}
    for k, inside in enumerate(stages):
        state = states[k, k] = start.copy()
        order = _stage_order(problem, start, inside)
        costs[k, k] = sum(map(state.eliminate, order))
        orders[k, k] = order
    for length in range(2, len(stages) + 1):
        for first in range(len(stages) - length + 1):
            last = first + length - 1
            state = states[first, last] = states[first, last - 1].copy()
            after = [cuts[last - 1], *stages[last]]
            best = costs[first, last - 1] + sum(map(state.eliminate, after))
            order = orders[first, last - 1] + after
            before = [cuts[first], *stages[first][::-1]]
            cost = costs[first + 1, last]
            other = states[first + 1, last].copy()
            cost += sum(map(other.eliminate, before))
            if cost < best:
                best, order = cost, orders[first + 1, last] + before
            for k in range(first + 1, last + 1):
                cost = costs[first, k - 1] + costs[k, last]
                if cost >= best:
                    continue
                cost += join_cost(states[first, k - 1], states[k, last], cuts[k - 1])
                if cost < best:
                    best = cost
                    order = [*orders[first, k - 1], *orders[k, last], cuts[k - 1]]
            costs[first, last], orders[first, last] = best, order
            if getattr(algebra, "questions", 0) - asked > max_questions:
                return None
    return orders[0, len(stages) - 1]


def _join_cost(problem: Any) -> Callable[[Any, Any, int], float]:
    """Cost of a cut of which one state knows the edges into it and another those out of it."""
    if isinstance(problem, BitProblem):
        # Where kinds count this is an upper bound.
        weight = problem.weights[0] + problem.weights[1]
        return lambda inner, outer, cut: (
            weight * inner.pred[cut].bit_count() * outer.succ[cut].bit_count()
        )
    compose = problem.algebra.compose
    return lambda inner, outer, cut: sum(
        compose(right, left)[1]
        for left in inner.pred[cut].values()
        for right in outer.succ[cut].values()
    )


def _stage_order(problem: Any, start: Any, inside: Sequence[int]) -> list[int]:
    """A cheap order of the inside of a stage by itself."""
    if len(inside) < 2:
        return list(inside)
    piece, _ = problem.window(start, inside)
    if len(inside) <= EXACT_LENGTH:
        return [inside[i] for i in solve_by_subsets(piece)[1]]
    forward = list(range(len(inside)))
    candidates = [forward, forward[::-1]]
    return [inside[i] for i in min(candidates, key=piece.evaluate)]


def _live(structure: BitProblem) -> int:
    """Vertices on a path from a source to a sink, as a bit set."""
    n = structure.n
    above = below = 0
    for v in range(n, structure.size):
        if structure.succ[v]:
            above |= 1 << v
        if structure.pred[v]:
            below |= 1 << v
    for v in range(n):
        if structure.pred[v] & above:
            above |= 1 << v
    for v in reversed(range(n)):
        if structure.succ[v] & below or structure.kept >> v & 1:
            below |= 1 << v
    return above & below | above & ~((1 << n) - 1) | below & ~((1 << n) - 1)


def _cuts(structure: BitProblem, live: int) -> list[int]:
    n = structure.n
    spans = []
    for u in bits(live):
        for w in bits(structure.succ[u] & live):
            at_end = w >= n or structure.kept >> w & 1
            spans.append((u if u < n else -1, n if at_end else w))
    return cut_places(spans, n)
