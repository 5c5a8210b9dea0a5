"""Operations on numbers that need not be carried out when a program runs, or as others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from .recorded import Number

__all__ = ["SUMS", "operation_key", "power", "settled"]

#: Operations on known numbers that are carried out at once: positions are compared by them.
COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.bitwise_not,
}
SUMS = frozenset({"add", "add_any", "sub"})
#: Operations whose operands may change places.
COMMUTATIVE = frozenset({"add", "mul"})
#: What is done with known positions, and with other known numbers.
PLACES: dict[str, Callable[..., Any]] = {"add": np.add, "sub": np.subtract}
EXACT: dict[str, Callable[..., Any]] = {"neg": np.negative}


def settled(name: str, operands: Sequence[Any]) -> Any:
    """What an operation gives without being carried out, if it does."""
    known = [not isinstance(operand, Number) for operand in operands]
    if name == "select_n" and known[0]:
        return operands[1 + int(operands[0])]
    if name in COMPARISONS and all(known):
        return COMPARISONS[name](*operands)
    if name in PLACES and all(known) and all(np.asarray(x).dtype.kind == "i" for x in operands):
        with np.errstate(over="ignore"):  # integers wrap
            return PLACES[name](*operands)
    if name in EXACT and all(known):
        return EXACT[name](*operands)
    if name in SUMS:
        first, second = operands
        if known[1] and second == 0:
            return first
        if known[0] and first == 0 and name != "sub":
            return second
    return None


def _key_of(operand: Any) -> Any:
    """What makes two operands the same; zeros of both signs differ."""
    if isinstance(operand, Number):
        return operand.place
    known = np.asarray(operand)
    return known.dtype.str, known.tobytes()


def operation_key(name: str, options: str, operands: Sequence[Any]) -> tuple[Any, ...]:
    """What makes two operations the same."""
    keys = [_key_of(operand) for operand in operands]
    if name in COMMUTATIVE:
        keys.sort(key=repr)
    return (name, options, *keys)


def power(record: Callable[..., Any], base: Any, exponent: int, dtype: Any) -> Any:
    """An integer power, of the reciprocal where it is negative: derivatives read that too.

    Args:
        record: records an operation and returns its result (see `Tape.record`).
        base: a number.
        exponent: any integer.
        dtype: of the result.
    """
    if exponent < 0:
        base = record("div", lax.div, (np.ones((), dtype), base), dtype)
    if abs(exponent) == 1:
        return base
    if abs(exponent) == 2:
        return record("mul", lax.mul, (base, base), dtype)
    call = functools.partial(lax.integer_pow, y=abs(exponent))
    return record("integer_pow", call, (base,), dtype, str(abs(exponent)))
