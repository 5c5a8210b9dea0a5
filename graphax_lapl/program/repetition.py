"""Products of arrays that all samples share with arrays that each sample has of its own."""

from __future__ import annotations

import math
from collections.abc import Collection

from ..edges.operations import Einsum
from .instructions import EdgeInstruction, PrimalInstruction, Program

__all__ = [
    "behind_layers",
    "numbers_of_layers",
    "repeated_by_samples",
    "rows_of_samples",
]

#: Numbers of a sample from which on repeated operands are worth keeping out of memory: for a batch
#: they leave the cache. Smaller ones are read from it faster than they are repeated inside a sum.
LARGE = 1 << 14
#: Products of matrices that a function has.
LAYERS = frozenset({"dot_general", "conv_general_dilated"})


def repeated_by_samples(program: Program, moving: Collection[int]) -> frozenset[int]:
    """Slots of products entry by entry whose operands are both repeated for a batch.

    Such is `W diag(s)`, the derivative of a first layer: W for every sample, s for every input.

    Args:
        program: the program.
        moving: its inputs that move; what depends on none of them is the same for a batch.
    """
    fixed = program.unreached(moving)
    found = set()
    for instruction in program.instructions:
        operation = getattr(instruction, "operation", None)
        if not isinstance(instruction, EdgeInstruction) or not isinstance(operation, Einsum):
            continue
        shared = [slot in fixed for slot in instruction.inputs]
        dtypes = {program.slots[s].dtype for s in (*instruction.inputs, *instruction.outputs)}
        if len(shared) != 2 or shared[0] == shared[1] or len(dtypes) > 1:
            continue
        own = operation.reads[shared.index(False)]
        labels = {name for axis in own.axes for name in axis.labels}
        slot = instruction.outputs[0]
        if (
            len(operation.output) == len(operation.sizes) > len(labels)
            and math.prod(program.slots[slot].shape) >= LARGE
        ):
            found.add(slot)
    return frozenset(found)


def rows_of_samples(program: Program, moving: Collection[int]) -> frozenset[int]:
    """Slots of products of all that a sample has of an array with a product of weights.

    For a batch these are rows times one matrix, and on the right of it they would come last.

    Args:
        program: the program.
        moving: its inputs that move; what depends on none of them is the same for a batch.
    """
    fixed = program.unreached(moving)
    made = {s for i in program.instructions if isinstance(i, EdgeInstruction) for s in i.outputs}
    found: set[int] = set()
    for instruction in program.instructions:
        operation = getattr(instruction, "operation", None)
        if not isinstance(operation, Einsum) or len(operation.reads) != 2 or not operation.output:
            continue
        shared = [slot in fixed for slot in instruction.inputs]
        if shared.count(True) != 1 or instruction.inputs[shared.index(True)] not in made:
            continue
        if operation.summed >= operation.reads[shared.index(False)].labels:
            found.update(instruction.outputs)
    return frozenset(found)


def numbers_of_layers(program: Program) -> frozenset[int]:
    """Slots of dot products with an array that products of matrices enter.

    XLA's library evaluates such a sum together with the layer in front of it. Functions of single
    numbers it evaluates more slowly than XLA's own loops do, so that sums of these alone are left.

    Args:
        program: the program.
    """
    layers = behind_layers(program)
    return frozenset(
        slot
        for instruction in program.instructions
        if isinstance(instruction, EdgeInstruction)
        and isinstance(instruction.operation, Einsum)
        and len(instruction.operation.reads) == 2
        and not instruction.operation.output
        and not layers.isdisjoint(instruction.inputs)
        for slot in instruction.outputs
    )


def behind_layers(program: Program) -> frozenset[int]:
    """Slots that products of matrices enter."""
    layers: set[int] = set()
    for instruction in program.instructions:
        product = False
        if isinstance(instruction, PrimalInstruction):
            product = instruction.equation.name in LAYERS
        elif isinstance(instruction, EdgeInstruction) and isinstance(instruction.operation, Einsum):
            operation = instruction.operation
            summed = len(operation.output) < len(operation.sizes)
            product = len(operation.reads) == 2 and summed and bool(operation.output)
        if product or not layers.isdisjoint(instruction.inputs):
            layers |= {*instruction.outputs}
    return frozenset(layers)
