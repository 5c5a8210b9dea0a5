"""How often a compiler that fuses evaluates each array, and which are worth writing to memory.

XLA evaluates an elementwise expression again in every kernel that reads it, directly or through
further elementwise expressions. A Jacobian has many outputs that share few intermediates, so most
of its time goes into evaluating them again. Here the kernels are taken to be the results (one for
each term of a block), what XLA keeps in memory by itself, and what is *held*: written to memory on
purpose. From that follows how often every array is evaluated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property

from ..edges.values import record
from .timings import CACHE, KERNEL, MEMORY, SLICED

__all__ = ["CACHED", "HOLDING", "UNBOUNDED", "Fusion", "Step"]

#: Nanoseconds of holding an array, whatever its size: a few small kernels.
HOLDING = 4 * KERNEL
#: Elements of all results together that still leave room in the cache.
CACHED = 1 << 19
UNBOUNDED = 1 << 62
#: Most arrays that are held: each of them is compiled as a kernel or two of its own.
MAX_HELD = 24


@record
class Step:
    """An instruction as a piece of a fused loop.

    Attributes:
        inputs: the slots it reads.
        outputs: the slots it writes.
        nanoseconds: of one evaluation, all elements.
        work: elements of the loop.
        kept: its result is in memory before it is read.
        inside: its operands are evaluated inside its own loop.
        once: even so, each of their elements is evaluated once.
        sliced: its loop reads slices of them, so that what is evaluated inside is not vectorised.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nanoseconds: float
    work: int
    kept: bool
    inside: bool
    once: bool = False
    sliced: bool = False


class Fusion:
    """Steps as a compiler fuses them into kernels; times are those of one sample of a batch."""

    #: Nanoseconds per element of every array in memory that an expression reads.
    reading = 0.0

    def __init__(
        self,
        steps: Sequence[Step],
        sizes: Sequence[int],
        results: Sequence[int],
        arrays: Sequence[bool],
        side_by_side: Collection[int] = (),
        kernels: Sequence[int] | None = None,
    ):
        """Find out what has several readers.

        Args:
            steps: what is evaluated, in order.
            sizes: elements of every slot.
            results: slots that results are made of, one entry for each kernel that reads them.
            arrays: for every slot whether it can be held.
            side_by_side: results that are written beside others of the same sample, so that what
                is evaluated with them is not vectorised.
            kernels: for every entry of `results` which kernel reads it, or which of the branches of
                one; if not given, each is read by another one.
        """
        self.steps, self.sizes, self.results = steps, sizes, results
        self.side_by_side = side_by_side
        self.kernels = range(len(results)) if kernels is None else kernels
        readers = Counter(results)
        readers.update(slot for step in steps for slot in step.inputs)
        repeated = {
            slot
            for step in steps
            for slot in step.inputs
            if step.inside and not step.once and step.work > sizes[slot]
        }
        #: Arrays that are read more than once: only holding these can save anything.
        self.shared = {
            slot
            for slot, count in readers.items()
            if (count > 1 or slot in repeated) and arrays[slot]
        }
        self._times: dict[int, float] = {}
        self._elements: dict[tuple[int, int], int] = {}

    @cached_property
    def unheld(self) -> list[float]:
        """How often every slot is evaluated if nothing is held."""
        return self.evaluations(())

    def evaluations(self, held: Collection[int]) -> list[float]:
        """How often every slot is evaluated: in how many kernels, and how often in each.

        An evaluation that is not vectorised counts as several.
        """
        return self._backward(set(held), None)

    def nanoseconds(self, held: Collection[int]) -> float:
        """What one sample takes if some slots are held."""
        often = self.evaluations(held)
        return sum(often[slot] * step.nanoseconds for step in self.steps for slot in step.outputs)

    def expressions(self, held: Collection[int]) -> list[float]:
        """Nanoseconds of evaluating a slot once, with all that is evaluated in the same loop."""
        return self._forward(set(held), None, range(len(self.sizes)))

    def on_many_paths(self, most: int) -> set[int]:
        """Slots that are written to memory so that few paths lead from there to what is in memory.

        A path leads through the operations of a loop, from a result to something it reads. Their
        number grows exponentially with the depth of what is read more than once.

        Args:
            most: paths from which on a slot that is read more than once is written.
        """
        paths, found = [1] * len(self.sizes), set()
        for step in self.steps:
            total = max(1, sum(paths[slot] for slot in step.inputs)) if step.inside else 1
            for slot in step.outputs:
                shared = slot in self.shared
                if shared and not step.kept and total >= most:
                    found.add(slot)
                paths[slot] = 1 if shared and (step.kept or total >= most) else total
        return found

    def held_at(self, samples: int, most: int = MAX_HELD, holding: float = HOLDING) -> set[int]:
        """At most so many slots that are worth writing to memory for a batch of so many samples.

        What reading costs decides which of several slots stand for each other, and no sweep finds
        the best ones. Where it counts, what is chosen at half of it is compared: the kernels of
        what is taken evaluate and read less together.
        """
        everything = samples * sum(self.sizes[slot] for slot in self.results)
        if everything > CACHED:
            return self._chosen(samples, MEMORY, 0.0, most, holding)
        held = self._chosen(samples, CACHE, self.reading, most, holding)
        if not held or not self.reading:
            return held
        other = self._chosen(samples, CACHE, self.reading / 2, most, holding)
        if other == held:
            return held
        return min((held, other), key=lambda slots: self._together(slots, samples))

    def _together(self, held: set[int], samples: int) -> float:
        """Nanoseconds of all kernels, each held array being written by one of its own."""
        costs = self._forward(held, None, range(len(self.sizes)), self.reading)
        kept = [slot for step in self.steps if step.kept for slot in step.outputs]
        kernels = [*self.results, *held, *(slot for slot in kept if slot not in held)]
        written = sum(KERNEL + samples * CACHE * self.sizes[slot] for slot in held)
        return written + samples * sum(costs[slot] for slot in kernels)

    def _chosen(
        self,
        samples: int,
        memory: float,
        reading: float,
        most: int = MAX_HELD,
        holding: float = HOLDING,
    ) -> set[int]:
        """The slots that are worth it if passing through memory and reading take so long.

        One sweep from the inputs on takes what saves more than it costs, given what was taken
        before; one back from the results returns what others have made needless.
        """

        def is_worth(slot: int, evaluations: float, expression: float) -> bool:
            saved = samples * (evaluations - 1) * expression
            return saved > holding + samples * memory * self.sizes[slot]

        often, held = self.unheld, set[int]()
        self._forward(
            held, lambda slot, cost: is_worth(slot, often[slot], cost), self.shared, reading
        )
        costs = self._forward(held, None, held, reading)
        self._backward(held, lambda slot, times: is_worth(slot, times, costs[slot]))
        if len(held) <= most:
            return held
        often, costs = self.evaluations(held), self._forward(held, None, held, reading)
        return set(sorted(held, key=lambda slot: -(often[slot] - 1) * costs[slot])[:most])

    def _backward(self, held: set[int], keep: Callable[[int, float], bool] | None) -> list[float]:
        """Evaluations of every slot; removes from `held` what is not to be kept."""
        kernels = [0] * len(self.sizes)
        repeated = [1.0] * len(self.sizes)
        sliced = [False] * len(self.sizes)
        singly = [False] * len(self.sizes)
        counted = [0.0] * len(self.sizes)
        for number, slot in zip(self.kernels, self.results, strict=True):
            kernels[slot] |= 1 << number
        for slot in self.side_by_side:
            singly[slot] = True
        number = max(self.kernels, default=-1) + 1
        for step in reversed(self.steps):
            own, times, slices, single = 0, 1.0, False, False
            for slot in step.outputs:
                own |= kernels[slot]
                times, slices = max(times, repeated[slot]), slices or sliced[slot]
                single = single or singly[slot]
                slower = SLICED if sliced[slot] and repeated[slot] > 1 else 1.0
                slower = SLICED if singly[slot] else slower
                counted[slot] = kernels[slot].bit_count() * repeated[slot] * slower
                if keep is not None and slot in held and not keep(slot, counted[slot]):
                    held.remove(slot)
            if step.kept or not held.isdisjoint(step.outputs):
                own, times, slices, single = 1 << number, 1.0, False, False
                number += 1
            for slot in step.inputs:
                kernels[slot] |= own
                singly[slot] = singly[slot] or (single and step.inside)
                if step.inside and not step.once:
                    repeated[slot] = max(repeated[slot], times * step.work / self.sizes[slot])
                    sliced[slot] = sliced[slot] or slices or step.sliced
        return counted

    def _forward(
        self,
        held: set[int],
        take: Callable[[int, float], bool] | None,
        asked: Collection[int],
        reading: float = 0.0,
    ) -> list[float]:
        """Cost of the expressions of the slots asked for; adds to `held` those to be taken.

        `reading` is what an element of every array that they read takes.
        """
        inside = [0] * len(self.sizes)
        read = [1 << slot for slot in range(len(self.sizes))]
        cost = [0.0] * len(self.sizes)
        for number, step in enumerate(self.steps):
            own, arrays = 1 << number, 0
            if step.inside:
                for slot in step.inputs:
                    own |= inside[slot]
                    arrays |= read[slot]
            for slot in step.outputs:
                if slot in asked:
                    cost[slot] = self._time(own)
                    cost[slot] += reading * self._more_elements(slot, arrays) if reading else 0.0
                    if take is not None and not step.kept and take(slot, cost[slot]):
                        held.add(slot)
                if not step.kept and slot not in held:
                    inside[slot], read[slot] = own, arrays
        return cost

    def _more_elements(self, slot: int, arrays: int) -> int:
        """How many more elements some arrays have than the slot that is made of them."""
        size = self.sizes[slot]
        found = self._elements.get((size, arrays))
        if found is None:
            found = max(0, sum(min(size, self.sizes[k]) for k in _bits(arrays)) - size)
            self._elements[size, arrays] = found
        return found

    def _time(self, steps: int) -> float:
        """Nanoseconds of some steps; the same ones are asked for at every number of samples."""
        found = self._times.get(steps)
        if found is None:
            found = self._times[steps] = sum(self.steps[k].nanoseconds for k in _bits(steps))
        return found


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
