"""Arrays that are another one with its axes permuted are computed once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from ..edges.maps import label, renamed
from ..edges.operations import Combine, Einsum, Read, canonical
from .instructions import EdgeInstruction, Instruction, Program

__all__ = ["share_permuted", "with_normal_labels"]

T = TypeVar("T")
#: The shared array's slot, and which of its axes stands at every axis of the other one.
Alias = tuple[int, tuple[int, ...]]


def share_permuted(program: Program) -> Program:
    """Compute arrays once that differ in nothing but the order of their axes.

    A difference of pairs, `x[i] - x[j]`, has two Jacobians of the same numbers, stored as (i, ...)
    and as (j, ...), and so has all that is made of each of them.
    """
    return _Sharing(program).shared()


class _Sharing:
    def __init__(self, program: Program):
        self.program = program
        self.aliases: dict[int, Alias] = {}
        self.made: dict[Hashable, tuple[int, tuple[int, ...]]] = {}
        self.result: list[Instruction] = []

    def shared(self) -> Program:
        """The program without the repetitions."""
        for instruction in self.program.instructions:
            operation = getattr(instruction, "operation", None)
            if isinstance(instruction, EdgeInstruction) and isinstance(operation, Einsum | Combine):
                self.add(instruction, operation)
                continue
            self.written_out(instruction.inputs)
            self.result.append(instruction)
        for row in self.program.blocks:
            for block in row:
                self.written_out(block.slots)
        self.written_out(self.program.values)
        return replace(self.program, instructions=self.result)

    def add(self, instruction: EdgeInstruction, operation: Einsum | Combine) -> None:
        """Append an instruction, or note that its result is another one's, permuted."""
        operation, inputs = self.through_aliases(operation, instruction.inputs)
        ordered, inputs = canonical(operation, inputs)
        assert isinstance(ordered, Einsum | Combine)
        normal, names = with_normal_labels(ordered)
        (slot,) = instruction.outputs
        key = (normal, inputs, self.program.slots[slot].dtype)
        place = self.made.setdefault(key, (slot, names))
        if place[0] == slot:
            if ordered is not instruction.operation or inputs != instruction.inputs:
                instruction = replace(instruction, operation=ordered, inputs=inputs)
            self.result.append(instruction)
        else:
            self.aliases[slot] = place[0], tuple(place[1].index(name) for name in names)

    def through_aliases(
        self, operation: Einsum | Combine, inputs: tuple[int, ...]
    ) -> tuple[Einsum | Combine, tuple[int, ...]]:
        """The operation on the arrays that its operands are permutations of."""
        if not any(slot in self.aliases for slot in inputs):
            return operation, inputs
        real = tuple(self.aliases[slot][0] if slot in self.aliases else slot for slot in inputs)
        if isinstance(operation, Einsum):
            reads = tuple(
                replace(read, axes=self.permuted(slot, read.axes))
                for slot, read in zip(inputs, operation.reads, strict=True)
            )
            return replace(operation, reads=reads), real
        operands = tuple(
            (coefficient, self.permuted(slot, names))
            for slot, (coefficient, names) in zip(inputs, operation.operands, strict=True)
        )
        return replace(operation, operands=operands), real

    def permuted(self, slot: int, axes: tuple[T, ...]) -> tuple[T, ...]:
        """What stands at the axes of a slot, for those of the array that it is a permutation of."""
        if slot not in self.aliases:
            return axes
        permutation = self.aliases[slot][1]
        return tuple(axes[permutation.index(k)] for k in range(len(axes)))

    def written_out(self, slots: Sequence[int]) -> None:
        """Make arrays of aliases that are read by something else."""
        for slot in slots:
            if slot not in self.aliases:
                continue
            real, permutation = self.aliases.pop(slot)
            shape = self.program.slots[real].shape
            read = Read(tuple(label(k) for k in range(len(shape))))
            transposition = Einsum((read,), tuple(enumerate(shape)), permutation)
            dtype = self.program.slots[slot].dtype
            self.result.append(EdgeInstruction(transposition, (real,), (slot,), dtype))


@lru_cache(maxsize=1 << 12)
def with_normal_labels(operation: Einsum | Combine) -> tuple[Hashable, tuple[int, ...]]:
    """The operation up to names and order of the result's labels, and these in their order."""
    names: dict[int, int] = {}
    if isinstance(operation, Einsum):
        for read in operation.reads:
            for axis in read.axes:
                for name in axis.labels:
                    names.setdefault(name, len(names))
    else:
        for _, labels in operation.operands:
            for name in labels:
                names.setdefault(name, len(names))
    for name in operation.output:  # labels that nothing reads
        names.setdefault(name, len(names))
    output = tuple(names[name] for name in operation.output)
    sizes = tuple(sorted((names[name], size) for name, size in operation.sizes if name in names))
    if isinstance(operation, Einsum):
        operands: Hashable = tuple(
            Read(tuple(renamed(read.axes, names)), read.conj) for read in operation.reads
        )
        rest: Hashable = (operation.coefficient, operation.real)
    else:
        operands = tuple(
            (coefficient, tuple(names[name] for name in labels))
            for coefficient, labels in operation.operands
        )
        rest = operation.constant
    return (type(operation).__name__, operands, sizes, tuple(sorted(output)), rest), output
