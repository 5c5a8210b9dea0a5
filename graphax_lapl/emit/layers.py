"""Matrices of single numbers, some of them zeros, made of layers of one entry for every column."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .arrays import promoted
from .numbers import Numbers
from .operations import is_known
from .packing import FUSED, UNROLLED

__all__ = ["by_layers", "is_layered"]

#: Columns of a matrix that a vector of numbers is written along, and rows that LLVM unrolls.
COLUMNS, ROWS = (4, 8), (4, 8, 16)
#: Part of the entries that are not zero, at most.
LAYERED_SHARE = 0.75
#: Operations for every entry below which a branch for it is little more than a move.
LIGHT = 0.5
#: Most operations of which LLVM unrolls the loop over columns, after which nothing branches, and
#: how many of them an entry of a layer is in itself.
MAX_WRITTEN, LAYER = 300, 8


class _Layer(NamedTuple):
    """An entry at most for every column."""

    #: Its row for each column, -1 where there is none.
    rows: tuple[int, ...]
    #: Column less row of all of them, where that is the same and other layers have none of these.
    diagonal: int | None


def is_layered(numbers: Numbers, operations: int, outside: bool) -> bool:
    """Whether the matrix of the numbers of many samples is written sooner in layers.

    Args:
        numbers: of a matrix, or of several on top of each other.
        operations: that its entries evaluate, each for itself.
        outside: whether the whole batch is outside of the cache. Inside, entries of small matrices
            select theirs as fast, unless next to nothing is evaluated.
    """
    columns = numbers.shape[-1] if numbers.ndim > 1 else 1
    rows = numbers.size // columns
    if columns not in COLUMNS or rows not in ROWS:
        return False
    light = numbers.size <= UNROLLED and operations < LIGHT * numbers.size
    if not (outside or light or (columns == FUSED and rows <= FUSED)):
        return False
    entries = _entries(numbers)
    if not 0 < np.count_nonzero(entries) <= LAYERED_SHARE * numbers.size:
        return False
    return operations + LAYER * columns * len(_layers_of(entries)) <= MAX_WRITTEN


def by_layers(numbers: Numbers) -> Any:
    """The matrix of the numbers of many samples, each entry of which selects among few.

    A concatenation branches for every entry. The numbers of a layer are concatenated along the
    columns, once for all rows, and what selects among layers is vectorised along the columns.
    """
    columns = numbers.shape[-1]
    matrix = numbers.reshape((-1, columns))
    values = promoted([jnp.asarray(number) for number in matrix.ravel()])
    zero = jnp.zeros((), values[0].dtype)
    row, column = (lax.broadcasted_iota(np.int32, matrix.shape, axis) for axis in (0, 1))
    result = jnp.zeros(matrix.shape, values[0].dtype)
    for layer in _layers_of(_entries(numbers)):
        places = [r * columns + c if r >= 0 else -1 for c, r in enumerate(layer.rows)]
        parts = [lax.reshape(values[k] if k >= 0 else zero, (1,)) for k in places]
        if layer.diagonal is None:
            chosen = row == jnp.asarray(layer.rows, np.int32)
        else:
            chosen = column - row == layer.diagonal
        result = jnp.where(chosen, lax.concatenate(parts, 0), result)
    return lax.reshape(result, numbers.shape)


def _entries(numbers: Numbers) -> np.ndarray:
    """Which entries of the matrix are not known to be zero; a negative zero is none."""
    flat = [not _is_zero(number) for number in numbers.ravel()]
    return np.array(flat).reshape((-1, numbers.shape[-1]))


def _is_zero(number: Any) -> bool:
    return is_known(number) and not any(np.asarray(number).tobytes())


def _layers_of(entries: np.ndarray) -> list[_Layer]:
    return _layers(entries.tobytes(), entries.shape)


@lru_cache(maxsize=256)
def _layers(pattern: bytes, shape: tuple[int, int]) -> list[_Layer]:
    """Few layers of all entries: diagonals that continue at the edges, or the first, second, ...

    Args:
        pattern: of a boolean matrix, which entries there are.
        shape: of that matrix.
    """
    entries = np.frombuffer(pattern, bool).reshape(shape)
    diagonals: dict[int, dict[int, int]] = {}
    ranks: dict[int, dict[int, int]] = {}
    for column in range(shape[1]):
        for rank, row in enumerate(np.flatnonzero(entries[:, column]).tolist()):
            diagonals.setdefault((column - row) % max(shape), {})[column] = row
            ranks.setdefault(rank, {})[column] = row
    # A diagonal is compared with positions, and needs no table: worth one layer more.
    chosen = diagonals if len(diagonals) <= len(ranks) + 1 else ranks
    return [_layer(rows, entries) for rows in chosen.values()]


def _layer(rows: dict[int, int], entries: np.ndarray) -> _Layer:
    table = tuple(rows.get(column, -1) for column in range(entries.shape[1]))
    differences = {column - row for column, row in rows.items()}
    (diagonal, *others) = differences
    if others or np.count_nonzero(np.diagonal(entries, diagonal)) > len(rows):
        return _Layer(table, None)
    return _Layer(table, diagonal)
