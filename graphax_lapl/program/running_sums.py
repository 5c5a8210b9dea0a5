"""Sums over the columns of a triangle that tables list, added up one after the other.

A row times the map of `cumsum` is `sum_(j >= i) row_j` for every i. The edge algebra, to which the
map is a table of places, lists the entries of the triangle and sums them up: half of `n * n`
numbers are written for n results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from jax import Array, lax

from ..edges.operations import Einsum
from ..rules.site import Local
from .instructions import EdgeInstruction, Instruction, LocalInstruction, Program
from .rewriting import Rewriting

__all__ = ["added_in_turn"]


def added_in_turn(program: Program) -> Program:
    """Write such sums as cumulative ones, in which no entry meets another's zero either."""
    return _Triangles(program).rewritten()


class _Triangles(Rewriting):
    def applies(self, instruction: EdgeInstruction) -> bool:
        operation = instruction.operation
        return (
            isinstance(operation, Einsum)
            and len(operation.reads) == 1
            and len(operation.output) == len(operation.summed) == 1
            and _is_plain(operation)
        )

    def replacement(self, root: EdgeInstruction) -> list[Instruction]:
        (slot,) = root.inputs
        listed = self.makers.get(slot)
        if not isinstance(listed, EdgeInstruction) or self.readers[slot] > 1:
            return [root]
        sums, entries = root.operation, listed.operation
        assert isinstance(sums, Einsum)
        if not (isinstance(entries, Einsum) and len(entries.reads) == 1 and _is_plain(entries)):
            return [root]
        if len(entries.sizes) != 1 or entries.summed:
            return [root]
        (row,), (out,) = listed.inputs, root.outputs
        size = self.slots[row].shape[0]
        if self.slots[out].shape != (size,) or self.slots[row].dtype != self.slots[out].dtype:
            return [root]
        (label, _), order = entries.sizes[0], (*sums.output, *sums.summed)
        places = entries.reads[0].axes[0].evaluate((label,), dict(entries.sizes))
        read = sums.reads[0].axes[0].evaluate(order, dict(sums.sizes))
        if read.min() < 0 or read.max() >= len(places):
            return [root]
        reverse = _is_reversed(places[read], size)
        if reverse is None:
            return [root]
        self.absorbed.add(slot)
        local = Local("cumsum", _cumulated(reverse), (), (size,))
        return [LocalInstruction(local, (row,), (out,))]


def _is_plain(operation: Einsum) -> bool:
    """Whether it reads one axis of one operand, as it is."""
    (read,) = operation.reads
    return (
        len(read.axes) == 1 and not read.conj and not operation.real and operation.coefficient == 1
    )


def _is_reversed(places: np.ndarray, size: int) -> bool | None:
    """Whether row i lists the places from i on, or up to i (False), each once; else None.

    What is outside of the operand is zero.
    """
    listed = np.zeros((len(places), size), np.int64)
    rows, columns = np.nonzero((places >= 0) & (places < size))
    np.add.at(listed, (rows, places[rows, columns]), 1)
    for reverse, triangle in ((False, np.tri(size, dtype=np.int64)), (True, np.tri(size).T)):
        if np.array_equal(listed, triangle):
            return reverse
    return None


@lru_cache(maxsize=2)
def _cumulated(reverse: bool) -> Callable[[Array], Array]:
    def cumulated(x: Array) -> Array:
        # Of a column between zeros XLA takes the column for all sums where it sees both.
        return lax.cumsum(lax.optimization_barrier(x), reverse=reverse)

    return cumulated
