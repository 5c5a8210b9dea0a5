"""Single numbers written side by side.

XLA's CPU compiler fuses a concatenation of at most eight operands. Each operand of a longer one is
a kernel that writes to temporary memory, and a program that has any allocates it in every call:
half a microsecond, a tenth of what a small Jacobian takes. Concatenated digit by digit, along an
axis of its own for each digit of a position, all numbers are one kernel. Programs in numbers are
joined so for many samples too, and in chunks by rows (`in_rows`).
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_batching import custom_vmap

from ..program.fusion import UNBOUNDED
from .arrays import promoted
from .holding import held
from .numbers import BATCH, Numbers, joined
from .operations import is_known

__all__ = [
    "FUSED",
    "MAX_PACKED",
    "UNROLLED",
    "along_new_axis",
    "by_digits",
    "by_rows",
    "by_selection",
    "has_short_rows",
    "in_rows",
    "in_rows_apart",
    "innermost",
    "is_padded",
    "is_selected",
    "packed",
    "piled",
    "rows_of",
    "selections_of",
    "stacked",
    "stretches_of",
    "unpiled",
]

#: Most operands of a concatenation that is fused.
FUSED = 8
#: Matrices of single numbers up to this many entries are packed by concatenation.
MAX_PACKED = 4096
#: Most entries of more than so many arrays that a kernel puts together.
MAX_FUSED = 1024
#: Most entries of a matrix over which LLVM unrolls the loops.
UNROLLED = 16
#: Outside of the cache: entries of a matrix up to which rows select among no more than so many
#: numbers, which LLVM unrolls too.
UNROLLED_ROWS, FEW_APART = 48, 4
#: Inside of the cache: entries of a matrix up to which each selects, and up to which it does where
#: rows are no shorter than columns and selections are this part of its entries.
FEW_SELECTED, SOME_SELECTED, SELECTED_SHARE = FUSED, 12, 2 / 3
#: Most selections for every entry of a larger one, along its columns and among its rows.
MAX_SELECTIONS = 124


def packed(numbers: Mapping[int, Array], total: int) -> Array:
    """An array of `total` numbers with those of a table at their places, and zeros elsewhere.

    Args:
        numbers: arrays without axes and of one dtype by their places, in increasing order.
        total: length of the result.
    """
    places, values = tuple(numbers), list(numbers.values())
    if len(_stretches(places, total)) <= FUSED:
        return _in_one(places, total, values)

    @custom_vmap
    def row(values: Sequence[Array]) -> Array:
        return by_digits(places, total, values)

    @row.def_vmap
    def _(size: Any, batched: list[Any], values: Sequence[Array]) -> tuple[Array, bool]:
        small = isinstance(size, int) and size < BATCH  # `jax.export` knows symbols too
        pack = by_digits if small else _in_one
        axes = [0 if own else None for own in batched[0]]
        return jax.vmap(lambda values: pack(places, total, values), (axes,))(values), True

    differentiable = jax.custom_jvp(row)
    differentiable.defjvp(
        lambda point, tangent: jax.jvp(lambda v: _in_one(places, total, v), point, tangent)
    )
    result: Array = differentiable(values)
    return result


def stacked(parts: Sequence[Array]) -> Array:
    """Arrays of one shape along a new first axis; a single input's are fused, however many."""
    if len(parts) <= FUSED or sum(part.size for part in parts) > MAX_FUSED:
        return _stacked(parts)

    @custom_vmap
    def rows(parts: Sequence[Array]) -> Array:
        # In groups of as many as are fused, an axis for each: what has one axis is one to XLA.
        count, groups = len(parts), -(-len(parts) // FUSED)
        parts = [*parts, *[parts[0]] * (groups * FUSED - count)]
        whole = stacked([_stacked(parts[k * FUSED : (k + 1) * FUSED]) for k in range(groups)])
        return lax.slice_in_dim(lax.reshape(whole, (groups * FUSED, *parts[0].shape)), 0, count)

    @rows.def_vmap
    def _(size: Any, batched: list[Any], parts: Sequence[Array]) -> tuple[Array, bool]:
        axes = [0 if own else None for own in batched[0]]
        return jax.vmap(_stacked, (axes,))(parts), True

    differentiable = jax.custom_jvp(rows)
    differentiable.defjvp(lambda point, tangent: jax.jvp(_stacked, point, tangent))
    result: Array = differentiable(list(parts))
    return result


def _stacked(parts: Sequence[Array]) -> Array:
    return lax.concatenate([lax.expand_dims(part, (0,)) for part in parts], 0)


@lru_cache(maxsize=256)
def _stretches(places: tuple[int, ...], total: int) -> tuple[tuple[int, int], ...]:
    """What a row is made of: an index of a number with length one, or -1 and a length of zeros."""
    found, end = [], 0
    for index, place in enumerate(places):
        if place > end:
            found.append((-1, place - end))
        found.append((index, 1))
        end = place + 1
    if end < total:
        found.append((-1, total - end))
    return tuple(found)


def _in_one(places: tuple[int, ...], total: int, values: Sequence[Array]) -> Array:
    """The row by one concatenation."""
    pieces = [
        jnp.zeros(length, values[0].dtype) if index < 0 else lax.reshape(values[index], (1,))
        for index, length in _stretches(places, total)
    ]
    return lax.concatenate(pieces, 0) if len(pieces) > 1 else pieces[0]


def by_digits(places: tuple[int, ...], total: int, values: Sequence[Array], rows: int = 1) -> Array:
    """`packed` for one sample: concatenations of few operands, the last digit of a place first.

    Of arrays of one shape, all of their entries are packed so, along a last axis. `rows` are
    those of the matrix that is written, if it is one.
    """
    digits = _digits(total, rows)
    count = math.prod(digits)
    lead = values[0].shape
    shape = [*lead, 1]
    level: list[Array | None] = [None] * count
    for place, value in zip(places, values, strict=True):
        level[place] = lax.reshape(value, shape)
    for digit in reversed(digits):
        zeros = jnp.zeros(shape, values[0].dtype)
        groups = [level[k : k + digit] for k in range(0, len(level), digit)]
        wholes = [
            None
            if all(part is None for part in group)
            else lax.concatenate([zeros if part is None else part for part in group], len(lead))
            for group in groups
        ]
        shape[len(lead) : len(lead) + 1] = [1, digit]
        level = [None if whole is None else lax.reshape(whole, shape) for whole in wholes]
    (whole,) = level
    assert whole is not None
    row = lax.reshape(whole, (*lead, count))
    return row if count == total else lax.slice_in_dim(row, 0, total, axis=len(lead))


def along_new_axis(arrays: Mapping[int, Array], count: int) -> Array:
    """Arrays of one shape and dtype at their places along a new last axis, and zeros elsewhere.

    Each entry selects its own, by halves: a loop over few entries is unrolled, and no comparison is
    left, where a concatenation branches for every one of them.
    """
    some = next(iter(arrays.values()))
    shape = (*some.shape, count)
    places = lax.broadcasted_iota(np.int32, shape, some.ndim)
    axes = range(some.ndim)
    wide = [
        lax.broadcast_in_dim(arrays[k], shape, axes)
        if k in arrays
        else jnp.zeros(shape, some.dtype)
        for k in range(count)
    ]
    return _among(wide, places, 0, count)


def _among(arrays: Sequence[Array], places: Array, low: int, high: int) -> Array:
    """For every entry that of the array at its place, of those from `low` on and before `high`."""
    if high - low == 1:
        return arrays[low]
    middle = (low + high + 1) // 2
    first = _among(arrays, places, low, middle)
    return jnp.where(places < middle, first, _among(arrays, places, middle, high))


def piled(arrays: Sequence[Array]) -> Array:
    """Arrays of one shape on top of each other, with an axis in front for each digit of a place.

    It is one kernel however many they are. Places that digits leave over hold the first array.
    """
    digits = _digits(len(arrays))
    level = [lax.expand_dims(array, range(len(digits))) for array in arrays]
    level += level[:1] * (math.prod(digits) - len(arrays))
    for axis, digit in reversed([*enumerate(digits)]):
        level = [lax.concatenate(level[k : k + digit], axis) for k in range(0, len(level), digit)]
    return level[0]


def unpiled(pile: Array, count: int) -> list[Array]:
    """The arrays that are `piled`, in slices that kernels read where they are."""
    digits = _digits(count)
    places = zip(*np.unravel_index(range(count), digits), strict=True)
    return [pile[place] for place in places]


def in_rows(numbers: Numbers) -> Any:
    """The array of the numbers of many samples, made of stretches that are in memory before it."""
    if numbers.size <= FUSED:
        return joined(numbers)
    stretches = [held(joined(part), (2, UNBOUNDED)) for part in stretches_of(numbers)]
    return lax.reshape(lax.concatenate(promoted(stretches), 0), numbers.shape)


def stretches_of(numbers: Numbers) -> list[Numbers]:
    """As many whole rows of the last axis as are fused each, or parts of longer ones."""
    last = numbers.shape[-1] if numbers.ndim else 1
    length = FUSED // last * last if last <= FUSED else -(-last // -(-last // FUSED))
    flat = numbers.ravel()
    return [flat[start : start + length] for start in range(0, flat.size, length)]


def in_rows_apart(numbers: Numbers) -> Any:
    """The array of more rows than are fused, each written by a kernel of its own.

    Rows of few different numbers select theirs.
    """
    columns = numbers.shape[-1]
    rows = []
    for row in numbers.reshape((-1, columns)):
        values, equal = promoted([jnp.asarray(number) for number in row]), _equal(row)
        few = len(equal) <= FEW_APART
        rows.append(
            _selected(values, equal) if few else by_digits(tuple(range(columns)), columns, values)
        )
    return lax.reshape(jnp.stack(promoted(rows)), numbers.shape)


def is_padded(total: int) -> bool:
    """Whether so many numbers do not fill the digits of a position."""
    return math.prod(_digits(total)) != total


def has_short_rows(numbers: Numbers) -> bool:
    """Whether an array consists of a few rows of a few numbers."""
    columns = numbers.shape[-1] if numbers.ndim else 1
    return 1 < columns <= FUSED and numbers.size // columns <= FUSED


def by_rows(numbers: Numbers) -> Any:
    """The array of few rows of few numbers: a branch for each, whose entries select theirs.

    What a row needs is evaluated once for all of its entries; concatenated, each entry is a branch
    and evaluates it again.
    """
    columns = numbers.shape[-1]
    values = promoted([jnp.asarray(number) for number in numbers.ravel()])
    starts = range(0, numbers.size, columns)
    groups = [_equal(row) for row in numbers.reshape((len(starts), columns))]
    rows = [
        _selected(values[start : start + columns], equal)
        for start, equal in zip(starts, groups, strict=True)
    ]
    parts = [lax.reshape(row, (1, columns)) for row in rows]
    whole = lax.concatenate(parts, 0) if len(parts) > 1 else parts[0]
    return lax.reshape(whole, numbers.shape)


def is_selected(numbers: Numbers, outside: bool) -> bool:
    """Whether every entry of the matrix of the numbers of many samples selects its own.

    Args:
        numbers: of a matrix, or of several on top of each other.
        outside: whether the whole batch is outside of the cache, or branches would be as dear.
    """
    total, columns = numbers.size, numbers.shape[-1] if numbers.ndim > 1 else 1
    rows = total // columns
    if rows == 1 or columns == 1:
        return False
    if total <= FEW_SELECTED:
        return True
    if columns == 2:
        return False
    selections = sum(len(_equal(row)) - 1 for row in numbers.reshape((rows, columns)))
    if total <= UNROLLED:
        few = columns >= rows and selections <= SELECTED_SHARE * total
        return outside or (total <= SOME_SELECTED and few)
    if columns > FUSED:
        return (outside or is_padded(total)) and selections + rows <= MAX_SELECTIONS
    return max(rows, columns) <= FUSED and outside


def selections_of(numbers: Numbers) -> int:
    """How many selections there are where every entry of a matrix selects its own."""
    total, columns = numbers.size, numbers.shape[-1] if numbers.ndim > 1 else 1
    rows = numbers.reshape((total // columns, columns))
    return sum((len(_equal(row)) - 1) * columns for row in rows) + (len(rows) - 1) * total


def by_selection(numbers: Numbers, outside: bool) -> Any:
    """The matrix of the numbers of many samples, each entry of which selects its own.

    A concatenation branches for every entry. Selections along the columns, and then among the rows,
    do not: loops over them are vectorised, or unrolled until nothing is left to select. Every entry
    of a row evaluates all that it selects from, so wider matrices select few numbers.

    Returns:
        The array; None where concatenations suit it better (see `is_selected`).
    """
    if not is_selected(numbers, outside):
        return None
    total, columns = numbers.size, numbers.shape[-1]
    shape = (total // columns, columns)
    groups = [_equal(row) for row in numbers.reshape(shape)]
    values = promoted([jnp.asarray(number) for number in numbers.ravel()])
    starts = range(0, total, columns)
    always = total <= UNROLLED or columns > FUSED
    few = FEW_APART if total <= UNROLLED_ROWS else 0
    rows = [
        _selected(values[start : start + columns], equal)
        if always or len(equal) <= few
        else lax.concatenate([lax.reshape(x, (1,)) for x in values[start : start + columns]], 0)
        for start, equal in zip(starts, groups, strict=True)
    ]
    wide = [lax.broadcast_in_dim(row, shape, (1,)) for row in rows]
    places = lax.broadcasted_iota(np.int32, shape, 0)
    return lax.reshape(_among(wide, places, 0, len(wide)), numbers.shape)


def _selected(row: Sequence[Array], equal: Sequence[Sequence[int]]) -> Array:
    """A row by a selection for each of the places of equal numbers but the first."""
    first, *others = equal
    places = lax.iota(np.int32, len(row))
    result = lax.broadcast_in_dim(row[first[0]], (len(row),), ())
    for group in others:
        chosen = functools.reduce(lax.bitwise_or, [places == place for place in group])
        result = jnp.where(chosen, row[group[0]], result)
    return result


def _equal(row: Iterable[Any]) -> list[list[int]]:
    """Where equal numbers are, most of them first; zeros of both signs differ."""
    found: dict[Any, list[int]] = {}
    for place, number in enumerate(row):
        key = np.asarray(number).tobytes() if is_known(number) else id(number)
        found.setdefault(key, []).append(place)
    return sorted(found.values(), key=len, reverse=True)


def innermost(numbers: Numbers) -> int:
    """How many of so many numbers are concatenated first."""
    total = numbers.size
    return total if total <= FUSED else _digits(total, rows_of(numbers))[-1]


def rows_of(numbers: Numbers) -> int:
    """The length of the first of several axes."""
    return numbers.shape[0] if numbers.ndim > 1 else 1


@lru_cache(maxsize=256)
def _digits(total: int, rows: int = 1) -> tuple[int, ...]:
    """Few factors of at most `FUSED`, whose product is the least such number from `total` on.

    Of as few factors, those end in a whole vector if they can, and else the first ones count the
    rows: LLVM unrolls the loops over what is left of a row, where no branch is left then. It
    unrolls short ones, so the first factor is large.
    """
    all_found = next(found for found in map(_factors, itertools.count(total)) if found)

    def worth(digits: tuple[int, ...]) -> tuple[bool, bool, int, tuple[int, ...]]:
        counted = rows in itertools.accumulate(digits, operator.mul)
        return digits[-1] == FUSED, counted, digits[-1], digits

    return max(all_found, key=worth)


@lru_cache(maxsize=1024)
def _factors(number: int) -> tuple[tuple[int, ...], ...]:
    """All of the fewest factors of at most `FUSED`, in every order; none where there are none."""
    if number <= FUSED:
        return ((number,),)
    found = [
        (*rest, factor)
        for factor in range(2, FUSED + 1)
        if not number % factor
        for rest in _factors(number // factor)
    ]
    fewest = min(map(len, found), default=0)
    return tuple(factors for factors in found if len(factors) == fewest)
