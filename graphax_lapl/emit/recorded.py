"""Operations on numbers that are recorded, and what XLA makes of them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jax import lax

from ..program.regions import SINE_DTYPES, SINES
from ..program.timings import expression_of
from .numbers import Numbers
from .packing import has_short_rows

__all__ = [
    "Number",
    "Operation",
    "branches_of",
    "computed_of",
    "evaluations_of",
    "in_turns",
    "kept_and_repeated",
    "kept_places",
    "read",
    "stored_places",
    "unfolded",
]

#: Most evaluations of an operation that XLA writes into one kernel.
MAX_BRANCHES = 15


class Number:
    """A number that will be computed; `moves` says whether each sample of a batch has its own."""

    __slots__ = ("dtype", "moves", "place", "tape")
    __array_ufunc__ = None  # numpy's numbers leave arithmetic to this class

    def __init__(self, tape: Any, place: int, dtype: Any, moves: bool):
        self.tape, self.place, self.dtype, self.moves = tape, place, dtype, moves

    def astype(self, dtype: Any) -> Any:
        """The number in another dtype."""
        if self.dtype == dtype:
            return self
        call = functools.partial(lax.convert_element_type, new_dtype=dtype)
        return self.tape.record("convert_element_type", call, (self,), dtype, str(dtype))

    def __add__(self, other: Any) -> Any:
        return self.tape.record("add", lax.add, (self, other), self.dtype)

    def __radd__(self, other: Any) -> Any:
        return self.tape.record("add", lax.add, (other, self), self.dtype)

    def __mul__(self, other: Any) -> Any:
        return self.tape.record("mul", lax.mul, (self, other), self.dtype)

    def __rmul__(self, other: Any) -> Any:
        return self.tape.record("mul", lax.mul, (other, self), self.dtype)


class Operation(NamedTuple):
    """What is done to which numbers (`Number`s and known ones) for the number at `place`."""

    name: str
    call: Callable[..., Any]
    operands: tuple[Any, ...]
    place: int
    options: str

    @property
    def is_sine(self) -> bool:
        """Whether this is a sine or cosine that may be evaluated together with the other one."""
        if self.name not in SINES or self.options:
            return False
        (operand,) = self.operands
        return isinstance(operand, Number) and operand.moves and operand.dtype in SINE_DTYPES


def read(operand: Any, values: Mapping[int, Any]) -> Any:
    """The value of a number, or what is known."""
    return values[operand.place] if isinstance(operand, Number) else operand


def computed_of(values: Iterable[Any]) -> list[Number]:
    """The numbers among some values that will be computed."""
    return [value for value in values if isinstance(value, Number)]


def in_turns(
    operations: Sequence[Operation], apart: Collection[int]
) -> tuple[list[Operation], dict[int, tuple[int, ...]]]:
    """Operations in turns: sines of one turn wait for none of each other.

    Args:
        operations: all that are needed, in order.
        apart: places of sines and cosines that are evaluated together.

    Returns:
        The operations in an order in which all arguments of a turn come before it, and for the
        place of each argument those of its turn.
    """
    turns: dict[int, int] = {}
    arguments: dict[Any, dict[int, None]] = {}
    for operation in operations:
        places = [number.place for number in computed_of(operation.operands)]
        turn = max((turns.get(place, 0) for place in places), default=0)
        if operation.place in apart:
            turn += 1
            arguments.setdefault((turn, operation.operands[0].dtype), {})[places[0]] = None
        turns[operation.place] = turn
    together = {place: tuple(group) for group in arguments.values() for place in group}
    if len(together) == len(arguments):
        return [*operations], together
    return sorted(operations, key=lambda operation: turns[operation.place]), together


def kept_and_repeated(
    operations: Iterable[Operation],
    wanted: Sequence[int],
    branches: Sequence[int] | None = None,
) -> tuple[int, int]:
    """How many dear numbers XLA keeps, and how many operations it writes into all kernels.

    Args:
        operations: all that are needed, in order.
        wanted: places of the results' numbers.
        branches: which branch of a kernel evaluates each of these; if not given, each has its own.
    """
    inside: dict[int, int] = {}  # for each number a set of operations, as bits
    kept, repeated = 0, 0
    for k, operation in enumerate(operations):
        written = 1 << k
        for number in computed_of(operation.operands):
            written |= inside.get(number.place, 0)
        if expression_of([operation.name]).kept:
            kept, repeated = kept + 1, repeated + written.bit_count()
        else:
            inside[operation.place] = written
    together: Counter[int] = Counter()
    own = range(len(wanted)) if branches is None else branches
    for place, branch in zip(wanted, own, strict=True):
        together[branch] |= inside.get(place, 0)
    return kept, repeated + sum(written.bit_count() for written in together.values())


def unfolded(operations: Sequence[Operation], wanted: Sequence[int]) -> int:
    """How many operations a GPU evaluates for branches that each write a number.

    XLA's kernels there evaluate what only one function reads inside of it, and what several read in
    a function of its own, again for each of these. A recursion is a power of what its steps share.

    Args:
        operations: all that are needed, in order.
        wanted: places of the results' numbers.
    """
    readers: dict[int, set[int]] = {place: {place} for place in wanted}
    function: dict[int, int] = {}  # by what it results in
    for operation in reversed(operations):
        own = readers[operation.place]
        function[operation.place] = own.pop() if len(own) == 1 else operation.place
        for number in computed_of(operation.operands):
            readers.setdefault(number.place, set()).add(function[operation.place])
    inside: Counter[int] = Counter(function.values())
    called: dict[int, set[int]] = {place: set() for place in inside}
    for operation in operations:
        for number in computed_of(operation.operands):
            other = function.get(number.place)
            if other is not None and other != function[operation.place]:
                called[function[operation.place]].add(other)
    total: dict[int, int] = {}
    for operation in operations:  # what is called comes before
        if function[operation.place] == operation.place:
            calls = (total[other] for other in called[operation.place])
            total[operation.place] = inside[operation.place] + sum(calls)
    return sum(total.get(place, 0) for place in wanted)


def kept_places(
    operations: Sequence[Operation],
    results: Sequence[Numbers],
    rows: bool,
    apart: Collection[int],
) -> set[int]:
    """Dear numbers that XLA writes to memory: those that more than one kernel reads.

    An array of results is one kernel. What nothing else reads is evaluated in it, in each of the
    branches that need it, however dear it is, unless these are many.

    Args:
        operations: all that are needed, in order.
        results: numbers.
        rows: what branches write (see `branches_of`).
        apart: places of numbers that have kernels of their own in any case.
    """
    kernels: Counter[int] = Counter()  # for each number a set of kernels, as bits
    branches: Counter[int] = Counter()  # and of all their branches
    branch = iter(branches_of(results, rows))
    for kernel, numbers in enumerate(results):
        for number in computed_of(numbers.ravel()):
            kernels[number.place] |= 1 << kernel
            branches[number.place] |= 1 << next(branch)
    last = sum(numbers.size for numbers in results)
    kept: set[int] = set()
    for operation in reversed(operations):
        own, within = kernels[operation.place], branches[operation.place]
        dear = expression_of([operation.name]).kept
        often = own.bit_count() > 1 or within.bit_count() > MAX_BRANCHES
        if (dear and often) or operation.place in apart:
            own, within = 1 << (len(results) + len(kept)), 1 << (last + len(kept))
            kept.add(operation.place)
        for number in computed_of(operation.operands):
            kernels[number.place] |= own
            branches[number.place] |= within
    return kept.difference(apart)


def stored_places(
    operations: Sequence[Operation], wanted: Sequence[int], memory: Collection[int]
) -> list[int]:
    """What is in memory: what is held, and what XLA keeps because more than one kernel reads it."""
    readers: Counter[int] = Counter()  # for each number a set of kernels, as bits
    for kernel, place in enumerate(wanted):
        readers[place] |= 1 << kernel
    stored: list[int] = []
    for operation in reversed(operations):
        own = readers[operation.place]
        kept = expression_of([operation.name]).kept and own.bit_count() > 1
        if kept or operation.place in memory:
            own = 1 << (len(wanted) + len(stored))
            stored.append(operation.place)
        for number in computed_of(operation.operands):
            readers[number.place] |= own
    return stored[::-1]


def branches_of(results: Sequence[Numbers], rows: bool) -> list[int]:
    """Which branch of a kernel evaluates each of the computed numbers of the results, in order.

    Args:
        results: numbers, each array of which one kernel writes.
        rows: whether a branch writes a row of an array, if it has few short ones, and not a number.
    """
    branches: list[int] = []
    count = 0
    for numbers in results:
        length = numbers.shape[-1] if rows and has_short_rows(numbers) else 1
        flat = numbers.ravel()
        computed = (place for place in range(numbers.size) if isinstance(flat[place], Number))
        branches.extend(count + place // length for place in computed)
        count += numbers.size // length
    return branches


def evaluations_of(
    operations: Sequence[Operation],
    wanted: Iterable[int],
    branches: Iterable[int],
    places: Collection[int],
) -> int:
    """How often some numbers are evaluated if each branch evaluates all that its results need."""
    readers: Counter[int] = Counter()  # for each number the branches, as bits
    for branch, place in zip(branches, wanted, strict=True):
        readers[place] |= 1 << branch
    for operation in reversed(operations):
        for number in computed_of(operation.operands):
            readers[number.place] |= readers[operation.place]
    return sum(readers[place].bit_count() for place in places)
