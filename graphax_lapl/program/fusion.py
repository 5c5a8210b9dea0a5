"""How often a compiler that fuses evaluates each array of a program, and what to do about it.

XLA evaluates an elementwise expression again in every kernel that reads it, directly or through
further elementwise expressions. A Jacobian has many outputs that share few intermediates, so most
of its time goes into evaluating them again. Here the kernels are taken to be the results (one for
each term of a block), what XLA keeps in memory by itself, and what is *held*: written to memory on
purpose. From that follows how often every array is evaluated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property

from ..edges.operations import ApplyOpaque, Assemble, Combine, Einsum
from ..edges.values import record
from .instructions import (
    ConstantInstruction,
    EdgeInstruction,
    Instruction,
    LocalInstruction,
    OpaqueInstruction,
    PrimalInstruction,
    Program,
)
from .sines import SINES_SIZE, sines
from .summed import SINES_INSIDE, within_sums
from .timings import (
    CACHE,
    KERNEL,
    MEMORY,
    OPERATION,
    PLACING,
    SLICED,
    Expression,
    expression_of,
    local_expression,
)

__all__ = [
    "CACHED",
    "HOLDING",
    "MAX_INSTRUCTIONS",
    "UNBOUNDED",
    "FusedProgram",
    "Fusion",
    "Step",
    "convolution_results",
    "scales_before_convolutions",
    "worth_holding",
    "worth_holding_for_derivatives",
]

#: Nanoseconds of holding an array, whatever its size: a few small kernels.
HOLDING = 4 * KERNEL
#: Nanoseconds per element of reading an array that an expression needs, in a Jacobian by arrays,
#: which is no chunk of a batch and has no columns beside them. Once held, one array stands for all.
READING = OPERATION
#: Elements of all results together that still leave room in the cache.
CACHED = 1 << 19
#: Numbers of samples for which it is decided what to hold.
SAMPLES = (1, 64, 512, 4096, 16384, 65536, 1 << 20)
UNBOUNDED = 1 << 62
#: Most arrays that are held: each of them is compiled as a kernel or two of its own.
MAX_HELD = 24
#: Programs of more instructions are left as they are: deciding takes time as the square of it.
MAX_INSTRUCTIONS = 3000


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
    ):
        """Find out what has several readers.

        Args:
            steps: what is evaluated, in order.
            sizes: elements of every slot.
            results: slots that results are made of, one entry for each kernel that reads them.
            arrays: for every slot whether it can be held.
            side_by_side: results that are written beside others of the same sample, so that what
                is evaluated with them is not vectorised.
        """
        self.steps, self.sizes, self.results = steps, sizes, results
        self.side_by_side = side_by_side
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

    def expressions(self, held: Collection[int]) -> list[float]:
        """Nanoseconds of evaluating a slot once, with all that is evaluated in the same loop."""
        return self._forward(set(held), None, range(len(self.sizes)))

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
        for number, slot in enumerate(self.results):
            kernels[slot] |= 1 << number
        for slot in self.side_by_side:
            singly[slot] = True
        number = len(self.results)
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


class FusedProgram(Fusion):
    """A program as kernels."""

    def __init__(
        self,
        program: Program,
        apart: bool = False,
        once: Collection[int] = (),
        again: bool = False,
    ):
        """Read off what every instruction costs.

        Args:
            program: the program.
            apart: whether the arrays are so large that sines have loops of their own.
            once: slots that are made without evaluating anything more than once.
            again: whether it is of second order. Products written out, and sums of terms in their
                places, are then taken to be in memory: most of its products are the library's.
        """
        self.program, self.once, self.again = program, once, again
        self.reading = 0.0 if again else READING
        pairs = sines(program)
        #: Sines that sums evaluate, and those that are in memory before they are read.
        self.inside = {slot for slot, sine in pairs.items() if sine.inside}
        self.stored = pairs.keys() - self.inside if apart else set()
        self.sizes = [max(1, math.prod(slot.shape)) for slot in program.slots]
        steps = [self._step(instruction) for instruction in program.instructions]
        results = list(_read_by_results(program))
        super().__init__(steps, self.sizes, results, [slot.array for slot in program.slots])

    def _step(self, instruction: Instruction) -> Step:
        work = max((self.sizes[s] for s in instruction.outputs), default=1)
        expression = Expression(0.0, True, False)
        if isinstance(instruction, EdgeInstruction):
            operation, cost = instruction.operation, instruction.operation.cost
            if isinstance(operation, Einsum | Combine):
                work = math.prod(size for _, size in operation.sizes)
                kept = _is_sum(operation, written_out=self.again)
                expression = Expression(0.0, kept, not _is_matrix_product(operation))
            nanoseconds = (cost.muls + cost.adds) * OPERATION
            if not self.again and isinstance(operation, Assemble) and _is_placed(operation):
                # Every element of the loop asks of every term whether it stands there.
                expression = Expression(0.0, False, True)
                nanoseconds += len(operation.structure.terms) * work * PLACING
        elif isinstance(instruction, PrimalInstruction):
            name = instruction.equation.name
            if name == "div" and self.sizes[instruction.inputs[-1]] < work:
                name = "mul"  # by the reciprocal of what is repeated
            expression = expression_of([name])
            work = max(work, *(self.sizes[s] for s in instruction.inputs), 1)
            nanoseconds = work * expression.nanoseconds
        elif isinstance(instruction, LocalInstruction):
            slots = self.program.slots
            types = tuple((slots[s].shape, slots[s].dtype) for s in instruction.inputs)
            expression = local_expression(instruction.local.fun, types)
            nanoseconds = work * expression.nanoseconds
        else:
            nanoseconds = 0.0
            if isinstance(instruction, ConstantInstruction):
                expression = Expression(0.0, False, True)
        return Step(
            instruction.inputs,
            instruction.outputs,
            nanoseconds,
            work,
            expression.kept or not self.stored.isdisjoint(instruction.outputs),
            expression.inside,
            bool(instruction.outputs) and all(s in self.once for s in instruction.outputs),
            not self.again and _is_written_out(instruction),
        )


def worth_holding(program: Program, again: bool = False) -> dict[int, tuple[int, int]]:
    """Slots that are worth holding, and for which sizes.

    Args:
        program: the program.
        again: whether it is of second order. Its columns pass through products of matrices, which
            a library evaluates together with what their operands are made of, each array at its
            own size: what is repeated along the columns is not evaluated for each of them.

    Returns:
        For each slot the number of elements (those of a batch together) from which on it is worth
        it, and the one from which on it is no more: a little arithmetic is repeated rather than
        read from outside the cache.
    """
    if len(program.instructions) > MAX_INSTRUCTIONS:
        return {}
    pairs = sines(program)
    once = within_sums(program, products=True) if again else frozenset()
    small = FusedProgram(program, once=once, again=again)
    large = FusedProgram(program, apart=True, once=once, again=again) if pairs else small
    within = within_sums(program) if SINES_INSIDE else frozenset()
    for fused in (small, large):
        fused.shared -= fused.inside | fused.stored | within
    largest = max((small.sizes[slot] for slot in pairs), default=0)
    ranges: dict[int, tuple[int, int]] = {}
    for samples, end in zip(SAMPLES, (*SAMPLES[1:], UNBOUNDED), strict=True):
        fused = large if samples * largest >= SINES_SIZE else small
        for slot in fused.held_at(samples):
            size = fused.sizes[slot]
            first, _ = ranges.get(slot, (samples * size, 0))
            ranges[slot] = (first, min(end * size, SINES_SIZE) if slot in pairs else end * size)
    return ranges


def worth_holding_for_derivatives(program: Program) -> dict[int, tuple[int, int]]:
    """Slots that are worth holding where the program is differentiated, and for which sizes.

    A Laplacian in a loss is: the derivative's kernels then read what the program has one reader
    for, and the product with the transposed operand of a convolution reads that operand again.
    """
    if len(program.instructions) > MAX_INSTRUCTIONS:
        return {}
    ranges = {slot: (2, UNBOUNDED) for slot, _ in _convolutions(program)}
    pairs = sines(program)
    for step in FusedProgram(program, again=True).steps:
        saved = step.nanoseconds - MEMORY * step.work
        if step.inside and not step.kept and saved > 0:
            for slot in step.outputs:
                end = SINES_SIZE if slot in pairs else UNBOUNDED
                ranges[slot] = (math.ceil(HOLDING / saved * step.work), end)
    return ranges


def convolution_results(program: Program) -> frozenset[int]:
    """Slots of columns that have passed through a convolution.

    Its derivatives with respect to both operands read the same cotangent, in two orders of its
    axes.
    """
    return frozenset(slot for _, slot in _convolutions(program))


def scales_before_convolutions(program: Program) -> frozenset[int]:
    """Slots that columns are multiplied by on their way into a convolution, and that others read.

    XLA evaluates a slope once for the columns and once for the sum of their squares, and runs what
    is ready first: the next convolution, while the columns before the slope are still needed. With
    the slope in memory both are ready at once, and that sum comes first.
    """
    makers = {slot: i for i in program.instructions for slot in i.outputs}
    readers = Counter(slot for i in program.instructions for slot in set(i.inputs))
    found: set[int] = set()
    for operand, _ in _convolutions(program):
        made = makers.get(operand)
        if made is not None and isinstance(getattr(made, "operation", None), Assemble):
            made = makers.get(made.inputs[0]) if made.inputs else None  # ones alone, put in place
        if made is not None and isinstance(getattr(made, "operation", None), Einsum):
            found.update(slot for slot in made.inputs if slot in makers and readers[slot] > 1)
    return frozenset(slot for slot in found if not isinstance(makers[slot], EdgeInstruction))


def _convolutions(program: Program) -> Iterator[tuple[int, int]]:
    """Operand and result of every convolution that columns pass through.

    Its derivative reads the operand again, transposed.
    """
    maps = {
        slot
        for instruction in program.instructions
        if isinstance(instruction, OpaqueInstruction)
        and instruction.reference.equation.name == "conv_general_dilated"
        for slot in instruction.outputs
    }
    for instruction in program.instructions:
        if isinstance(getattr(instruction, "operation", None), ApplyOpaque):
            linear, operand = instruction.inputs
            if linear in maps:
                yield operand, instruction.outputs[0]


def _read_by_results(program: Program) -> Iterator[int]:
    """The slots that results are made of, one entry for each kernel that reads them."""
    for row in program.blocks:
        for block in row:
            yield from block.slots
    yield from program.values


def _is_sum(operation: Einsum | Combine, written_out: bool) -> bool:
    """Whether it sums over a label in a loop of its own, whose result is in memory.

    Args:
        operation: the operation.
        written_out: what is said of a product that is written out as a few elementwise ones.
    """
    if isinstance(operation, Einsum) and operation.written_out:
        return written_out
    if isinstance(operation, Einsum):
        return bool(operation.summed)
    return {n for n, _ in operation.sizes} - {*operation.output} != set()


def _is_written_out(instruction: Instruction) -> bool:
    """Whether it is a product that is written out as a few elementwise ones of slices."""
    operation = getattr(instruction, "operation", None)
    return isinstance(operation, Einsum) and operation.written_out


def _is_placed(operation: Assemble) -> bool:
    """Whether it is a sum of several terms, each of which is put into its place."""
    return len(operation.structure.terms) > 1


def _is_matrix_product(operation: Einsum | Combine) -> bool:
    """Whether both operands have labels of their own, so that they are in memory first."""
    if not isinstance(operation, Einsum) or len(operation.reads) < 2 or operation.written_out:
        return False
    first, second = (read.labels - operation.summed for read in operation.reads)
    return bool(operation.summed) and first != second


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
