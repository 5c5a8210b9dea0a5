"""What is in memory before it is summed, because XLA's library for CPUs would sum it slowly.

Sums and products of matrices are given to that library together with what is summed (`summed.py`).
Some sums it takes for products of matrices, and some expressions it evaluates once for each sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Sequence

from ..edges.operations import Einsum
from .instructions import EdgeInstruction, Instruction, PrimalInstruction, Program
from .repetition import put_together_once
from .summed import INSIDE, elementwise_primitives

__all__ = ["in_front_of_sums", "in_memory_before", "shared_in_sums", "taken_for_products"]


def in_memory_before(program: Program, moving: Collection[int]) -> frozenset[int]:
    """Slots of a program of second order that are in memory before anything reads them.

    Args:
        program: the program.
        moving: its inputs that move; what depends on none of them is the same for a batch.
    """
    return (
        taken_for_products(program)
        | in_front_of_sums(program, moving)
        | put_together_once(program, moving)
    )


def taken_for_products(program: Program) -> frozenset[int]:
    """Slots of products entry by entry that sums read as if they were products of matrices.

    In `sum_k(a[k, b] * c[n, k, b])` one operand is repeated along what the sum leaves. XLA's CPU
    library takes it for a product of matrices for every b, whose entries lie apart, and needs 3 to
    13 times what product and sum take one after the other.
    """
    makers = {slot: i for i in program.instructions for slot in i.outputs}
    found = set()
    for instruction in program.instructions:
        operation = getattr(instruction, "operation", None)
        if not isinstance(operation, Einsum) or len(operation.reads) != 1 or not operation.output:
            continue
        (slot,), names = instruction.inputs, operation.reads[0].plain_labels
        product = makers.get(slot)
        if names is None or product is None or names[-1] not in operation.output:
            continue
        summed = [name not in operation.output for name in names]
        if any(summed) and _repeats_along_what_stays(product, summed):
            found.add(slot)
    return frozenset(found)


def shared_in_sums(program: Program, moving: Collection[int]) -> frozenset[int]:
    """Slots of sums of products with what all samples share: the same, along the batch.

    Args:
        program: the program.
        moving: its inputs that move; what depends on none of them is the same for a batch.
    """
    fixed = program.unreached(moving)
    found: set[int] = set()
    for instruction in program.instructions:
        operation = getattr(instruction, "operation", None)
        if not isinstance(operation, Einsum) or len(operation.reads) != 2 or operation.real:
            continue
        shared = [slot in fixed for slot in instruction.inputs]
        names = [read.plain_labels or () for read in operation.reads]
        if shared[0] == shared[1] or {len(own) for own in names} != {len(operation.sizes)}:
            continue
        if operation.summed and names[shared.index(False)][-1] in operation.output:
            found.update(instruction.outputs)
    return frozenset(found)


def in_front_of_sums(program: Program, moving: Collection[int]) -> frozenset[int]:
    """Slots of elementwise results that sums and products read, where activations are long.

    The library takes a network of tanh as one call, and of vectors any network. Where layers are of
    arrays and activations read what a layer makes more than once (silu, gelu, softplus) it takes
    pieces, each of which evaluates the activation's slopes again.

    Args:
        program: the program.
        moving: its inputs that move; what depends on none of them is the same for a batch.
    """
    fixed = program.unreached(moving)
    if not _has_long_activations(program, fixed):
        return frozenset()
    made = {
        slot
        for instruction in program.instructions
        if elementwise_primitives(instruction, program)
        for slot in instruction.outputs
    }
    return frozenset(
        slot
        for instruction in program.instructions
        if isinstance(instruction, EdgeInstruction)
        and isinstance(instruction.operation, Einsum)
        and instruction.operation.summed
        for slot in instruction.inputs
        if slot in made and slot not in fixed
    )


def _has_long_activations(program: Program, fixed: Container[int]) -> bool:
    """Whether elementwise equations read twice what layers of arrays with shared weights make."""
    layers: set[int] = set()
    readers: Counter[int] = Counter()
    for instruction in program.instructions:
        if not isinstance(instruction, PrimalInstruction):
            continue
        shared = [slot in fixed for slot in instruction.inputs]
        name = instruction.equation.name
        if name == "dot_general":
            arrays = any(len(program.slots[slot].shape) > 1 for slot in instruction.outputs)
            if arrays and any(shared) and not all(shared):
                layers.update(instruction.outputs)
        elif name in INSIDE and not layers.isdisjoint(instruction.inputs):
            if name in {"add", "sub"} and any(shared):
                layers.update(instruction.outputs)
            readers.update({*instruction.inputs} & layers)
    return any(count > 1 for count in readers.values())


def _repeats_along_what_stays(instruction: Instruction, summed: Sequence[bool]) -> bool:
    """Whether a product repeats one operand along axes that are not summed, and no other axis."""
    operation = getattr(instruction, "operation", None)
    if not isinstance(operation, Einsum) or len(operation.reads) != 2 or operation.summed:
        return False
    gone = {name for name, ends in zip(operation.output, summed, strict=True) if ends}
    first, second = (read.labels for read in operation.reads)
    return (
        abs(operation.coefficient) == 1
        and first != second
        and gone | {operation.output[-1]} <= first & second
        and all(read.plain_labels is not None for read in operation.reads)
    )
