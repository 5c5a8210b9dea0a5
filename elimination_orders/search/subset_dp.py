"""Dynamic programming over subsets: the exact optimum of a small problem.

The graph after some eliminations depends on the set of eliminated vertices alone, hence

    best(S) = min over v in S of best(S - v) + cost of v after S - v,

with 2^k states for k vertices (the principle of Held and Karp 1962, as used for treewidth by
Bodlaender et al. 2012).
"""

from __future__ import annotations

import math
from typing import Any

from elimination_orders.bitgraph import BitProblem
from elimination_orders.native import NativePlanner, kernel_available

__all__ = ["MAX_MEMBERS", "solve_by_subsets"]

#: Beyond this the tables do not fit into memory.
MAX_MEMBERS = 22


def solve_by_subsets(problem: Any) -> tuple[float, list[int]]:
    """Least cost of a problem and an order that attains it.

    Args:
        problem: a problem with at most `MAX_MEMBERS` eliminable vertices and a cost that is summed
            over the steps.

    Returns:
        The cost and the order; of several optimal orders always the same one.

    Raises:
        ValueError: if the problem is too large.
    """
    if problem.n > MAX_MEMBERS:
        raise ValueError(
            f"problem: expected at most {MAX_MEMBERS} eliminable vertices, got {problem.n}. Use a "
            "search, or branch and bound."
        )
    if problem.n < 2:
        order = list(range(problem.n))
        return problem.evaluate(order), order
    if isinstance(problem, BitProblem) and kernel_available():
        return NativePlanner(problem).subset_dp([], range(problem.n))
    return _solve_in_python(problem)


def _solve_in_python(problem: Any) -> tuple[float, list[int]]:
    """Visits subsets in increasing order, so that all subsets of a subset come before it.

    The state of a subset is that of the subset without its lowest member, which is kept on the
    level of *its* lowest member: only subsets with a smaller lowest member came in between.
    """
    n = problem.n
    best: list[float] = [math.inf] * (1 << n)
    last = [0] * (1 << n)
    best[0] = 0
    levels: list[Any] = [None] * n + [problem.start()]
    for chosen in range(1 << n):
        if chosen:
            low = (chosen & -chosen).bit_length() - 1
            parent = chosen & (chosen - 1)
            above = levels[(parent & -parent).bit_length() - 1 if parent else n]
            state = levels[low] = above.copy()
            state.eliminate(low)
        else:
            state = levels[n]
        base = best[chosen]
        for vertex in range(n):
            bit = 1 << vertex
            if not chosen & bit:
                cost = base + state.cost(vertex)
                if cost < best[chosen | bit]:
                    best[chosen | bit] = cost
                    last[chosen | bit] = vertex
    order: list[int] = []
    chosen = (1 << n) - 1
    while chosen:
        order.append(last[chosen])
        chosen &= ~(1 << last[chosen])
    return best[-1], order[::-1]
