"""What tables place is placed before it meets weights.

The features of pairs of particles meet the weights of a layer: `W S`, where the entries of `S`
stand where tables say. As a sum of terms that is a product for every entry of `S` and every row of
`W`, placed afterwards, number by number. `S` written out and multiplied with `W` is many more
products, but each of them takes a hundredth of the time: a batch is one product of large matrices.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from jax import numpy as jnp

from ..edges.maps import label, renamed
from ..edges.operations import Assemble, Combine, Einsum, Read
from ..edges.terms import Term, intern_structure, with_terms
from .finite_values import may_be_infinite
from .instructions import EdgeInstruction, Instruction, Program, Slot

__all__ = ["placed_at_once", "placed_before_products"]

#: Multiplications of the product of matrices for each entry of the terms: with weights that all
#: samples share, and of matrices that each sample has of its own. With 16 particles, 8 of the
#: former for each entry, the product took a third of the time (256 samples); with 32 as long.
MAX_COMMON, MAX_OWN = 12, 4
#: Rows of the matrix from which on it is worth it: with 4 rows it took 0.7 of the time.
MIN_ROWS = 4


def placed_before_products(program: Program, fixed: Collection[int]) -> Program:
    """The program whose factors that tables place are placed, and then multiplied.

    A matrix that may hold infinite numbers stays in the terms: only their entries may meet it.

    Args:
        program: the program.
        fixed: slots that are the same for all samples.

    Returns:
        The program; itself where nothing changes.
    """
    if not any(_is_candidate(made) for made in program.instructions):
        return program
    placing = _Placing(program, fixed)
    for made in program.instructions:
        placing.follow(made)
    if len(placing.instructions) == len(program.instructions):
        return program
    return replace(program, slots=placing.slots, instructions=placing.instructions)


def placed_at_once(program: Program) -> Program:
    """The program whose sums of what tables place are one sum each.

    Where one is a term of another and nothing else reads it, its terms are terms of the other. A
    particle is the first one of some pairs and the second one of the others: what is placed by both
    tables is read once for each pair, without gaps.
    """
    readers = program.readers()
    made: dict[int, EdgeInstruction] = {}
    instructions: list[Instruction | None] = []
    for instruction in program.instructions:
        if isinstance(instruction, EdgeInstruction) and isinstance(instruction.operation, Assemble):
            terms: list[Term] = []
            inputs: list[int] = []
            for term, own in _split(instruction):
                inner = made.get(own[0]) if len(own) == 1 and _is_whole(term, instruction) else None
                if inner is None or readers[own[0]] > 1 or inner.dtype != instruction.dtype:
                    terms.append(term)
                    inputs += own
                else:
                    assert isinstance(inner.operation, Assemble)
                    place = next(k for k, i in enumerate(instructions) if i is inner)
                    instructions[place] = None
                    rows = len(instruction.operation.structure.out_shape)
                    terms += [
                        _divided(t.scaled(term.coefficient), rows)
                        for t in inner.operation.structure.terms
                    ]
                    inputs += inner.inputs
            if tuple(inputs) != instruction.inputs:
                structure = with_terms(instruction.operation.structure, terms)
                instruction = replace(
                    instruction, operation=Assemble(structure), inputs=tuple(inputs)
                )
            if any(not term.is_affine for term in terms):
                made[instruction.outputs[0]] = instruction
        instructions.append(instruction)
    left = [instruction for instruction in instructions if instruction is not None]
    return program if len(left) == len(instructions) else replace(program, instructions=left)


def _split(made: EdgeInstruction) -> Iterator[tuple[Term, tuple[int, ...]]]:
    """The terms that an instruction assembles, and the slots of the factors of each."""
    assert isinstance(made.operation, Assemble)
    start = 0
    for term in made.operation.structure.terms:
        yield term, made.inputs[start : start + len(term.factors)]
        start += len(term.factors)


def _divided(term: Term, rows: int) -> Term:
    """The term with so many of its dimensions those of the output."""
    maps = (*term.out, *term.into)
    return replace(term, out=maps[:rows], into=maps[rows:])


def _is_whole(term: Term, made: EdgeInstruction) -> bool:
    """Whether a term is an array of the result's shape, entry by entry."""
    assert isinstance(made.operation, Assemble)
    (factor,) = term.factors
    maps = (*term.out, *term.into)
    plain = all(
        axis.is_plain(extent, term.sizes)
        for axis, extent in zip(maps, made.operation.shape, strict=True)
    )
    return plain and factor.axes == maps and len({*maps}) == len(maps) and _is_real(made)


def _is_real(made: EdgeInstruction) -> bool:
    return not jnp.issubdtype(made.dtype, jnp.complexfloating)


def _is_candidate(made: Instruction) -> bool:
    if not isinstance(made, EdgeInstruction) or not isinstance(made.operation, Assemble):
        return False
    terms = made.operation.structure.terms
    several = any(not term.is_affine and len(term.factors) > 1 for term in terms)
    return several and _is_real(made)


@dataclass(frozen=True)
class _Product:
    """A term as the product of a matrix and what tables place.

    Attributes:
        matrix: the slot of the matrix.
        axes: for each of its axes the dimension of the result that it runs along; those that are
            summed are counted -1, -2, ...
        rows: its numbers along the former.
        placed: the rest. Its outputs are the other dimensions of the result, its inputs what is
            summed.
        inputs: the slots of the factors of that.
    """

    matrix: int
    axes: tuple[int, ...]
    rows: int
    placed: Term
    inputs: tuple[int, ...]


class _Placing:
    """The new program, and which of its matrices may be taken out of terms.

    Attributes:
        slots: types of the slots, those added included.
        instructions: what is done so far.
        fixed: slots that are the same for all samples.
        infinite: slots that may hold infinite numbers.
    """

    def __init__(self, program: Program, fixed: Collection[int]):
        self.slots = list(program.slots)
        self.instructions: list[Instruction] = []
        self.fixed = fixed
        self.infinite = may_be_infinite(program)

    def follow(self, made: Instruction) -> None:
        """Add an instruction, or those that stand in its place."""
        if not _is_candidate(made):
            self.instructions.append(made)
            return
        assert isinstance(made, EdgeInstruction)
        assert isinstance(made.operation, Assemble)
        groups: dict[object, list[_Product]] = {}
        entries: dict[object, int] = {}
        others: list[tuple[object, Term, tuple[int, ...]]] = []
        structure = made.operation.structure
        for term, own in _split(made):
            product = self.product(term, own, made)
            key = product and (product.matrix, product.axes)
            others.append((key, term, own))
            if product is not None:
                groups.setdefault(key, []).append(product)
                entries[key] = entries.get(key, 0) + math.prod(term.sizes)
        groups = {
            key: found
            for key, found in groups.items()
            if self.is_worth_it(made.operation, found[0], entries[key])
        }
        left = [(term, own) for key, term, own in others if key not in groups]
        if not groups:
            self.instructions.append(made)
            return
        parts = [self.multiplied(made, made.operation, found) for found in groups.values()]
        if left:
            rest = Assemble(with_terms(structure, [term for term, _ in left]))
            inputs = tuple(slot for _, own in left for slot in own)
            parts.append(replace(made, operation=rest, inputs=inputs))
        self.add_up(made, parts)

    def product(self, term: Term, own: Sequence[int], made: EdgeInstruction) -> _Product | None:
        """The term as a product, with weights that samples share if there are such."""
        if term.is_affine or any(self.slots[slot].dtype != made.dtype for slot in own):
            return None
        assert isinstance(made.operation, Assemble)
        found = list(_products(term, own, made.operation.shape))
        found = [product for product in found if product.matrix not in self.infinite]
        return max(found, key=lambda p: (p.matrix in self.fixed, p.rows), default=None)

    def is_worth_it(self, operation: Assemble, product: _Product, entries: int) -> bool:
        """Whether the product of matrices takes less time than so many entries."""
        summed = [
            n for n, d in zip(self.slots[product.matrix].shape, product.axes, strict=True) if d < 0
        ]
        most = MAX_COMMON if product.matrix in self.fixed else MAX_OWN
        multiplications = math.prod(operation.shape) * math.prod(summed)
        return product.rows >= MIN_ROWS and multiplications <= most * entries

    def multiplied(
        self, made: EdgeInstruction, operation: Assemble, found: Sequence[_Product]
    ) -> EdgeInstruction:
        """The product of a matrix with all that tables place beside it."""
        first, shape = found[0], operation.shape
        of_matrix = self.slots[first.matrix].shape
        kept = [d for d in range(len(shape)) if d not in first.axes]
        sizes = {-1 - d: n for n, d in zip(of_matrix, first.axes, strict=True) if d < 0}
        summed = {k: len(shape) + k for k in sizes}
        structure = intern_structure(
            [shape[d] for d in kept],
            [sizes[k] for k in sorted(sizes)],
            [product.placed for product in found],
        )
        placed = Assemble(structure)
        slot = self.new_slot(placed.shape, made)
        inputs = tuple(slot for product in found for slot in product.inputs)
        self.instructions.append(replace(made, operation=placed, inputs=inputs, outputs=(slot,)))
        reads = (
            Read(tuple(label(n) for n in (*kept, *(summed[k] for k in sorted(sizes))))),
            Read(tuple(label(d if d >= 0 else summed[-1 - d]) for d in first.axes)),
        )
        extents = {**dict(enumerate(shape)), **{summed[k]: n for k, n in sizes.items()}}
        product = Einsum(reads, tuple(sorted(extents.items())), tuple(range(len(shape))))
        return replace(made, operation=product, inputs=(slot, first.matrix))

    def add_up(self, made: EdgeInstruction, parts: Sequence[EdgeInstruction]) -> None:
        """Add instructions whose results are added up to that of another one."""
        if len(parts) == 1:
            self.instructions += parts
            return
        assert isinstance(made.operation, Assemble)
        shape = made.operation.shape
        slots = [self.new_slot(shape, made) for _ in parts]
        self.instructions += [
            replace(part, outputs=(slot,)) for part, slot in zip(parts, slots, strict=True)
        ]
        names = tuple(range(len(shape)))
        total = Combine(tuple((1, names) for _ in parts), tuple(enumerate(shape)), names)
        self.instructions.append(replace(made, operation=total, inputs=tuple(slots)))

    def new_slot(self, shape: tuple[int, ...], made: EdgeInstruction) -> int:
        """A slot for an array beside the result of an instruction."""
        self.slots.append(Slot(shape, made.dtype))
        return len(self.slots) - 1


def _products(term: Term, own: Sequence[int], shape: tuple[int, ...]) -> Iterator[_Product]:
    """The ways in which a term is a product of a matrix and what tables place."""
    maps = (*term.out, *term.into)
    for number, factor in enumerate(term.factors):
        others = [f for k, f in enumerate(term.factors) if k != number]
        names = [axis.labels[0] if axis.is_label else -1 for axis in factor.axes]
        plain = [a.is_plain(n, term.sizes) for a, n in zip(factor.axes, factor.shape, strict=True)]
        if not all(plain) or len({*names}) < len(names) or factor.opaque or not others:
            continue
        shared = [n for n in names if any(n in other.labels for other in others)]
        places = {
            name: [d for d, axis in enumerate(maps) if name in axis.labels]
            for name in names
            if name not in shared
        }
        if not shared or not places or any(len(found) != 1 for found in places.values()):
            continue
        runs = {name: found[0] for name, found in places.items()}
        if not all(maps[d].is_plain(shape[d], term.sizes) for d in runs.values()):
            continue
        kept = [d for d in range(len(maps)) if d not in runs.values()]
        if not any(not maps[d].is_affine and {*maps[d].labels} & {*shared} for d in kept):
            continue
        left = [n for n in term.labels if n not in runs]
        new = {name: k for k, name in enumerate(left)}
        placed = Term(
            tuple(term.sizes[n] for n in left),
            tuple(renamed([maps[d] for d in kept], new)),
            tuple(label(new[n]) for n in shared),
            tuple(f.read(renamed(f.axes, new)) for f in others),
            term.coefficient,
        )
        axes = tuple(runs[n] if n in runs else -1 - shared.index(n) for n in names)
        rows = math.prod(term.sizes[n] for n in runs)
        inputs = tuple(slot for k, slot in enumerate(own) if k != number)
        yield _Product(own[number], axes, rows, placed, inputs)
