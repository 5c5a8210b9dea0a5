"""Which arrays of a program are written to memory, for which sizes; `fusion.py` has the model."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from ..edges.operations import Assemble, Combine, Einsum
from .convolutions import convolutions
from .fusion import HOLDING, UNBOUNDED, Fusion, Step
from .instructions import (
    ConstantInstruction,
    EdgeInstruction,
    Instruction,
    LocalInstruction,
    PrimalInstruction,
    Program,
)
from .repeated_sums import repeated_sums
from .sines import SINES_SIZE, sines
from .summed import SINES_INSIDE, within_sums
from .timings import MEMORY, OPERATION, PLACING, Expression, expression_of, local_expression

__all__ = [
    "MAX_INSTRUCTIONS",
    "READING",
    "FusedProgram",
    "deep_expressions",
    "worth_holding",
    "worth_holding_for_derivatives",
]

#: Nanoseconds per element of reading an array that an expression needs, in a Jacobian by arrays,
#: which is no chunk of a batch and has no columns beside them. Once held, one array stands for all.
READING = OPERATION
#: Numbers of samples for which it is decided what to hold.
SAMPLES = (1, 64, 512, 4096, 16384, 65536, 1 << 20)
#: Programs of more instructions are left as they are: deciding takes time as the square of it.
MAX_INSTRUCTIONS = 3000
#: Paths through the operations of one loop that a compiler may follow one by one.
PATHS = 1 << 10


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
    # Programs of second order take as long without: most of their sums are of products.
    ranges = {} if again else repeated_sums(program)
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
    ranges = {slot: (2, UNBOUNDED) for slot, _ in convolutions(program)}
    pairs = sines(program)
    for step in FusedProgram(program, again=True).steps:
        saved = step.nanoseconds - MEMORY * step.work
        if step.inside and not step.kept and saved > 0:
            for slot in step.outputs:
                end = SINES_SIZE if slot in pairs else UNBOUNDED
                ranges[slot] = (math.ceil(HOLDING / saved * step.work), end)
    return ranges


def deep_expressions(program: Program, again: bool = False) -> set[int]:
    """Slots that are held at every size, so that no loop has very many paths through it.

    LLVM's vectorizer looks at every path through a loop that writes as many neighbours as a vector
    has lanes, one after the other: eight Newton steps of one number, differentiated with respect
    to 8 numbers in single precision or 4 in double precision, took minutes to compile.

    Args:
        program: the program.
        again: whether it is of second order.
    """
    return FusedProgram(program, again=again).on_many_paths(PATHS)


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
    if not isinstance(operation, Einsum) or len(operation.reads) < 2:
        return False
    if operation.written_out or operation.looped:
        return False
    first, second = (read.labels - operation.summed for read in operation.reads)
    return bool(operation.summed) and first != second
