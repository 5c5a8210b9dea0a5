"""Matrix products that are written in the order of axes in which the result wants them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..edges.maps import IndexMap, label
from ..edges.operations import Einsum
from ..edges.terms import Term, with_terms
from .instructions import Block, EdgeInstruction, Program, Slot

__all__ = ["oriented"]


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
