"""Sums of one array scaled in several ways, as that array scaled once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..edges.maps import label
from ..edges.operations import Combine, Einsum, Read
from ..edges.terms import Number
from .instructions import EdgeInstruction, Instruction, Program, Slot
from .rewriting import Rewriting

__all__ = ["scale_once"]

#: Numbers of a scale are at most this part of those of the array that it scales.
SMALL = 4

#: A slot, and the labels of its axes.
Array = tuple[int, tuple[int, ...]]


def scale_once(program: Program) -> Program:
    """Add scales before they meet what they scale: `J diag(a) - J diag(b)` as `J diag(a - b)`.

    A function that is made of several elementwise ones, as softplus is, gives the columns of its
    argument several slopes, and the columns of its own slope are a sum of these.
    """
    return _Scalings(program).rewritten()


@dataclass(frozen=True)
class _Scaled:
    """An array as another one times a number and some that are repeated along its axes."""

    base: Array
    coefficient: Number
    scales: tuple[Array, ...]


class _Scalings(Rewriting):
    def applies(self, instruction: EdgeInstruction) -> bool:
        operation = instruction.operation
        return isinstance(operation, Combine) and len(operation.operands) > 1

    def replacement(self, root: EdgeInstruction) -> list[Instruction]:
        """One scaling, where all summands scale one array."""
        operation = root.operation
        assert isinstance(operation, Combine)
        if operation.constant or any(
            {*names} != {*operation.output} for _, names in operation.operands
        ):
            return [root]
        forms = [
            {form.base: form for form in self.forms((slot, names), coefficient)}
            for slot, (coefficient, names) in zip(root.inputs, operation.operands, strict=True)
        ]
        sizes = dict(operation.sizes)
        whole = math.prod(sizes[name] for name in operation.output)
        for base in forms[0]:
            if not all(base in own for own in forms):
                continue
            chosen = [own[base] for own in forms]
            if len({form.scales for form in chosen}) == 1:  # a multiple of one array
                continue
            labels = {frozenset(n for _, names in form.scales for n in names) for form in chosen}
            (own, *others) = sorted(labels - {frozenset()}, key=len) or [frozenset()]
            if own and not others and SMALL * math.prod(sizes[n] for n in own) <= whole:
                kept = tuple(name for name in operation.output if name in own)
                return self.scaled_once(root, base, chosen, kept)
        return [root]

    def forms(self, array: Array, coefficient: Number) -> Iterator[_Scaled]:
        """All ways to see an array as a scaled one."""
        scales: tuple[Array, ...] = ()
        while True:
            yield _Scaled(array, coefficient, scales)
            slot, names = array
            maker = self.makers.get(slot)
            operation = getattr(maker, "operation", None)
            if (
                maker is None
                or not isinstance(operation, Einsum)
                or operation.real
                or len(operation.reads) != 2
                or len(operation.output) < len(operation.sizes)
                or {self.slots[s].dtype for s in maker.inputs} != {self.slots[slot].dtype}
            ):
                return
            renamed = dict(zip(operation.output, names, strict=True))
            found: list[Array] = []
            for own, read in zip(maker.inputs, operation.reads, strict=True):
                labels = read.plain_labels
                sizes = dict(operation.sizes)
                if labels is None or self.slots[own].shape != tuple(sizes[n] for n in labels):
                    return
                found.append((own, tuple(renamed[n] for n in labels)))
            small, large = sorted(found, key=lambda own: len(own[1]))
            if not len(small[1]) < len(large[1]) == len(names):
                return
            array, scales = large, (*scales, small)
            coefficient *= operation.coefficient

    def scaled_once(
        self, root: EdgeInstruction, base: Array, forms: list[_Scaled], kept: tuple[int, ...]
    ) -> list[Instruction]:
        """The sum of the scales, and its product with the array."""
        operation = root.operation
        assert isinstance(operation, Combine)
        sizes = tuple((n, size) for n, size in operation.sizes if n in kept)
        made: list[Instruction] = []

        def slot_of(step: Einsum | Combine, *inputs: int) -> int:
            self.slots.append(Slot(step.shape, self.slots[root.outputs[0]].dtype))
            made.append(
                replace(root, operation=step, inputs=inputs, outputs=(len(self.slots) - 1,))
            )
            return len(self.slots) - 1

        constant: Number = 0
        operands, inputs = [], []
        for form in forms:
            if not form.scales:
                constant += form.coefficient
                continue
            (slot, names), *rest = form.scales
            for other, own in rest:
                product = Einsum((_read(names), _read(own)), sizes, kept)
                slot, names = slot_of(product, slot, other), kept
            operands.append((form.coefficient, names))
            inputs.append(slot)
        total = slot_of(Combine(tuple(operands), sizes, kept, constant), *inputs)
        scaling = Einsum((_read(base[1]), _read(kept)), operation.sizes, operation.output)
        made.append(replace(root, operation=scaling, inputs=(base[0], total)))
        return made


def _read(names: tuple[int, ...]) -> Read:
    return Read(tuple(label(name) for name in names))
