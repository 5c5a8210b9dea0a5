"""Slopes between weights, taken out of the product of these: `W diag(v) M` as `v` times `W x M`."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ..edges.maps import label
from ..edges.operations import Combine, Einsum, Read
from ..edges.terms import Number
from .instructions import EdgeInstruction, Instruction, Program, Slot
from .orientation import Storage, oriented
from .rewriting import BatchRewriting

__all__ = ["ForManySamples", "slopes_outside"]

#: Products of weights hold at most so many numbers.
MAX_SHARED = 1 << 18
#: Fewer samples are left with the weights that they scale. So are less than twice as many as the
#: product of weights has numbers for each of those, or making it takes longer than what it saves.
FEWEST, FOR_EACH = 8, 2
#: What a number counts that every sample writes and reads, in multiplications.
TRAFFIC = 8
#: A scaled matrix is the sum of at most so many products.
MAX_TERMS = 4


@dataclass(frozen=True)
class ForManySamples:
    """A program for batches.

    Attributes:
        program: the program.
        samples: from how many samples on it is the quicker one.
        shared: positions of the inputs that products of weights are made of.
        replaced: multiplications of the products that slopes were taken out of.
    """

    program: Program
    samples: int
    shared: tuple[int, ...]
    replaced: int


def slopes_outside(program: Program, moving: Collection[int]) -> ForManySamples | None:
    """Multiply the weights around a diagonal first, once for all samples of a batch.

    The Jacobian of `W f(M x)` is `W diag(v) M`: as a product of matrices each sample scales the
    weights by its slopes, writes them, and multiplies. In `v[b, k] (W[i, k] M[k, j])` the array in
    brackets is the same for all samples, so that the whole batch is one product of matrices with
    as many multiplications, whose rows are samples and which nothing is transposed for.

    Args:
        program: the program of a Jacobian.
        moving: its inputs that samples may have of their own.

    Returns:
        The program; None where it has no such products.
    """
    rewriting = _Outside(replace(program, slots=[*program.slots]), moving)
    found = rewriting.rewritten()
    if not rewriting.products:
        return None
    samples = max(FEWEST, FOR_EACH * rewriting.shared)
    products = rewriting.products
    laid = _AsRead(oriented(found.without_dead_code(None)), products).settled()
    weights = [i.inputs[1] for i in laid.instructions if not products.isdisjoint(i.outputs)]
    entering = laid.entering(weights)
    shared = tuple(k for k, slot in enumerate(laid.inputs) if slot in entering)
    return ForManySamples(laid, samples, shared, rewriting.replaced)


class _AsRead(Storage):
    """Products of weights that lie as the products with slopes that read them."""

    def __init__(self, program: Program, products: Collection[int]):
        super().__init__(program, ())
        self.products = products

    def wanted(self, slot: int) -> tuple[int, ...] | None:
        """The summed axes first, the others as the result has them; None for other arrays."""
        for place, position in self.readers.get(slot, ()):
            reading = self.instructions[place]
            operation = getattr(reading, "operation", None)
            if (
                position == 1
                and isinstance(operation, Einsum)
                and reading.outputs[0] in self.products
            ):
                places = {name: k for k, name in enumerate(operation.output)}
                names = [axis.labels[0] for axis in operation.reads[1].axes]
                return tuple(sorted(range(len(names)), key=lambda k: places.get(names[k], -1)))
        return None

    def can_be(self, slot: int, order: tuple[int, ...]) -> bool:
        """Any order: they are made once for all samples."""
        del slot, order
        return True


@dataclass(frozen=True)
class _Factor:
    """An array and how it is read; what is not the same for all samples is read entry by entry."""

    slot: int
    read: Read

    @property
    def labels(self) -> tuple[int, ...]:
        """Labels that it depends on, in the order of its axes."""
        return tuple(dict.fromkeys(name for axis in self.read.axes for name in axis.labels))


@dataclass(frozen=True)
class _Term:
    """A number times factors."""

    coefficient: Number
    factors: tuple[_Factor, ...]


@dataclass(frozen=True)
class _Planned:
    """A product of slopes with weights.

    Attributes:
        slopes: what samples have of their own.
        weights: what they have in common.
        coefficient: a number.
        own: labels of the slopes' product.
        kept: labels of the weights' product.
    """

    slopes: Sequence[_Factor]
    weights: Sequence[_Factor]
    coefficient: Number
    own: tuple[int, ...]
    kept: tuple[int, ...]


class _Outside(BatchRewriting):
    """Products of scaled weights with weights.

    Attributes:
        shared: how many numbers a product of weights has, at most, for each that is scaled.
        products: slots of slopes times products of weights.
        replaced: multiplications of the products that they stand for.
        sizes: of the labels of the product that is replaced.
        made: what replaces it.
        like: the product.
    """

    def __init__(self, program: Program, moving: Collection[int]):
        """Nothing is replaced yet."""
        super().__init__(program, moving)
        self.shared = 0
        self.products: set[int] = set()
        self.replaced = 0
        self.sizes: dict[int, int] = {}
        self.made: list[Instruction] = []
        self.like: EdgeInstruction | None = None

    def applies(self, instruction: EdgeInstruction) -> bool:
        operation = instruction.operation
        return (
            isinstance(operation, Einsum)
            and len(operation.reads) == 2
            and len(operation.summed) > 0
            and not operation.real
            and [slot in self.fixed for slot in instruction.inputs].count(True) == 1
            and len({self.slots[s].dtype for s in (*instruction.inputs, *instruction.outputs)}) == 1
        )

    def replacement(self, root: EdgeInstruction) -> list[Instruction]:
        """One product for each term of the scaled matrix, added."""
        operation = root.operation
        assert isinstance(operation, Einsum)
        self.sizes, self.made, self.like = dict(operation.sizes), [], root
        factors = [
            _Factor(slot, read) for read, slot in zip(operation.reads, root.inputs, strict=True)
        ]
        scaled, weights = sorted(factors, key=lambda factor: factor.slot in self.fixed)
        if not self.is_whole(scaled):
            return [root]
        terms, inner = self.terms(scaled)
        if len(terms) > MAX_TERMS or not inner:
            return [root]
        known = [self.planned(term, weights, operation) for term in terms]
        plans = [plan for plan in known if plan is not None]
        if len(plans) < len(known):
            return [root]
        shared = sum(self.box(plan.kept) for plan in plans)
        before = self.box(self.sizes) + (len(terms) + TRAFFIC) * self.box(scaled.labels)
        after = sum(self.box({*plan.own, *plan.kept}) for plan in plans)
        if shared > MAX_SHARED or after > before:
            return [root]
        parts = [self.product(plan, operation) for plan in plans]
        if len(parts) == 1 and parts[0].labels == operation.output:
            last = self.made[-1]
            self.made[-1] = replace(last, outputs=root.outputs)
            self.products.update(root.outputs)
        else:
            operands = tuple((1, part.labels) for part in parts)
            sizes = tuple((name, self.sizes[name]) for name in sorted(operation.output))
            total = Combine(operands, sizes, operation.output)
            slots = tuple(part.slot for part in parts)
            self.products.update(slots)
            self.made.append(replace(root, operation=total, inputs=slots))
        if not operation.written_out:
            self.shared = max(self.shared, shared // self.box(scaled.labels))
        self.replaced += operation.cost.muls
        self.absorbed.update(inner)
        return self.made

    def terms(self, factor: _Factor) -> tuple[list[_Term], list[int]]:
        """The products that an array is the sum of, entry by entry.

        Arrays that hold no weights are left whole.

        Returns:
            The products, and the slots that are not read any more.
        """
        whole = [_Term(1, (factor,))], list[int]()
        maker = self.makers.get(factor.slot)
        if (
            factor.slot in self.fixed
            or not isinstance(maker, EdgeInstruction)
            or self.readers[factor.slot] > 1
            or len(factor.labels) < 2
            or any(self.slots[s].dtype != self.slots[factor.slot].dtype for s in maker.inputs)
        ):
            return whole
        operation, inner = maker.operation, [factor.slot]
        if isinstance(operation, Combine) and not operation.constant:
            found = list[_Term]()
            names = dict(zip(operation.output, factor.labels, strict=True))
            for (coefficient, own), slot in zip(operation.operands, maker.inputs, strict=True):
                terms, below = self.terms(_Factor(slot, _plain([names[name] for name in own])))
                found += [_Term(t.coefficient * coefficient, t.factors) for t in terms]
                inner += below
        elif isinstance(operation, Einsum) and not operation.summed and not operation.real:
            found = [_Term(operation.coefficient, ())]
            names = dict(zip(operation.output, factor.labels, strict=True))
            for read, slot in zip(operation.reads, maker.inputs, strict=True):
                axes = tuple(axis.renamed(names) for axis in read.axes)
                part = _Factor(slot, Read(axes, read.conj))
                if slot not in self.fixed and not self.is_whole(part):
                    return whole
                terms, below = self.terms(part)
                found = [
                    _Term(one.coefficient * other.coefficient, (*one.factors, *other.factors))
                    for one in found
                    for other in terms
                ]
                inner += below
        else:
            return whole
        has_weights = any(f.slot in self.fixed for term in found for f in term.factors)
        return (found, inner) if has_weights else whole

    def planned(self, term: _Term, weights: _Factor, operation: Einsum) -> _Planned | None:
        """How a term of the scaled matrix is multiplied with weights.

        None where slopes are not fewer than what they scale, or the product is one for each row.
        """
        slopes = [factor for factor in term.factors if factor.slot not in self.fixed]
        shared = [factor for factor in term.factors if factor.slot in self.fixed]
        own, every = _union(slopes), _union([*shared, weights])
        between = [name for name in own if name in operation.summed]
        outside = [name for name in own if name not in operation.summed]
        if not between or not {*between} <= {*every} or {*outside} & {*every}:
            return None
        if 2 * self.box(own) > self.box(_union(term.factors)):
            return None
        if tuple(outside) != operation.output[: len(outside)]:
            return None
        kept = [name for name in operation.output if name in every]
        return _Planned(
            slopes,
            [*shared, weights],
            term.coefficient * operation.coefficient,
            (*outside, *between),
            (*between, *kept),
        )

    def product(self, plan: _Planned, operation: Einsum) -> _Factor:
        """Slopes times the product of weights."""
        vector = self.multiplied(plan.slopes, plan.own, 1)
        matrix = self.multiplied(plan.weights, plan.kept, plan.coefficient)
        output = tuple(n for n in operation.output if n in plan.own or n in plan.kept)
        return self.einsum((vector, matrix), output, 1, whole=True)

    def multiplied(
        self, factors: Sequence[_Factor], output: tuple[int, ...], coefficient: Number
    ) -> _Factor:
        """The product of factors, with axes in the order of `output`, summed over all others."""
        product = factors[0]
        for position, factor in enumerate(factors[1:], start=2):
            last = position == len(factors)
            names = output if last else _union((product, factor))
            product = self.einsum((product, factor), names, coefficient if last else 1)
        if len(factors) == 1 and (product.read != _plain(output) or coefficient != 1):
            product = self.einsum((product,), output, coefficient)
        return product

    def einsum(
        self,
        factors: Sequence[_Factor],
        output: tuple[int, ...],
        coefficient: Number,
        whole: bool = False,
    ) -> _Factor:
        """One or two arrays multiplied."""
        assert self.like is not None
        reads = tuple(factor.read for factor in factors)
        sizes = tuple((name, self.sizes[name]) for name in sorted(_union(factors)))
        operation = Einsum(reads, sizes, output, coefficient, whole=whole)
        self.slots.append(Slot(operation.shape, self.slots[self.like.outputs[0]].dtype))
        slot = len(self.slots) - 1
        if all(factor.slot in self.fixed for factor in factors):
            self.fixed.add(slot)
        inputs = tuple(factor.slot for factor in factors)
        self.made.append(replace(self.like, operation=operation, inputs=inputs, outputs=(slot,)))
        return _Factor(slot, _plain(output))

    def box(self, names: Collection[int]) -> int:
        """The product of the sizes of labels."""
        return math.prod(self.sizes[name] for name in names)

    def is_whole(self, factor: _Factor) -> bool:
        """Whether an array is read entry by entry."""
        names = factor.read.plain_labels
        return names is not None and self.slots[factor.slot].shape == tuple(
            self.sizes[name] for name in names
        )


def _union(factors: Sequence[_Factor]) -> tuple[int, ...]:
    """The labels of factors, each once, in their order."""
    return tuple(dict.fromkeys(name for factor in factors for name in factor.labels))


def _plain(names: Sequence[int]) -> Read:
    """An array whose axes have these labels, read entry by entry."""
    return Read(tuple(label(name) for name in names))
