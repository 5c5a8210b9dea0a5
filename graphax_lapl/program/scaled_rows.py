"""Products of two shared matrices with a vector of each sample's own between them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..edges.maps import label
from ..edges.operations import Einsum, Read
from ..edges.terms import Number
from .instructions import EdgeInstruction, Instruction, Program

__all__ = ["ScaledRows", "scaled_rows"]

#: Numbers of the left matrix for each number of the right one, up to which the left one is scaled.
MORE_SCALED = 2

#: A slot and the labels of its axes.
Labelled = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class ScaledRows:
    """`(A diag(v)) B` for a product that the program has as `A (diag(v) B)`.

    Attributes:
        slots: of A, v and B.
        scaling: A times v.
        product: that times B.
    """

    slots: tuple[int, int, int]
    scaling: Einsum
    product: Einsum


def scaled_rows(program: Program, moving: Collection[int]) -> dict[int, ScaledRows]:
    """The products that may be evaluated so, by the slots that hold them.

    Both forms take as many multiplications. With A and B shared by all samples the program's own
    is for a batch a product whose result has the batch between its two axes: XLA writes operand and
    result transposed. In the other one rows of A and batch are one axis, and B is read as it lies.

    Args:
        program: the program.
        moving: its inputs that move; what depends on none of them is the same for a batch.
    """
    fixed = program.unreached(moving)
    makers = {slot: i for i in program.instructions for slot in i.outputs}
    found = {}
    for instruction in program.instructions:
        if isinstance(instruction, EdgeInstruction):
            form = _form(program, instruction, makers, fixed)
            if form is not None:
                found[instruction.outputs[0]] = form
    return found


def _form(
    program: Program,
    instruction: EdgeInstruction,
    makers: Mapping[int, Instruction],
    fixed: Collection[int],
) -> ScaledRows | None:
    """The other form of one instruction, if it has one and its rows are those of A first."""
    operation = instruction.operation
    if (
        not isinstance(operation, Einsum)
        or len(operation.reads) != 2
        or not operation.output
        or operation.written_out
        or operation.real
    ):
        return None
    sizes = dict(operation.sizes)
    names = [read.plain_labels for read in operation.reads]
    for place, rows in enumerate(names):
        columns = names[1 - place]
        slot = instruction.inputs[place]
        if rows is None or columns is None or slot not in fixed:
            continue
        summed = {*rows} & {*columns}
        parts = _parts(program, instruction.inputs[1 - place], columns, makers, fixed)
        if (
            parts is None
            or not summed.isdisjoint(operation.output)
            or {*rows, *columns} != {*sizes}
            or operation.output[0] in columns
            or not {*columns} - summed
        ):
            continue
        vector, matrix, coefficient = parts
        whole = ((slot, rows), vector, matrix)
        numbers = [math.prod(sizes[n] for n in box) for box in (rows, columns)]
        if (
            not summed.issuperset(vector[1])
            or numbers[0] > MORE_SCALED * numbers[1]
            or any(tuple(sizes[n] for n in box) != program.slots[s].shape for s, box in whole)
        ):
            continue
        order = tuple(sorted(rows, key=lambda n: n in summed))
        within = tuple(sorted((n, sizes[n]) for n in order))
        scaling = Einsum((_read(rows), _read(vector[1])), within, order, coefficient)
        reads = (_read(order), _read(matrix[1]))
        product = Einsum(reads, operation.sizes, operation.output, operation.coefficient)
        return ScaledRows((slot, vector[0], matrix[0]), scaling, product)
    return None


def _parts(
    program: Program,
    slot: int,
    names: tuple[int, ...],
    makers: Mapping[int, Instruction],
    fixed: Collection[int],
) -> tuple[Labelled, Labelled, Number] | None:
    """The vector, the shared matrix and the coefficient of a scaled matrix; None for others.

    Args:
        program: the program.
        slot: of the scaled matrix.
        names: the labels that its reader has for its axes.
        makers: who makes each slot.
        fixed: slots that all samples share.
    """
    maker = makers.get(slot)
    operation = getattr(maker, "operation", None)
    if (
        maker is None
        or not isinstance(operation, Einsum)
        or len(operation.reads) != 2
        or operation.real
        or len(operation.output) != len(operation.sizes)
        or {program.slots[s].dtype for s in maker.inputs} != {program.slots[slot].dtype}
    ):
        return None
    into = dict(zip(operation.output, names, strict=True))
    found = [read.plain_labels for read in operation.reads]
    for k, own in enumerate(found):
        other = found[1 - k]
        matrix, vector = maker.inputs[k], maker.inputs[1 - k]
        if own is None or other is None or matrix not in fixed or vector in fixed:
            continue
        if {*own} == {*operation.output}:
            labels = [tuple(into[n] for n in box) for box in (other, own)]
            return (vector, labels[0]), (matrix, labels[1]), operation.coefficient
    return None


def _read(names: tuple[int, ...]) -> Read:
    return Read(tuple(label(n) for n in names))
