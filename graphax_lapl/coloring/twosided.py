"""Colours of rows and columns together: each entry is read from one side or the other.

A few full rows force a colour on every column, and a few full columns one on every row. With both
products at hand full rows are taken from the left and everything else from the right, or the
mirror image. Star bicolouring (Coleman and Verma, The efficient computation of sparse Jacobian
matrices using automatic differentiation, SIAM J. Sci. Comput. 19, 1998; Gebremedhin, Manne and
Pothen 2005): every entry has a coloured end; the neighbours of a vertex without a colour differ in
colour; every path on four vertices has three colours.
"""

from __future__ import annotations

import numpy as np

from .onesided import color_columns, color_rows
from .pattern import Pattern
from .recovery import Coloring, flat_sources
from .stars import StarPainter

__all__ = ["bicoloring"]

#: How many thresholds between "sparse" and "full" rows are tried, on either side.
MAX_THRESHOLDS = 3
#: How many of them are estimated.
MAX_ESTIMATES = 64


def bicoloring(pattern: Pattern, row_weight: float = 1.0) -> Coloring:
    """Few colours of rows and columns, never more (by weight) than of columns or rows alone.

    Args:
        pattern: where the entries are.
        row_weight: what a row's colour costs, in colours of columns.
    """
    found = [color_columns(pattern), color_rows(pattern)]
    limit = min(found[0].columns, row_weight * found[1].rows)
    bound = min(1, pattern.nse)
    found += [
        _peeled(pattern, pattern.row_counts > threshold, bound)
        for threshold in _thresholds(pattern, row_weight, limit)
    ]
    flipped = pattern.transposed
    found += [
        _mirrored(pattern, _peeled(flipped, flipped.row_counts > threshold, bound))
        for threshold in _thresholds(flipped, 1 / row_weight, limit / row_weight)
    ]
    return min(found, key=lambda c: c.columns + row_weight * c.rows)


def _thresholds(pattern: Pattern, row_weight: float, limit: float) -> list[int]:
    """Row counts above which rows may be worth peeling, the most promising first.

    Estimate: the fullest row that stays, plus the fullest column among the peeled rows; only
    what may come out below `limit` is of interest.
    """
    counts = pattern.row_counts
    estimates = []
    for threshold in np.unique(counts)[:-1][:MAX_ESTIMATES].tolist():
        peeled = counts[pattern.rows] > threshold
        tall = int(np.bincount(pattern.cols[peeled], minlength=1).max(initial=0))
        estimates.append((threshold + row_weight * tall, threshold))
    promising = sorted(estimate for estimate in estimates if estimate[0] < limit)
    return [threshold for _, threshold in promising[:MAX_THRESHOLDS]]


def _peeled(pattern: Pattern, full: np.ndarray, bound: int) -> Coloring:
    """Colours for the `full` rows, and for the columns that meet any other row."""
    m, n = pattern.shape
    needed = np.zeros(n, bool)
    needed[pattern.cols[~full[pattern.rows]]] = True
    neighbours = [[m + c for c in row] for row in pattern.row_lists] + pattern.transposed.row_lists
    neutral = [*(~full).tolist(), *(~needed).tolist()]
    painter = StarPainter(neighbours, neutral)
    for vertex in [*np.flatnonzero(full).tolist(), *(m + np.flatnonzero(needed)).tolist()]:
        painter.paint(vertex, proper=False)
    rows, columns = np.array(painter.color[:m], np.int64), np.array(painter.color[m:], np.int64)
    # An entry is read from its column's colour where no other column of that colour meets its row.
    count = int(columns.max(initial=-1)) + 1
    key = pattern.rows * (count + 1) + columns[pattern.cols]
    coloured = columns[pattern.cols] >= 0
    met = np.bincount(key[coloured], minlength=m * (count + 1) + 1)
    by_column = coloured & (met[np.where(coloured, key, 0)] == 1)
    source = flat_sources(pattern, columns, rows, by_column)
    return Coloring(pattern, columns, rows, source, bound, "rows and columns")


def _mirrored(pattern: Pattern, other: Coloring) -> Coloring:
    """A colouring of the transpose as one of the pattern."""
    m, n = pattern.shape
    rows, columns = other.column_colors, other.row_colors
    # Entries of the transpose in our order, and the two parts of the compressed values swapped.
    order = np.lexsort((other.pattern.rows, other.pattern.cols))
    flipped = other.source[order]
    split, ours = other.columns * n, other.rows * m
    source = np.where(flipped < split, flipped + ours, flipped - split)
    return Coloring(pattern, columns, rows, source, other.lower_bound, other.method)
