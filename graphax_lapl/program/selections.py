"""Selections: what a mask leaves out is zero, also where what it meets is infinite or NaN.

The derivative of `select_n` is a diagonal of zeros and ones, and a product with it is a product:
zero times an infinite slope is NaN, where JAX, which selects tangents, has zero. The program is
followed for two things: which slots are zero wherever a mask is (products of a mask with anything),
and which may hold infinite numbers where the inputs are finite. Where two such slots meet in a
product, the second one is selected by the mask before. What meets no singular slot stays a product.

The map of an equation that only moves numbers (a sort, a gather) is such a mask where it is
written out: JAX moves tangents and cotangents, also those that are NaN, and nothing else. So are
sums of masks: where they are zero, no path leads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from jax import Array, lax

from ..edges.algebra import MAX_FILLED
from ..edges.layout import term_positions
from ..edges.maps import IndexMap, label
from ..edges.operations import (
    ApplyOpaque,
    Assemble,
    Combine,
    Einsum,
    MaterializeOpaque,
    Read,
)
from ..edges.terms import Factor, Structure, Term, with_terms
from ..rules.site import Local
from .covers import Cover, View, exact_first, joined, moved
from .finite_values import is_finite_here, overflows
from .instructions import (
    Block,
    ConstantInstruction,
    EdgeInstruction,
    Instruction,
    LocalInstruction,
    OpaqueInstruction,
    Program,
    Slot,
)

__all__ = ["with_selections"]

#: A slot is followed as zero outside of so many masks.
MAX_COVERS = 4
#: A factor may grow to so many numbers where it is selected, and before a sum by a written map.
MAX_GROWN, MAX_SUMMED = 1 << 14, 64
#: Equations whose outputs are their inputs at other places, or sums of them.
MOVING = frozenset(
    """
    approx_top_k dynamic_slice dynamic_update_slice gather scatter scatter-add sort top_k
    """.split()  # noqa: SIM905
)


#: A slot and how it is read.
Part = tuple[int, tuple[IndexMap, ...]]


def with_selections(program: Program) -> Program:
    """The program with factors selected where a mask meets what may be infinite or NaN.

    Args:
        program: the complete program; it comes back as it is where no mask meets such a factor.
    """
    if program.few_samples is not None:
        few = with_selections(program.few_samples)
        if few is not program.few_samples:
            program = replace(program, few_samples=few)
    if not any(_is_mask(i) or _is_listing(i) or _moves(i) for i in program.instructions):
        return program
    selections = _Selections(program)
    for instruction in program.instructions:
        selections.follow(instruction)
    blocks = [[selections.block(block) for block in row] for row in program.blocks]
    if not selections.selected:
        return program
    return replace(
        program, slots=selections.slots, instructions=selections.instructions, blocks=blocks
    )


class _Selections:
    """The new program, and what is known of its slots.

    Attributes:
        covers: for a slot the covers outside of which it is zero, over its axes.
        masks: slots that are masks themselves.
        counts: slots that hold masks or sums of masks, zero only where no path leads.
        moving: slots of maps that only move numbers.
        written: slots of such maps that are written out.
        known: slots of values known while planning.
        singular: slots that may hold infinite numbers or NaN where the inputs are finite.
        poles: those of them that may do so without an overflow. The others are selected by masks
            entry by entry, but not by whether a mask has a one anywhere, which is a sum more.
        selected: selected factors by what they are made of.
        united: where a mask has a one along some of its axes, by slot and axes.
        listed_masks: slots of masks that say where tables list entries. What meets these was taken
            pair by pair before, and may grow to as many numbers as there are pairs.
        cases: the condition and the case of masks where one of two is chosen.
    """

    def __init__(self, program: Program):
        self.slots = list(program.slots)
        self.instructions: list[Instruction] = []
        self.covers: dict[int, tuple[Cover, ...]] = {}
        self.masks: set[int] = set()
        self.counts: set[int] = set()
        self.moving: set[int] = set()
        self.written: set[int] = set()
        self.known: set[int] = set()
        self.singular: set[int] = set()
        self.poles: set[int] = set()
        self.selected: dict[object, Part] = {}
        self.united: dict[tuple[int, tuple[int, ...]], int] = {}
        self.listed_masks: set[int] = set()
        self.cases: dict[int, tuple[int, str]] = {}

    def follow(self, instruction: Instruction) -> None:
        """Add an instruction, with selections in front of it."""
        made = instruction
        if isinstance(instruction, EdgeInstruction):
            operation = instruction.operation
            if isinstance(operation, Einsum):
                made = self.product(instruction, operation)
            elif isinstance(operation, Combine):
                self.sum(instruction, operation)
            elif isinstance(operation, Assemble):
                made = self.assembled(instruction, operation)
            elif isinstance(operation, ApplyOpaque | MaterializeOpaque):
                linear, *seeds = instruction.inputs
                if linear in self.moving and not seeds:
                    self.is_mask(instruction.outputs[0])
                    self.written.update(instruction.outputs)
                elif linear in self.moving and self.counts.issuperset(seeds):
                    self.is_count(instruction.outputs[0])
        elif _is_mask(instruction):
            self.is_mask(instruction.outputs[0])
            self.remember_case(instruction)
        elif _moves(instruction):
            self.moving.update(instruction.outputs)
        elif isinstance(instruction, ConstantInstruction):
            self.known.update(instruction.outputs)
        if not self.is_finite(instruction):
            self.singular.update(instruction.outputs)
            alone = is_finite_here(instruction, self.known) or overflows(instruction)
            if not alone or not self.poles.isdisjoint(instruction.inputs):
                self.poles.update(instruction.outputs)
        self.instructions.append(made)

    def remember_case(self, made: Instruction) -> None:
        """Remember which case of which condition a mask of `select_n` is."""
        if isinstance(made, LocalInstruction) and made.local.name.startswith("case "):
            (condition,) = made.inputs
            if self.slots[condition].dtype == bool:
                self.cases[made.outputs[0]] = condition, made.local.name

    def is_finite(self, instruction: Instruction) -> bool:
        """Whether finite numbers come out of an instruction where finite ones go in."""
        if not all(own.isdisjoint(instruction.outputs) for own in (self.counts, self.moving)):
            return True
        if not self.singular.isdisjoint(instruction.inputs):
            return False
        by_moving = not self.moving.isdisjoint(instruction.inputs)
        return by_moving or is_finite_here(instruction, self.known)

    def is_mask(self, slot: int) -> None:
        """Remember that a slot holds zeros and ones."""
        self.is_count(slot)
        self.masks.add(slot)

    def is_count(self, slot: int) -> None:
        """Remember that a slot holds masks or sums of masks: it says itself where it is zero."""
        axes = tuple(label(k) for k in range(len(self.slots[slot].shape)))
        self.covers[slot] = (frozenset({View(slot, axes)}),)
        self.counts.add(slot)

    def product(self, root: EdgeInstruction, operation: Einsum) -> EdgeInstruction:
        """A product with its factors selected by one another's masks."""
        sizes, (result,) = dict(operation.sizes), root.outputs
        parts = [(s, r.axes) for s, r in zip(root.inputs, operation.reads, strict=True)]
        known = [self.read(part, sizes) for part in parts]
        # What is summed may be a product of matrices, which one more axis would make an array.
        shifted = not self.written.isdisjoint(root.inputs)
        listed = any(self.is_listed(cover) for own in known for cover in own)
        room = max(MAX_GROWN, math.prod(operation.shape))
        if operation.summed:
            room = MAX_SUMMED if shifted else 0
        if listed:
            room = max(room, math.prod(sizes.values()))
        new = self.factors(parts, known, sizes, room)
        made = root
        if new != parts:
            # A mask that has selected the other factor is done with.
            left = [k for k, (slot, _) in enumerate(new) if slot not in self.masks]
            reads = [Read(new[k][1], operation.reads[k].conj) for k in left]
            inputs = tuple(new[k][0] for k in left)
            made = replace(root, operation=replace(operation, reads=tuple(reads)), inputs=inputs)
            if listed and operation.summed:
                made = self.sum_of_product(made)
        if (
            self.masks.issuperset(root.inputs)
            and not operation.summed
            and operation.coefficient == 1
        ):
            self.is_mask(result)
        elif self.counts.issuperset(root.inputs) and _is_positive(operation.coefficient):
            self.is_count(result)
        else:
            self.keep(result, [c for own in known for c in own], operation.output)
        return made

    def sum_of_product(self, root: EdgeInstruction) -> EdgeInstruction:
        """The sum of a product that is taken before: selections are fused with both then.

        A product of matrices reads a selected factor from memory, with an axis more.
        """
        operation = root.operation
        assert isinstance(operation, Einsum)
        sizes = dict(operation.sizes)
        names = (*operation.output, *(n for n in sorted(sizes) if n not in operation.output))
        product = replace(operation, output=names)
        self.slots.append(Slot(tuple(sizes[n] for n in names), self.slots[root.outputs[0]].dtype))
        slot = len(self.slots) - 1
        self.instructions.append(replace(root, operation=product, outputs=(slot,)))
        total = Einsum((Read(tuple(label(n) for n in names)),), operation.sizes, operation.output)
        return replace(root, operation=total, inputs=(slot,))

    def sum(self, root: EdgeInstruction, operation: Combine) -> None:
        """What is known of a sum: it is zero where all summands are."""
        if operation.constant:
            return
        known = []
        for slot, (_, names) in zip(root.inputs, operation.operands, strict=True):
            axes = tuple(label(name) for name in names)
            known.append(self.read((slot, axes), dict(operation.sizes)))
        if self.counts.issuperset(root.inputs) and all(
            _is_positive(scale) for scale, _ in operation.operands
        ):
            self.is_count(root.outputs[0])
        else:
            self.keep(root.outputs[0], joined(known), operation.output)

    def assembled(self, root: EdgeInstruction, operation: Assemble) -> EdgeInstruction:
        """A dense array of a structure, and what is known of it."""
        whole = operation.structure
        structure, inputs = self.structure(whole, root.inputs)
        start, known = 0, []
        for term in whole.terms:
            own = root.inputs[start : start + len(term.factors)]
            start += len(term.factors)
            sizes = dict(enumerate(term.sizes))
            axes = enumerate(zip((*term.out, *term.into), operation.shape, strict=True))
            places = {
                a.labels[0]: label(k)
                for k, (a, extent) in axes
                if a.is_label and sizes[a.labels[0]] == extent
            }
            found = [
                moved(cover, places, dict(enumerate(operation.shape)))
                for slot, factor in zip(own, term.factors, strict=True)
                for cover in self.read((slot, factor.axes), sizes)
            ]
            known.append(exact_first(found))
        slot, positive = root.outputs[0], all(_is_positive(t.coefficient) for t in whole.terms)
        if positive and self.counts.issuperset(root.inputs):
            self.is_count(slot)
            if _is_listed(whole):
                self.listed_masks.add(slot)
        else:
            covers = joined(known)
            if _is_listed(whole):
                covers = [self.listed_mask(whole), *covers]
            self.keep(slot, covers, tuple(range(len(operation.shape))))
        if inputs == root.inputs:
            return root
        return replace(root, operation=Assemble(structure), inputs=inputs)

    def listed_mask(self, structure: Structure) -> Cover:
        """Where the entries of a structure stand, as a mask of its own."""
        shape = (*structure.out_shape, *structure.in_shape)
        there = np.zeros(math.prod(shape), np.float32)
        for term in structure.terms:
            flat, valid = term_positions(term, shape)
            there[flat[valid]] = 1
        self.slots.append(Slot(shape, np.dtype(np.float32)))
        slot = len(self.slots) - 1
        self.instructions.append(ConstantInstruction(there.reshape(shape), (), (slot,)))
        self.listed_masks.add(slot)
        return frozenset({View(slot, tuple(label(k) for k in range(len(shape))))})

    def factors(
        self,
        parts: Sequence[Part],
        known: Sequence[Sequence[Cover]],
        sizes: Mapping[int, int],
        room: int,
    ) -> list[Part]:
        """The factors of a product, the singular ones selected by the masks of the others."""
        new = list(parts)
        for place, part in enumerate(parts):
            if part[0] not in self.singular or not self.slots[part[0]].array:
                continue
            own = {*known[place]}
            others = [c for k, covers in enumerate(known) if k != place for c in covers]
            for cover in dict.fromkeys(others):
                summed = any(None in view.axes for view in cover)
                if cover not in own and not (summed and part[0] not in self.poles):
                    new[place] = self.select(new[place], cover, sizes, room)
        return new

    def structure(
        self, structure: Structure, slots: tuple[int, ...]
    ) -> tuple[Structure, tuple[int, ...]]:
        """A structure with the singular factors of its terms selected."""
        terms: list[Term] = []
        inputs: list[int] = []
        start = 0
        for term in structure.terms:
            own = slots[start : start + len(term.factors)]
            start += len(term.factors)
            sizes = dict(enumerate(term.sizes))
            parts = [(s, f.axes) for s, f in zip(own, term.factors, strict=True)]
            known = [self.read(part, sizes) for part in parts]
            new = self.factors(parts, known, sizes, math.prod(term.sizes))
            if new != parts:
                factors = tuple(
                    f if part == old else Factor(part[1], self.slots[part[0]].shape, f.conj)
                    for part, old, f in zip(new, parts, term.factors, strict=True)
                )
                term = replace(term, factors=factors)
            terms.append(term)
            inputs += [slot for slot, _ in new]
        if tuple(inputs) == tuple(slots):
            return structure, slots
        return with_terms(structure, terms), tuple(inputs)

    def block(self, block: Block) -> Block:
        """A block with the factors of its terms selected."""
        if block.structure is None or len(block.slots) != len(block.structure.factors):
            return block
        structure, slots = self.structure(block.structure, block.slots)
        return block if slots == block.slots else replace(block, structure=structure, slots=slots)

    def read(self, part: Part, sizes: Mapping[int, int]) -> list[Cover]:
        """What is known of a slot, in terms of the labels that it is read by."""
        slot, axes = part
        places = dict(enumerate(axes))
        return [moved(cover, places, sizes) for cover in self.covers.get(slot, ())]

    def keep(self, slot: int, covers: Iterable[Cover], output: tuple[int, ...]) -> None:
        """Remember what is known of a slot, over the labels of the output."""
        places = {name: label(k) for k, name in enumerate(output)}
        sizes = dict(enumerate(self.slots[slot].shape))
        found = exact_first(moved(cover, places, sizes) for cover in covers)
        found = [cover for cover in found if not self.is_everywhere(cover)]
        if found:
            self.covers[slot] = tuple(found[:MAX_COVERS])

    def is_everywhere(self, cover: Cover) -> bool:
        """Whether a cover leaves nothing out: most rows of a written map or a table have a one.

        So do both cases of one condition, read at the same place.
        """
        listed = self.written | self.listed_masks
        if any(view.slot in listed and None in view.axes for view in cover):
            return True
        cases: dict[object, set[str]] = {}
        for view in cover:
            condition, case = self.cases.get(view.slot, (None, ""))
            if condition is not None and None not in view.axes:
                cases.setdefault((condition, view.axes), set()).add(case)
        return any(len(own) == 2 for own in cases.values())

    def is_listed(self, cover: Cover) -> bool:
        """Whether a cover tells single entries that a table lists."""
        return any(v.slot in self.listed_masks and None not in v.axes for v in cover)

    def select(self, part: Part, cover: Cover, sizes: Mapping[int, int], room: int) -> Part:
        """A factor, selected; as it is where it would grow beyond `room`."""
        own = {n for axis in part[1] for n in axis.labels}
        names = {n for view in cover for axis in view.axes if axis for n in axis.labels}
        if not names <= own and math.prod(sizes[n] for n in names | own) > room:
            return part
        key = (part, cover, tuple((n, sizes[n]) for n in sorted(names | own)))
        if key not in self.selected:
            masks = [self.unite(view) for view in sorted(cover, key=repr)]
            found = self.aligned(part, masks) or self.by_labels(part, masks, sizes)
            self.selected[key] = found
        return self.selected[key]

    def unite(self, view: View) -> Part:
        """A mask and how it is read, united along the axes of which any position counts."""
        dropped = tuple(k for k, axis in enumerate(view.axes) if axis is None)
        axes = tuple(axis for axis in view.axes if axis is not None)
        if not dropped:
            return view.slot, axes
        key = (view.slot, dropped)
        if key not in self.united:
            whole = self.slots[view.slot]
            shape = tuple(n for k, n in enumerate(whole.shape) if k not in dropped)
            anywhere = Local("united", _united(dropped), (), shape, "constant", True)
            self.slots.append(Slot(shape, whole.dtype))
            self.united[key] = len(self.slots) - 1
            made = LocalInstruction(anywhere, (view.slot,), (self.united[key],))
            self.instructions.append(made)
        return self.united[key], axes

    def aligned(self, part: Part, masks: Sequence[Part]) -> Part | None:
        """A factor selected as it lies, where its axes are read as those of the masks are."""
        slot, axes = part
        shape = self.slots[slot].shape
        along = []
        for mask, read in masks:
            places: list[int] = []
            for axis, extent in zip(read, self.slots[mask].shape, strict=True):
                here = [
                    k
                    for k, own in enumerate(axes)
                    if own == axis and shape[k] == extent and k not in places
                ]
                if not here:
                    return None
                places.append(here[0])
            along.append(tuple(places))
        order = sorted(zip([mask for mask, _ in masks], along, strict=True))
        made = self.local(slot, [m for m, _ in order], tuple(a for _, a in order), shape)
        return made, axes

    def by_labels(self, part: Part, masks: Sequence[Part], sizes: Mapping[int, int]) -> Part:
        """A factor and masks, read entry by entry, and selected over all labels of both."""
        slot, axes = part
        value, own = self.listed(slot, axes, sizes)
        read = [self.listed(*mask, sizes) for mask in sorted(masks, key=repr)]
        names = (*own, *sorted({n for _, labels in read for n in labels} - {*own}))
        shape = tuple(sizes[n] for n in names)
        along = [tuple(names.index(n) for n in labels) for _, labels in read]
        made = self.local(value, [s for s, _ in read], tuple(along), shape)
        return made, tuple(label(n) for n in names)

    def listed(
        self, slot: int, axes: tuple[IndexMap, ...], sizes: Mapping[int, int]
    ) -> tuple[int, tuple[int, ...]]:
        """An array with one axis per label that it is read by, and these labels."""
        names = tuple(dict.fromkeys(n for axis in axes for n in axis.labels))
        shape = tuple(sizes[n] for n in names)
        if tuple(label(n) for n in names) == axes and shape == self.slots[slot].shape:
            return slot, names
        operation = Einsum((Read(axes),), tuple((n, sizes[n]) for n in sorted(names)), names)
        dtype = self.slots[slot].dtype
        self.slots.append(Slot(shape, dtype))
        made = len(self.slots) - 1
        self.instructions.append(EdgeInstruction(operation, (slot,), (made,), dtype))
        return made, names

    def local(
        self,
        slot: int,
        masks: Sequence[int],
        along: tuple[tuple[int, ...], ...],
        shape: tuple[int, ...],
    ) -> int:
        """The slot of an array that is selected where one of the masks is one."""
        places = tuple(range(len(self.slots[slot].shape)))
        selected = Local("selected", _selected(shape, places, along), (), shape)
        self.slots.append(Slot(shape, self.slots[slot].dtype))
        made = len(self.slots) - 1
        self.singular.add(made)
        if slot in self.poles:
            self.poles.add(made)
        self.instructions.append(LocalInstruction(selected, (slot, *masks), (made,)))
        return made


def _is_mask(instruction: Instruction) -> bool:
    """Whether an instruction makes a mask."""
    return isinstance(instruction, LocalInstruction) and instruction.local.mask


def _is_listing(instruction: Instruction) -> bool:
    """Whether an instruction writes what is zero wherever a table has no entry."""
    operation = instruction.operation if isinstance(instruction, EdgeInstruction) else None
    return isinstance(operation, Assemble) and _is_listed(operation.structure)


def _is_listed(structure: Structure) -> bool:
    """Whether tables list the entries of a small matrix, as those of a triangle."""
    listed = any(not term.is_affine for term in structure.terms)
    return listed and structure.size <= MAX_FILLED


def _moves(instruction: Instruction) -> bool:
    """Whether an instruction makes a map that only moves numbers."""
    return (
        isinstance(instruction, OpaqueInstruction)
        and instruction.reference.equation.name in MOVING
        and instruction.reference.conjugate is None
    )


def _is_positive(scale: Any) -> bool:
    """Whether a coefficient, known while planning, keeps sums from vanishing."""
    return isinstance(scale, int | float) and scale > 0


@lru_cache(maxsize=1 << 10)
def _selected(
    shape: tuple[int, ...], places: tuple[int, ...], along: tuple[tuple[int, ...], ...]
) -> Callable[..., Array]:
    """Selects an array of some axes by masks of some axes of the result."""

    def laid(value: Array, axes: tuple[int, ...]) -> Array:
        order = sorted(range(len(axes)), key=axes.__getitem__)
        if order != list(range(len(axes))):
            value = lax.transpose(value, order)
        axes = tuple(sorted(axes))
        return value if len(axes) == len(shape) else lax.broadcast_in_dim(value, shape, axes)

    def chosen(value: Array, *masks: Array) -> Array:
        there: Array | None = None
        for mask, axes in zip(masks, along, strict=True):
            one = laid(lax.ne(mask, lax.full_like(mask, 0)), axes)
            there = one if there is None else lax.bitwise_or(there, one)
        assert there is not None
        value = laid(value, places)
        return lax.select(there, value, lax.full_like(value, 0))

    return chosen


@lru_cache(maxsize=1 << 8)
def _united(dropped: tuple[int, ...]) -> Callable[[Array], Array]:
    """Whether a mask has a one along some of its axes, as a mask."""

    def anywhere(mask: Array) -> Array:
        there = lax.reduce_or(lax.ne(mask, lax.full_like(mask, 0)), dropped)
        return lax.convert_element_type(there, mask.dtype)

    return anywhere
