"""Stretches of a list of positions that repeat with a period: interleaved arithmetic sequences.

In coordinate order the entries of a tridiagonal matrix read the three diagonals in turn, so that
column j of every row of three is one slice of one diagonal.
"""

from __future__ import annotations

import numpy as np

from .values import immutable

__all__ = ["Run", "runs"]

#: Longest period.
MAX_WIDTH = 24
#: Largest number of stretches.
MAX_RUNS = 5
#: Largest number of positions that belong to no sequence.
MAX_REST = 64


@immutable
class Run:
    """Positions `first <= k < last` of a list.

    Attributes:
        first: the first of them.
        last: the end.
        columns: for every column of the stretch, as rows of this many, start and step of the
            sequence that it is; empty where it has no period.
    """

    first: int
    last: int
    columns: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return (self.last - self.first) // len(self.columns)


def runs(positions: np.ndarray) -> tuple[Run, ...]:
    """The list as few stretches with a period, and what is between them; empty where it is not.

    Args:
        positions: integers.
    """
    count = len(positions)
    values = positions.astype(np.int64)
    for width in range(1, min(MAX_WIDTH, count // 3) + 1):
        steady = values[2 * width :] - 2 * values[width:-width] + values[: -2 * width] == 0
        if np.count_nonzero(~steady) <= MAX_REST + 2 * width * MAX_RUNS:
            found = _stretches(values, steady, width)
            if len(found) <= MAX_RUNS and _rest(found) <= MAX_REST:
                return found
    return ()


def _rest(found: tuple[Run, ...]) -> int:
    return sum(run.last - run.first for run in found if not run.columns)


def _stretches(values: np.ndarray, steady: np.ndarray, width: int) -> tuple[Run, ...]:
    edges = np.flatnonzero(np.diff(steady.astype(np.int8), prepend=0, append=0))
    result: list[Run] = []
    reached = 0
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        first = max(int(start), reached)
        rows = (int(end) + 2 * width - first) // width
        if first >= end or rows * width < MAX_REST:
            continue
        if first > reached:
            result.append(Run(reached, first))
        columns = tuple(
            (int(values[k]), int(values[k + width] - values[k]))
            for k in range(first, first + width)
        )
        reached = first + rows * width
        result.append(Run(first, reached, columns))
    if reached < len(values):
        result.append(Run(reached, len(values)))
    return tuple(result)
