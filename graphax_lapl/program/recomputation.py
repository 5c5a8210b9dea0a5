"""Which arrays of a program are dear to compute more than once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ..edges.operations import Einsum
from ..graph.listing import TRANSCENDENTAL
from .counts import Types, local_jaxpr
from .instructions import (
    EdgeInstruction,
    Instruction,
    LocalInstruction,
    PrimalInstruction,
    Program,
    RowHessianInstruction,
)

__all__ = ["all_primitives", "compared_with_results", "shared_work"]

#: Primitives whose results are in memory before they are read.
IN_MEMORY = frozenset(
    {"dot_general", "conv_general_dilated", "reduce_sum", "scan", "while", "sort"}
)
#: Partials that compare an operand with its largest or smallest element.
EXTREMUM_SHARES = frozenset({"dreduce_max", "dreduce_min"})
#: An expression of so many operations is not evaluated, nor compiled, for every reader.
LONG = 8


def compared_with_results(program: Program) -> frozenset[int]:
    """Slots whose largest or smallest elements are found again by comparison.

    XLA evaluates an expression for each of its readers, and in some kernels only rounds a product
    and a sum at once. An array that is not written to memory may then have no element that is equal
    to its own maximum, and the partial's even shares are divided by zero; in JAX's too.
    """
    made = {slot for instruction in program.instructions for slot in instruction.outputs}
    return frozenset(
        instruction.inputs[0]
        for instruction in program.instructions
        if isinstance(instruction, LocalInstruction)
        and instruction.local.name in EXTREMUM_SHARES
        and instruction.inputs[0] in made
    )


def shared_work(program: Program) -> frozenset[int]:
    """Slots that hold work which XLA would otherwise do once for each reader.

    A compiler that fuses producers into consumers evaluates an elementwise expression again for
    every element that reads it, and compiles it again for every reader. That is right for a little
    arithmetic and wrong for a transcendental function or a long expression: these slots are better
    written to memory once. A slot is named where an expression of `LONG` operations has gone
    into it since the last named slots, and it is read more than once, or by an operation that
    repeats it along another label.
    """
    readers = program.readers()
    results = {slot for row in program.blocks for block in row for slot in block.slots}
    readers.update(_repeated(program))
    work: dict[int, int] = {}
    shared = set()
    for instruction in program.instructions:
        own = _own_work(instruction, program)
        total = own and own + sum(work.get(slot, 0) for slot in instruction.inputs)
        for slot in instruction.outputs:
            # Entries in coordinate order are picked one by one, which costs long expressions most.
            limit = LONG if readers[slot] > 1 else 2 * LONG if slot in results else math.inf
            if program.slots[slot].array and total >= limit:
                shared.add(slot)
            else:
                work[slot] = total
    return frozenset(shared)


def _own_work(instruction: Instruction, program: Program) -> int:
    """Operations that an instruction adds to an expression; none where it ends one.

    Sums and products of matrices are in memory before they are read.
    """
    operation = getattr(instruction, "operation", None)
    if isinstance(operation, Einsum) and operation.written_out:
        return LONG
    if isinstance(operation, Einsum):
        return 0 if operation.summed else 1
    if isinstance(instruction, RowHessianInstruction):
        return 2 * LONG
    primitives = _primitives(instruction, program)
    if not TRANSCENDENTAL.isdisjoint(primitives):
        return LONG
    return 0 if not IN_MEMORY.isdisjoint(primitives) else max(1, len(primitives))


def _repeated(program: Program) -> Iterator[int]:
    """Slots read by an operation, or a term of a block, that has labels the slot has not."""
    for instruction in program.instructions:
        if isinstance(instruction, EdgeInstruction):
            for slot in instruction.inputs:
                if any(_size(program, made) > _size(program, slot) for made in instruction.outputs):
                    yield slot
    for row in program.blocks:
        for block in row:
            slots = iter(block.slots)
            for term in block.structure.terms if block.structure else ():
                for factor, slot in zip(term.factors, slots, strict=False):
                    if not term.position_labels <= factor.labels:
                        yield slot


def _size(program: Program, slot: int) -> int:
    return math.prod(program.slots[slot].shape)


def _primitives(instruction: Any, program: Program) -> frozenset[str]:
    """Names of the primitives that an instruction of the user's function or its rules evaluates."""
    if isinstance(instruction, PrimalInstruction):
        equation = instruction.equation
        return all_primitives(equation.name, equation.params)
    if isinstance(instruction, LocalInstruction):
        types = tuple((program.slots[s].shape, program.slots[s].dtype) for s in instruction.inputs)
        return _of_local(instruction.local.fun, types)
    return frozenset()


@lru_cache(maxsize=4096)
def _of_local(fun: Any, types: Types) -> frozenset[str]:
    return _of_body(local_jaxpr(fun, types))


def _of_body(jaxpr: Any) -> frozenset[str]:
    equations = getattr(jaxpr, "jaxpr", jaxpr).eqns
    return frozenset().union(*(all_primitives(e.primitive.name, e.params) for e in equations))


def all_primitives(name: str, params: Any) -> frozenset[str]:
    """The primitives of an equation: its own, and those of its bodies."""
    names = frozenset({name})
    for value in params.values():
        for body in value if isinstance(value, tuple | list) else (value,):
            if hasattr(body, "eqns") or hasattr(body, "jaxpr"):
                names |= _of_body(body)
    return names
