"""Colours of columns (or rows) no two of which share a row (a column).

Columns of one colour are structurally orthogonal, so one product `J s` holds all their entries
(Curtis, Powell and Reid, On the estimation of sparse Jacobian matrices, 1974). Greedy: each column
takes the first colour that none of its rows has seen; the colours a row has seen are the bits of
one integer, so a colouring takes time in proportion to the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .orderings import DYNAMIC, STATIC, shared_row_pairs
from .pattern import Pattern
from .recovery import Coloring, flat_sources

__all__ = ["color_columns", "color_rows"]

#: Dynamic orders are tried up to this many pairs of entries in a common row (about a second).
MAX_PAIRS = 500_000


def color_columns(pattern: Pattern, orderings: Sequence[str] | None = None) -> Coloring:
    """Columns of one colour share no row.

    Args:
        pattern: where the entries are.
        orderings: which greedy orders are tried; by default all that are quick for this pattern,
            until one meets the lower bound.

    Returns:
        The colouring with the fewest colours (the first of them); the same on every machine.
    """
    colors, bound, name = _best(pattern, orderings)
    none = np.full(pattern.shape[0], -1)
    source = flat_sources(pattern, colors, none, np.ones(pattern.nse, bool))
    return Coloring(pattern, colors, none, source, bound, f"columns, {name}")


def color_rows(pattern: Pattern, orderings: Sequence[str] | None = None) -> Coloring:
    """Rows of one colour share no column; arguments as for `color_columns`."""
    colors, bound, name = _best(pattern.transposed, orderings)
    none = np.full(pattern.shape[1], -1)
    source = flat_sources(pattern, none, colors, np.zeros(pattern.nse, bool))
    return Coloring(pattern, none, colors, source, bound, f"rows, {name}")


def _best(pattern: Pattern, orderings: Sequence[str] | None) -> tuple[np.ndarray, int, str]:
    """The best colours of columns, a lower bound (the fullest row), and the order's name."""
    bound = int(pattern.row_counts.max(initial=0))
    occupied = pattern.column_counts > 0
    if bound == np.count_nonzero(occupied):
        # One row meets all columns: every column has a colour of its own.
        return np.where(occupied, np.cumsum(occupied) - 1, -1), bound, "full row"
    orders: dict[str, Callable[[Pattern], list[int]]] = {**STATIC, **DYNAMIC}
    if orderings is None:
        quick = shared_row_pairs(pattern) <= MAX_PAIRS
        orderings = tuple(orders if quick else STATIC)
    best: tuple[int, np.ndarray, str] | None = None
    for name in orderings:
        colors = _greedy(pattern, orders[name](pattern))
        count = int(colors.max(initial=-1)) + 1
        if best is None or count < best[0]:
            best = (count, colors, name)
        if count == bound:
            break
    assert best is not None
    return best[1], bound, best[2]


def _greedy(pattern: Pattern, order: Sequence[int]) -> np.ndarray:
    columns = pattern.transposed.row_lists
    seen = [0] * pattern.shape[0]
    colors = [-1] * pattern.shape[1]
    for column in order:
        rows = columns[column]
        if not rows:
            continue
        forbidden = 0
        for row in rows:
            forbidden |= seen[row]
        bit = ~forbidden & (forbidden + 1)
        colors[column] = bit.bit_length() - 1
        for row in rows:
            seen[row] |= bit
    return np.array(colors, np.int64)
