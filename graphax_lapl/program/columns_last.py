"""Matrices that a batch multiplies with common weights, stored as one wide matrix."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from ..edges.operations import Assemble, Combine, Einsum, Overlay
from .instructions import EdgeInstruction, Program
from .orientation import Storage, multiplies

__all__ = ["Products", "columns_last", "products_of_matrices"]

#: Up to how many columns, from which depth of the products on rows are long enough for elementwise
#: loops to go along them; more columns are a loop as well.
DEEP = ((4, 16), (7, 24), (math.inf, 48))


def columns_last(program: Program, moving: Collection[int]) -> Program | None:
    """The program whose products with weights have these on the left.

    Pulled back through weights that all samples share, a matrix with the contracted axis first is
    for a batch one matrix of few rows, with the samples' columns side by side behind the rows: the
    library has long rows to go along, and so have the loops between two products, however narrow
    the layers are.

    Args:
        program: the program.
        moving: its inputs that samples may have of their own.

    Returns:
        The program; None where fewer than two such products are in it, or the other form is
        quicker.
    """
    fixed = program.unreached(moving)
    instructions = list(program.instructions)
    wide: list[tuple[int, int, int]] = []
    for place, instruction in enumerate(instructions):
        weights = _weights(instruction, fixed)
        if weights is None:
            continue
        assert isinstance(instruction, EdgeInstruction)
        operation, inputs = instruction.operation, instruction.inputs
        assert isinstance(operation, Einsum)
        if weights == 1:
            operation, inputs = operation.swapped, inputs[::-1]
        operation = replace(operation, common=True)
        instructions[place] = replace(instruction, operation=operation, inputs=inputs)
        sizes, (left, right) = dict(operation.sizes), (read.labels for read in operation.reads)
        columns = math.prod(sizes[name] for name in right - left)
        work = math.prod(sizes.values())
        if columns > 1:
            wide.append((work, columns, math.prod(sizes[name] for name in left & right)))
    if len(wide) < 2:  # from one to the next the matrix lies as it is read
        return None
    if any(_adds_up(instruction, fixed) for instruction in instructions):
        return None
    _, columns, depth = max(wide)
    if depth >= next(deep for most, deep in DEEP if columns <= most):
        return None
    return _ColumnsLast(replace(program, instructions=instructions), fixed).settled()


def _weights(instruction: object, fixed: Collection[int]) -> int | None:
    """Which operand is weights, of a product with these; None for anything else."""
    operation = getattr(instruction, "operation", None)
    if not isinstance(instruction, EdgeInstruction) or not isinstance(operation, Einsum):
        return None
    if len(operation.reads) != 2 or operation.written_out or not operation.summed:
        return None
    shared = [slot in fixed for slot in instruction.inputs]
    labels = [read.labels for read in operation.reads]
    if shared.count(True) != 1 or operation.summed - (labels[0] & labels[1]):
        return None
    weights = shared.index(True)
    plain = all(read.plain_labels is not None for read in operation.reads)
    if (
        not plain
        or labels[0] & labels[1] & {*operation.output}
        or labels[weights] <= labels[1 - weights]
    ):
        return None
    return weights


def _adds_up(instruction: object, fixed: Collection[int]) -> bool:
    """Whether it adds up matrices of samples, or puts them side by side.

    What enters a sum besides products lies in rows, and would be transposed for it.
    """
    operation = getattr(instruction, "operation", None)
    if not isinstance(instruction, EdgeInstruction) or len(instruction.inputs) < 2:
        return False
    return (
        isinstance(operation, Combine | Assemble | Overlay)
        and len(operation.shape) > 1
        and not all(slot in fixed for slot in instruction.inputs)
    )


class _ColumnsLast(Storage):
    """Orders of axes in which matrices meet weights with the contracted axis first."""

    def wish(self, operation: Einsum, position: int) -> tuple[int, ...] | None:
        """The contracted axes first, the columns behind them; the weights lie as they are given."""
        if not operation.common:
            return super().wish(operation, position)
        read = operation.reads[position]
        axes = range(len(read.axes))
        if position == 0:
            return None
        first = operation.reads[0].labels
        return tuple(sorted(axes, key=lambda k: read.axes[k].labels[0] not in first))

    def can_be(self, slot: int, order: tuple[int, ...]) -> bool:
        """Whether an array can be made with its axes in an order and nothing be transposed for it.

        A product with weights has the axes of these first, a sum what its operands have.
        """
        made = self.instructions[self.makers[slot]] if slot in self.makers else None
        operation = getattr(made, "operation", None)
        if not isinstance(operation, Einsum) or not operation.common:
            return super().can_be(slot, order)
        rows = operation.reads[0].labels
        first = [operation.output[k] in rows for k in order]
        return slot not in self.results and first == sorted(first, reverse=True)


class Products(NamedTuple):
    """Multiplications in products of matrices.

    Attributes:
        common: in those with weights, of matrices of several columns.
        own: in those of two matrices that every sample of a batch has of its own. For a batch each
            of these is a product for every sample; with weights it is one for all.
        each: how many there are of the latter.
    """

    common: int
    own: int
    each: int


def products_of_matrices(program: Program, moving: Collection[int]) -> Products:
    """How much of a program is products of matrices.

    Args:
        program: the program.
        moving: its inputs that samples may have of their own.
    """
    fixed = program.unreached(moving)
    common = own = each = 0
    for instruction in program.instructions:
        operation = getattr(instruction, "operation", None)
        if isinstance(operation, Einsum) and multiplies(operation):
            if _weights(instruction, fixed) is not None:
                common += operation.cost.muls
            elif fixed.isdisjoint(instruction.inputs):
                own += operation.cost.muls
                each += 1
    return Products(common, own, each)
