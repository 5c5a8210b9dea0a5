"""In which order the columns of a pattern are coloured by a greedy algorithm.

Two columns are neighbours where they share a row; degrees count shared rows with multiplicity, so
that the intersection graph is never built. The orders are those of Coleman and Moré (Estimation of
sparse Jacobian matrices and graph coloring problems, SIAM J. Numer. Anal. 20, 1983).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from .pattern import Pattern

__all__ = ["DYNAMIC", "STATIC", "shared_row_pairs"]

Ordering = Callable[[Pattern], list[int]]


def shared_row_pairs(pattern: Pattern) -> int:
    """Pairs of entries in a common row: what the dynamic orders take time for."""
    return int((pattern.row_counts.astype(np.int64) ** 2).sum())


def _degrees(pattern: Pattern) -> np.ndarray:
    weights = pattern.row_counts[pattern.rows] - 1
    return np.bincount(pattern.cols, weights, minlength=pattern.shape[1]).astype(np.int64)


def natural(pattern: Pattern) -> list[int]:
    """First to last."""
    return list(range(pattern.shape[1]))


def largest_first(pattern: Pattern) -> list[int]:
    """Most neighbours first."""
    return np.argsort(-_degrees(pattern), kind="stable").tolist()


def residues(pattern: Pattern) -> list[int]:
    """Columns of one residue after the other, for the least modulus that fits the diagonals.

    On a grid most entries stand on a few diagonals `column - row = d`. Columns that are equal
    modulo p share no row of them where the d differ modulo p; what does not fit (wrapped borders)
    is left to the greedy algorithm.
    """
    diagonals, counts = np.unique(pattern.cols - pattern.rows, return_counts=True)
    main = diagonals[2 * counts > counts.max(initial=0)]
    modulus = len(main)
    while modulus < 2 * len(main) and len(np.unique(main % modulus)) < len(main):
        modulus += 1
    columns = np.arange(pattern.shape[1])
    return np.argsort(columns % max(1, modulus), kind="stable").tolist()


def smallest_last(pattern: Pattern) -> list[int]:
    """Last the column with the fewest neighbours, and so on among the others."""
    return _dynamic(pattern, _degrees(pattern).tolist(), 1, -1)[::-1]


def incidence_degree(pattern: Pattern) -> list[int]:
    """Next always the column with the most neighbours that have had their turn."""
    return _dynamic(pattern, [0] * pattern.shape[1], -1, 1)


def _dynamic(pattern: Pattern, degrees: list[int], sign: int, change: int) -> list[int]:
    """Take the column of least `sign * degree`; its neighbours' degrees change."""
    columns, rows = pattern.transposed.row_lists, pattern.row_lists
    heap = [(sign * degree, column) for column, degree in enumerate(degrees)]
    heapq.heapify(heap)
    taken = [False] * len(columns)
    order = []
    while heap:
        key, column = heapq.heappop(heap)
        if taken[column] or key != sign * degrees[column]:
            continue
        taken[column] = True
        order.append(column)
        touched = set()
        for row in columns[column]:
            for other in rows[row]:
                degrees[other] += change
                touched.add(other)
        for other in touched:
            if not taken[other]:
                heapq.heappush(heap, (sign * degrees[other], other))
    return order


#: Orders that take time in proportion to the entries.
STATIC: dict[str, Ordering] = {
    "natural": natural,
    "largest_first": largest_first,
    "residues": residues,
}
#: Orders that take time in proportion to `shared_row_pairs`.
DYNAMIC: dict[str, Ordering] = {
    "smallest_last": smallest_last,
    "incidence_degree": incidence_degree,
}
