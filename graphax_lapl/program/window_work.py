"""What programs of convolutions take that multiply window by window."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

from ..edges.operations import Einsum, Overlay
from .instructions import EdgeInstruction, Program

__all__ = ["PICKED", "WINDOWS", "overlaid_numbers", "reads_small_parts", "sums_of_boxes"]

#: How much slower an operation is in products of windows than in convolutions of all columns
#: (measured on 25 networks).
WINDOWS = 1.5
#: The same where results are differentiated and `reads_small_parts`.
PICKED = 8.0
#: So many parts, each of so small a share of the array.
PARTS, SHARE = 16, 40
#: As many boxes are put in place in an expression of their own.
BOXES = 3


def sums_of_boxes(program: Program, moving: Collection[int]) -> frozenset[int]:
    """Slots of sums of boxes, as columns of overlapping windows are.

    Whoever reads one computes all of it again: XLA compares each number that is read with every
    box, and so it does with the cotangents of all readers. Its library for CPUs takes a sum of
    what is put together for one expression.

    Args:
        program: the program.
        moving: its inputs that move; what depends on none of them is the same for a batch.
    """
    fixed = program.unreached(moving)
    return frozenset(
        slot
        for instruction in program.instructions
        if isinstance(instruction, EdgeInstruction)
        and isinstance(instruction.operation, Overlay)
        and len(instruction.operation.patches) >= BOXES
        for slot in instruction.outputs
        if slot not in fixed
    )


def overlaid_numbers(program: Program) -> int:
    """Numbers of all sums of boxes, each as often as there are pairs of boxes in the sum."""
    steps = (i.operation for i in program.instructions if isinstance(i, EdgeInstruction))
    sums = (step for step in steps if isinstance(step, Overlay))
    return sum(math.prod(step.shape) * len(step.patches) ** 2 for step in sums)


def reads_small_parts(program: Program) -> bool:
    """Whether an array is read in many parts that are small beside it, as strides leave windows.

    The cotangent of each part is padded to all of the array before they are added.
    """
    parts: Counter[int] = Counter()
    for instruction in program.instructions:
        operation = getattr(instruction, "operation", None)
        if not isinstance(operation, Einsum):
            continue
        sizes = dict(operation.sizes)
        for slot, read in zip(instruction.inputs, operation.reads, strict=True):
            size = math.prod(sizes[name] for name in read.labels)
            parts[slot] += SHARE * size <= math.prod(program.slots[slot].shape)
    return max(parts.values(), default=0) >= PARTS
