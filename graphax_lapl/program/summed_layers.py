"""Sums over all rows of a layer with one output, taken as sums of entries."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from ..edges.operations import Einsum
from .instructions import EdgeInstruction, Instruction, Program
from .repetition import behind_layers
from .rewriting import Rewriting

__all__ = ["EXACT", "sum_layers"]

#: A sum in these is as exact as a product of matrices.
EXACT = frozenset({np.dtype(np.float32), np.dtype(np.float64)})

#: Numbers of a row from which on loops over rows are longer than writing them for the library.
WIDE = 64


def sum_layers(program: Program, moving: Collection[int]) -> Program:
    """Take `sum(H w)` as the sum of `H diag(w)`, where w is the same for all samples.

    As a product of a matrix and a vector and a sum of its result it is four loops to compile,
    as one sum of products a call of XLA's library.

    Args:
        program: a program of second order.
        moving: its inputs that are not the same for all samples of a batch.
    """
    return _LayerSums(program, moving).rewritten()


class _LayerSums(Rewriting):
    def __init__(self, program: Program, moving: Collection[int]):
        super().__init__(program)
        self.fixed = program.unreached(moving)
        self.layers = behind_layers(program)

    def applies(self, instruction: EdgeInstruction) -> bool:
        operation = instruction.operation
        return (
            isinstance(operation, Einsum)
            and operation.is_total
            and self.is_whole(operation, 0, instruction.inputs[0])
        )

    def is_whole(self, operation: Einsum, place: int, slot: int) -> bool:
        """Whether an operand is read entry by entry, all of it."""
        names, sizes = operation.reads[place].plain_labels, dict(operation.sizes)
        return names is not None and tuple(sizes[n] for n in names) == self.slots[slot].shape

    def replacement(self, root: EdgeInstruction) -> list[Instruction]:
        (slot,) = root.inputs
        maker = self.makers.get(slot)
        if not isinstance(maker, EdgeInstruction) or self.readers[slot] > 1:
            return [root]
        operation = maker.operation
        if not isinstance(operation, Einsum) or operation.real or len(operation.reads) != 2:
            return [root]
        types = {self.slots[s].dtype for s in (*maker.inputs, slot, *root.outputs)}
        rows = [place for place, s in enumerate(maker.inputs) if s not in self.fixed]
        if (
            len(types) > 1
            or types.isdisjoint(EXACT)
            or len(rows) != 1
            or self.layers.isdisjoint(maker.inputs)
        ):
            return [root]
        weights = operation.reads[1 - rows[0]].labels
        if math.prod(size for name, size in operation.sizes if name in weights) < WIDE:
            return [root]
        if not self.is_whole(operation, rows[0], maker.inputs[rows[0]]):
            return [root]
        if operation.reads[rows[0]].labels != {name for name, _ in operation.sizes}:
            return [root]
        if not operation.output or not weights or not weights.isdisjoint(operation.output):
            return [root]
        assert isinstance(root.operation, Einsum)
        coefficient = operation.coefficient * root.operation.coefficient
        self.absorbed.add(slot)
        whole = replace(operation, output=(), coefficient=coefficient)
        return [replace(root, operation=whole, inputs=maker.inputs)]
