"""Which values the entries of a traced integer array may take.

`argmax` along an axis of n entries is less than n, a comparison is zero or one, `clip(i, 0, 3)` one
of four numbers. From there index arithmetic is followed in two ways. Where few values are possible
they are all kept, and arithmetic is done on each by numpy: `i // 2` of four values is two, and
`select_n(i < 0, i + n, i)`, as jnp emits it, is what it is for each of them. Entries that come from
the same number move together: they have the same *origin*. Where there are too many, intervals are
kept. Nothing is guessed: what is not followed may be any number of its dtype.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import dtypes, lax

from ..graph.listing import Atom, Equation, Listing
from ..graph.numpy_values import EXACT, MOVES, ROUNDED, moved
from .gathers import MODES, gathered_positions

__all__ = ["Possible", "PossibleValues"]

#: Largest table of values (values per entry times entries) that is followed.
MAX_TABLE = 1 << 18
#: Origin of an entry that has one value only.
FIXED = -1


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


def _negative(x: np.ndarray) -> np.ndarray:
    return np.subtract(x.dtype.type(0), x)


#: What a primitive does to each entry, in the dtype of the operands, which wraps as JAX's does;
#: None where it cannot be said.
_ENTRYWISE: dict[str, Callable[..., np.ndarray | None]] = {
    **EXACT,
    **ROUNDED,
    "neg": _negative,
    "abs": np.abs,
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
_WITH_PARAMETERS = frozenset({"convert_element_type", "integer_pow"})
#: What reads integers at positions.
_LOOKUPS = frozenset({"gather", "dynamic_slice"})
#: What is followed to its operands.
_FOLLOWED = (
    frozenset(_ENTRYWISE)
    | _WITH_PARAMETERS
    | MOVES
    | _LOOKUPS
    | {"concatenate", "stack", "copy", "stop_gradient"}
)
#: Bounds that stand for any number: beyond them sums of two would leave 64 bits.
_FAR = float(1 << 62)


class PossibleValues:
    """The possible values of the variables of a listing, found where they are asked for."""

    def __init__(self, listing: Listing, given: Mapping[int, Possible] | None = None):
        """Look at a finished listing.

        Args:
            listing: the flat program.
            given: bounds of some of its input variables.
        """
        self.listing = listing
        self._makers: dict[int, Equation] | None = None
        self._found: dict[int, Possible | None] = {}
        self._origins = 0
        for variable, possible in (given or {}).items():
            dtype = listing.variables[variable].dtype
            if (possible.low == possible.high).all():
                whole = possible.low[None].astype(dtype)
                self._found[variable] = _of_table(whole, np.full(possible.shape, FIXED, np.int64))
            else:
                bounds = Possible(possible.low, possible.high)
                self._found[variable] = self._told_apart(bounds, dtype)

    def of(self, atom: Atom) -> Possible | None:
        """What an atom's entries may be; None where nothing is known, or it holds no integers."""
        if self._makers is None:
            self._makers = {v: e for e in self.listing.equations for v in e.outputs}
        stack = [atom]
        while stack:
            key = self._key(stack[-1])
            if key is None or key in self._found:
                stack.pop()
                continue
            maker = self._makers.get(key)
            follow = maker is not None and maker.name in _FOLLOWED and self._is_whole(key)
            operands = maker.inputs if maker is not None and follow else ()
            missing = [
                operand
                for operand in operands
                if (name := self._key(operand)) is not None and name not in self._found
            ]
            if missing:
                stack += missing
                continue
            stack.pop()
            self._found[key] = self._evaluated(key, maker)
        return self._read(atom)

    def _key(self, atom: Atom) -> int | None:
        """The variable that holds an atom's value; None where its value is known."""
        held = self.listing.value(atom)
        if not isinstance(held, int) or self.listing.known_value(held) is not None:
            return None
        return held

    def _is_whole(self, variable: int) -> bool:
        type_ = self.listing.variables[variable]
        return _range(type_.dtype) is not None and 0 < math.prod(type_.shape) <= MAX_TABLE

    def _read(self, atom: Atom) -> Possible | None:
        key = self._key(atom)
        if key is not None:
            return self._found.get(key)
        value = self.listing.known_value(atom)
        if value is None or value.dtype.kind not in "biu" or value.size > MAX_TABLE:
            return None
        if _range(value.dtype) is None:
            return None
        whole = np.asarray(value, self.listing.type_of(atom).dtype)
        fixed = np.full(whole.shape, FIXED, np.int64)
        return Possible(whole.astype(np.int64), whole.astype(np.int64), whole[None], fixed)

    def _evaluated(self, variable: int, maker: Equation | None) -> Possible | None:
        type_ = self.listing.variables[variable]
        limits = _range(type_.dtype)
        if limits is None or not self._is_whole(variable):
            return None
        low, high = (np.broadcast_to(np.int64(n), type_.shape) for n in limits)
        anything = Possible(low, high)
        found: Possible | None = None
        if maker is not None and maker.name in ("argmax", "argmin"):
            (axis,) = maker.params["axes"]
            last = self.listing.type_of(maker.inputs[0]).shape[axis] - 1
            if last <= limits[1]:
                found = Possible(np.zeros_like(low), np.full_like(low, last))
        elif maker is not None and maker.name in _FOLLOWED:
            found = self._applied(maker, type_.shape, type_.dtype)
        if found is None or (found.low < limits[0]).any() or (found.high > limits[1]).any():
            found = anything
        return self._told_apart(found, type_.dtype)

    def _told_apart(self, found: Possible, dtype: Any) -> Possible:
        """An interval of few numbers as these numbers."""
        if found.values is not None:
            return found
        count = int(found.high.max()) - int(found.low.min()) + 1
        if count * found.low.size > MAX_TABLE:
            return found
        steps = np.arange(int((found.high - found.low).max()) + 1)
        steps = steps.reshape(-1, *(1,) * found.low.ndim)
        values = np.minimum(found.low + steps, found.high).astype(dtype)
        return Possible(found.low, found.high, values, self._fresh(found.shape))

    def _fresh(self, shape: tuple[int, ...]) -> np.ndarray:
        first, size = self._origins, math.prod(shape)
        self._origins += size
        return np.arange(first, first + size).reshape(shape)

    def _applied(self, maker: Equation, shape: tuple[int, ...], dtype: Any) -> Possible | None:
        types = [self.listing.type_of(atom) for atom in maker.inputs]
        operands = []
        for atom, type_ in zip(maker.inputs, types, strict=True):
            found, limits = self._read(atom), _range(type_.dtype)
            if found is None:
                if maker.name in _COMPARISONS:
                    return _interval(np.int64(0), np.int64(1), shape)
                if limits is None:
                    return None
                found = _interval(np.int64(limits[0]), np.int64(limits[1]), type_.shape)
            operands.append(found)
        if maker.name in ("copy", "stop_gradient"):
            return operands[0]
        if maker.name in MOVES:
            (whole,) = operands
            places = np.arange(whole.low.size).reshape(whole.shape)
            positions = moved(maker.name, maker.params, places, shape)
            return None if positions is None else whole.taken(positions)
        if maker.name == "concatenate":
            return _concatenated(operands, maker.params["dimension"])
        if maker.name == "stack":
            axis = maker.params["axis"] % len(shape)
            thin = (*shape[:axis], 1, *shape[axis + 1 :])
            places = np.arange(math.prod(thin)).reshape(thin)
            return _concatenated([operand.taken(places) for operand in operands], axis)
        if maker.name in _LOOKUPS:
            return self._looked_up(maker, operands, shape)
        operands = [operand.broadcast(shape) for operand in operands]
        return self._every_value(maker, operands, dtype) or _bounded(maker, operands)

    def _looked_up(
        self, maker: Equation, operands: list[Possible], shape: tuple[int, ...]
    ) -> Possible | None:
        """Integers read from a table, where table or positions are settled."""
        table, *others = operands
        anywhere = _interval(table.low.min(), table.high.max(), shape)
        batch: list[int] = []
        if maker.name == "dynamic_slice":
            starts = _concatenated([other.taken(np.zeros(1, np.intp)) for other in others], 0)
            rank = len(table.shape)
            numbers = lax.GatherDimensionNumbers(tuple(range(rank)), (), tuple(range(rank)))
            sizes, mode = shape, lax.GatherScatterMode.CLIP
        else:
            starts = others[0]
            numbers, sizes, mode = (
                maker.params[name] for name in ("dimension_numbers", "slice_sizes", "mode")
            )
            batch = [d for d in range(len(shape)) if d not in numbers.offset_dims]
            if mode not in MODES:
                return None
        if starts.values is None or starts.origin is None or not starts.values.shape[-1]:
            return None if mode == lax.GatherScatterMode.FILL_OR_DROP else anywhere
        if len(starts.values) * math.prod(shape) > MAX_TABLE:
            return None
        read = np.stack(
            [gathered_positions(table.shape, v, numbers, sizes, mode) for v in starts.values]
        )
        if (read < 0).any():
            return None  # a number outside of the table stands for what is not there
        if len(read) == 1:
            return table.taken(read[0])
        moving = np.where(
            starts.origin == FIXED, starts.origin.max(-1, keepdims=True), starts.origin
        )
        settled = table.values is not None and len(table.values) == 1
        if not settled or (moving != moving[..., :1]).any():
            return anywhere
        own = [shape[d] if d in batch else 1 for d in range(len(shape))]
        origin = np.broadcast_to(moving[..., 0].reshape(own), shape)
        assert table.values is not None
        return _of_table(table.values.reshape(-1)[read], origin)

    def _every_value(
        self, maker: Equation, operands: list[Possible], dtype: Any
    ) -> Possible | None:
        """The primitive applied to every value, or combination of values of different origin."""
        tables: list[np.ndarray] = []
        origin, mixed = np.full(operands[0].shape, FIXED, np.int64), False
        for operand in operands:
            if operand.values is None or operand.origin is None:
                return None
            values = operand.values
            count = len(tables[0]) if tables else 1
            together = (origin == FIXED) | (operand.origin == FIXED) | (origin == operand.origin)
            if together.all():
                rows = max(count, len(values))
                tables = [_padded(table, rows) for table in tables]
                tables.append(_padded(values, rows))
                origin = np.where(origin == FIXED, operand.origin, origin)
                continue
            if count * len(values) * origin.size > MAX_TABLE:
                return None
            tables = [np.repeat(table, len(values), 0) for table in tables]
            tables.append(np.tile(values, (count, *(1,) * origin.ndim)))
            origin, mixed = self._fresh(origin.shape), True
        if len(tables[0]) * origin.size > MAX_TABLE:
            return None
        with np.errstate(all="ignore"):
            made = _entrywise(maker, tables, dtype)
        if made is None:
            return None
        if mixed and origin.size == 1:  # many combinations, and mostly few numbers
            kept = np.unique(made.reshape(-1)).reshape(-1, *origin.shape)
            if len(kept) < len(made):
                made, origin = kept, self._fresh(origin.shape)
        return _of_table(made.astype(dtype, copy=False), origin)


#: Comparisons of numbers that nothing is known of are still zero or one.
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


def _range(dtype: Any) -> tuple[int, int] | None:
    """Smallest and largest number of an integer dtype; None for others, and beyond 64 bits."""
    if dtype is None or dtypes.issubdtype(dtype, dtypes.extended):
        return None
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return 0, 1
    if kind.kind not in "iu" or kind == np.uint64:
        return None
    return int(np.iinfo(kind).min), int(np.iinfo(kind).max)


def _of_table(values: np.ndarray, origin: np.ndarray) -> Possible:
    low, high = values.min(0).astype(np.int64), values.max(0).astype(np.int64)
    if (low == high).all():
        values, origin = values[:1], np.full(origin.shape, FIXED, np.int64)
    return Possible(low, high, values, origin)


def _interval(low: Any, high: Any, shape: tuple[int, ...]) -> Possible:
    return Possible(np.broadcast_to(low, shape), np.broadcast_to(high, shape))


def _padded(table: np.ndarray, rows: int) -> np.ndarray:
    """A table whose last row is repeated."""
    return table[np.minimum(np.arange(rows), len(table) - 1)]


def _concatenated(operands: Sequence[Possible], axis: int) -> Possible:
    low, high = (np.concatenate([getattr(o, side) for o in operands], axis) for side in _SIDES)
    tables = [operand.values for operand in operands if operand.values is not None]
    origins = [operand.origin for operand in operands if operand.origin is not None]
    rows = max((len(table) for table in tables), default=0)
    if len(tables) < len(operands) or rows * low.size > MAX_TABLE:
        return Possible(low, high)
    values = np.concatenate([_padded(table, rows) for table in tables], axis + 1)
    return Possible(low, high, values, np.concatenate(origins, axis))


_SIDES = ("low", "high")


def _entrywise(maker: Equation, tables: list[np.ndarray], dtype: Any) -> np.ndarray | None:
    if maker.name == "convert_element_type":
        return tables[0].astype(dtype)
    if maker.name == "integer_pow":
        power = maker.params["y"]
        return None if power < 0 else np.power(tables[0], tables[0].dtype.type(power))
    return _ENTRYWISE[maker.name](*tables)


def _bounded(maker: Equation, operands: list[Possible]) -> Possible | None:
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
        rough = [_ENTRYWISE[name](*(c.astype(float) for c in corner)) for corner in corners]
        if any(r is None or (np.abs(r) > _FAR).any() for r in rough):
            return None
    made = [_ENTRYWISE[name](*corner) for corner in corners]
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
