"""Convolutions that columns of second order pass through, and what stands before them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..edges.operations import ApplyOpaque, Assemble, Einsum
from .instructions import EdgeInstruction, OpaqueInstruction, Program

__all__ = ["convolution_results", "convolutions", "scales_before_convolutions"]


def convolution_results(program: Program) -> frozenset[int]:
    """Slots of columns that have passed through a convolution.

    Its derivatives with respect to both operands read the same cotangent, in two orders of its
    axes.
    """
    return frozenset(slot for _, slot in convolutions(program))


def scales_before_convolutions(program: Program) -> frozenset[int]:
    """Slots that columns are multiplied by on their way into a convolution, and that others read.

    XLA evaluates a slope once for the columns and once for the sum of their squares, and runs what
    is ready first: the next convolution, while the columns before the slope are still needed. With
    the slope in memory both are ready at once, and that sum comes first.
    """
    makers = {slot: i for i in program.instructions for slot in i.outputs}
    readers = Counter(slot for i in program.instructions for slot in set(i.inputs))
    found: set[int] = set()
    for operand, _ in convolutions(program):
        made = makers.get(operand)
        if made is not None and isinstance(getattr(made, "operation", None), Assemble):
            made = makers.get(made.inputs[0]) if made.inputs else None  # ones alone, put in place
        if made is not None and isinstance(getattr(made, "operation", None), Einsum):
            found.update(slot for slot in made.inputs if slot in makers and readers[slot] > 1)
    return frozenset(slot for slot in found if not isinstance(makers[slot], EdgeInstruction))


def convolutions(program: Program) -> Iterator[tuple[int, int]]:
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
