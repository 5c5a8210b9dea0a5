"""Single numbers written side by side.

XLA's CPU compiler fuses a concatenation of at most eight operands. Each operand of a longer one is
a kernel that writes to temporary memory, and a program that has any allocates it in every call:
half a microsecond, a tenth of what a small Jacobian takes. Concatenated digit by digit, along an
axis of its own for each digit of a position, all numbers are one kernel. Programs in numbers are
joined so for many samples too, and in chunks by rows (`in_rows`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

from ..program.fusion import UNBOUNDED
from .arrays import promoted
from .holding import held
from .numbers import BATCH, Numbers, joined

__all__ = ["by_digits", "in_rows", "packed"]

#: Most operands of a concatenation that is fused.
FUSED = 8


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


def by_digits(places: tuple[int, ...], total: int, values: Sequence[Array]) -> Array:
    """`packed` for one sample: concatenations of few operands, the last digit of a place first."""
    digits = _digits(total)
    count = math.prod(digits)
    shape = [1] * len(digits)
    level: list[Array | None] = [None] * count
    for place, value in zip(places, values, strict=True):
        level[place] = lax.reshape(value, shape)
    for axis in range(len(digits) - 1, -1, -1):
        groups = [level[k : k + digits[axis]] for k in range(0, len(level), digits[axis])]
        zeros = jnp.zeros(shape, values[0].dtype)
        level = [
            None
            if all(part is None for part in group)
            else lax.concatenate([zeros if part is None else part for part in group], axis)
            for group in groups
        ]
        shape[axis] = digits[axis]
    (whole,) = level
    assert whole is not None
    row = lax.reshape(whole, (count,))
    return row if count == total else lax.slice(row, (0,), (total,))


def in_rows(numbers: Numbers) -> Any:
    """The array of the numbers of many samples, made of stretches that are in memory before it.

    A stretch is as many whole rows of the last axis as are fused, or a part of a longer one.
    """
    total, last = numbers.size, numbers.shape[-1] if numbers.ndim else 1
    if total <= FUSED:
        return joined(numbers)
    length = FUSED // last * last if last <= FUSED else -(-last // -(-last // FUSED))
    flat = numbers.ravel()
    stretches = [
        held(joined(flat[start : start + length]), (2, UNBOUNDED))
        for start in range(0, total, length)
    ]
    return lax.reshape(lax.concatenate(promoted(stretches), 0), numbers.shape)


@lru_cache(maxsize=256)
def _digits(total: int) -> tuple[int, ...]:
    """Few factors of at most `FUSED`, whose product is the least such number from `total` on."""
    return next(found for found in map(_factors, itertools.count(total)) if found is not None)


def _factors(number: int) -> tuple[int, ...] | None:
    """The fewest factors of at most `FUSED`; None where there are none."""
    if number <= FUSED:
        return (number,)
    tried = (
        (*rest, factor)
        for factor in range(FUSED, 1, -1)
        if not number % factor and (rest := _factors(number // factor)) is not None
    )
    return min(tried, key=len, default=None)
