"""A colouring, the products it asks for, and how the entries are read off them.

A matrix J of shape (m, n) is compressed from the right, `J S` with one column of S per colour of
columns, from the left, `R J` with one row of R per colour of rows, or both. The compressed values
are kept as one flat array: `(J S)^T` of shape (column colours, m), then `R J` of shape
(row colours, n).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import InvalidArgumentError
from .pattern import Pattern

__all__ = ["Coloring", "Substitution", "flat_sources", "substitution"]


@dataclass(frozen=True, eq=False)
class Coloring:
    """Colours of the columns and rows of a pattern.

    Attributes:
        pattern: what was coloured.
        column_colors: colour of each column from 0, -1 where it takes part in no product.
        row_colors: colour of each row from 0, -1 where it takes part in no product.
        source: for each entry of the pattern the flat position of its value in the compressed
            values; for an acyclic colouring the sum that it is solved from.
        lower_bound: no colouring of this kind has fewer colours.
        method: how it was found.
        symmetric: whether it holds only for symmetric matrices.
    """

    pattern: Pattern
    column_colors: np.ndarray
    row_colors: np.ndarray
    source: np.ndarray
    lower_bound: int
    method: str
    symmetric: bool = False

    @cached_property
    def columns(self) -> int:
        """Number of column colours: Jacobian-vector products."""
        return int(self.column_colors.max(initial=-1)) + 1

    @cached_property
    def rows(self) -> int:
        """Number of row colours: vector-Jacobian products."""
        return int(self.row_colors.max(initial=-1)) + 1

    @property
    def count(self) -> int:
        """Number of colours."""
        return self.columns + self.rows

    def compress(self, matrix: np.ndarray) -> np.ndarray:
        """The compressed values of a matrix, flat."""
        right = np.arange(self.columns)[:, None] == self.column_colors
        left = np.arange(self.rows)[:, None] == self.row_colors
        return np.concatenate(
            [
                (right.astype(matrix.dtype) @ matrix.T).ravel(),
                (left.astype(matrix.dtype) @ matrix).ravel(),
            ]
        )

    def decompress(self, compressed: np.ndarray) -> np.ndarray:
        """The entries of the pattern from the compressed values of `compress`."""
        return compressed[self.source]

    def __repr__(self) -> str:
        m, n = self.pattern.shape
        what = (
            f"{self.columns} column and {self.rows} row colours"
            if self.rows and self.columns
            else (f"{self.count} {'row' if self.rows else 'column'} colours")
        )
        return (
            f"Coloring({m}x{n}, nse={self.pattern.nse}, {what}, lower bound {self.lower_bound}, "
            f"{self.method})"
        )


def flat_sources(
    pattern: Pattern, column_colors: np.ndarray, row_colors: np.ndarray, by_column: np.ndarray
) -> np.ndarray:
    """Flat positions of the entries, read from the column side where `by_column` says so."""
    m, n = pattern.shape
    split = (int(column_colors.max(initial=-1)) + 1) * m
    from_columns = column_colors[pattern.cols] * m + pattern.rows
    from_rows = split + row_colors[pattern.rows] * n + pattern.cols
    return np.where(by_column, from_columns, from_rows)


@dataclass(frozen=True, eq=False)
class Substitution:
    """How an acyclic colouring is solved for the entries, level by level.

    Level l is `values[entries] = compressed[source[entries]] - sum of known values`; the entries
    of the upper triangle follow by symmetry.

    Attributes:
        levels: for each level the entries, the known values that are subtracted, and for each of
            these the place among `entries` that it is subtracted from.
        mirror: for every entry of the pattern the one that holds its value.
    """

    levels: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]
    mirror: np.ndarray

    def solve(self, coloring: Coloring, compressed: np.ndarray) -> np.ndarray:
        """The entries of the pattern from the compressed values."""
        values = np.zeros(coloring.pattern.nse, compressed.dtype)
        for entries, known, target in self.levels:
            values[entries] = compressed[coloring.source[entries]]
            np.subtract.at(values, entries[target], values[known])
        return values[self.mirror]


def substitution(coloring: Coloring) -> Substitution:
    """The levels in which the trees of an acyclic colouring are solved from their leaves.

    Method: Gebremedhin, Tarafdar, Pothen and Walther, Efficient computation of sparse Hessians
    using coloring and automatic differentiation, INFORMS J. Comput. 21, 2009. An edge (v, w) at
    a leaf v of its two-coloured tree is the only unknown of `(A S)[v, color of w]`.

    Raises:
        InvalidArgumentError: where two colours hold a cycle, so that nothing can be solved.
    """
    pattern, color = coloring.pattern, coloring.column_colors.tolist()
    rows, cols = pattern.rows.tolist(), pattern.cols.tolist()
    place = {pair: k for k, pair in enumerate(zip(rows, cols, strict=True))}
    mirror = np.array([place[c, r] for r, c in zip(rows, cols, strict=True)], np.int64)
    # The unknowns of each sum (v, colour): entries of row v in columns of that colour.
    unknown: dict[tuple[int, int], set[int]] = {}
    for k, (r, c) in enumerate(zip(rows, cols, strict=True)):
        unknown.setdefault((r, color[c]), set()).add(k)
    known: dict[tuple[int, int], list[int]] = {}
    holder = np.arange(pattern.nse)
    done = [False] * pattern.nse
    levels = []
    ready = [key for key, group in unknown.items() if len(group) == 1]
    while ready:
        entries: list[int] = []
        minus: list[int] = []
        target: list[int] = []
        following = []
        for key in ready:
            if len(unknown[key]) != 1:
                continue  # its entry was solved from the other end, in this level
            (entry,) = unknown[key]
            minus += known.get(key, ())
            target += [len(entries)] * (len(minus) - len(target))
            entries.append(entry)
            unknown[key].clear()
            done[entry] = True
            other = int(mirror[entry])
            if other != entry:
                done[other] = True
                holder[other] = entry
                mirrored = (rows[other], color[cols[other]])
                unknown[mirrored].discard(other)
                following.append((mirrored, entry))
        ready = []
        for mirrored, entry in following:
            known.setdefault(mirrored, []).append(entry)
            if len(unknown[mirrored]) == 1:
                ready.append(mirrored)
        levels.append(tuple(np.array(x, np.int64) for x in (entries, minus, target)))
    if not all(done):
        raise InvalidArgumentError(
            f"coloring: {coloring!r} is not acyclic, so its entries cannot be solved for. Use "
            "acyclic_coloring."
        )
    return Substitution(tuple(levels), holder)  # type: ignore[arg-type]
