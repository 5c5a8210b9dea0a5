"""Which kernels XLA's CPU runtime hands to other threads, and how to keep it from doing so.

XLA's CPU compiler divides a kernel along its first axis where its cost model finds it worth two
threads (`parallel_task_assignment.cc`: 100,000 units each, an operation being one, a transcendental
one two and a byte ten; 256 kB where there is no more than one operation for each byte). To wake a
thread takes longer than what small batches take altogether. Results of a loop over chunks are
written in their place, which it never divides, and a chunk has less to divide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..program.timings import CACHE, expression_of
from .numbers import Numbers
from .packing import FUSED, selections_of, stretches_of
from .recorded import computed_of, kept_places
from .tape import Tape

__all__ = ["ONE_THREAD", "Kernel", "Kernels", "size_on_one_thread"]

#: Units of work and bytes from which on a kernel is handed to a second thread, and units of a byte.
UNITS, BYTES, UNITS_OF_A_BYTE = 200_000, 1 << 19, 10
#: What XLA counts as transcendental, and the units of one.
TRANSCENDENTAL = frozenset(
    """
    atan2 cbrt cos erf exp exp2 expm1 log log1p logistic pow rsqrt sin sqrt tan tanh
    """.split()  # noqa: SIM905
)
UNITS_OF_ONE = 2
#: Nanoseconds of all kernels for a batch up to which one thread is through before two are, and
#: entries of all its results up to which it writes them as soon.
ONE_THREAD, WRITTEN = 40_000.0, 1 << 15
#: Least samples of a chunk, and most chunks.
LEAST, MOST = 128, 8


class Kernel(NamedTuple):
    """What one sample takes in a kernel.

    Attributes:
        operations: that are not transcendental.
        transcendental: the others.
        bytes: that are read and written.
        nanoseconds: of all.
    """

    operations: int
    transcendental: int
    bytes: int
    nanoseconds: float

    def is_divided(self, samples: int) -> bool:
        """Whether so many samples are worth more than one thread to XLA."""
        moved = samples * self.bytes
        if self.operations <= self.bytes:
            return moved >= BYTES
        units = self.operations + UNITS_OF_ONE * self.transcendental
        return samples * units + UNITS_OF_A_BYTE * moved >= UNITS


class Kernels:
    """The kernels that evaluate a batch of a program on numbers."""

    def __init__(self, tape: Tape, results: Sequence[Numbers], samples: int, rows: bool):
        """Find out what is in memory.

        Args:
            tape: the program.
            results: numbers.
            samples: of the batch.
            rows: what branches of kernels write (see `branches_of`).
        """
        needed, _, _ = tape.needed(results)
        apart = tape.apart(needed, samples)
        held = tape.worth_holding(results, samples, apart, rows)
        self.results = results
        self.memory = held.union(apart, kept_places(needed, results, rows, apart.union(held)))
        self._operations = {operation.place: operation for operation in needed}
        self._moves = [number.moves for number in tape.numbers]
        self._sizes = [np.dtype(number.dtype).itemsize for number in tape.numbers]

    def before_results(self) -> list[Kernel]:
        """Those that write what is in memory."""
        return [self._writing([place]) for place in self.memory]

    def of_results(self, selects: Callable[[Numbers], bool]) -> list[Kernel]:
        """Those that write the results; `selects` says of which the entries select theirs."""
        return [
            self._writing_numbers(numbers, selections_of(numbers) if selects(numbers) else 0)
            for numbers in self.results
        ]

    def of_stretches(self) -> list[Kernel]:
        """Those that write parts of results in a chunk, before these are joined (`in_rows`)."""
        long = [numbers for numbers in self.results if numbers.size > FUSED]
        return [self._writing_numbers(part) for numbers in long for part in stretches_of(numbers)]

    def _writing_numbers(self, numbers: Numbers, selections: int = 0) -> Kernel:
        computed = [number.place for number in computed_of(numbers.ravel())]
        return self._writing(computed, numbers.size, selections)

    def _writing(self, places: Sequence[int], written: int = 1, selections: int = 0) -> Kernel:
        """The kernel that writes some numbers and reads what is in memory."""
        own, inside, read = {*places}, set[int](), set[int]()
        waiting = [*own]
        plain, dear, nanoseconds = selections, 0, CACHE * written
        while waiting:
            place = waiting.pop()
            if place in inside or place in read or not self._moves[place]:
                continue  # what all samples have in common is there once
            if place not in self._operations or (place in self.memory and place not in own):
                read.add(place)
                continue
            inside.add(place)
            operation = self._operations[place]
            if operation.name in TRANSCENDENTAL:
                dear += 1
            else:
                plain += 1
            nanoseconds += expression_of([operation.name]).nanoseconds
            waiting.extend(number.place for number in computed_of(operation.operands))
        size = max((self._sizes[place] for place in own), default=0)
        moved = size * written + sum(self._sizes[place] for place in read)
        return Kernel(plain, dear, moved, nanoseconds)


def size_on_one_thread(kernels: Kernels, samples: int, selects: Callable[[Numbers], bool]) -> int:
    """How many samples are evaluated at once so that one thread does all, where that is sooner.

    Args:
        kernels: of the whole batch.
        samples: of it.
        selects: whether the entries of a matrix select theirs.

    Returns:
        Less than `samples` where a loop over chunks is worth it.
    """
    if samples * sum(numbers.size for numbers in kernels.results) > WRITTEN:
        return samples
    before = kernels.before_results()
    whole = before + kernels.of_results(selects)
    little = samples * sum(kernel.nanoseconds for kernel in whole) <= ONE_THREAD
    if not little or not any(kernel.is_divided(samples) for kernel in whole):
        return samples
    chunk = before + kernels.of_stretches()
    for chunks in range(2, MOST + 1):
        size = -(-samples // chunks)
        if size < LEAST:
            break
        if not any(kernel.is_divided(size) for kernel in chunk):
            return size
    return samples
