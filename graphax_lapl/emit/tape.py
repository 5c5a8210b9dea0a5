"""A program on numbers as a list of operations, which can be looked at before it is run."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from ..program.fusion import CACHED, HOLDING, UNBOUNDED, Fusion, Step
from ..program.regions import SINE_DTYPES, SINES
from ..program.sines import SINES_SIZE
from ..program.timings import KERNEL, expression_of
from .holding import BARRIERS_STAND, held
from .numbers import BATCH, Numbers, filled
from .packing import FUSED
from .sines import Pair, sine_and_cosine_from

__all__ = ["Tape", "TooLong"]

#: Of the results: what more is held without evaluating samples in chunks, and what a chunk takes.
HELD_SHARE = 0.25
CHUNK_SHARE = 1 / 7
#: Of what XLA keeps, and of the results: what more is held, beside sines, without a few chunks.
KEPT_SHARE = 0.5
CHOSEN_SHARE = 0.2
CHUNKS = 3
#: Chunks that a batch whose results are joined is worth: fewer save less than a loop costs.
FAR = 8
#: Most kernels that few samples wait for: from so many on XLA's runtime hands them to other
#: threads, which takes longer than they do.
FEW_KERNELS = 8
#: Nanoseconds of holding a number of few samples: a kernel that runs on one core.
FEW_HOLDING = KERNEL
#: The same for many samples, of numbers that one kernel writes side by side: what it evaluates is
#: not vectorised, and from some operations on it waits for a second thread.
ROW_HOLDING = KERNEL / 2
#: Evaluations of an operation, in the mean over all, from which on numbers of arrays are those that
#: branches of a kernel write, each with all that it needs: such a kernel is not vectorised.
REPEATED = 6.0
#: Nanoseconds of holding a number then, and most numbers that are held.
JOINED_HOLDING = KERNEL
JOINED_HELD = 100
#: Of a sine and cosine, as `Tape.apply` writes them: with JAX's usual accuracy.
NO_OPTIONS = ("", "{'accuracy': None}")
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
#: What is done with known positions.
PLACES: dict[str, Callable[..., Any]] = {"add": np.add, "sub": np.subtract}
#: Operations whose operands may change places.
COMMUTATIVE = frozenset({"add", "mul"})


class _Number:
    """A number that will be computed; `moves` says whether each sample of a batch has its own."""

    __slots__ = ("dtype", "moves", "place", "tape")
    __array_ufunc__ = None  # numpy's numbers leave arithmetic to this class

    def __init__(self, tape: Tape, place: int, dtype: Any, moves: bool):
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


class _Operation(NamedTuple):
    """What is done to which numbers (`_Number`s and known ones) for the number at `place`."""

    name: str
    call: Callable[..., Any]
    operands: tuple[Any, ...]
    place: int
    options: str

    @property
    def is_sine(self) -> bool:
        """Whether this is a sine or cosine that may be evaluated together with the other one."""
        if self.name not in SINES or self.options not in NO_OPTIONS:
            return False
        (operand,) = self.operands
        return isinstance(operand, _Number) and operand.moves and operand.dtype in SINE_DTYPES


class TooLong(Exception):
    """Raised by a tape that is full."""


class Tape:
    """Operations on numbers, in the order in which they are computed; equal ones are one.

    Known positions are compared at once, and known zeros are not added. XLA knows as much, but
    what is worth holding is decided here, and every operation takes time to compile.
    """

    def __init__(self, most: int = UNBOUNDED) -> None:
        """Begin without inputs and operations.

        Args:
            most: operations that are recorded; one more raises `TooLong`.
        """
        self.most = most
        self.numbers: list[_Number] = []
        self.inputs = 0
        self._operations: list[_Operation] = []
        self._known: dict[Any, _Number] = {}

    def input(self, shape: tuple[int, ...], dtype: Any, moves: bool) -> Numbers:
        """The numbers of the next input; all inputs come before the first operation."""
        numbers = np.empty(shape, object)
        for index in np.ndindex(shape):
            numbers[index] = self._number(dtype, moves)
            self.inputs += 1
        return numbers

    def apply(self, equation: Any, values: Sequence[Any]) -> list[Any]:
        """Record a pointwise equation (see `run_numbers`)."""
        name, dtype = equation.primitive.name, equation.outvars[0].aval.dtype
        if name == "square" or (name == "integer_pow" and equation.params["y"] == 2):
            return [self.record("mul", lax.mul, (*values, *values), dtype)]
        params = equation.primitive.get_bind_params(equation.params)
        call = functools.partial(equation.primitive.bind, **params)
        return [self.record(name, call, values, dtype, repr(params) if params else "")]

    def record(
        self,
        name: str,
        call: Callable[..., Any],
        operands: Sequence[Any],
        dtype: Any,
        options: str = "",
    ) -> Any:
        """The result of an operation: a known number, an earlier one, or one to be computed."""
        settled = _settled(name, operands)
        if settled is not None:
            return settled
        keys = [_key(operand) for operand in operands]
        if name in COMMUTATIVE:
            keys.sort(key=repr)
        key = (name, options, *keys)
        if key not in self._known:
            if len(self._operations) == self.most:
                raise TooLong
            moves = any(number.moves for number in _computed(operands))
            self._known[key] = made = self._number(dtype, moves)
            self._operations.append(_Operation(name, call, tuple(operands), made.place, options))
        return self._known[key]

    def _number(self, dtype: Any, moves: bool) -> _Number:
        self.numbers.append(_Number(self, len(self.numbers), dtype, moves))
        return self.numbers[-1]

    def chunk(self, results: Sequence[Numbers], samples: int, least: int, stored: int = 0) -> int:
        """How many of so many samples are best evaluated at once, so that little is held.

        XLA keeps dear numbers and results of products by itself, whoever writes the program; what
        is held beside these is ours. Where it is more, and much in comparison with the results, a
        chunk is so large that it fits into the cache, and that its numbers are a fraction of all
        results. Where it is less, but more than shares of both, a few chunks do. Results that are
        joined are written sooner in chunks that fit into the cache, where these are many. Before
        `BARRIERS_STAND` what is held is a kernel more in each chunk: other batches that are joined,
        or outside of the cache, are then evaluated at once.

        Few results side by side are evaluated at once where chunks would be smaller than `least`,
        or too small for half of what is held at once. Nor are numbers that kernels repeat often
        evaluated in chunks before `BARRIERS_STAND`, inside of the cache.

        Args:
            results: numbers.
            samples: of the batch.
            least: samples in a chunk.
            stored: numbers that products and sums of arrays write, where a program has arrays.
        """
        needed, wanted, joined = self._needed(results)
        apart, row = self._apart(needed, samples), _is_row(needed, joined)
        readers = Counter(number.place for o in needed for number in _computed(o.operands))
        kept = sum(readers[o.place] > 1 and expression_of([o.name]).kept for o in needed)
        everything = sum(numbers.size for numbers in results)
        packed = sum(numbers.size for numbers in results if numbers.size > 1)
        cached = samples * everything <= CACHED
        if not BARRIERS_STAND and cached and not row and _is_repeated(needed, wanted, joined):
            return samples
        held = self._worth_holding(needed, wanted, joined, samples, apart)
        together = len(apart | held) + kept + packed + everything
        # Fewer numbers are worth a pass through memory outside of the cache: what a chunk holds.
        inside = min(samples, max(least, CACHED // together))
        chosen = len(self._worth_holding(needed, wanted, joined, inside, apart) - apart)
        if len(apart | held) > max(kept + stored, HELD_SHARE * everything):
            chunk = min(CACHED // together, int(CHUNK_SHARE * samples * everything / together))
            if row and chunk < least and not apart:
                return samples
        elif chosen <= max(stored, CHOSEN_SHARE * everything):
            return samples
        elif joined and FAR * inside <= samples:
            chunk = inside
        elif chosen > KEPT_SHARE * kept + stored and (
            BARRIERS_STAND or (not joined and inside == samples)
        ):
            chunk = min(inside, -(-samples // CHUNKS))
        else:
            return samples
        chunks = max(1, min(-(-samples // max(1, chunk)), samples // least))
        chunk = -(-samples // chunks)
        if row:
            again = self._worth_holding(needed, wanted, joined, chunk, apart)
            return samples if 2 * len(apart | again) <= len(apart | held) else chunk
        return chunk

    def kernels(self, results: Sequence[Numbers]) -> tuple[int, int]:
        """What XLA makes of the results for one sample.

        Returns:
            How many dear numbers it keeps, each in a kernel, and how many operations it writes into
            these and the results': all others, once for every number that is made of them.
        """
        needed, wanted, _ = self._needed(results)
        return _kept_and_repeated(needed, wanted)

    def _needed(self, results: Sequence[Numbers]) -> tuple[list[_Operation], list[int], set[int]]:
        """The operations that results need, and the places of these, and of those in arrays."""
        wanted = [number.place for numbers in results for number in _computed(numbers.ravel())]
        arrays = [numbers for numbers in results if numbers.size > 1]
        joined = {number.place for numbers in arrays for number in _computed(numbers.ravel())}
        live = set(wanted)
        needed = []
        for operation in reversed(self._operations):
            if operation.place in live:
                needed.append(operation)
                live.update(number.place for number in _computed(operation.operands))
        needed.reverse()
        return needed, wanted, joined

    def _apart(self, operations: Sequence[_Operation], samples: int) -> set[int]:
        """Sines and cosines that are evaluated together for a batch of so many samples."""
        return {o.place for o in operations if o.is_sine} if samples >= SINES_SIZE else set()

    def program(
        self, results: Sequence[Numbers], samples: int, all_samples: int
    ) -> Callable[[Sequence[Numbers]], list[Numbers]]:
        """What computes the results from the inputs' numbers, for a batch of so many samples.

        What no result needs is left out, and what is worth it is written to memory.

        Args:
            results: numbers.
            samples: evaluated at once.
            all_samples: the same program is evaluated for, one chunk after the other.
        """
        needed, wanted, joined = self._needed(results)
        apart = self._apart(needed, all_samples)
        memory = self._worth_holding(needed, wanted, joined, samples, apart)
        sine_and_cosine = sine_and_cosine_from(min(samples, SINES_SIZE))

        def run(inputs: Sequence[Numbers]) -> list[Numbers]:
            values: list[Any] = [value for numbers in inputs for value in numbers.ravel()]
            values += [None] * (len(self.numbers) - self.inputs)

            def read(operand: Any) -> Any:
                return values[operand.place] if isinstance(operand, _Number) else operand

            pairs: dict[Any, Pair] = {}
            for operation in needed:
                place, operands = operation.place, operation.operands
                if place in apart:
                    argument = operands[0].place
                    if argument not in pairs:
                        pairs[argument] = sine_and_cosine(read(operands[0]))
                    values[place] = pairs[argument][SINES.index(operation.name)]
                    continue
                value = operation.call(*map(read, operands))
                values[place] = held(value, (2, UNBOUNDED)) if place in memory else value
            return [filled(numbers.shape, map(read, numbers.ravel())) for numbers in results]

        return run

    def _worth_holding(
        self,
        operations: Sequence[_Operation],
        wanted: Sequence[int],
        joined: Collection[int],
        samples: int,
        apart: Collection[int],
    ) -> set[int]:
        moves = [number.moves for number in self.numbers]
        steps = []
        for operation in operations:
            if moves[operation.place]:
                expression = expression_of([operation.name])
                inputs = tuple(number.place for number in _computed(operation.operands))
                steps.append(
                    Step(
                        inputs,
                        (operation.place,),
                        expression.nanoseconds,
                        1,
                        expression.kept or operation.place in apart,
                        expression.inside,
                    )
                )
        row = _is_row(operations, joined)
        repeated = samples >= BATCH and not row and _is_repeated(operations, wanted, joined)
        side_by_side = joined if samples < BATCH or row or repeated else ()
        fusion = Fusion(steps, [1] * len(moves), wanted, moves, side_by_side)
        fusion.shared.difference_update(apart)
        if repeated:
            return fusion.held_at(samples, JOINED_HELD, JOINED_HOLDING)
        if samples >= BATCH:
            return fusion.held_at(samples, holding=ROW_HOLDING if row else HOLDING)
        if samples == 1:
            return set()
        readers = Counter(place for step in steps for place in step.inputs)
        kept = sum(step.kept and readers[step.outputs[0]] > 1 for step in steps)
        return fusion.held_at(samples, max(0, FEW_KERNELS - 1 - kept), FEW_HOLDING)


def _computed(values: Iterable[Any]) -> list[_Number]:
    return [value for value in values if isinstance(value, _Number)]


def _kept_and_repeated(operations: Iterable[_Operation], wanted: Iterable[int]) -> tuple[int, int]:
    """How many dear numbers XLA keeps, and how many operations it writes into all kernels."""
    inside: dict[int, int] = {}  # for each number a set of operations, as bits
    kept, repeated = 0, 0
    for k, operation in enumerate(operations):
        written = 1 << k
        for number in _computed(operation.operands):
            written |= inside.get(number.place, 0)
        if expression_of([operation.name]).kept:
            kept, repeated = kept + 1, repeated + written.bit_count()
        else:
            inside[operation.place] = written
    repeated += sum(inside.get(place, 0).bit_count() for place in wanted)
    return kept, repeated


def _is_repeated(
    operations: Sequence[_Operation], wanted: Iterable[int], joined: Collection[int]
) -> bool:
    """Whether kernels that write numbers side by side evaluate most operations many times."""
    if not joined:
        return False
    _, repeated = _kept_and_repeated(operations, wanted)
    return repeated >= REPEATED * len(operations)


def _is_row(operations: Iterable[_Operation], joined: Collection[int]) -> bool:
    """Whether one kernel writes few numbers side by side, and evaluates all that they need.

    Of dear numbers XLA makes kernels by itself.
    """
    plain = not any(expression_of([operation.name]).kept for operation in operations)
    return plain and 0 < len(joined) <= FUSED


def _settled(name: str, operands: Sequence[Any]) -> Any:
    """What an operation gives without being carried out, if it does."""
    known = [not isinstance(operand, _Number) for operand in operands]
    if name == "select_n" and known[0]:
        return operands[1 + int(operands[0])]
    if name in COMPARISONS and all(known):
        return COMPARISONS[name](*operands)
    if name in PLACES and all(known) and all(np.asarray(x).dtype.kind == "i" for x in operands):
        with np.errstate(over="ignore"):  # integers wrap
            return PLACES[name](*operands)
    if name in SUMS:
        first, second = operands
        if known[1] and second == 0:
            return first
        if known[0] and first == 0 and name != "sub":
            return second
    return None


def _key(operand: Any) -> Any:
    """What makes two operands the same; zeros of both signs differ."""
    if isinstance(operand, _Number):
        return operand.place
    known = np.asarray(operand)
    return known.dtype.str, known.tobytes()
