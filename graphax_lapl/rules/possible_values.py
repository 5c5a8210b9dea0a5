"""Which values the entries of a traced integer array may take.

`argmax` along an axis of n entries is less than n, a comparison is zero or one, `clip(i, 0, 3)` one
of four numbers. From there index arithmetic is followed in two ways. Where few values are possible
they are all kept, and arithmetic is done on each by numpy: `i // 2` of four values is two, and
`select_n(i < 0, i + n, i)`, as jnp emits it, is what it is for each of them. Entries that come from
the same number move together: they have the same *origin*. Where there are too many, intervals are
kept. Nothing is guessed: what is not followed may be any number of its dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from jax import lax

from ..graph.gathers import MODES, gathered_positions
from ..graph.inline import flatten_jaxpr
from ..graph.listing import Atom, Equation, Listing, scan_counts
from ..graph.numpy_values import MOVES, moved
from .integer_ranges import (
    ENTRYWISE,
    FIXED,
    MAX_TABLE,
    STEPS,
    WITH_PARAMETERS,
    Possible,
    bounded,
    concatenated,
    entrywise,
    integer_range,
    interval,
    of_table,
    padded,
    settled,
)

__all__ = ["MAX_INTEGERS", "Possible", "PossibleValues"]

#: Largest integer operands (entries) that are followed through the steps of a loop.
MAX_INTEGERS = 1 << 12
#: Most equations, those of all steps together, through which a loop's integers are followed.
MAX_EQUATIONS = 1 << 12
#: What reads integers at positions.
_LOOKUPS = frozenset({"gather", "dynamic_slice"})
#: What integers come out of step by step.
_LOOPS = frozenset({"scan"})
#: What is followed to its operands.
_FOLLOWED = (
    frozenset(ENTRYWISE)
    | WITH_PARAMETERS
    | MOVES
    | _LOOKUPS
    | {"concatenate", "stack", "copy", "stop_gradient"}
)
#: Comparisons of numbers that nothing is known of are still zero or one.
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


class PossibleValues:
    """The possible values of the variables of a listing, found where they are asked for."""

    def __init__(self, listing: Listing, given: Mapping[int, Possible] | None = None):
        """Look at a finished listing.

        Args:
            listing: the flat program.
            given: bounds of some of its input variables, or a table of what they are at all steps
                of a loop, of origin `STEPS`.
        """
        self.listing = listing
        self._makers: dict[int, Equation] | None = None
        self._found: dict[int, Possible | None] = {}
        self._loops: dict[Equation, Mapping[int, Possible]] = {}
        self._origins = STEPS + 1
        for variable, possible in (given or {}).items():
            dtype = listing.variables[variable].dtype
            if possible.values is not None:
                self._found[variable] = possible
            elif (possible.low == possible.high).all():
                self._found[variable] = settled(possible.low.astype(dtype))
            else:
                bounds = Possible(possible.low, possible.high)
                self._found[variable] = self._told_apart(bounds, dtype)

    def at_row(self, row: int, otherwise: Callable[[], PossibleValues]) -> PossibleValues:
        """The values where the given tables are at one row, as at one step of a loop.

        Args:
            row: the row.
            otherwise: makes the values for that row alone, for what the tables do not tell.
        """
        return _AtRow(self, row, otherwise)

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
            follow = maker is not None and maker.name in _FOLLOWED | _LOOPS and self._is_whole(key)
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
        return integer_range(type_.dtype) is not None and 0 < math.prod(type_.shape) <= MAX_TABLE

    def _read(self, atom: Atom) -> Possible | None:
        key = self._key(atom)
        if key is not None:
            return self._found.get(key)
        value = self.listing.known_value(atom)
        if value is None or value.dtype.kind not in "biu" or value.size > MAX_TABLE:
            return None
        if integer_range(value.dtype) is None:
            return None
        whole = np.asarray(value, self.listing.type_of(atom).dtype)
        return settled(whole)

    def _evaluated(self, variable: int, maker: Equation | None) -> Possible | None:
        type_ = self.listing.variables[variable]
        limits = integer_range(type_.dtype)
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
        elif maker is not None and maker.name in _LOOPS:
            found = self._looped(maker).get(maker.outputs.index(variable))
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
            found, limits = self._read(atom), integer_range(type_.dtype)
            if found is None:
                if maker.name in _COMPARISONS:
                    return interval(np.int64(0), np.int64(1), shape)
                if limits is None:
                    return None
                found = interval(np.int64(limits[0]), np.int64(limits[1]), type_.shape)
            operands.append(found)
        if maker.name in ("copy", "stop_gradient"):
            return operands[0]
        if maker.name in MOVES:
            (whole,) = operands
            places = np.arange(whole.low.size).reshape(whole.shape)
            positions = moved(maker.name, maker.params, places, shape)
            return None if positions is None else whole.taken(positions)
        if maker.name == "concatenate":
            return concatenated(operands, maker.params["dimension"])
        if maker.name == "stack":
            axis = maker.params["axis"] % len(shape)
            thin = (*shape[:axis], 1, *shape[axis + 1 :])
            places = np.arange(math.prod(thin)).reshape(thin)
            return concatenated([operand.taken(places) for operand in operands], axis)
        if maker.name in _LOOKUPS:
            return self._looked_up(maker, operands, shape)
        operands = [operand.broadcast(shape) for operand in operands]
        return self._every_value(maker, operands, dtype) or bounded(maker, operands)

    def _looked_up(
        self, maker: Equation, operands: list[Possible], shape: tuple[int, ...]
    ) -> Possible | None:
        """Integers read from a table, where table or positions are settled."""
        table, *others = operands
        anywhere = interval(table.low.min(), table.high.max(), shape)
        batch: list[int] = []
        if maker.name == "dynamic_slice":
            starts = concatenated([other.taken(np.zeros(1, np.intp)) for other in others], 0)
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
        return of_table(table.values.reshape(-1)[read], origin)

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
                tables = [padded(table, rows) for table in tables]
                tables.append(padded(values, rows))
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
            made = entrywise(maker, tables, dtype)
        if made is None:
            return None
        if mixed and origin.size == 1:  # many combinations, and mostly few numbers
            kept = np.unique(made.reshape(-1)).reshape(-1, *origin.shape)
            if len(kept) < len(made):
                made, origin = kept, self._fresh(origin.shape)
        return of_table(made.astype(dtype, copy=False), origin)

    def outputs(self, chosen: range) -> dict[int, Possible]:
        """Bounds of those of some outputs of the listing that are integers, by number."""
        found = {}
        for k in chosen:
            type_ = self.listing.type_of(self.listing.outputs[k])
            if not type_.differentiable and math.prod(type_.shape) <= MAX_INTEGERS:
                possible = self.of(self.listing.outputs[k])
                if possible is not None and possible.low.size:
                    found[k] = Possible(possible.low, possible.high)
        return found

    def _looped(self, maker: Equation) -> Mapping[int, Possible]:
        """Bounds of the integers that a `scan` returns, by output."""
        if maker not in self._loops:
            given = {k: self._read(atom) for k, atom in enumerate(maker.inputs)}
            known = {k: possible for k, possible in given.items() if possible is not None}
            self._loops[maker] = _returned(maker, known)
        return self._loops[maker]


class _AtRow(PossibleValues):
    """One row of the tables of others."""

    def __init__(self, whole: PossibleValues, row: int, otherwise: Callable[[], PossibleValues]):
        super().__init__(whole.listing)
        self._whole, self._row, self._otherwise = whole, row, otherwise

    @cached_property
    def _alone(self) -> PossibleValues:
        return self._otherwise()

    def of(self, atom: Atom) -> Possible | None:
        found = self._whole.of(atom)
        if found is None:
            return None
        return found.at_row(self._row) if found.is_told_by(STEPS) else self._alone.of(atom)


@lru_cache(maxsize=256)
def _body(equation: Equation) -> Listing:
    closed = equation.params["jaxpr"]
    moves = [False] * len(closed.jaxpr.invars)
    return flatten_jaxpr(closed, moves, lambda *_: "rule")[0]


def _returned(equation: Equation, given: Mapping[int, Possible]) -> dict[int, Possible]:
    """Bounds of the integers that a `scan` returns, by output, from those of its operands."""
    counts, length = scan_counts(equation.params), equation.params["length"]
    if counts is None or not 0 < length <= MAX_EQUATIONS:
        return {}
    listing, (constants, carries) = _body(equation), counts
    if length * max(1, len(listing.equations)) > MAX_EQUATIONS:
        return {}
    first = constants + carries
    held = {k: possible for k, possible in given.items() if k < first}
    rows: dict[int, dict[int, Possible]] = {}
    for step in reversed(range(length)) if equation.params["reverse"] else range(length):
        known = {k: possible.at_step(step) for k, possible in given.items() if k >= first} | held
        values = PossibleValues(listing, {listing.inputs[k]: p for k, p in known.items()})
        rows[step] = values.outputs(range(len(listing.outputs)))
        held = {k: possible for k, possible in held.items() if k < constants}
        held |= {constants + k: p for k, p in rows[step].items() if k < carries}
    result = {k - constants: possible for k, possible in held.items() if k >= constants}
    for k in range(carries, len(listing.outputs)):
        found = [rows[step][k] for step in range(length) if k in rows[step]]
        if len(found) == length and length * found[0].low.size <= MAX_INTEGERS:
            low, high = (np.stack([getattr(row, side) for row in found]) for side in _SIDES)
            result[k] = Possible(low, high)
    return result


_SIDES = ("low", "high")
