"""Sets of integers: what arithmetic does to few numbers, each on its own, and to intervals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import dtypes

from ..graph.listing import Equation
from ..graph.numpy_values import EXACT, ROUNDED

__all__ = [
    "ENTRYWISE",
    "FIXED",
    "MAX_TABLE",
    "STEPS",
    "WITH_PARAMETERS",
    "Possible",
    "bounded",
    "concatenated",
    "entrywise",
    "integer_range",
    "interval",
    "of_table",
    "padded",
    "settled",
]

#: Largest table of values (values per entry times entries) that is followed.
MAX_TABLE = 1 << 18
#: Origin of an entry that has one value only.
FIXED = -1
#: Origin of what differs from step to step of a loop, where all steps are looked at together.
STEPS = 0


@dataclass(frozen=True, eq=False)
class Possible:
    """What the entries of an integer or boolean array of `shape` may be.

    Attributes:
        low: the smallest value of each entry, int64, of `shape`.
        high: the largest.
        values: all of them, shape `(count, *shape)`, some more than once; None for an interval.
        origin: of each entry what its value comes from: entries of one origin take the same of
            their `count` values at once (the last, where one has fewer than the other).
    """

    low: np.ndarray
    high: np.ndarray
    values: np.ndarray | None = None
    origin: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.low.shape

    def taken(self, positions: np.ndarray) -> Possible:
        """The entries at flat positions, in an array of their shape."""
        low, high = self.low.reshape(-1)[positions], self.high.reshape(-1)[positions]
        if self.values is None or self.origin is None:
            return Possible(low, high)
        values = self.values.reshape(len(self.values), -1)[:, positions]
        return Possible(low, high, values, self.origin.reshape(-1)[positions])

    def at_step(self, step: int) -> Possible:
        """What one step of a loop reads of an array that is mapped over."""
        places = np.arange(self.low.size).reshape(self.shape)[step]
        return self.taken(places)

    def is_told_by(self, origin: int) -> bool:
        """Whether every entry is settled once what comes from `origin` is."""
        if self.values is None or self.origin is None:
            return False
        return bool(((self.origin == FIXED) | (self.origin == origin)).all())

    def at_row(self, row: int) -> Possible:
        """The array where its table is at one row."""
        return self if self.values is None else settled(self.values[min(row, len(self.values) - 1)])

    def broadcast(self, shape: tuple[int, ...]) -> Possible:
        """A single number, repeated; or itself."""
        if self.shape == shape:
            return self
        return self.taken(np.zeros(shape, np.intp))


def _trunc_div(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    if (b == 0).any():
        return None
    quotient: np.ndarray = (a - np.fmod(a, b)) // b
    return quotient


def _trunc_rem(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    return None if (b == 0).any() else np.fmod(a, b)


def _clamp(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(x, low), high)


def _select(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    chosen = np.clip(which, 0, len(cases) - 1, dtype=np.intp)
    return np.take_along_axis(np.stack(cases), chosen[None], 0)[0]


#: What a primitive does to each entry, in the dtype of the operands, which wraps as JAX's does;
#: None where it cannot be said.
ENTRYWISE: dict[str, Callable[..., np.ndarray | None]] = {
    **EXACT,
    **ROUNDED,
    "sign": np.sign,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "div": _trunc_div,
    "rem": _trunc_rem,
    "clamp": _clamp,
    "select_n": _select,
}
#: Primitives that are monotone in each operand, by rules that need no care about overflow.
_MONOTONE = frozenset({"max", "min", "clamp", "sign", "lt", "le", "gt", "ge"})
#: Likewise, but their results may leave the dtype; `div` where the divisor has one sign.
_GROWING = frozenset({"add", "sub", "mul", "neg", "div"})
#: Conversions of integers, and powers, have a parameter.
WITH_PARAMETERS = frozenset({"convert_element_type", "integer_pow"})
#: Bounds that stand for any number: beyond them sums of two would leave 64 bits.
_FAR = float(1 << 62)


def integer_range(dtype: Any) -> tuple[int, int] | None:
    """Smallest and largest number of an integer dtype; None for others, and beyond 64 bits."""
    if dtype is None or dtypes.issubdtype(dtype, dtypes.extended):
        return None
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return 0, 1
    if kind.kind not in "iu" or kind == np.uint64:
        return None
    return int(np.iinfo(kind).min), int(np.iinfo(kind).max)


def of_table(values: np.ndarray, origin: np.ndarray) -> Possible:
    """What entries may be of which all values, shape `(count, *shape)`, and origins are known."""
    low, high = values.min(0).astype(np.int64), values.max(0).astype(np.int64)
    if (low == high).all():
        values, origin = values[:1], np.full(origin.shape, FIXED, np.int64)
    return Possible(low, high, values, origin)


def settled(value: np.ndarray) -> Possible:
    """An array that is known."""
    value = np.asarray(value)
    whole = value.astype(np.int64)
    return Possible(whole, whole, value[None], np.full(value.shape, FIXED, np.int64))


def interval(low: Any, high: Any, shape: tuple[int, ...]) -> Possible:
    """Entries between two numbers each."""
    return Possible(np.broadcast_to(low, shape), np.broadcast_to(high, shape))


def padded(table: np.ndarray, rows: int) -> np.ndarray:
    """A table whose last row is repeated."""
    return table[np.minimum(np.arange(rows), len(table) - 1)]


def concatenated(operands: Sequence[Possible], axis: int) -> Possible:
    """Arrays side by side along an axis."""
    low, high = (np.concatenate([getattr(o, side) for o in operands], axis) for side in _SIDES)
    tables = [operand.values for operand in operands if operand.values is not None]
    origins = [operand.origin for operand in operands if operand.origin is not None]
    rows = max((len(table) for table in tables), default=0)
    if len(tables) < len(operands) or rows * low.size > MAX_TABLE:
        return Possible(low, high)
    values = np.concatenate([padded(table, rows) for table in tables], axis + 1)
    return Possible(low, high, values, np.concatenate(origins, axis))


_SIDES = ("low", "high")


def entrywise(maker: Equation, tables: list[np.ndarray], dtype: Any) -> np.ndarray | None:
    """What a primitive makes of each row of its operands' tables; None where it cannot be said."""
    if maker.name == "convert_element_type":
        return tables[0].astype(dtype)
    if maker.name == "integer_pow":
        power = maker.params["y"]
        return None if power < 0 else np.power(tables[0], tables[0].dtype.type(power))
    return ENTRYWISE[maker.name](*tables)


def bounded(maker: Equation, operands: list[Possible]) -> Possible | None:
    """The primitive applied to intervals."""
    name, (first, *rest) = maker.name, operands
    if name == "convert_element_type":
        return Possible(first.low, first.high)
    if name == "select_n":
        case = np.clip([first.low.min(), first.high.max()], 0, len(rest) - 1)
        cases = rest[case[0] : case[1] + 1]
        low = np.minimum.reduce([case.low for case in cases])
        return Possible(low, np.maximum.reduce([case.high for case in cases]))
    if name in ("eq", "ne"):
        apart = (first.high < rest[0].low) | (first.low > rest[0].high)
        low, high = np.where(apart, int(name == "ne"), 0), np.where(apart, int(name == "ne"), 1)
        return Possible(low.astype(np.int64), high.astype(np.int64))
    if name == "rem":
        return _remainders(first, rest[0])
    if name == "integer_pow" or name not in _MONOTONE | _GROWING:
        return None
    if name == "div" and ((rest[0].low <= 0) & (rest[0].high >= 0)).any():
        return None
    corners = list(itertools.product(*((o.low, o.high) for o in operands)))
    if name in _GROWING:
        rough = [ENTRYWISE[name](*(c.astype(float) for c in corner)) for corner in corners]
        if any(r is None or (np.abs(r) > _FAR).any() for r in rough):
            return None
    made = [ENTRYWISE[name](*corner) for corner in corners]
    whole = [np.asarray(m, np.int64) for m in made if m is not None]
    if len(whole) < len(made):
        return None
    return Possible(np.minimum.reduce(whole), np.maximum.reduce(whole))


def _remainders(number: Possible, divisor: Possible) -> Possible | None:
    """Of the sign of the number, and nearer to zero than the divisor and the number."""
    if ((divisor.low <= 0) & (divisor.high >= 0)).any():
        return None
    largest = np.maximum(-(divisor.low + 1), divisor.high - 1)
    low = np.where(number.low < 0, np.maximum(number.low, -largest), 0)
    return Possible(low, np.where(number.high > 0, np.minimum(number.high, largest), 0))
