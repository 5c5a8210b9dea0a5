"""What does not move, taken out of a sum: `sum(a * f(x) * b)` as `(a * b) . f(x)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import reduce

from ..edges.maps import label
from ..edges.operations import Combine, Einsum, Operation, Read
from ..edges.terms import Number
from .instructions import EdgeInstruction, Instruction, PrimalInstruction, Program, Slot
from .rewriting import Rewriting

__all__ = ["take_out_fixed_factors"]

#: A factor: its slot, and which axes of the summed array its axes are.
Factor = tuple[int, tuple[int, ...]]


def take_out_fixed_factors(program: Program, moving: Collection[int]) -> Program:
    """Multiply parameters with one another before they meet what depends on the point.

    Elimination multiplies every entry by one parameter after the other. For a batch these are as
    many passes over it, and as many sums over it in the gradient with respect to the parameters.
    Their product is one small array, and what is left is a matrix times a vector.

    Args:
        program: the program.
        moving: the inputs that move; what depends on none of them is the same for a batch.
    """
    return _Sums(program, moving).rewritten().without_dead_code(None)


class _Sums(Rewriting):
    """Sums of all entries of products, and of sums of products.

    Attributes:
        fixed: slots that no moving input enters.
        root: the sum that is replaced.
        made: instructions that replace it.
        known: slots of those by operation and operands.
    """

    def __init__(self, program: Program, moving: Collection[int]):
        """Follow what moves."""
        super().__init__(program)
        self.fixed = program.unreached(moving)
        self.root: EdgeInstruction | None = None
        self.made: list[Instruction] = []
        self.known: dict[tuple[Operation, tuple[int, ...]], int] = {}

    def applies(self, instruction: EdgeInstruction) -> bool:
        operation = instruction.operation
        return (
            isinstance(operation, Einsum)
            and operation.is_total
            and operation.reads[0].plain_labels is not None
        )

    def parts(self, slot: int) -> list[Factor] | None:
        """What a product, or a sum that is read once, is made of; None for anything else."""
        operation, type_ = self.operation(slot), self.slots[slot]
        if operation is None:
            return None
        maker = self.makers[slot]
        if any(self.slots[s].dtype != type_.dtype for s in maker.inputs):
            return None
        if isinstance(operation, Combine):
            names = [names for _, names in operation.operands]
            if (
                self.readers[slot] > 1
                or operation.constant
                or any(n != operation.output for n in names)
            ):
                return None
            if not self.fixed.isdisjoint(maker.inputs):
                return None
        elif (
            isinstance(operation, Einsum)
            and len(operation.reads) == 2
            and len(operation.output) == len(operation.sizes)
            and not operation.real
        ):
            found = [read.plain_labels for read in operation.reads]
            if None in found:
                return None
            names = [n for n in found if n is not None]
        else:
            return None
        sizes = dict(operation.sizes)
        if any(
            tuple(sizes[n] for n in own) != self.slots[s].shape
            for own, s in zip(names, maker.inputs, strict=True)
        ):
            return None
        return [
            (s, tuple(operation.output.index(n) for n in own))
            for own, s in zip(names, maker.inputs, strict=True)
        ]

    def factors(self, factor: Factor) -> Counter[Factor]:
        """Fixed factors of every entry of an array."""
        slot, places = factor
        parts = self.parts(slot)
        if slot in self.fixed and (parts is None or not self.is_plain_product(slot)):
            return Counter([factor])
        if parts is None:
            return Counter()
        found = [self.factors(_inside(part, places)) for part in parts]
        if isinstance(self.operation(slot), Combine):
            return reduce(lambda a, b: a & b, found)
        return reduce(lambda a, b: a + b, found)

    def is_plain_product(self, slot: int) -> bool:
        """Whether a slot is a product without a number."""
        operation = self.operation(slot)
        return isinstance(operation, Einsum) and operation.coefficient == 1

    def together(self, factors: Counter[Factor]) -> Factor | None:
        """The product of fixed factors."""
        found: Factor | None = None
        for factor in sorted(factors.elements()):
            found = factor if found is None else self.multiply([found, factor], 1)
        return found

    def operation(self, slot: int) -> Operation | None:
        """The operation that makes a slot; a product of the function is one as well."""
        maker = self.makers.get(slot)
        if isinstance(maker, EdgeInstruction):
            return maker.operation
        if not isinstance(maker, PrimalInstruction) or maker.equation.name != "mul":
            return None
        shape = self.slots[slot].shape
        if [self.slots[s].shape for s in maker.inputs] != [shape, shape]:
            return None  # a factor that is no slot, but stands in the equation
        names = tuple(range(len(shape)))
        whole = Read(tuple(label(n) for n in names))
        return Einsum((whole, whole), tuple(zip(names, shape, strict=True)), names)

    def without(self, factor: Factor, taken: Counter[Factor]) -> Factor | None:
        """The array divided by some of its factors; None for one."""
        if not taken:
            return factor
        slot, places = factor
        if slot in self.fixed:
            return self.together(self.factors(factor) - taken)
        parts = self.parts(slot)
        assert parts is not None
        operation = self.operation(slot)
        left: list[Factor] = []
        rest = Counter(taken)
        for part in (_inside(part, places) for part in parts):
            own = taken if isinstance(operation, Combine) else rest & self.factors(part)
            if not isinstance(operation, Combine):
                rest = rest - own
            remaining = self.without(part, own)
            if remaining is not None:
                left.append(remaining)
        if isinstance(operation, Combine):
            return self.add(left, [c for c, _ in operation.operands])
        assert isinstance(operation, Einsum)
        if len(left) == 1 and operation.coefficient == 1:
            return left[0]
        return self.multiply(left, operation.coefficient)

    def add(self, parts: list[Factor], coefficients: list[Number]) -> Factor:
        """The sum of arrays, which repeat along axes that they have lost."""
        kept = tuple(sorted({p for _, own in parts for p in own}))
        operands = tuple((c, own) for c, (_, own) in zip(coefficients, parts, strict=True))
        sizes = self.sizes(parts)
        combine = Combine(operands, tuple((n, sizes[n]) for n in kept), kept)
        return self.emit(combine, parts, kept)

    def multiply(self, parts: list[Factor], coefficient: Number) -> Factor:
        """The product of one or two arrays."""
        kept = tuple(dict.fromkeys(p for _, own in parts for p in own))
        sizes = self.sizes(parts)
        reads = tuple(Read(tuple(label(p) for p in own)) for _, own in parts)
        einsum = Einsum(reads, tuple((n, sizes[n]) for n in sorted(kept)), kept, coefficient)
        return self.emit(einsum, parts, kept)

    def sizes(self, parts: list[Factor]) -> dict[int, int]:
        """Sizes of the axes of the summed array."""
        return {
            p: size
            for slot, own in parts
            for p, size in zip(own, self.slots[slot].shape, strict=True)
        }

    def emit(self, operation: Operation, parts: list[Factor], kept: tuple[int, ...]) -> Factor:
        """An instruction that makes a new slot."""
        like = self.root
        assert like is not None
        inputs = tuple(s for s, _ in parts)
        key = (operation, inputs)
        if key not in self.known:
            sizes, dtype = self.sizes(parts), self.slots[like.outputs[0]].dtype
            self.slots.append(Slot(tuple(sizes[p] for p in kept), dtype))
            self.known[key] = slot = len(self.slots) - 1
            self.made.append(replace(like, operation=operation, inputs=inputs, outputs=(slot,)))
        return self.known[key], kept

    def replacement(self, root: EdgeInstruction) -> list[Instruction]:
        """The instructions of a sum as a product of two arrays, summed."""
        operation = root.operation
        assert isinstance(operation, Einsum)
        places = operation.reads[0].plain_labels
        assert places is not None
        whole: Factor = (root.inputs[0], places)
        sizes = dict(operation.sizes)
        shape = tuple(sizes[p] for p in places)
        if whole[0] in self.fixed or self.slots[whole[0]].shape != shape:
            return [root]
        taken = self.factors(whole)
        if not taken or self.slots[whole[0]].dtype != self.slots[root.outputs[0]].dtype:
            return [root]
        self.root, self.made, self.known = root, [], {}
        moving = self.without(whole, taken)
        assert moving is not None
        fixed = self.together(taken)
        assert fixed is not None
        reads = tuple(Read(tuple(label(p) for p in own)) for _, own in (moving, fixed))
        together = replace(operation, reads=reads)
        return [*self.made, replace(root, operation=together, inputs=(moving[0], fixed[0]))]


def _inside(factor: Factor, places: tuple[int, ...]) -> Factor:
    """A factor of an array as one of what that array is part of."""
    slot, own = factor
    return slot, tuple(places[p] for p in own)
