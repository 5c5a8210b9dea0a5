"""Products of arrays that all samples share with arrays that each sample has of its own."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from ..edges.operations import Assemble, Einsum, MaterializeOpaque, Operation, Overlay
from ..graph.listing import Listing
from .instructions import EdgeInstruction, PrimalInstruction, Program

__all__ = [
    "behind_layers",
    "layers",
    "multiplies_rows_with_products",
    "numbers_of_layers",
    "put_together_once",
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
    of_maps = [
        slot
        for instruction in program.instructions
        if isinstance(getattr(instruction, "operation", None), MaterializeOpaque)
        for slot in instruction.outputs
    ]
    # What meets a window's entries is the operand of a convolution, and in memory for it.
    fixed = program.unreached(moving) & program.unreached(of_maps)
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
    """Slots of products of all that a sample has of an array with what all samples share.

    For a batch these are rows times one matrix, and on the right of it they would come last: what
    reads a sample's numbers side by side then reads a copy that is turned round, and the library
    does not take the product into one call with its readers. In traces of Jacobians only products
    of weights are such a matrix, and only for many samples.

    Args:
        program: the program.
        moving: its inputs that move; what depends on none of them is the same for a batch.
    """
    if program.trace and program.few_samples is None:
        return frozenset()
    made = {s for i in program.instructions if isinstance(i, EdgeInstruction) for s in i.outputs}
    return frozenset(
        slot
        for slot, shared in _rows_times_shared(program, moving)
        if shared in made or not program.trace
    )


def multiplies_rows_with_products(program: Program, moving: Collection[int]) -> bool:
    """Whether matrices made of weights multiply all that a sample has of an array, for matrices."""
    made = {s for i in program.instructions if isinstance(i, EdgeInstruction) for s in i.outputs}
    return any(
        shared in made and len(program.slots[slot].shape) > 1
        for slot, shared in _rows_times_shared(program, moving)
    )


def _rows_times_shared(program: Program, moving: Collection[int]) -> Iterator[tuple[int, int]]:
    """Slots of such products, and of the shared operand."""
    fixed = program.unreached(moving)
    for instruction in program.instructions:
        operation = getattr(instruction, "operation", None)
        if not isinstance(operation, Einsum) or len(operation.reads) != 2 or not operation.output:
            continue
        shared = [slot in fixed for slot in instruction.inputs]
        if shared.count(True) == 1 and operation.summed >= (
            operation.reads[shared.index(False)].labels
        ):
            yield instruction.outputs[0], instruction.inputs[shared.index(True)]


def put_together_once(program: Program, moving: Collection[int]) -> frozenset[int]:
    """Slots of arrays of several pieces that all samples share, and that others are made of.

    XLA would put the pieces together for every sample, in each kernel that reads the array.

    Args:
        program: the program.
        moving: its inputs that move; what depends on none of them is the same for a batch.
    """
    fixed = program.unreached(moving)
    read = {s for i in program.instructions if fixed.isdisjoint(i.outputs) for s in i.inputs}
    return frozenset(
        slot
        for instruction in program.instructions
        if isinstance(instruction, EdgeInstruction) and _has_pieces(instruction.operation)
        for slot in instruction.outputs
        if slot in fixed and slot in read
    )


def _has_pieces(operation: Operation) -> bool:
    if isinstance(operation, Overlay):
        return len(operation.patches) > 1
    return isinstance(operation, Assemble) and len(operation.structure.terms) > 1


def layers(listing: Listing) -> int:
    """How many products of matrices and convolutions columns pass through."""
    return sum(any(e.active) and e.name in LAYERS for e in listing.equations)


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
