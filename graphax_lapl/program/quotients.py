"""Denominators that are the same for all summands of a sum, taken out of it."""

from __future__ import annotations

import math
from dataclasses import replace

from ..edges.maps import constant, label
from ..edges.operations import Einsum, Read
from ..rules.elementwise import minus_quotient, reciprocal
from ..rules.site import Local
from .instructions import (
    EdgeInstruction,
    Instruction,
    LocalInstruction,
    PrimalInstruction,
    Program,
    Slot,
)

__all__ = ["divided_after_sums"]


def divided_after_sums(program: Program) -> Program:
    """The program that divides a sum instead of its summands.

    Pulled back through a normalisation `x / s`, with one s for all x, a row w meets the partial
    `-(x / s) / s` with respect to s, and the products are summed. That is the sum of `w x`, divided
    twice: fewer operations, and neither the quotient nor the repeated `1 / s` is an operand of the
    sum, which a compiler may have to keep in memory for all samples.
    """
    quotients = _Quotients(program)
    instructions = [new for i in program.instructions for new in quotients.replaced(i)]
    if not quotients.found:
        return program
    return replace(program, slots=quotients.slots, instructions=instructions).without_dead_code(
        None
    )


class _Quotients:
    """Quotients among the slots of a program, and the reciprocals of their denominators."""

    def __init__(self, program: Program):
        self.slots = list(program.slots)
        self.makers = {slot: i for i in program.instructions for slot in i.outputs}
        self.reciprocals: dict[int, int] = {}
        self.found = False

    def replaced(self, root: Instruction) -> list[Instruction]:
        """What stands for an instruction."""
        if isinstance(root, LocalInstruction) and root.local.fun is reciprocal:
            self.reciprocals.setdefault(root.inputs[0], root.outputs[0])
        operation = getattr(root, "operation", None)
        if not isinstance(root, EdgeInstruction) or not isinstance(operation, Einsum):
            return [root]
        if len(operation.reads) != 2 or operation.real:
            return [root]
        inputs, coefficient = list(root.inputs), operation.coefficient
        divided: list[tuple[int, Read]] = []
        for place, read in enumerate(operation.reads):
            while (quotient := self.quotient(inputs[place], read, operation)) is not None:
                inputs[place], denominator, sign, scaling = quotient
                coefficient *= sign
                divided.append((denominator, scaling))
        if not divided:
            return [root]
        self.found = True
        made: list[Instruction] = []
        factors = [(self.reciprocal(slot, made), scaling) for slot, scaling in divided]
        whole = Read(tuple(label(name) for name in operation.output))
        sizes = tuple((n, size) for n, size in operation.sizes if n in operation.output)
        result = self.slot(self.slots[root.outputs[0]])
        sum_ = replace(operation, coefficient=coefficient)
        made.append(replace(root, operation=sum_, inputs=tuple(inputs), outputs=(result,)))
        for k, (factor, scaling) in enumerate(factors):
            last = k == len(factors) - 1
            into = root.outputs[0] if last else self.slot(self.slots[root.outputs[0]])
            product = Einsum((whole, scaling), sizes, operation.output)
            made.append(replace(root, operation=product, inputs=(result, factor), outputs=(into,)))
            result = into
        return made

    def quotient(
        self, slot: int, read: Read, operation: Einsum
    ) -> tuple[int, int, int, Read] | None:
        """Numerator, denominator, sign, and how a sum's result is to read the denominator.

        None where the slot is no quotient, or its denominator not the same for all summands.
        """
        maker = self.makers.get(slot)
        if isinstance(maker, PrimalInstruction) and maker.equation.name == "div":
            sign = 1
        elif isinstance(maker, LocalInstruction) and maker.local.fun is minus_quotient:
            sign = -1
        else:
            return None
        numerator, denominator = maker.inputs
        shape, own = self.slots[slot].shape, self.slots[denominator].shape
        if read.conj or self.slots[numerator] != self.slots[slot] or len(own) != len(shape):
            return None
        sizes, kept = dict(operation.sizes), {*operation.output}
        if math.prod(operation.shape) >= math.prod(shape):
            return None
        axes = []
        for axis, size, count in zip(read.axes, shape, own, strict=True):
            if size > 1 and not axis.is_plain(size, sizes):
                return None
            if count > 1 and not kept.issuperset(axis.labels):
                return None
            axes.append(axis if count == size > 1 else constant(0))
        return numerator, denominator, sign, Read(tuple(axes))

    def reciprocal(self, slot: int, made: list[Instruction]) -> int:
        """The slot of `1 / y`; what makes it is added to `made` where nothing did before."""
        if slot not in self.reciprocals:
            self.reciprocals[slot] = self.slot(self.slots[slot])
            local = Local("ddiv", reciprocal, (), self.slots[slot].shape, "elementwise")
            made.append(LocalInstruction(local, (slot,), (self.reciprocals[slot],)))
        return self.reciprocals[slot]

    def slot(self, like: Slot) -> int:
        """A new slot."""
        self.slots.append(like)
        return len(self.slots) - 1
