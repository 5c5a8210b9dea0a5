"""The sparsity pattern of a matrix: where entries may be nonzero."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError

__all__ = ["Pattern"]


@dataclass(frozen=True, eq=False)
class Pattern:
    """Positions of the entries of a matrix that may be nonzero; made by `Pattern.of`.

    Attributes:
        rows: row of each entry, shape `(nse,)`, sorted.
        cols: column of each entry, sorted within a row; no position occurs twice.
        shape: number of rows and columns.
    """

    rows: np.ndarray
    cols: np.ndarray
    shape: tuple[int, int]

    @classmethod
    def of(cls, rows: Any, cols: Any, shape: tuple[int, int]) -> Pattern:
        """The pattern of a coordinate list, which may be unsorted and hold repetitions.

        Args:
            rows: integers of shape `(k,)`.
            cols: integers of shape `(k,)`.
            shape: number of rows and columns.

        Raises:
            InvalidArgumentError: for lists of different lengths or positions outside of `shape`.
        """
        rows, cols = (np.asarray(x) for x in (rows, cols))
        m, n = (int(extent) for extent in shape)
        for name, index, extent in (("rows", rows, m), ("cols", cols, n)):
            if index.ndim != 1 or (index.size and not np.issubdtype(index.dtype, np.integer)):
                raise InvalidArgumentError(
                    f"{name} must be a one-dimensional array of integers, got shape {index.shape} "
                    f"and dtype {index.dtype}."
                )
            if index.size and (index.min() < 0 or index.max() >= extent):
                raise InvalidArgumentError(
                    f"{name} must lie in 0..{extent - 1} for shape {(m, n)}, got values from "
                    f"{index.min()} to {index.max()}."
                )
        if len(rows) != len(cols):
            raise InvalidArgumentError(
                f"rows and cols must have the same length, got {len(rows)} and {len(cols)}."
            )
        flat = rows.astype(np.int64) * n + cols
        if len(flat) > 1 and not (flat[1:] > flat[:-1]).all():
            flat = np.unique(flat)
        return cls(flat // max(n, 1), flat % max(n, 1), (m, n))

    @classmethod
    def of_mask(cls, mask: Any) -> Pattern:
        """The pattern of the nonzeros of a dense matrix."""
        mask = np.asarray(mask)
        if mask.ndim != 2:
            raise InvalidArgumentError(f"mask must be a matrix, got shape {mask.shape}.")
        rows, cols = np.nonzero(mask)
        return cls.of(rows, cols, (mask.shape[0], mask.shape[1]))

    @property
    def nse(self) -> int:
        """Number of entries."""
        return len(self.rows)

    @cached_property
    def row_counts(self) -> np.ndarray:
        """Number of entries of each row."""
        return np.bincount(self.rows, minlength=self.shape[0])

    @cached_property
    def column_counts(self) -> np.ndarray:
        """Number of entries of each column."""
        return np.bincount(self.cols, minlength=self.shape[1])

    @cached_property
    def transposed(self) -> Pattern:
        """The pattern of the transpose."""
        order = np.argsort(self.cols, kind="stable")
        return Pattern(self.cols[order], self.rows[order], (self.shape[1], self.shape[0]))

    def intersection(self, other: Pattern) -> Pattern:
        """The entries of both patterns, which must have the same shape."""
        flat = [p.rows * self.shape[1] + p.cols for p in (self, other)]
        kept = np.isin(flat[0], flat[1], assume_unique=True)
        return Pattern(self.rows[kept], self.cols[kept], self.shape)

    @cached_property
    def row_lists(self) -> list[list[int]]:
        """For each row the columns of its entries, as Python lists."""
        ends = np.cumsum(self.row_counts).tolist()
        cols = self.cols.tolist()
        return [
            cols[end - count : end]
            for end, count in zip(ends, self.row_counts.tolist(), strict=True)
        ]

    @property
    def is_symmetric(self) -> bool:
        """Whether the matrix is square and every entry has its mirror image."""
        other = self.transposed
        return self.shape[0] == self.shape[1] and bool(
            np.array_equal(self.rows, other.rows) and np.array_equal(self.cols, other.cols)
        )

    def __repr__(self) -> str:
        return f"Pattern({self.shape[0]}x{self.shape[1]}, nse={self.nse})"
