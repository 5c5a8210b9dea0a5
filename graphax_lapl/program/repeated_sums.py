"""Sums that one reader repeats along other axes: XLA would add up again for every repetition.

The Jacobian of `x / sum(x)` subtracts a sum from every row. XLA's CPU compiler evaluates a sum that
only one kernel reads inside of that kernel, in a loop for each of its elements, although it has
anything else that is dear in memory there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from ..edges.operations import Combine, Einsum
from .fusion import HOLDING, UNBOUNDED
from .instructions import EdgeInstruction, Instruction, PrimalInstruction, Program
from .timings import IN_MEMORY, OPERATION, SLICED

__all__ = ["repeated_sums"]

#: Primitives of the user's function that sum in a loop of their own.
SUMS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"})


def repeated_sums(program: Program) -> dict[int, tuple[int, int]]:
    """Slots of such sums, and for how many elements they are worth holding.

    Args:
        program: the program.

    Returns:
        For each slot the number of elements, those of a batch together, from which on holding it
        takes less than the repeated additions, and no bound.
    """
    once = {slot for slot, count in program.readers().items() if count == 1}
    added = {
        instruction.outputs[0]: _added(program, instruction)
        for instruction in program.instructions
        if len(instruction.outputs) == 1 and instruction.outputs[0] in once
    }
    found = {}
    # XLA would have a kernel for most of them: holding one is little more.
    for slot, times in _repetitions(program).items():
        if times > 1 and added.get(slot):
            repeated = added[slot] * (times - 1) * OPERATION * SLICED
            samples = max(1, math.ceil(HOLDING / 2 / repeated))
            found[slot] = (samples * _size(program, slot), UNBOUNDED)
    return found


def _added(program: Program, instruction: Instruction) -> int:
    """How many numbers an instruction adds up, if that is what it does; 0 if not."""
    if isinstance(instruction, PrimalInstruction):
        if instruction.equation.name not in SUMS:
            return 0
        return _size(program, instruction.inputs[0])
    operation = getattr(instruction, "operation", None)
    if isinstance(operation, Combine):
        summed = len(operation.sizes) > len(operation.output)
    elif isinstance(operation, Einsum):
        summed = bool(operation.summed) and not operation.written_out and not _is_product(operation)
    else:
        return 0
    return math.prod(size for _, size in operation.sizes) if summed else 0


def _is_product(operation: Einsum) -> bool:
    """Whether it is a product of matrices, which is always in memory."""
    if len(operation.reads) < 2 or operation.looped:
        return False
    first, second = (read.labels for read in operation.reads)
    return not (first <= second or second <= first)


def _repetitions(program: Program) -> Counter[int]:
    """For slots how often their readers repeat each element."""
    found: Counter[int] = Counter()

    def note(slot: int, elements: int) -> None:
        found[slot] = max(found[slot], elements // _size(program, slot))

    for instruction in program.instructions:
        operation = getattr(instruction, "operation", None)
        if isinstance(instruction, PrimalInstruction) and instruction.equation.name in IN_MEMORY:
            continue
        if isinstance(operation, Einsum) and _is_product(operation):
            continue
        if isinstance(instruction, PrimalInstruction | EdgeInstruction):
            made = max((_size(program, slot) for slot in instruction.outputs), default=0)
            for slot in instruction.inputs:
                note(slot, made)
    for slot, elements in _in_results(program):
        note(slot, elements)
    return found


def _in_results(program: Program) -> Iterator[tuple[int, int]]:
    """The factors of the terms of all results, and how many elements of these there are."""
    for row in program.blocks:
        for block in row:
            slots = iter(block.slots)
            for term in block.structure.terms if block.structure else ():
                for _, slot in zip(term.factors, slots, strict=False):
                    yield slot, term.entries


def _size(program: Program, slot: int) -> int:
    return max(1, math.prod(program.slots[slot].shape))
