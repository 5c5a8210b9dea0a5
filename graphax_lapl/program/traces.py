"""A trace as numbers of a few layers' slopes, its weights multiplied once for all samples."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count

from ..edges.maps import IndexMap, label
from ..edges.operations import Assemble, Combine, Einsum, Read
from ..edges.terms import Number, Term
from .instructions import EdgeInstruction, Instruction, Program, Slot

__all__ = ["has_large_products_of_weights", "multiply_weights_of_traces"]

#: Traces of more products, or of products of more factors, are left as they are.
MAX_PRODUCTS = 8
MAX_FACTORS = 9
#: What a multiplication counts whose factors all samples share.
SHARED = 1 / 8
#: Products that all samples share hold at most so many numbers.
MAX_SHARED = 1 << 18
#: What a number counts that every sample reads or writes, in multiplications.
TRAFFIC = 8
#: A product of weights is large where it holds so many times as many numbers as they do.
LARGE = 4
#: The program is replaced where it takes at most this part of the work.
WORTHWHILE = 0.95


def multiply_weights_of_traces(program: Program, moving: Collection[int]) -> Program:
    """Write a trace as a sum of products of all factors, each multiplied in the cheapest order.

    The trace of `W1 diag(d1) W2 diag(d2) W3` is `d1^T (W2 * (W3 W1)^T) d2`. The matrix between the
    slopes is made of weights, which the samples of a batch share: what is left for each of them is
    a product with a matrix and a dot product. Any order in which the layers are eliminated has a
    product of two matrices for each sample.

    Of more layers matrices are left, `W1 diag(d1) W2` among them: the slopes times an array with
    three axes that is made of weights. That is one large product for a batch, as many
    multiplications as with the scaled `W1`, which is never written, nor are, in a training step,
    sums over its rows and over the batch.

    Args:
        program: the program of a trace; its block is a number.
        moving: the inputs that are not the same for all samples.
    """
    ((block,),) = program.blocks
    if len(block.slots) != 1 or program.slots[block.slots[0]].shape:
        return program
    traces = _Traces(program, moving)
    new = traces.rewritten(block.slots[0])
    if new is None or traces.work(new) > WORTHWHILE * traces.work(program):
        return program
    return new


def has_large_products_of_weights(program: Program, moving: Collection[int]) -> bool:
    """Whether weights are multiplied to many more numbers than they are.

    A small batch takes longer to make these than it saves.
    """
    fixed = program.unreached(moving)
    sizes = [math.prod(slot.shape) for slot in program.slots]
    return any(
        instruction.outputs[0] in fixed
        and sizes[instruction.outputs[0]] > LARGE * sum(sizes[s] for s in instruction.inputs)
        for instruction in program.instructions
        if isinstance(instruction, EdgeInstruction)
    )


@dataclass(frozen=True)
class _Factor:
    """An array of a product and how it is read."""

    slot: int
    axes: tuple[IndexMap, ...]

    @property
    def labels(self) -> frozenset[int]:
        return frozenset([name for axis in self.axes for name in axis.labels])


@dataclass(frozen=True)
class _Product:
    """A number times factors, summed over `summed`; `same` are labels that have one value."""

    coefficient: Number
    factors: tuple[_Factor, ...] = ()
    summed: tuple[int, ...] = ()
    same: tuple[tuple[int, int], ...] = ()

    def times(self, other: _Product) -> _Product:
        if len(self.factors) + len(other.factors) > MAX_FACTORS:
            raise _TooMany
        return _Product(
            self.coefficient * other.coefficient,
            (*self.factors, *other.factors),
            (*self.summed, *other.summed),
            (*self.same, *other.same),
        )


class _TooMany(Exception):
    """More products or factors than are looked at."""


class _Traces:
    """Takes a number apart and puts it together again.

    Attributes:
        fixed: slots that no moving input enters.
        sizes: of all labels, which are numbered anew.
        made: the new instructions.
        known: slots of products that were made, by operation and operands.
        places: where the products that were made stand in `made`.
        read: slots that these read, or will: their axes stay where they are.
    """

    def __init__(self, program: Program, moving: Collection[int]):
        self.program = program
        self.slots = [*program.slots]
        self.fixed = program.unreached(moving)
        self.makers = {s: i for i in program.instructions for s in i.outputs}
        self.names = count()
        self.sizes: dict[int, int] = {}
        self.made: list[Instruction] = []
        self.known: dict[tuple[Einsum, tuple[int, ...]], int] = {}
        self.places: dict[int, int] = {}
        self.read: set[int] = set()

    def rewritten(self, root: int) -> Program | None:
        """The program with the number `root` made anew; None where it cannot be."""
        maker = self.makers.get(root)
        if not isinstance(maker, EdgeInstruction) or not _is_real(self.slots[root]):
            return None
        try:
            products = [self.joined(product) for product in self.products(root, ())]
        except _TooMany:
            return None
        constant = sum(p.coefficient for p in products if not p.factors)
        shares = [(p.coefficient, self.multiplied(p.factors, maker)) for p in products if p.factors]
        if not shares or root in {f.slot for p in products for f in p.factors}:
            return None
        total = Combine(tuple((c, ()) for c, _ in shares), (), (), constant)
        inputs = tuple(slot for _, slot in shares)
        self.made.append(replace(maker, operation=total, inputs=inputs))
        old = self.program.instructions
        place = next(k for k, i in enumerate(old) if i is maker)
        instructions = [*old[:place], *self.made, *old[place + 1 :]]
        new = replace(self.program, slots=self.slots, instructions=instructions)
        return new.without_dead_code(None)

    def work(self, program: Program) -> float:
        """What each sample multiplies, reads and writes, and a part of what they share."""
        total = 0.0
        for i in program.instructions:
            if isinstance(i, EdgeInstruction):
                muls = i.operation.cost.muls
                slots = (*i.inputs, *i.outputs)
                numbers = sum(math.prod(self.slots[s].shape) for s in slots if s not in self.fixed)
                total += muls * SHARED if i.outputs[0] in self.fixed else muls + TRAFFIC * numbers
        return total

    def products(self, slot: int, axes: tuple[IndexMap, ...]) -> list[_Product]:
        """What an array that is read at `axes` is the sum of.

        Raises:
            _TooMany: for more products or factors than are looked at.
        """
        whole = [_Product(1, (_Factor(slot, axes),))]
        maker = self.makers.get(slot)
        shape = self.slots[slot].shape
        if (
            slot in self.fixed
            or not isinstance(maker, EdgeInstruction)
            or any(self.slots[s].dtype != self.slots[slot].dtype for s in maker.inputs)
            or not all(map(self.is_within, axes, shape))
        ):
            return whole
        operation = maker.operation
        parts: list[_Product] | None = None
        if self.is_slope(slot):
            return whole
        if isinstance(operation, Einsum):
            parts = self.of_einsum(operation, maker.inputs, axes)
        elif isinstance(operation, Combine):
            parts = self.of_combine(operation, maker.inputs, axes)
        elif isinstance(operation, Assemble):
            parts = self.of_assemble(operation, maker.inputs, axes)
        if parts is None:
            return whole
        if len(parts) > MAX_PRODUCTS:
            raise _TooMany
        return parts

    def is_slope(self, slot: int) -> bool:
        """Whether it is a vector made entry by entry, which is as good as what it is made of."""
        if len(self.slots[slot].shape) > 1:
            return False
        maker = self.makers.get(slot)
        if slot in self.fixed or not isinstance(maker, EdgeInstruction):
            return True
        if len(self.slots[slot].shape) != 1:
            return False
        operation = maker.operation
        entrywise = isinstance(operation, Combine) or (
            isinstance(operation, Einsum) and not operation.summed
        )
        return entrywise and all(map(self.is_slope, maker.inputs))

    def of_einsum(
        self, operation: Einsum, inputs: Sequence[int], axes: Sequence[IndexMap]
    ) -> list[_Product] | None:
        """The products of what a product's operands are sums of."""
        if operation.real or any(
            read.conj or not all(map(_is_shifted, read.axes)) for read in operation.reads
        ):
            return None
        names = dict(zip(operation.output, axes, strict=True))
        summed = self.new_labels(operation.sizes, names)
        found = [_Product(operation.coefficient, (), summed)]
        for read, slot in zip(operation.reads, inputs, strict=True):
            own = self.products(slot, tuple(_followed(axis, names) for axis in read.axes))
            if len(found) * len(own) > MAX_PRODUCTS:
                raise _TooMany
            found = [one.times(other) for one in found for other in own]
        return found

    def of_combine(
        self, operation: Combine, inputs: Sequence[int], axes: Sequence[IndexMap]
    ) -> list[_Product]:
        """The products that the operands of a sum are sums of."""
        names = dict(zip(operation.output, axes, strict=True))
        found = [_Product(operation.constant)] if operation.constant else []
        return found + [
            replace(product, coefficient=coefficient * product.coefficient)
            for (coefficient, own), slot in zip(operation.operands, inputs, strict=True)
            for product in self.products(slot, tuple(names[name] for name in own))
        ]

    def of_assemble(
        self, operation: Assemble, inputs: Sequence[int], axes: Sequence[IndexMap]
    ) -> list[_Product] | None:
        """The products of a structure's terms, each with the diagonals that it stands on."""
        terms = operation.structure.terms
        if not all(axis.is_label for axis in axes) or not all(map(_is_plain, terms)):
            return None
        found, slots = [], iter(inputs)
        for term in terms:
            names: dict[int, IndexMap] = {}
            self.new_labels(tuple(enumerate(term.sizes)), names)
            summed = tuple(names[name].labels[0] for name in term.labels)
            same = tuple(
                (axis.labels[0], names[own.labels[0]].labels[0])
                for axis, own in zip(axes, (*term.out, *term.into), strict=True)
            )
            if any(self.sizes[one] != self.sizes[other] for one, other in same):
                return None
            product = [_Product(term.coefficient, (), summed, same)]
            for factor in term.factors:
                read = tuple(_followed(axis, names) for axis in factor.axes)
                own_products = self.products(next(slots), read)
                product = [one.times(other) for one in product for other in own_products]
            found += product
        return found

    def new_labels(
        self, sizes: Sequence[tuple[int, int]], names: dict[int, IndexMap]
    ) -> tuple[int, ...]:
        """Number the labels that `names` lacks, and enter them there."""
        made = []
        for name, size in sizes:
            if name not in names:
                new = next(self.names)
                self.sizes[new] = size
                names[name] = label(new)
                made.append(new)
        return tuple(made)

    def is_within(self, axis: IndexMap, extent: int) -> bool:
        """Whether an axis is read at one label, perhaps shifted, and nowhere outside."""
        if not _is_shifted(axis):
            return False
        return axis.offset >= 0 and axis.offset + self.sizes[axis.labels[0]] <= extent

    def joined(self, product: _Product) -> _Product:
        """The same product with one name for labels of one value, and all labels in factors."""
        names: dict[int, int] = {}

        def name_of(own: int) -> int:
            while own in names:
                own = names[own]
            return own

        for one, other in product.same:
            first, second = name_of(one), name_of(other)
            if first != second:
                names[second] = first
        ends = {name: label(name_of(name)) for name in product.summed}
        factors = tuple(
            _Factor(f.slot, tuple(_followed(axis, ends) for axis in f.axes))
            for f in product.factors
        )
        used = {name for factor in factors for name in factor.labels}
        loose = {name_of(name) for name in product.summed} - used
        times = math.prod(self.sizes[name] for name in loose)
        return _Product(product.coefficient * times, factors, tuple(sorted(used)))

    def multiplied(self, factors: Sequence[_Factor], like: EdgeInstruction) -> int:
        """The slot of the sum of a product of factors over all their labels."""
        labels = tuple(factor.labels for factor in factors)
        shared = tuple(factor.slot in self.fixed for factor in factors)
        sizes = tuple((name, self.sizes[name]) for name in sorted(frozenset().union(*labels)))
        pairs = _cheapest(labels, shared, sizes)
        left = list(factors)
        if not pairs:
            left = [self.product(left, frozenset(), like)]
        for first, second in pairs:
            chosen = [left[first], left[second]]
            left = [f for k, f in enumerate(left) if k not in (first, second)]
            needed = frozenset().union(*(f.labels for f in left))
            left.append(self.product(chosen, needed, like))
        return left[0].slot

    def product(
        self, chosen: Sequence[_Factor], needed: frozenset[int], like: EdgeInstruction
    ) -> _Factor:
        """One or two factors multiplied, summed over the labels that are not needed.

        What moves comes first, the larger array of two, so that a product lies as this does.
        """
        if not all(factor.slot in self.fixed for factor in chosen):
            chosen = sorted(chosen, key=lambda f: (f.slot in self.fixed, -len(f.labels)))
        if len(chosen) == 2 and chosen[1].slot in self.fixed:
            chosen = [chosen[0], self.laid_out(chosen[1], chosen[0], needed)]
        names: dict[int, int] = {}
        for factor in chosen:
            for axis in factor.axes:
                for name in axis.labels:
                    names.setdefault(name, len(names))
        kept = tuple(name for name in names if name in needed)
        ends = {name: label(own) for name, own in names.items()}
        reads = tuple(Read(tuple(_followed(a, ends) for a in f.axes)) for f in chosen)
        sizes = tuple((own, self.sizes[name]) for name, own in names.items())
        operation = Einsum(reads, sizes, tuple(names[name] for name in kept))
        key = operation, tuple(factor.slot for factor in chosen)
        if key in self.known:
            self.read.add(self.known[key])  # another factor says where its axes lie already
        else:
            self.slots.append(Slot(operation.shape, self.slots[like.outputs[0]].dtype))
            slot = self.known[key] = len(self.slots) - 1
            if all(factor.slot in self.fixed for factor in chosen):
                self.fixed.add(slot)
            made = replace(like, operation=operation, inputs=key[1], outputs=(slot,))
            self.places[slot] = len(self.made)
            self.made.append(made)
        slot = self.known[key]
        self.read.update(key[1])
        lies = self.made[self.places[slot]]
        assert isinstance(lies, EdgeInstruction)
        assert isinstance(lies.operation, Einsum)
        own_names = {own: name for name, own in names.items()}
        return _Factor(slot, tuple(label(own_names[own]) for own in lies.operation.output))

    def laid_out(self, fixed: _Factor, moving: _Factor, needed: frozenset[int]) -> _Factor:
        """A product of weights with the axes last that are summed with what moves, in its order.

        Nothing is transposed then where the two are multiplied.
        """
        place = self.places.get(fixed.slot)
        if place is None or fixed.slot in self.read:
            return fixed
        names = [axis.labels[0] for axis in fixed.axes]
        other = [name for axis in moving.axes for name in axis.labels]

        def position(k: int) -> int:
            return -1 if names[k] in needed or names[k] not in other else other.index(names[k])

        order = sorted(range(len(names)), key=position)
        made = self.made[place]
        assert isinstance(made, EdgeInstruction)
        assert isinstance(made.operation, Einsum)
        operation = replace(made.operation, output=tuple(made.operation.output[k] for k in order))
        self.made[place] = replace(made, operation=operation)
        self.slots[fixed.slot] = Slot(operation.shape, self.slots[fixed.slot].dtype)
        return _Factor(fixed.slot, tuple(fixed.axes[k] for k in order))


def _is_real(slot: Slot) -> bool:
    return getattr(slot.dtype, "kind", "") == "f" or "float" in str(slot.dtype)


def _is_shifted(axis: IndexMap) -> bool:
    """Whether a map is a label, perhaps shifted."""
    return len(axis.parts) == 1 and axis.parts[0][1] == 1


def _is_plain(term: Term) -> bool:
    """Whether a term says no more than which labels its dimensions and arrays have."""
    if term.conj or term.limits or not all(axis.is_label for axis in (*term.out, *term.into)):
        return False
    return all(
        not factor.conj and factor.opaque is None and all(map(_is_shifted, factor.axes))
        for factor in term.factors
    )


def _followed(axis: IndexMap, names: Mapping[int, IndexMap]) -> IndexMap:
    """A label, perhaps shifted, in other names; a map of another kind has only new labels."""
    if not _is_shifted(axis):
        return axis.renamed({name: names[name].labels[0] for name in axis.labels if name in names})
    found = names.get(axis.parts[0][0])
    return axis if found is None else found.shifted(axis.offset)


@lru_cache(maxsize=1024)
def _cheapest(
    factors: tuple[frozenset[int], ...],
    shared: tuple[bool, ...],
    sizes: tuple[tuple[int, int], ...],
) -> tuple[tuple[int, int], ...]:
    """The cheapest order of pairwise products; positions as the list of factors changes.

    Args:
        factors: labels of each factor; the result has none.
        shared: which of them are the same for all samples.
        sizes: size of each label.
    """
    extents = dict(sizes)
    everything = (1 << len(factors)) - 1
    sets = range(1, everything + 1)
    within: dict[int, frozenset[int]] = {0: frozenset()}
    for chosen in sets:
        last = chosen.bit_length() - 1
        within[chosen] = within[chosen ^ 1 << last] | factors[last]
    common = {s: all(shared[k] for k in range(len(factors)) if s >> k & 1) for s in sets}
    kept = {s: within[s] & within[everything ^ s] for s in sets}
    numbers = {s: math.prod([extents[name] for name in kept[s]]) for s in sets}
    best: dict[int, tuple[float, int]] = {}
    for k, labels in enumerate(factors):  # as they are read, with what nothing else has
        kept[1 << k], best[1 << k] = labels, (0.0, 0)
        numbers[1 << k] = math.prod([extents[name] for name in labels])
    whole = _is_connected(factors)
    for chosen in sets:  # all parts of a set are smaller numbers
        if common[chosen] and numbers[chosen] > MAX_SHARED and chosen & (chosen - 1):
            continue
        part = (chosen - 1) & chosen
        while part > chosen ^ part:
            rest = chosen ^ part
            if part in best and rest in best and not (whole and kept[part].isdisjoint(kept[rest])):
                box = math.prod([extents[name] for name in kept[part] | kept[rest]])
                cost = best[part][0] + best[rest][0]
                if common[chosen]:
                    cost += box * SHARED
                else:
                    moving = [numbers[s] for s in (part, rest) if not common[s]]
                    cost += box + TRAFFIC * (numbers[chosen] + sum(moving))
                if chosen not in best or cost < best[chosen][0]:
                    best[chosen] = cost, part
            part = (part - 1) & chosen
    pairs: list[tuple[int, int]] = []
    standing = [1 << k for k in range(len(factors))]

    def multiply(chosen: int) -> None:
        part = best[chosen][1]
        if not part:
            return
        multiply(part)
        multiply(chosen ^ part)
        places = (standing.index(part), standing.index(chosen ^ part))
        pairs.append((min(places), max(places)))
        standing[:] = [s for s in standing if s not in (part, chosen ^ part)] + [chosen]

    multiply(everything)
    return tuple(pairs)


def _is_connected(factors: Sequence[frozenset[int]]) -> bool:
    """Whether no factors stand apart from the others, without a label in common."""
    reached, rest = factors[0], list(factors[1:])
    while rest:
        near = [labels for labels in rest if not labels.isdisjoint(reached)]
        if not near:
            return False
        rest = [labels for labels in rest if labels.isdisjoint(reached)]
        reached = reached.union(*near)
    return True
