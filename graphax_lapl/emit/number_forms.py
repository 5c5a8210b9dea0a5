"""Which form suits a program on numbers: arrays or numbers, and what writes its results.

Both are known before anything is compiled: the program's equations on arrays, and the operations on
numbers that are recorded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..program.fusion import CACHED
from ..program.sines import SINES_SIZE
from ..program.timings import PRIMITIVES, expression_of
from .array_forms import (
    DEAR,
    has_factors,
    has_known_matrix,
    has_long_products,
    has_wide_arrays,
    is_compared,
    is_cumulative,
    is_full,
)
from .holding import BARRIERS_STAND
from .joining import (
    PARTS,
    in_digits,
    in_one_kernel,
    in_one_kernel_of_many,
    in_parts,
    in_short_rows,
)
from .layers import is_layered
from .numbers import BATCH, Numbers, called_by, computed, equations_of, programs_called
from .operations import is_known
from .packing import FUSED, UNROLLED, is_selected
from .stages import FEW_KERNELS
from .tape import Tape
from .threads import ONE_THREAD, Kernels, size_on_one_thread
from .unvectorised import unvectorised

__all__ = ["FEW", "FLOAT", "RecordedProgram"]

#: Results up to which they are few.
FEW = 256
#: Where at most one of many results in so many is not zero, arrays are filled up with zeros.
FULL = 4
#: Entries from which on they are many there, outside of the cache.
MANY_OUTSIDE = 176
#: For a single input, most kernels of numbers for each one that the arrays have within ...
KERNELS = 2
#: ... and most operations that XLA writes into kernels, repeated for every reader: compiling as
#: many takes a second, and more where they are one kernel.
MAX_REPEATED = 6144
#: The same for each equation of the arrays' program, which takes XLA as long as four of them, and
#: operations that it compiles in no time.
REPEATED_EACH, LITTLE = 9, 1024
#: Operations of a kernel from which on a single input's is compiled in half of the time in parts:
#: LLVM takes more than twice as long for twice as many, and XLA compiles several kernels at once.
MUCH_IN_ONE = 400
#: Of all results: most dear numbers where entries select theirs.
DEAR_SHARE = 0.5
#: Operations that entries of a row share, for every entry, from which on branches write rows: what
#: shares less is selected or concatenated sooner.
SHARED = 2.0
#: The same where all arrays are single rows inside of the cache.
SHARED_IN_ONE = 160.0
#: Entries up to which numbers that are only moved are concatenated.
MOVED = FUSED * FUSED
#: Results for each recorded operation from which on more than `FEW` are hardly more than moved.
MOVED_EACH = 8
#: Columns of a matrix from which on entries of few samples select theirs: where all of its numbers
#: are one kernel, that one is vectorised then.
WIDE = FUSED + 1
#: Columns of a matrix that JAX's kernels for arrays are vectorised along without a remainder. Where
#: at most one entry in so many is not zero, so are ours, outside of the cache with a remainder too.
VECTOR, FULL_VECTORS = 8, 2
#: Operations on numbers for each equation on arrays from which on arrays are evaluated sooner, and
#: compiled in a tenth of the time, and most of them for each of the results: where each is made of
#: more, arrays have products in memory. Fewer results than that, none of them zeros, stay numbers.
OPERATIONS_EACH, OPERATIONS_FOR_ONE, FULL_RESULTS = 5, 12, 96
#: Entries made of products with those of a known matrix from which on arrays are, and entries of
#: such a matrix, for each of the result, from which on they are, however few the results.
MANY, KNOWN = 48, 4
#: Nanoseconds for each entry of the results that branches may take longer than vectorised arrays.
UNVECTORISED_SHARE = 0.5
#: Numbers that arrays compute for each operation on numbers from which on dear functions of wide
#: arrays are worth a kernel for every number all the same: in general, and for so many samples and
#: operations for each of the results.
REPEATED, REPEATED_BY_MANY, MANY_REPEATED, MUCH = 3.0, 1.7, 2048, 5
#: Most results that are a few numbers, if none has axes. They are evaluated as numbers unless one
#: operation in so many is dear and arrays compute no more often what is equal.
FEWEST, MOSTLY_DEAR, REPEATED_BY_FEW = 8, 6, 1.1
#: Sines and cosines of many samples that are worth it there: each is in memory.
MOST_SINES = 48
#: Operations, repeated for every reader, up to which few samples of so few results are numbers,
#: however many kernels these are: they are compiled in a second.
REPEATED_FOR_FEW = 3072
#: Samples up to which programs that are mostly products with common weights stay arrays.
WIDE_PRODUCTS = 8192
#: Bytes of an array from which on XLA's runtime hands kernels that wait for nothing to a second
#: thread, unless they are few.
THREADED = 512
#: Bytes of a number in single precision.
FLOAT = 4
#: Nanoseconds of all operations from which on kernels are worth running on several threads.
STAGED_TIME = 100_000.0
#: Samples from which on they are many where results are so many numbers that none is a kernel.
MANY_BATCH = 2


class RecordedProgram(NamedTuple):
    """Operations on numbers, and what they result in."""

    tape: Tape
    results: Sequence[Numbers]

    @property
    def entries(self) -> int:
        """How many numbers all results hold."""
        return sum(numbers.size for numbers in self.results)

    @property
    def operations(self) -> int:
        """How many operations XLA writes into all kernels, repeated for every reader."""
        return self.tape.kernels(self.results)[1]

    @property
    def _recorded_once(self) -> int:
        """How many operations the results need, whatever reads them."""
        return len(self.tape.needed(self.results)[0])

    def suits_single_input(self, jaxpr: Any) -> bool:
        """Whether a single input is evaluated sooner than by a program on arrays.

        An elementwise function of an array is a kernel for what XLA keeps of it, and would be one
        for every number.
        """
        sizes = [math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in jaxpr.outvars]
        if max(sizes) > THREADED:
            kernels = self.tape.kernels_apart(self.results) + len(self.results)
            if kernels > FEW_KERNELS or self._is_mostly_zero(jaxpr, 1):
                return False
        suits = self.suits_few_samples(jaxpr, 1) and self._compiles_in_time(jaxpr)
        return suits and not self._is_of_wide_arrays(jaxpr, 1)

    def _compiles_in_time(self, jaxpr: Any) -> bool:
        """Whether compiling takes no more than twice as long, or half of the kernels go away."""
        kernels, repeated = self.tape.kernels(self.results)
        most = max(LITTLE, REPEATED_EACH * equations_of(jaxpr))
        in_time = repeated <= most or self._is_of_numbers(jaxpr)
        return in_time or KERNELS * kernels < _kernels(jaxpr)

    def _is_of_numbers(self, jaxpr: Any) -> bool:
        """Whether arrays are hardly anything but single numbers, and compile no sooner."""
        return self._recorded_once <= equations_of(jaxpr)

    def suits_few_samples(self, jaxpr: Any, samples: int) -> bool:
        """Whether a few samples wait for fewer kernels than those of a program on arrays."""
        repeated = self.operations
        if repeated > MAX_REPEATED and samples > 1:
            repeated = self.tape.written(self.results, samples)
        in_time = repeated <= MAX_REPEATED or (samples == 1 and self._is_of_numbers(jaxpr))
        return in_time and self._has_few_kernels(jaxpr)

    def _has_few_kernels(self, jaxpr: Any) -> bool:
        """Whether XLA keeps not many more numbers than arrays, each in a kernel.

        Where no array of several is put together, each of a few results is a kernel as well.
        """
        kernels, repeated = self.tape.kernels(self.results)
        alone = self._is_few_numbers and repeated <= REPEATED_FOR_FEW
        return alone or kernels <= KERNELS * _kernels(jaxpr)

    def for_samples(self, jaxpr: Any, samples: int) -> RecordedProgram:
        """The same program, whose tape knows from how many samples on they are many.

        Usually fewer than `BATCH` are few: one thread evaluates them in few kernels. What takes
        that one no longer than waking up another is evaluated in stages for more samples. Results
        that are too many numbers for a kernel each are written as those of many samples are, unless
        compiling would take longer than is made up for.
        """
        tape, results = self.tape, self.results
        if not tape.has_few(results):
            in_time = samples >= BATCH or self.operations <= MAX_REPEATED
            suits = in_time and self._has_few_kernels(jaxpr)
            return self.many_from(MANY_BATCH) if suits else self
        if not BARRIERS_STAND or not BATCH <= samples < SINES_SIZE or not tape.kernels(results)[0]:
            return self
        each = sum(expression_of([o.name]).nanoseconds for o in tape.needed(results)[0])
        staged = self.many_from(max(BATCH, int(STAGED_TIME / max(1.0, each))))
        suits = staged.are_few(samples) and staged.tape.stages(results, samples) is not None
        return staged if suits and staged.suits_few_samples(jaxpr, samples) else self

    def many_from(self, samples: int) -> RecordedProgram:
        """The same, with so many samples being many."""
        return RecordedProgram(self.tape.many_from(samples), self.results)

    def are_few(self, samples: int) -> bool:
        """Whether so many samples are few."""
        return samples < self.tape.batch

    def waits_for_threads(self, samples: int) -> bool:
        """Whether kernels of so few samples would be handed to other threads, and stages help."""
        tape, results = self.tape, self.results
        if not tape.may_be_staged(results, samples) or tape.most_ready(results) <= FEW_KERNELS:
            return False
        return tape.stages(results, samples) is not None

    def suits_arrays(self, jaxpr: Any, own: Sequence[bool], samples: int, wide: bool) -> bool:
        """Whether arrays evaluate so many samples sooner; `wide` is that of `in_numbers`."""
        if self.entries <= FEW and has_factors(jaxpr, own):
            return False
        if self._is_mostly_zero(jaxpr, samples) or self._is_vectorised(jaxpr, own, samples):
            return True
        if self._is_of_wide_arrays(jaxpr, samples):
            return True
        if self._is_moved(jaxpr) and not self._suits_moves(samples):
            return True
        if self._is_few_numbers and not self._has_many_sines(samples):
            return self._is_mostly_dear and not self._is_repeated(jaxpr, REPEATED_BY_FEW)
        if not is_full(self.results):
            return self.entries > FEW and self._is_scaled(jaxpr, own)
        if wide and samples <= WIDE_PRODUCTS:
            return True
        if has_known_matrix(jaxpr, own, max(MANY, KNOWN * self.entries)):
            return True
        in_turn = self.entries < MANY and is_cumulative(jaxpr, own)
        if self.are_few(samples) or in_turn:
            return has_long_products(jaxpr, own) or self._is_scaled(jaxpr, own)
        much = samples >= MANY_REPEATED and self._recorded_once >= MUCH * self.entries
        least = REPEATED_BY_MANY if much else REPEATED
        wide = has_wide_arrays(jaxpr, own) and not self._is_repeated(jaxpr, least)
        return wide or self._is_scaled(jaxpr, own)

    def _is_repeated(self, jaxpr: Any, least: float) -> bool:
        """Whether arrays compute so many times as many numbers: equal ones, and known ones."""
        return computed(jaxpr) >= least * self._recorded_once

    @property
    def _is_few_numbers(self) -> bool:
        """Whether the results are a few numbers, as Laplacians are, and no array of several."""
        return self.entries <= FEWEST and all(numbers.size == 1 for numbers in self.results)

    def _has_many_sines(self, samples: int) -> bool:
        """Whether more sines are written to memory than are worth it."""
        needed = self.tape.needed(self.results)[0]
        return samples >= SINES_SIZE and sum(o.is_sine for o in needed) > MOST_SINES

    @property
    def _is_mostly_dear(self) -> bool:
        """Whether so much is dear that little is saved around it."""
        needed = self.tape.needed(self.results)[0]
        dear = sum(PRIMITIVES.get(operation.name, 0.0) >= DEAR for operation in needed)
        return MOSTLY_DEAR * dear >= len(needed)

    def _is_vectorised(self, jaxpr: Any, own: Sequence[bool], samples: int) -> bool:
        """Whether arrays evaluate the dear functions of results that are mostly zeros sooner."""
        if self.are_few(samples) or is_full(self.results) or not is_compared(jaxpr):
            return False
        if samples * self.entries > CACHED and has_wide_arrays(jaxpr, own):
            return True
        needed, wanted, _ = self.tape.needed(self.results)
        return unvectorised(needed, wanted, samples) > UNVECTORISED_SHARE * self.entries

    def _is_of_wide_arrays(self, jaxpr: Any, samples: int) -> bool:
        """Whether an equation on arrays stands for many operations on numbers in the mean.

        Outside of the cache it may not where arrays would pick and place many zeros.
        """
        least, most = OPERATIONS_EACH * equations_of(jaxpr), OPERATIONS_FOR_ONE * self.entries
        if not least <= self._recorded_once <= most:
            return False
        if is_full(self.results):
            return self.entries >= FULL_RESULTS
        inside = samples >= BATCH and samples * self.entries <= CACHED
        return self.entries > FEW and (inside or is_compared(jaxpr))

    def _is_moved(self, jaxpr: Any) -> bool:
        """Whether hardly anything but moves makes many results."""
        many = self.entries > FEW and MOVED_EACH * self._recorded_once <= self.entries
        return many or computed(jaxpr) == 0

    def _suits_moves(self, samples: int) -> bool:
        """Whether matrices of numbers that are only moved are written by one kernel."""
        outside = self._is_outside(samples, sines=False)
        return all(
            numbers.ndim > 1
            and not all(is_known(number) for number in numbers.ravel())
            and (self.entries <= MOVED or is_layered(numbers, 0, outside))
            for numbers in self.results
        )

    def _is_scaled(self, jaxpr: Any, own: Sequence[bool]) -> bool:
        """Whether most of many entries are made of products with those of a known matrix."""
        if self.entries < MANY or not has_known_matrix(jaxpr, own, self.entries // 2):
            return False
        return 2 * self.tape.scaled(self.results) > self._there

    @property
    def _there(self) -> int:
        """How many entries of the results are no zeros."""
        return sum(int(np.count_nonzero(numbers != 0)) for numbers in self.results)

    def _is_mostly_zero(self, jaxpr: Any, samples: int) -> bool:
        """Whether most results are zeros, which arrays are filled up with.

        They are many, or rows of whole vectors that are compared with positions.
        """
        outside = self._is_outside(samples, sines=False)
        if FULL * self._there <= self.entries > (MANY_OUTSIDE if outside else FEW):
            return True
        if self.entries > FEW:
            return False
        columns = [numbers.shape[-1] if numbers.ndim > 1 else 1 for numbers in self.results]
        if not all(found >= VECTOR and (outside or found % VECTOR == 0) for found in columns):
            return False
        return FULL_VECTORS * self._there < self.entries and is_compared(jaxpr)

    def has_shared_rows(self, samples: int) -> bool:
        """Whether branches for every entry would evaluate much that a row needs once.

        Where all arrays are single rows, of gradients, entries are branches inside of the cache:
        more is held for them, and evaluated along the samples, unless they share very much. So they
        are beside single numbers, kernels of their own that need much of the same.
        """
        if any(numbers.size == 1 for numbers in self.results):
            return False
        in_one = all(numbers.size == numbers.shape[-1] for numbers in self.results)
        least = SHARED_IN_ONE if in_one and samples * self.entries <= CACHED else SHARED
        return self.tape.shared_in_rows(self.results) > least * self.entries

    def join(self, samples: int, rows: bool, sines: bool) -> Callable[[Numbers], Any]:
        """How one kernel puts an array together for a batch.

        What is selected from is repeated along the columns, and dear numbers that are repeated have
        a kernel of their own.

        Args:
            samples: of the batch.
            rows: whether branches write rows.
            sines: whether that kernel evaluates sines: where entries select, once for a sample.
        """
        others = in_one_kernel
        if self._may_select():
            least = WIDE if self.are_few(samples) else 0
            outside = self._is_outside(samples, sines)
            others = functools.partial(
                in_one_kernel_of_many,
                samples=samples,
                outside=outside,
                columns=least,
                operations=None if self.are_few(samples) or sines else self.operations,
            )
        return functools.partial(in_short_rows, others=others) if rows else others

    def join_one(self) -> Callable[[Numbers], Any]:
        """How an array of a single input is put together.

        Memory for parts is no more to allocate where kernels have some in any case, and dear
        numbers that parts share are evaluated once.
        """
        apart, arrays = self.tape.kernels_apart(self.results), len(self.results)
        kept, operations = self.tape.kernels(self.results)
        small = all(numbers.size * FLOAT <= THREADED for numbers in self.results)
        in_turn = small or apart + PARTS * arrays <= FEW_KERNELS
        much = operations >= MUCH_IN_ONE * arrays
        return in_parts if (apart or kept) and much and in_turn else in_digits

    def size_on_one_thread(self, samples: int, rows: bool) -> int:
        """How many samples of a small batch are evaluated at once, so that no thread is woken.

        Before `BARRIERS_STAND` a chunk's arrays are joined before they are written in their place.
        """
        if not BARRIERS_STAND and any(numbers.size > 1 for numbers in self.results):
            return samples
        needed, _, _ = self.tape.needed(self.results)
        each = sum(expression_of([operation.name]).nanoseconds for operation in needed)
        if samples * each > ONE_THREAD:
            return samples
        outside = self._is_outside(samples, sines=False)
        least = WIDE if self.are_few(samples) else 0

        def selects(numbers: Numbers) -> bool:
            wide = numbers.ndim > 1 and numbers.shape[-1] >= least
            return wide and not rows and self._may_select() and is_selected(numbers, outside)

        kernels = Kernels(self.tape, self.results, samples, rows)
        return size_on_one_thread(kernels, samples, selects)

    def has_sines_inside(self, samples: int, stored: int) -> bool:
        """Whether sines of many samples are evaluated in the kernel that reads them."""
        outside = self._is_outside(samples, sines=True)
        once = self._may_select() and all(
            found.size <= UNROLLED and is_selected(found, outside) for found in self.results
        )
        return self.tape.has_sines_inside(
            self.results, samples, once, self.has_shared_rows(samples), stored
        )

    def _may_select(self) -> bool:
        return self.tape.kernels(self.results)[0] <= DEAR_SHARE * self.entries

    def _is_outside(self, samples: int, sines: bool) -> bool:
        """Whether selections are worth it for more entries, as they are outside of the cache."""
        return samples * self.entries > CACHED or (sines and self.entries <= UNROLLED)


def _kernels(jaxpr: Any) -> int:
    """How many arrays are in memory before they are read."""
    own = sum(
        expression_of([equation.primitive.name]).kept
        for equation in jaxpr.eqns
        if called_by(equation.primitive.name, equation.params) is None
    )
    return own + sum(map(_kernels, programs_called(jaxpr)))
