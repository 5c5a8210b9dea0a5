"""Matrices that are stored in the order of axes in which they are read."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..edges.maps import IndexMap, label
from ..edges.operations import Einsum, Read
from ..edges.terms import Term, with_terms
from .instructions import Block, EdgeInstruction, Instruction, Program, Slot

__all__ = ["contracted_last", "oriented"]


def contracted_last(program: Program) -> Program:
    """The program whose matrices hold the axis last that the next product sums over.

    While arrows are multiplied a matrix is stored with the input's axes first. Pulled back through
    layers it is then read along its first axis, by products that need it transposed; with the
    output's axes first they are plain, for one sample and for a batch with common weights. No
    product is asked to put the axes of what is no matrix of the program, as weights are, before
    those of its other operand: for a batch with common weights that would be a transposition.
    """
    computed = {
        s for i in program.instructions if isinstance(i, EdgeInstruction) for s in i.outputs
    }
    readers: dict[int, list[tuple[int, int]]] = {}
    for place, instruction in enumerate(program.instructions):
        for position, slot in enumerate(instruction.inputs):
            readers.setdefault(slot, []).append((place, position))
    fixed = {slot for row in program.blocks for block in row for slot in block.slots}
    fixed.update(program.values)
    slots, instructions = list(program.slots), list(program.instructions)
    for place in reversed(range(len(instructions))):
        made = instructions[place]
        if not isinstance(made, EdgeInstruction) or not isinstance(made.operation, Einsum):
            continue
        (slot,) = made.outputs
        if slot in fixed or len(made.operation.output) < 2:
            continue
        reads = [_read_by(instructions[k], position) for k, position in readers.get(slot, ())]
        orders = {None if found is None else _wanted(*found) for found in reads}
        order = orders.pop() if len(orders) == 1 else None
        if order is None or order == tuple(range(len(order))):
            continue
        output = tuple(made.operation.output[k] for k in order)
        if _is_product(made) and not _is_plain_product(
            made.operation, made.inputs, output, computed
        ):
            continue
        instructions[place] = replace(made, operation=replace(made.operation, output=output))
        shape = slots[slot].shape
        slots[slot] = Slot(tuple(shape[k] for k in order), slots[slot].dtype)
        for k, position in readers[slot]:
            instructions[k] = _reading(instructions[k], position, order)
    return replace(program, slots=slots, instructions=instructions)


def _read_by(instruction: Instruction, position: int) -> tuple[Einsum, Read] | None:
    """The einsum that an instruction is, and how it reads one of its operands."""
    operation = getattr(instruction, "operation", None)
    return (operation, operation.reads[position]) if isinstance(operation, Einsum) else None


def _wanted(operation: Einsum, read: Read) -> tuple[int, ...] | None:
    """The order of an operand's axes that suits an einsum; None where any does.

    Stable: axes about which it has no wish stay as they are.
    """
    axes = range(len(read.axes))
    summed = {name for name, _ in operation.sizes} - {*operation.output}
    if not summed:
        if not all(_plain(axis) for axis in read.axes):
            return None
        places = {name: k for k, name in enumerate(operation.output)}
        return tuple(sorted(axes, key=lambda k: places[read.axes[k].labels[0]]))
    if len(operation.reads) < 2 or operation.written_out:
        return None
    return tuple(sorted(axes, key=lambda k: not summed.isdisjoint(read.axes[k].labels)))


def _is_plain_product(
    operation: Einsum, inputs: tuple[int, ...], output: tuple[int, ...], computed: set[int]
) -> bool:
    """Whether the axes that a product has of its one computed operand come first in its result."""
    own = [slot in computed for slot in inputs]
    if own.count(True) != 1:
        return False
    matrix = operation.reads[own.index(True)].labels()
    return [name in matrix for name in output] == sorted(
        (n in matrix for n in output), reverse=True
    )


def _reading(instruction: Instruction, position: int, order: tuple[int, ...]) -> Instruction:
    """The instruction for an operand whose axes are in another order."""
    assert isinstance(instruction, EdgeInstruction)
    assert isinstance(instruction.operation, Einsum)
    reads = list(instruction.operation.reads)
    axes = reads[position].axes
    reads[position] = replace(reads[position], axes=tuple(axes[k] for k in order))
    return replace(instruction, operation=replace(instruction.operation, reads=tuple(reads)))


def oriented(program: Program) -> Program:
    """The program whose last matrix products need no transposition before they are results.

    While arrows are multiplied a matrix is stored with the input's axes first, a result has the
    output's first. A compiler folds a transposition into the product before it, which then may be
    one that its library does not take. What only one block reads is made as the block has it.
    """
    readers = Counter(slot for i in program.instructions for slot in i.inputs)
    readers.update(s for row in program.blocks for block in row for s in block.slots)
    readers.update(program.values)
    products = {
        i.outputs[0]: k
        for k, i in enumerate(program.instructions)
        if isinstance(i, EdgeInstruction) and _is_product(i) and readers[i.outputs[0]] == 1
    }
    if not products:
        return program
    turned = replace(
        program, slots=list(program.slots), instructions=list(program.instructions), blocks=[]
    )
    for row in program.blocks:
        turned.blocks.append([_turned(block, products, turned) for block in row])
    return turned


def _is_product(instruction: EdgeInstruction) -> bool:
    operation = instruction.operation
    return (
        isinstance(operation, Einsum)
        and len(operation.reads) == 2
        and 1 < len(operation.output) < len(operation.sizes)
    )


def _turned(block: Block, products: dict[int, int], program: Program) -> Block:
    """The block with its products' axes in the order of the dense array."""
    structure = block.structure
    if structure is None or products.keys().isdisjoint(block.slots):
        return block
    slots, terms = iter(block.slots), []
    for term in structure.terms:
        factors = []
        for factor in term.factors:
            slot = next(slots)
            order = _order(term, factor.axes) if slot in products else None
            if order is not None:
                factor = replace(
                    factor,
                    axes=tuple(factor.axes[k] for k in order),
                    shape=tuple(factor.shape[k] for k in order),
                )
                place = products[slot]
                instruction = program.instructions[place]
                assert isinstance(instruction, EdgeInstruction)
                assert isinstance(instruction.operation, Einsum)
                output = tuple(instruction.operation.output[k] for k in order)
                program.instructions[place] = replace(
                    instruction, operation=replace(instruction.operation, output=output)
                )
                program.slots[slot] = Slot(factor.shape, program.slots[slot].dtype)
            factors.append(factor)
        terms.append(replace(term, factors=tuple(factors)))
    return replace(block, structure=with_terms(structure, terms))


def _order(term: Term, axes: tuple[IndexMap, ...]) -> list[int] | None:
    """The order of a factor's axes in the dense array; None where they stand in it already."""
    places = {index_map: k for k, index_map in reversed([*enumerate((*term.out, *term.into))])}
    if len({*axes}) < len(axes) or any(axis not in places or not _plain(axis) for axis in axes):
        return None
    order = sorted(range(len(axes)), key=lambda k: places[axes[k]])
    return None if order == list(range(len(axes))) else order


def _plain(axis: IndexMap) -> bool:
    return len(axis.labels) == 1 and axis == label(axis.labels[0])
