"""Factors and solves of small matrices, number by number.

XLA's CPU backend hands every matrix of a batch to LAPACK, a call of its own that takes a few
hundred nanoseconds however small the matrix is, and most of a solve with three unknowns is that.
Written out, elimination of a few rows is arithmetic along the batch. Rows change places by
comparisons: which is the pivot is known when the program runs.

All follow the algorithms of LAPACK's unblocked `getf2`, `potf2` and BLAS' `trsm`, so that results
are JAX's up to rounding, where a matrix is singular too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import dtypes, lax

from .operations import carried_out, chosen, is_known
from .placed import filled, windows_read

__all__ = ["FACTORS", "WRITTEN_OUT", "factor_operations", "is_written_out"]

#: Rows up to which elimination is written out: what is compared grows with their third power.
MOST_ROWS = 4
#: What is factored or solved as a whole.
FACTORS = frozenset({"lu", "cholesky", "triangular_solve"})
REAL = (np.dtype(np.float32), np.dtype(np.float64))

Numbers = np.ndarray


def is_written_out(name: str, params: Mapping[str, Any], types: Sequence[Any]) -> bool:
    """Whether an equation is one of `WRITTEN_OUT`, and of so few rows that it is.

    Args:
        name: of its primitive.
        params: its parameters.
        types: of its operands, with a shape and a dtype.
    """
    shape, dtype = types[0].shape, types[0].dtype
    if name in FACTORS:
        return dtype in REAL and max(shape[-2:]) <= MOST_ROWS
    if name in ("argmax", "argmin"):
        return all(shape[axis] <= MOST_ROWS for axis in params["axes"])
    if name == "sort":
        counts = dtypes.issubdtype(dtype, np.integer)
        return bool(params["num_keys"] == 1 and counts and shape[params["dimension"]] <= MOST_ROWS)
    return name == "gather" and _is_small_gather(params, shape)


def _is_small_gather(params: Mapping[str, Any], shape: Sequence[int]) -> bool:
    """Whether a gather picks one of a few windows, at positions of its own or the nearest ones."""
    numbers = params["dimension_numbers"]
    nearest = lax.GatherScatterMode.PROMISE_IN_BOUNDS, lax.GatherScatterMode.CLIP
    if params["mode"] not in nearest or len(numbers.start_index_map) != 1:
        return False
    (axis,) = numbers.start_index_map
    return bool(shape[axis] <= MOST_ROWS)


def factor_operations(types: Sequence[Any]) -> int:
    """About as many numbers as one of `WRITTEN_OUT` computes, of operands of some types."""
    return sum(math.prod(type_.shape) * type_.shape[-1] for type_ in types if type_.shape)


def _sub(first: Any, second: Any) -> Any:
    return carried_out("sub", lax.sub, (first, second), first.dtype)


def _mul(first: Any, second: Any) -> Any:
    return carried_out("mul", lax.mul, (first, second), first.dtype)


def _div(first: Any, second: Any) -> Any:
    return carried_out("div", lax.div, (first, second), first.dtype)


def _compared(name: str, of: Callable[..., Any], first: Any, second: Any) -> Any:
    return carried_out(name, of, (first, second), np.dtype(np.bool_))


_greater = functools.partial(_compared, "gt", lax.gt)
_equal = functools.partial(_compared, "eq", lax.eq)


def _matrices(*operands: Numbers) -> list[tuple[Numbers, ...]]:
    """The last two axes of every operand, for each of the same leading ones."""
    leading = operands[0].shape[:-2]
    return [tuple(operand[index] for operand in operands) for index in np.ndindex(leading)]


def _stacked(parts: Sequence[Numbers], leading: Sequence[int]) -> Numbers:
    shape = parts[0].shape
    return filled((*leading, *shape), iter([n for part in parts for n in part.ravel()]))


def _lu(params: Mapping[str, Any], matrices: Numbers) -> list[Numbers]:
    """P A = L U: both triangles, which row each step swaps, and the order of the rows."""
    del params
    leading = matrices.shape[:-2]
    found = [_eliminated(matrix) for (matrix,) in _matrices(matrices)]
    return [_stacked(parts, leading) for parts in zip(*found, strict=True)]


def _eliminated(matrix: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    rows = [list(row) for row in matrix]
    count, columns = matrix.shape
    order: list[Any] = [np.int32(row) for row in range(count)]
    pivots: list[Any] = []
    for k in range(min(count, columns)):
        pivot: Any = np.int32(k)
        largest = _size(rows[k][k])
        for row in range(k + 1, count):
            size = _size(rows[row][k])
            larger = _greater(size, largest)
            pivot = chosen(larger, pivot, np.int32(row))
            largest = chosen(larger, largest, size)
        pivots.append(pivot)
        for row in range(k + 1, count):
            # Of the row at k, which one of the others takes, each reads what was there before.
            swaps = _equal(pivot, np.int32(row))
            upper, lower = [*rows[k], order[k]], [*rows[row], order[row]]
            taken = [chosen(swaps, own, other) for own, other in zip(upper, lower, strict=True)]
            given = [chosen(swaps, own, other) for own, other in zip(lower, upper, strict=True)]
            *rows[k], order[k] = taken
            *rows[row], order[row] = given
        # A column of zeros is left as it is.
        type_ = np.dtype(matrix.flat[0].dtype).type
        divisor = chosen(_equal(rows[k][k], type_(0)), rows[k][k], type_(1))
        for row in range(k + 1, count):
            factor = rows[row][k] = _div(rows[row][k], divisor)
            for column in range(k + 1, columns):
                taken_off = _mul(factor, rows[k][column])
                rows[row][column] = _sub(rows[row][column], taken_off)
    flat = [number for row in rows for number in row]
    return (
        filled((count, columns), iter(flat)),
        filled((len(pivots),), iter(pivots)),
        filled((count,), iter(order)),
    )


def _size(number: Any) -> Any:
    return carried_out("abs", lax.abs, (number,), number.dtype)


def _cholesky(params: Mapping[str, Any], matrices: Numbers) -> Numbers:
    """L with L L^T = A, of the lower triangle of A; no entry is a number where there is none."""
    del params
    return _stacked([_root(matrix) for (matrix,) in _matrices(matrices)], matrices.shape[:-2])


def _root(matrix: Numbers) -> Numbers:
    type_ = np.dtype(matrix.flat[0].dtype).type
    count = len(matrix)
    zero = type_(0)
    factor = filled(matrix.shape, iter([zero] * matrix.size))
    failed: Any = np.False_
    for k in range(count):
        rest = list(matrix[k:, k])
        for column in range(k):
            rest = [
                _sub(number, _mul(factor[k + n, column], factor[k, column]))
                for n, number in enumerate(rest)
            ]
        # What is no number itself is not compared.
        failed = _either(failed, _compared("le", lax.le, rest[0], zero))
        factor[k, k] = carried_out("sqrt", lax.sqrt, (rest[0],), rest[0].dtype)
        for n, number in enumerate(rest[1:], 1):
            factor[k + n, k] = _div(number, factor[k, k])
    for index in zip(*np.tril_indices(count), strict=True):
        factor[index] = chosen(failed, factor[index], type_(np.nan))
    return factor


def _either(first: Any, second: Any) -> Any:
    if is_known(first):
        return first if first else second
    return carried_out("or", lax.bitwise_or, (first, second), np.dtype(np.bool_))


def _triangular_solve(params: Mapping[str, Any], triangles: Numbers, rights: Numbers) -> Numbers:
    """X with `A X = B` or `X A = B`, of one triangle of A."""
    lower, left = params["lower"], params["left_side"]
    if params["transpose_a"]:
        triangles, lower = triangles.swapaxes(-2, -1), not lower
    if not left:  # A^T X^T = B^T
        triangles, lower, rights = triangles.swapaxes(-2, -1), not lower, rights.swapaxes(-2, -1)
    found = [
        _substituted(triangle, right, lower, params["unit_diagonal"])
        for triangle, right in _matrices(triangles, rights)
    ]
    result = _stacked(found, rights.shape[:-2])
    return result if left else result.swapaxes(-2, -1)


def _substituted(triangle: Numbers, rights: Numbers, lower: bool, unit: bool) -> Numbers:
    count = len(triangle)
    solved = rights.copy()
    one = np.dtype(triangle.flat[0].dtype).type(1)
    done: list[int] = []
    for k in range(count) if lower else reversed(range(count)):
        inverse = None if unit else _div(one, triangle[k, k])
        for column in range(rights.shape[-1]):
            for other in done:
                if not _is_zero(solved[other, column]):
                    product = _mul(triangle[k, other], solved[other, column])
                    solved[k, column] = _difference(solved[k, column], product)
            if inverse is not None and not _is_zero(solved[k, column]):
                solved[k, column] = _mul(solved[k, column], inverse)
        done.append(k)
    return solved


def _is_zero(number: Any) -> bool:
    """Whether a number is a known zero, as most of an identity are."""
    return is_known(number) and not np.asarray(number)


def _difference(first: Any, second: Any) -> Any:
    if _is_zero(first):
        return carried_out("neg", lax.neg, (second,), second.dtype)
    return _sub(first, second)


def _sorted(params: Mapping[str, Any], *operands: Numbers) -> list[Numbers]:
    """Rows in the order of the first operand's integers, those that are equal as they stood."""
    axis = params["dimension"]
    moved = [np.moveaxis(operand, axis, -1).copy() for operand in operands]
    length = moved[0].shape[-1]
    for index in np.ndindex(moved[0].shape[:-1]):
        # By neighbours, of which two change places only where they are in the wrong order.
        for end in range(length - 1, 0, -1):
            for k in range(end):
                first, second = (*index, k), (*index, k + 1)
                swaps = _greater(moved[0][first], moved[0][second])
                for numbers in moved:
                    one, other = numbers[first], numbers[second]
                    numbers[first] = chosen(swaps, one, other)
                    numbers[second] = chosen(swaps, other, one)
    return [np.moveaxis(numbers, -1, axis) for numbers in moved]


def _extreme(
    name: str, of: Callable[..., Any], params: Mapping[str, Any], operand: Numbers
) -> Numbers:
    """The place of the first that is largest, smallest or not a number."""
    (axis,), type_ = params["axes"], np.dtype(params["index_dtype"]).type
    rows = np.moveaxis(operand, axis, -1)
    found = np.empty(rows.shape[:-1], object)
    for index in np.ndindex(found.shape):
        best, place = rows[index][0], type_(0)
        for k, number in enumerate(rows[index][1:], 1):
            stays = _compared(name, of, best, number)
            if np.issubdtype(best.dtype, np.inexact):
                not_one = _compared("ne", lax.ne, best, best)
                stays = _either(stays, not_one)
            best, place = chosen(stays, number, best), chosen(stays, type_(k), place)
        found[index] = place
    return found


def _picked(params: Mapping[str, Any], operand: Numbers, places: Numbers) -> Numbers:
    """What a gather reads at positions that are known when the program runs."""
    numbers = params["dimension_numbers"]
    (axis,) = numbers.start_index_map
    starts = operand.shape[axis] - params["slice_sizes"][axis] + 1
    shape = places.shape[:-1]
    owners, reads = windows_read(params, operand.shape, shape, starts)
    flat, own = operand.ravel(), places.ravel()
    found = flat[reads[0]]
    for index in np.ndindex(found.shape):
        for start in range(1, starts):
            place = own[owners[index]]
            least = np.dtype(place.dtype).type(start)
            reached = _compared("ge", lax.ge, place, least)
            found[index] = chosen(reached, found[index], flat[reads[start][index]])
    return found


#: What factors, solves and picks rows by the order of pivots: results of a primitive, from its
#: parameters and its operands.
WRITTEN_OUT: dict[str, Callable[..., Any]] = {
    "argmax": functools.partial(_extreme, "ge", lax.ge),
    "argmin": functools.partial(_extreme, "le", lax.le),
    "cholesky": _cholesky,
    "gather": _picked,
    "lu": _lu,
    "sort": _sorted,
    "triangular_solve": _triangular_solve,
}
