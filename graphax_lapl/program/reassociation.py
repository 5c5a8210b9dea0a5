"""The order in which the factors of a sum of products are multiplied."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..edges.maps import label
from ..edges.operations import Einsum, Read
from ..edges.terms import Number
from .instructions import EdgeInstruction, Instruction, Program, Slot
from .rewriting import Rewriting

__all__ = ["Factor", "Reassociation", "reassociate"]

#: Sums of more factors are left as they are; the search is exhaustive.
MAX_FACTORS = 5
#: A new order is taken where it costs at most this part of the old one: what is as cheap on paper
#: may turn one matrix product with shared weights into one per sample. Entrywise sums may not.
WORTHWHILE = 0.75


def reassociate(program: Program) -> Program:
    """Multiply the factors of each sum in the cheapest order.

    Elimination multiplies what it meets first. In the trace of `W diag(d) V` that is `W diag(d)`,
    a matrix; summing `W[i, k] V[k, i]` over i first leaves two vectors, of which one does not even
    depend on the point.
    """
    return Reassociation(program).rewritten()


@dataclass(frozen=True)
class Factor:
    """A factor of a product: how it is read, and its slot."""

    read: Read
    slot: int


@dataclass(frozen=True)
class _Step:
    """Two factors multiplied, the labels that are kept, and the cost of all steps so far."""

    cost: int
    pairs: tuple[tuple[int, int], ...]


class Reassociation(Rewriting):
    """Writes sums of products of a few factors in another order."""

    def applies(self, instruction: EdgeInstruction) -> bool:
        """Whether it is a sum of products."""
        return _is_sum(instruction.operation)

    def product_read(self, read: Read, slot: int, root: EdgeInstruction) -> EdgeInstruction | None:
        """What makes a product that only `root` reads, entry by entry; None for anything else."""
        maker, dtype = self.makers.get(slot), self.slots[root.outputs[0]].dtype
        others = self.readers[slot] - root.inputs.count(slot)
        if not isinstance(maker, EdgeInstruction) or others or read.conj:
            return None
        operation = maker.operation
        if not isinstance(operation, Einsum) or operation.real or len(operation.reads) != 2:
            return None
        if len(operation.output) < len(operation.sizes) or self.slots[slot].dtype != dtype:
            return None
        return None if read.plain_labels is None else maker

    def taken_apart(
        self, factor: Factor, root: EdgeInstruction, sizes: dict[int, int]
    ) -> EdgeInstruction | None:
        """What makes a factor of `root` that is a product, read as a whole; None for others."""
        maker = self.product_read(factor.read, factor.slot, root)
        extents = zip(factor.read.axes, self.slots[factor.slot].shape, strict=True)
        if maker is None or any(sizes[axis.labels[0]] != size for axis, size in extents):
            return None
        return maker

    def replacement(self, root: EdgeInstruction) -> list[Instruction]:
        """The sum's instructions in the order that is chosen."""
        operation = root.operation
        assert isinstance(operation, Einsum)
        sizes = dict(operation.sizes)
        coefficient: Number = operation.coefficient
        factors = [
            Factor(read, slot) for read, slot in zip(operation.reads, root.inputs, strict=True)
        ]
        # A product stays where one of two readings of it cannot be taken apart, as a conjugate.
        whole = {f.slot for f in factors if self.taken_apart(f, root, sizes) is None}
        cost, inner = _box(sizes, sizes), []
        position = 0
        while position < len(factors):
            read, slot = factors[position].read, factors[position].slot
            maker = None if slot in whole else self.taken_apart(factors[position], root, sizes)
            if maker is None:
                position += 1
                continue
            product = maker.operation
            assert isinstance(product, Einsum)
            names = dict(zip(product.output, (a.labels[0] for a in read.axes), strict=True))
            factors[position : position + 1] = [
                Factor(Read(tuple(a.renamed(names) for a in own.axes), own.conj), own_slot)
                for own, own_slot in zip(product.reads, maker.inputs, strict=True)
            ]
            coefficient *= product.coefficient
            if slot not in inner:
                cost += _box(names.values(), sizes)
            inner.append(slot)
        if not inner or not 2 < len(factors) <= MAX_FACTORS:
            return [root]
        pairs = self.order(operation, factors, cost)
        if pairs is None:
            return [root]
        self.absorbed.update(inner)
        return self.multiplied(root, factors, pairs, coefficient)

    def order(
        self, operation: Einsum, factors: Sequence[Factor], cost: int
    ) -> Sequence[tuple[int, int]] | None:
        """Which factors are multiplied with which, positions as the list changes; None for as is.

        Args:
            operation: the sum.
            factors: what it is the sum of products of.
            cost: multiplications of the order that stands.
        """
        labels = tuple(factor.read.labels for factor in factors)
        best = _cheapest(labels, frozenset(operation.output), operation.sizes)
        return (
            best.pairs if best.cost <= (1 if _is_loop(operation) else WORTHWHILE) * cost else None
        )

    def multiplied(
        self,
        root: EdgeInstruction,
        factors: list[Factor],
        pairs: Sequence[tuple[int, int]],
        coefficient: Number,
    ) -> list[Instruction]:
        """Instructions that multiply factors pair by pair; each product goes to the end."""
        operation = root.operation
        assert isinstance(operation, Einsum)
        sizes = dict(operation.sizes)
        made: list[Instruction] = []
        for first, second in pairs:
            chosen = (factors[first], factors[second])
            factors = [f for k, f in enumerate(factors) if k not in (first, second)]
            together = chosen[0].read.labels | chosen[1].read.labels
            step = replace(
                operation,
                reads=(chosen[0].read, chosen[1].read),
                sizes=tuple((name, sizes[name]) for name in sorted(together)),
            )
            slot = root.outputs[0]
            if factors:
                needed = {*operation.output}.union(*(f.read.labels for f in factors))
                kept = tuple(name for name in _order(chosen) if name in needed)
                step = replace(step, output=kept, coefficient=1, real=False)
                self.slots.append(Slot(step.shape, self.slots[slot].dtype))
                slot = len(self.slots) - 1
                factors.append(Factor(Read(tuple(label(name) for name in kept)), slot))
            else:
                step = replace(step, coefficient=coefficient)
            inputs = tuple(factor.slot for factor in chosen)
            made.append(replace(root, operation=step, inputs=inputs, outputs=(slot,)))
        return made


def _is_sum(operation: object) -> bool:
    return (
        isinstance(operation, Einsum)
        and len(operation.reads) == 2
        and len(operation.output) < len(operation.sizes)
    )


def _is_loop(operation: Einsum) -> bool:
    """Whether it is no product of matrices: every entry has its own entries of both operands."""
    first, second = (read.labels for read in operation.reads)
    return bool(operation.output) and first & second >= {*operation.output}


def _order(factors: Sequence[Factor]) -> list[int]:
    """The labels of factors, in the order in which they hold them."""
    axes = [axis for factor in factors for axis in factor.read.axes]
    return list(dict.fromkeys(name for axis in axes for name in axis.labels))


def _box(names: Collection[int], sizes: dict[int, int]) -> int:
    return math.prod(sizes[name] for name in names)


@lru_cache(maxsize=4096)
def _cheapest(
    factors: tuple[frozenset[int], ...],
    output: frozenset[int],
    sizes: tuple[tuple[int, int], ...],
) -> _Step:
    """The cheapest order of pairwise products; positions as the list of factors changes."""
    if len(factors) < 2:
        return _Step(0, ())
    extents = dict(sizes)
    best: _Step | None = None
    for first in range(len(factors)):
        for second in range(first + 1, len(factors)):
            rest = [f for k, f in enumerate(factors) if k not in (first, second)]
            together = factors[first] | factors[second]
            product = together & output.union(*rest)
            after = _cheapest((*rest, product), output, sizes)
            cost = _box(together, extents) + after.cost
            if best is None or cost < best.cost:
                best = _Step(cost, ((first, second), *after.pairs))
    assert best is not None
    return best
