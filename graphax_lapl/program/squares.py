"""Numbers are taken out of the product of an array with a multiple of itself."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from ..edges.maps import label
from ..edges.operations import Einsum, Read, canonical
from .instructions import EdgeInstruction, Instruction, Program, Slot
from .permutations import with_normal_labels

__all__ = ["numbers_outside_squares"]

#: An array as a number times another one: the number's slot, the array's, and which of the
#: array's axes stands at every axis.
Multiple = tuple[int, int, tuple[int, ...]]


def numbers_outside_squares(program: Program) -> Program:
    """Sum `X * X` instead of `X * (n X)` where X is there anyway, n a number.

    A number in a second derivative, `n tr(R dA R dA)`, is multiplied into one of two equal factors
    before columns are there. Both are multiplied with all columns then, where one would do.
    """
    return _Squares(program).rewritten()


class _Squares:
    """Products of arrays with multiples of themselves.

    Attributes:
        known: what makes each slot, up to the order of its axes, with that slot and order. A slot
            may be made later than a multiple of it; who reads both comes after both.
        multiples: slots that hold a multiple of another one.
        found: whether the program changes.
    """

    def __init__(self, program: Program):
        """Start with nothing known."""
        self.program = program
        self.slots = program.slots
        self.known: dict[Hashable, tuple[int, tuple[int, ...]]] = {}
        self.multiples: dict[int, Multiple] = {}
        self.found = False

    def rewritten(self) -> Program:
        """The program, changed where there is such a product."""
        products = {
            i.outputs[0]: (i, i.operation)
            for i in self.program.instructions
            if isinstance(i, EdgeInstruction) and isinstance(i.operation, Einsum)
        }
        for slot, (instruction, operation) in products.items():
            multiple = self.multiple_at_once(instruction, operation)
            if multiple is not None:
                self.multiples[slot] = multiple
        if not self.multiples:
            return self.program
        for slot, (instruction, operation) in products.items():
            key, names = self.key(operation, instruction.inputs, slot)
            self.known.setdefault(key, (slot, names))
        result: list[Instruction] = []
        for step in self.program.instructions:
            if not step.outputs or step.outputs[0] not in products:
                result.append(step)
                continue
            instruction, operation = products[step.outputs[0]]
            result += self.of_square(instruction, operation) or [instruction]
            self.look_at(instruction, operation)
        if not self.found:
            return self.program
        return replace(self.program, instructions=result).without_dead_code(None)

    def look_at(self, instruction: EdgeInstruction, operation: Einsum) -> None:
        """Note whether what an instruction makes is a multiple of what is known."""
        (slot,) = instruction.outputs
        if slot not in self.multiples and any(s in self.multiples for s in instruction.inputs):
            multiple = self.multiple_of_known(instruction, operation)
            if multiple is not None:
                self.multiples[slot] = multiple

    def key(
        self, operation: Einsum, inputs: tuple[int, ...], slot: int
    ) -> tuple[Hashable, tuple[int, ...]]:
        """What an operation makes, up to the order of its axes, and that order."""
        ordered, inputs = canonical(operation, inputs)
        assert isinstance(ordered, Einsum)
        normal, names = with_normal_labels(ordered)
        return (normal, inputs, self.slots[slot].dtype), names

    def multiple_at_once(self, instruction: EdgeInstruction, operation: Einsum) -> Multiple | None:
        """The multiple that a product of a number and a whole array is."""
        if len(operation.reads) != 2 or operation.real or operation.coefficient != 1:
            return None
        pairs = sorted(
            zip(instruction.inputs, operation.reads, strict=True),
            key=lambda pair: len(self.slots[pair[0]].shape),
        )
        (number, scale), (array, read) = pairs
        labels, shape = read.plain_labels, self.slots[array].shape
        sizes = dict(operation.sizes)
        if self.slots[number].shape or scale.conj or not shape or labels is None:
            return None
        if {*labels} != {*operation.output} or tuple(sizes[n] for n in labels) != shape:
            return None
        if not self.of_one_type(number, array, instruction.outputs[0]):
            return None
        return number, array, tuple(labels.index(n) for n in operation.output)

    def multiple_of_known(self, instruction: EdgeInstruction, operation: Einsum) -> Multiple | None:
        """The multiple that a product with a multiple is, of what is made without the number."""
        scaled = [k for k, slot in enumerate(instruction.inputs) if slot in self.multiples]
        if len(scaled) != 1 or operation.real:
            return None
        number, plain, inputs = self.without_number(operation, instruction.inputs, scaled[0])
        (slot,) = instruction.outputs
        key, names = self.key(plain, inputs, slot)
        if key not in self.known:
            return None
        made, order = self.known[key]
        return number, made, tuple(order.index(name) for name in names)

    def without_number(
        self, operation: Einsum, inputs: tuple[int, ...], position: int
    ) -> tuple[int, Einsum, tuple[int, ...]]:
        """The number that an operand is a multiple by, and the operation on the array itself."""
        number, array, order = self.multiples[inputs[position]]
        read = operation.reads[position]
        axes = tuple(read.axes[order.index(k)] for k in range(len(order)))
        reads = list(operation.reads)
        reads[position] = Read(axes, read.conj)
        changed = (*inputs[:position], array, *inputs[position + 1 :])
        return number, replace(operation, reads=tuple(reads)), changed

    def of_square(
        self, instruction: EdgeInstruction, operation: Einsum
    ) -> list[Instruction] | None:
        """The sum of an array times itself, and the number; None for anything else."""
        inputs = instruction.inputs
        if len(inputs) != 2 or operation.real or len(operation.output) == len(operation.sizes):
            return None
        for position in (0, 1):
            if inputs[position] not in self.multiples or operation.reads[position].conj:
                continue
            number, plain, changed = self.without_number(operation, inputs, position)
            if changed[0] != changed[1]:
                continue
            self.found = True
            (slot,) = instruction.outputs
            self.slots.append(Slot(operation.shape, self.slots[slot].dtype))
            made = len(self.slots) - 1
            whole = Read(tuple(label(name) for name in operation.output))
            kept = tuple((n, s) for n, s in operation.sizes if n in operation.output)
            scaling = Einsum((Read(()), whole), kept, operation.output)
            return [
                replace(instruction, operation=plain, inputs=changed, outputs=(made,)),
                replace(instruction, operation=scaling, inputs=(number, made)),
            ]
        return None

    def of_one_type(self, *slots: int) -> bool:
        """Whether the slots hold numbers of one type."""
        return len({self.slots[slot].dtype for slot in slots}) == 1
