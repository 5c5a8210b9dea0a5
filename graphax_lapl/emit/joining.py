"""How the numbers of many samples become an array: in one kernel, or in one for each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..program.fusion import CACHED, UNBOUNDED
from .arrays import promoted
from .holding import BARRIERS_STAND, held, linear_barrier
from .layers import by_layers, is_layered
from .numbers import Numbers, joined
from .packing import (
    FUSED,
    by_digits,
    by_rows,
    by_selection,
    has_short_rows,
    in_rows_apart,
    is_padded,
    rows_of,
)

__all__ = [
    "before_its_place",
    "in_digits",
    "in_one_kernel",
    "in_one_kernel_of_many",
    "in_parts",
    "in_short_rows",
]

#: Operations for every entry from which on rows of more or fewer than `FUSED` numbers have kernels
#: of their own.
SHARED_BY_LONG, SHARED_BY_SHORT = 16, 96
#: Most entries of a whole batch then: a copy of more takes longer than what it saves.
COPIED = 8 * CACHED
#: Kernels that write one array of a single input whose entries are made of much.
PARTS = 3
#: Least entries where rows select: fewer are written as soon by one kernel.
WORTH_A_COPY = CACHED // 2


def in_digits(numbers: Numbers) -> Any:
    """The array of the numbers of a single input."""
    values = [jnp.asarray(number) for number in numbers.ravel()]
    places = tuple(range(numbers.size))
    packed = by_digits(places, numbers.size, promoted(values), rows_of(numbers))
    return lax.reshape(packed, numbers.shape)


def in_parts(numbers: Numbers) -> Any:
    """The same in a few parts, each in memory before; whole rows where these are enough."""
    rows = rows_of(numbers)
    size = (
        -(-rows // PARTS) * (numbers.size // rows) if rows >= PARTS else -(-numbers.size // PARTS)
    )
    flat = numbers.ravel()
    parts = [in_digits(flat[k : k + size]) for k in range(0, numbers.size, size)]
    if len(parts) == 1:
        return in_digits(numbers)
    whole = lax.concatenate([linear_barrier(part) for part in promoted(parts)], 0)
    return lax.reshape(whole, numbers.shape)


def in_one_kernel(numbers: Numbers) -> Any:
    """The array of the numbers of many samples, none of which is in memory before it."""
    if numbers.size <= FUSED:
        return joined(numbers)
    short = 1 in numbers.shape and max(numbers.shape) <= FUSED
    return _by_axes(numbers) if short else in_digits(numbers)


def in_one_kernel_of_many(
    numbers: Numbers, samples: int, outside: bool, columns: int, operations: int | None
) -> Any:
    """The same, where the kernel is vectorised if that suits the array.

    Args:
        numbers: of the array.
        samples: of the batch.
        outside: see `by_selection`.
        columns: fewer are concatenated, or in layers.
        operations: that its entries evaluate, each for itself; None where there are few samples, or
            sines inside, and neither layers nor rows of their own.
    """
    if operations is not None and is_layered(numbers, operations, outside):
        return by_layers(numbers)
    if operations is not None and _has_rows_apart(numbers, samples, outside, operations):
        return in_rows_apart(numbers)
    wide = numbers.ndim > 1 and numbers.shape[-1] >= columns
    selected = by_selection(numbers, outside) if wide else None
    return in_one_kernel(numbers) if selected is None else selected


def in_short_rows(numbers: Numbers, others: Callable[[Numbers], Any]) -> Any:
    """The same with a branch for each row, or by `others` where these are long or many."""
    return by_rows(numbers) if has_short_rows(numbers) else others(numbers)


def before_its_place(numbers: Numbers) -> Any:
    """The same, in memory: a kernel that writes into a larger array runs on one core."""
    whole = in_one_kernel(numbers)
    return held(whole, (2, UNBOUNDED)) if numbers.size > 1 else whole


def _by_axes(numbers: Numbers) -> Any:
    """The array of axes of few entries, concatenated along one after the other.

    XLA copies what gets axes of one entry from a reshape, and finds places in a copy by divisions.
    """
    values = promoted([jnp.asarray(number) for number in numbers.ravel()])
    level = [lax.reshape(value, (1,) * numbers.ndim) for value in values]
    for axis in reversed(range(numbers.ndim)):
        size = numbers.shape[axis]
        starts = range(0, len(level), size)
        level = [lax.concatenate(level[start : start + size], axis) for start in starts]
    return level[0]


def _has_rows_apart(numbers: Numbers, samples: int, outside: bool, operations: int) -> bool:
    """Whether many rows are a kernel each, which a copy puts together.

    One kernel would evaluate all that an entry needs for every entry. Where that is little, and the
    number of entries no product of few digits, selections among all rows are as dear inside of the
    cache.
    """
    columns = numbers.shape[-1] if numbers.ndim > 1 else 1
    if columns == 1 or numbers.size // columns <= FUSED:
        return False
    entries = samples * numbers.size
    if operations >= (SHARED_BY_LONG if columns > FUSED else SHARED_BY_SHORT) * numbers.size:
        return entries <= COPIED
    selected = BARRIERS_STAND and columns > FUSED and is_padded(numbers.size)
    return selected and not outside and entries >= WORTH_A_COPY
