"""Sums of arrays that are weights times a sample's numbers, taken as products of matrices."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..edges.operations import Einsum, Read
from .instructions import EdgeInstruction, Instruction, Program
from .rewriting import BatchRewriting

__all__ = ["sum_weights"]


def sum_weights(program: Program, moving: Collection[int]) -> Program:
    """Take `sum(W v, rows)`, W the same for all samples, as the product of W and v.

    The columns of `sum((x W)^2)` are `2 W diag(x W)`, summed over the rows of a group. Pushed on
    one after the other, they are as many numbers as W for every sample before they are summed. For
    a batch the product is one of matrices, with a row for each sample.

    Args:
        program: a program of second order.
        moving: its inputs that are not the same for all samples of a batch.
    """
    return _SummedWeights(program, moving).rewritten()


class _SummedWeights(BatchRewriting):
    def applies(self, instruction: EdgeInstruction) -> bool:
        operation = instruction.operation
        return (
            isinstance(operation, Einsum)
            and len(operation.reads) == 1
            and bool(operation.output)
            and bool(operation.summed)
        )

    def replacement(self, root: EdgeInstruction) -> list[Instruction]:
        (slot,) = root.inputs
        total = root.operation
        assert isinstance(total, Einsum)
        maker, own = self.makers.get(slot), total.reads[0].plain_labels
        if not isinstance(maker, EdgeInstruction) or self.readers[slot] > 1 or own is None:
            return [root]
        product = maker.operation
        if not isinstance(product, Einsum) or total.reads[0].conj or not self.is_scaled(maker):
            return [root]
        sizes = dict(total.sizes)
        types = {self.slots[s].dtype for s in (*maker.inputs, slot, *root.outputs)}
        if len(types) > 1 or tuple(sizes[name] for name in own) != self.slots[slot].shape:
            return [root]
        names = dict(zip(product.output, own, strict=True))
        reads = tuple(Read(tuple(a.renamed(names) for a in r.axes), r.conj) for r in product.reads)
        whole = replace(total, reads=reads, coefficient=total.coefficient * product.coefficient)
        numbers = min((read.labels for read in reads), key=len)
        if not numbers & whole.summed or numbers >= {*whole.output}:
            return [root]
        self.absorbed.add(slot)
        return [replace(root, operation=whole, inputs=maker.inputs)]

    def is_scaled(self, instruction: EdgeInstruction) -> bool:
        """Whether weights are multiplied, entry by entry, with fewer numbers of a sample."""
        operation = instruction.operation
        assert isinstance(operation, Einsum)
        if len(operation.reads) != 2 or operation.summed or operation.real:
            return False
        shared = [slot in self.fixed for slot in instruction.inputs]
        if shared[0] == shared[1]:
            return False
        weights, numbers = (operation.reads[shared.index(side)] for side in (True, False))
        return numbers.labels < weights.labels
