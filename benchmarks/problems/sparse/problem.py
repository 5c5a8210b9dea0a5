"""What a problem with a sparse derivative is: a function, an input, and the derivative by hand."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.groups import Group

Positions = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Instance:
    """A problem at one size.

    Attributes:
        fun: function of one vector, `(n,) -> (m,)` for a Jacobian, `(n,) -> ()` for a Hessian.
        x: an input, shape (n,).
        by_hand: the entries of the derivative at x, as arrays of any shapes: what somebody writes
            who knows the structure. Every entry stands in exactly one place.
        rows: row of each of these numbers, the arrays ravelled and concatenated; -1 where a number
            stands outside of the matrix (the ends of a band).
        cols: column of each of them.
    """

    fun: Callable[[jax.Array], jax.Array]
    x: jax.Array
    by_hand: Callable[[jax.Array], tuple[jax.Array, ...]]
    rows: np.ndarray
    cols: np.ndarray

    @property
    def nse(self) -> int:
        """Number of entries that are not zero for every x."""
        return int(np.count_nonzero(self.rows >= 0))

    def coordinates(self) -> Positions:
        """Rows and columns of the entries in row-major order."""
        rows, cols, _ = self._sorted()
        return rows, cols

    def data(self, values: tuple[jax.Array, ...]) -> np.ndarray:
        """The numbers of `by_hand` in row-major order of their positions."""
        flat = np.concatenate([np.ravel(value) for value in values])
        return np.asarray(flat[self._sorted()[2]])

    def dense(self, values: tuple[jax.Array, ...]) -> np.ndarray:
        """The numbers of `by_hand` as a matrix."""
        out = jax.eval_shape(self.fun, self.x)
        matrix = np.zeros((out.size if out.ndim else self.x.size, self.x.size), self.x.dtype)
        rows, cols, order = self._sorted()
        np.add.at(matrix, (rows, cols), np.concatenate([np.ravel(v) for v in values])[order])
        return matrix

    def _sorted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        inside = np.flatnonzero(self.rows >= 0)
        order = inside[np.lexsort((self.cols[inside], self.rows[inside]))]
        return self.rows[order], self.cols[order], order


@dataclass(frozen=True)
class SparseProblem:
    """A family of functions with a sparse derivative, and the size at which it is timed.

    Attributes:
        name: short name, unique among the sparse problems.
        make: `make(n, dtype, seed)` gives the instance of size n; its docstring says what n
            counts.
        size: n of the benchmark.
        small: n of the tests, where the derivative is compared with a dense one.
        source: where the equations are published.
        kind: which derivative.
        group: whether the suites measure it by themselves.
    """

    name: str
    make: Callable[[int, Any, int], Instance]
    size: int
    small: int
    source: str
    kind: Literal["jacobian", "hessian"] = "jacobian"
    group: Group = "named"

    def __str__(self) -> str:
        """The problem's name."""
        return self.name


def uniform(
    seed: int, shape: int | tuple[int, ...], dtype: Any, low: float = 0.5, high: float = 1.5
) -> jax.Array:
    """Random numbers that are the same in every precision, up to rounding."""
    numbers = np.random.default_rng(seed).uniform(low, high, shape)
    return jnp.asarray(numbers, dtype)


def bands(n: int, offsets: tuple[int, ...], *, periodic: bool = False) -> Positions:
    """Positions of `[j, i]`: entry (i, i + offsets[j]) of an n x n matrix.

    Args:
        n: number of rows and columns.
        offsets: column minus row of each band.
        periodic: columns wrap around; otherwise positions beyond the ends have row -1.
    """
    rows = np.broadcast_to(np.arange(n), (len(offsets), n))
    cols = rows + np.asarray(offsets)[:, None]
    if periodic:
        return rows.ravel(), (cols % n).ravel()
    outside = (cols < 0) | (cols >= n)
    return np.where(outside, -1, rows).ravel(), cols.ravel()


def joined(*parts: Positions) -> Positions:
    """Positions of several arrays, one after the other."""
    rows, cols = zip(*parts, strict=True)
    return np.concatenate([r.ravel() for r in rows]), np.concatenate([c.ravel() for c in cols])


def total(parts: Iterable[jax.Array]) -> jax.Array:
    """Sum of at least one array."""
    return functools.reduce(jnp.add, parts)


class Assembly:
    """Adds up contributions that stand in the same place, without a scatter.

    Entries with equally many contributions form a group; each group is one gather and one sum.

    Args:
        rows: row of each contribution.
        cols: column of each contribution.
        n: number of columns.

    Attributes:
        rows: row of each sum, in the order in which `__call__` returns them.
        cols: column of each sum.
    """

    def __init__(self, rows: np.ndarray, cols: np.ndarray, n: int):
        flat = rows.ravel().astype(np.int64) * n + cols.ravel()
        order = np.argsort(flat, kind="stable")
        unique, start, count = np.unique(flat[order], return_index=True, return_counts=True)
        self._groups = []
        kept = []
        for size in np.unique(count):
            chosen = np.flatnonzero(count == size)
            self._groups.append(order[start[chosen][:, None] + np.arange(size)])
            kept.append(unique[chosen])
        self.rows, self.cols = np.divmod(np.concatenate(kept), n)

    def __call__(self, contributions: jax.Array) -> tuple[jax.Array, ...]:
        """The sums, one array per group."""
        flat = contributions.reshape(-1)
        return tuple(
            flat.at[group].get(mode="promise_in_bounds").sum(axis=1) for group in self._groups
        )
