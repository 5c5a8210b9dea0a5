"""Sums of squares of sums with weights, as products of the weights and of a sample's numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..edges.maps import label
from ..edges.operations import Combine, Einsum, Operation, Read
from ..edges.terms import Number
from .instructions import EdgeInstruction, Instruction, PrimalInstruction, Program, Slot
from .rewriting import BatchRewriting
from .summed_layers import EXACT

__all__ = ["expand_squares"]

#: Sums of more summands are not looked at.
MAX_SUMMANDS = 4
#: Multiplications of a product of matrices, for a batch with shared weights, that take as long as
#: one of a loop.
IN_PRODUCTS = 4
#: What expanding must leave of the work.
WORTHWHILE = 0.5

#: A slot, and the labels of its axes.
Array = tuple[int, tuple[int, ...]]


def expand_squares(program: Program, moving: Collection[int]) -> Program:
    """Take `sum_k (U[k, j] v[j] + V[k, j] u[j])^2` by the products of U and V with one another.

    `sum_k U[k, j] U[k, j]` and its like are the same for all samples and made once, and what is
    left for a sample has no k. Where a summand is a sample's vector alone, as in the columns
    `2 x - 2 z` of `|x|^2 - 2 x.z + |z|^2`, its product with weights is one of matrices.

    Args:
        program: a program of second order.
        moving: its inputs that are not the same for all samples of a batch.
    """
    found = _Squares(program, moving)
    if not any(found.applies(i) for i in program.instructions if isinstance(i, EdgeInstruction)):
        return program
    rewritten = found.rewritten()
    return rewritten.without_dead_code(None) if found.absorbed else program


@dataclass(frozen=True)
class _Summand:
    """A number times arrays that are the same for all samples, times others."""

    coefficient: Number
    fixed: tuple[Array, ...]
    own: tuple[Array, ...]

    @property
    def labels(self) -> frozenset[int]:
        """Labels of a sample's own arrays."""
        return frozenset(name for _, names in self.own for name in names)


class _Squares(BatchRewriting):
    @cached_property
    def layers(self) -> dict[frozenset[int], tuple[int, bool]]:
        """Products of a matrix and a vector that the function makes, and whether rows are left."""
        found: dict[frozenset[int], tuple[int, bool]] = {}
        for made in self.program.instructions:
            if not isinstance(made, PrimalInstruction) or made.equation.name != "dot_general":
                continue
            ranks = [len(self.slots[slot].shape) for slot in made.inputs]
            if len({self.slots[slot].dtype for slot in (*made.inputs, *made.outputs)}) > 1:
                continue
            if sorted(ranks) != [1, 2] or made.equation.params["dimension_numbers"][1] != ((), ()):
                continue
            contracted = made.equation.params["dimension_numbers"][0][ranks.index(2)]
            found[frozenset(made.inputs)] = made.outputs[0], contracted == (1,)
        return found

    def applies(self, instruction: EdgeInstruction) -> bool:
        operation = instruction.operation
        return (
            isinstance(operation, Einsum)
            and len(operation.reads) == 2
            and instruction.inputs[0] == instruction.inputs[1]
            and bool(operation.summed)
            and not operation.real
            and isinstance(self.combined(instruction.inputs[0]), Combine)
        )

    def combined(self, slot: int) -> Operation | None:
        """The operation that makes a slot."""
        return getattr(self.makers.get(slot), "operation", None)

    def replacement(self, root: EdgeInstruction) -> list[Instruction]:
        (slot, _), square = root.inputs, root.operation
        assert isinstance(square, Einsum)
        sides = [read.plain_labels for read in square.reads]
        types = {self.slots[s].dtype for s in (slot, *root.outputs)}
        if self.readers[slot] != 2 or len(types) > 1 or types.isdisjoint(EXACT):
            return [root]
        sizes = dict(square.sizes)
        summands: list[list[_Summand]] = []
        for names in sides:
            if names is None or tuple(sizes[n] for n in names) != self.slots[slot].shape:
                return [root]
            found = self.summands(slot, names, sizes)
            if not self.keeps_digits(found):
                return [root]
            summands.append(found)
        making = _Making(self, root, sizes)
        pairs: Iterable[tuple[_Summand, _Summand, int]]
        if sides[0] == sides[1]:
            pairs = [
                (one, other, 1 + (one is not other))
                for one, other in itertools.combinations_with_replacement(summands[0], 2)
            ]
        else:
            pairs = [(one, other, 1) for one, other in itertools.product(*summands)]
        operands = [making.product(*pair) for pair in pairs]
        before = math.prod(sizes.values()) + len(summands[0]) * math.prod(self.slots[slot].shape)
        result = math.prod(self.slots[root.outputs[0]].shape)
        if making.work + len(operands) * result > WORTHWHILE * before:
            return [root]
        self.absorbed.add(slot)
        kept = tuple((name, size) for name, size in square.sizes if name in square.output)
        total = Combine(
            tuple((square.coefficient * c, names) for c, _, names in operands), kept, square.output
        )
        inputs = tuple(made for _, made, _ in operands)
        return [*making.made, replace(root, operation=total, inputs=inputs)]

    def keeps_digits(self, summands: Sequence[_Summand]) -> bool:
        """Whether the sum is known to lose no more digits than the function has lost before it.

        Summands may cancel: of the difference of two networks whose weights are nearly the same,
        squares are small, and their parts are not. Of a sample's vector and weights this happens
        where the squared distance, of which it is the derivative, cancels too. Of a product of two
        layers u and v it cannot: x times `U v + V u` is twice the product.
        """
        if len(summands) != 2:
            return False
        one, other = sorted(summands, key=lambda each: len(each.fixed))
        if not one.fixed and other.fixed:
            return not other.own
        if not all(len(each.fixed) == len(each.own) == 1 for each in summands):
            return False
        ((first, _),), ((second, _),) = one.fixed, other.fixed
        ((scale, _),), ((scale_of_second, _),) = one.own, other.own
        return one.coefficient == other.coefficient and any(
            self.layers.get(frozenset((vector, first))) == (scale_of_second, by_rows)
            for (vector, by_rows) in self.layers_of(second, scale)
        )

    def layers_of(self, weights: int, result: int) -> list[tuple[int, bool]]:
        """The vectors of which weights make a result, and whether rows are left."""
        return [
            (vector, by_rows)
            for inputs, (made, by_rows) in self.layers.items()
            if made == result and weights in inputs
            for vector in inputs - {weights}
        ]

    def summands(self, slot: int, names: tuple[int, ...], sizes: dict[int, int]) -> list[_Summand]:
        """An array as a sum; equal summands are one."""
        found: dict[tuple[tuple[Array, ...], tuple[Array, ...]], Number] = {}
        pending: list[tuple[Number, Array]] = [(1, (slot, names))]
        while pending and len(found) + len(pending) <= 2 * MAX_SUMMANDS:
            coefficient, (each, own) = pending.pop()
            operation, dtype = self.combined(each), self.slots[slot].dtype
            maker = self.makers.get(each)
            if each in self.fixed:
                key: tuple[tuple[Array, ...], tuple[Array, ...]] = (((each, own),), ())
            elif (
                isinstance(operation, Combine)
                and maker is not None
                and not operation.constant
                and {self.slots[s].dtype for s in maker.inputs} == {dtype}
            ):
                renamed = dict(zip(operation.output, own, strict=True))
                for s, (c, labels) in zip(maker.inputs, operation.operands, strict=True):
                    pending.append((coefficient * c, (s, tuple(renamed[n] for n in labels))))
                continue
            else:
                key = self.scaled(each, own, sizes) or ((), ((each, own),))
                if key[0]:
                    assert isinstance(operation, Einsum)
                    coefficient *= operation.coefficient
            found[key] = found.get(key, 0) + coefficient
        if pending:
            return []
        return [_Summand(c, fixed, own) for (fixed, own), c in found.items()]

    def scaled(
        self, slot: int, names: tuple[int, ...], sizes: dict[int, int]
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]] | None:
        """An array as weights times, entry by entry, what is a sample's own."""
        maker, operation = self.makers.get(slot), self.combined(slot)
        if (
            maker is None
            or not isinstance(operation, Einsum)
            or len(operation.reads) != 2
            or operation.summed
            or operation.real
            or {self.slots[s].dtype for s in maker.inputs} != {self.slots[slot].dtype}
        ):
            return None
        renamed = dict(zip(operation.output, names, strict=True))
        fixed: list[Array] = []
        own: list[Array] = []
        for each, read in zip(maker.inputs, operation.reads, strict=True):
            labels = read.plain_labels
            if labels is None:
                return None
            array = each, tuple(renamed[n] for n in labels)
            if self.slots[each].shape != tuple(sizes[n] for n in array[1]):
                return None
            (fixed if each in self.fixed else own).append(array)
        return (tuple(fixed), tuple(own)) if fixed else None


class _Making:
    """The instructions that stand for one sum of squares.

    Attributes:
        made: instructions so far.
        work: predicted multiplications of a sample.
    """

    def __init__(self, squares: _Squares, root: EdgeInstruction, sizes: dict[int, int]):
        """Start with nothing made."""
        self.squares, self.root, self.sizes = squares, root, sizes
        assert isinstance(root.operation, Einsum)
        self.output = root.operation.output
        self.made: list[Instruction] = []
        self.known: dict[tuple[Operation, tuple[int, ...]], int] = {}
        self.work = 0.0

    def product(
        self, one: _Summand, other: _Summand, times: int
    ) -> tuple[Number, int, tuple[int, ...]]:
        """The sum of products of two summands: its coefficient, slot and labels."""
        coefficient = times * one.coefficient * other.coefficient
        own, weights = (*one.own, *other.own), (*one.fixed, *other.fixed)
        held = {name for _, names in (*own, *weights) for name in names}
        for name in self.sizes.keys() - held - {*self.output}:
            coefficient *= self.sizes[name]
        results = {*self.output}
        fixed = self.multiplied(weights, results | one.labels | other.labels, shared=True)
        moved = self.multiplied(own, results if fixed is None else results | {*fixed[1]})
        parts = [part for part in (fixed, moved) if part is not None]
        found = self.multiplied(parts, results)
        assert found is not None
        return coefficient, *found

    def multiplied(
        self, arrays: Sequence[Array], kept: Collection[int], shared: bool = False
    ) -> Array | None:
        """The product of up to two arrays, summed over all labels but `kept`."""
        if not arrays:
            return None
        held = tuple(dict.fromkeys(name for _, names in arrays for name in names))
        output = tuple(name for name in held if name in kept)
        if len(arrays) == 1 and output == held:
            return arrays[0]
        reads = tuple(Read(tuple(label(name) for name in names)) for _, names in arrays)
        sizes = tuple((name, self.sizes[name]) for name in sorted(held))
        operation, inputs = Einsum(reads, sizes, output), tuple(slot for slot, _ in arrays)
        layer = self.layer(arrays, output)
        if layer is not None:
            return layer, output
        if (operation, inputs) not in self.known:
            slots, last = self.squares.slots, self.root.outputs[0]
            slots.append(Slot(operation.shape, slots[last].dtype))
            made = replace(self.root, operation=operation, inputs=inputs, outputs=(len(slots) - 1,))
            self.made.append(made)
            self.known[operation, inputs] = len(slots) - 1
            if not shared:
                box = math.prod(size for _, size in sizes)
                in_products = len(arrays) == 2 and self.is_layer(arrays, output)
                self.work += box / (IN_PRODUCTS if in_products else 1)
        return self.known[operation, inputs], output

    def is_layer(self, arrays: Sequence[Array], output: tuple[int, ...]) -> bool:
        """Whether it is, for a batch, one product of matrices: weights times a sample's vector."""
        fixed = [slot in self.squares.fixed or not self.moves(slot) for slot, _ in arrays]
        if fixed.count(True) != 1:
            return False
        weights, vector = {*arrays[fixed.index(True)][1]}, {*arrays[fixed.index(False)][1]}
        return vector < weights and vector.isdisjoint(output)

    def moves(self, slot: int) -> bool:
        """Whether a slot that is made here depends on the sample."""
        for made in self.made:
            if slot in made.outputs:
                return any(s not in self.squares.fixed and self.moves(s) for s in made.inputs)
        return slot not in self.squares.fixed

    def layer(self, arrays: Sequence[Array], output: tuple[int, ...]) -> int | None:
        """The function's own product of a matrix and a vector, where it is what is asked for."""
        if len(arrays) != 2 or len(output) != 1:
            return None
        (vector, inner), (matrix, names) = sorted(arrays, key=lambda array: len(array[1]))
        if len(inner) != 1 or len(names) != 2 or {*inner, *output} != {*names}:
            return None
        slot, by_rows = self.squares.layers.get(frozenset((vector, matrix)), (None, False))
        return slot if by_rows == (names == (*output, *inner)) else None
