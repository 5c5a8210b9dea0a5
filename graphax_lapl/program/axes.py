"""Orders of axes in which operations read their operands and make their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ..edges.maps import IndexMap
from ..edges.operations import Assemble, Combine, Einsum, Operation, Overlay, Read
from ..edges.sparse_form import swapped
from ..edges.terms import Factor, Term, with_terms
from .instructions import EdgeInstruction, Instruction

__all__ = ["Order", "factor_read", "in_dense", "made_in", "order_read", "order_summed", "reading"]

Order = tuple[int, ...]
Entry = TypeVar("Entry")


def order_read(operation: Einsum, read: Read) -> Order | None:
    """The order of an operand's axes that suits an einsum; None where any does.

    Stable: axes about which it has no wish stay as they are.
    """
    axes = range(len(read.axes))
    summed = operation.summed
    if not summed:
        if not all(len(axis.labels) == 1 for axis in read.axes):
            return None
        places = {name: k for k, name in enumerate(operation.output)}
        return tuple(sorted(axes, key=lambda k: places[read.axes[k].labels[0]]))
    if len(operation.reads) < 2 or operation.written_out:
        return None
    return tuple(sorted(axes, key=lambda k: not summed.isdisjoint(read.axes[k].labels)))


def order_summed(operation: Combine | Overlay | Assemble, position: int) -> Order | None:
    """The order of an operand's axes in which a sum has them; None where it has none."""
    labels: Sequence[int] | None
    if isinstance(operation, Assemble):
        term, factor = _factors(operation)[position]
        return in_dense(term, factor.axes)
    if isinstance(operation, Combine):
        labels, output = operation.operands[position][1], operation.output
    else:
        labels = [p.labels for p in operation.patches if p.labels is not None][position]
        output = tuple(name for name, _ in operation.sizes)
    places = {name: k for k, name in enumerate(output)}
    return tuple(sorted(range(len(labels)), key=lambda k: places[labels[k]]))


def in_dense(term: Term, axes: Sequence[IndexMap]) -> Order | None:
    """The order of a factor's axes in the dense array; None where no axis is along one of its."""
    along = [axis.labels for axis in (*term.out, *term.into)]
    places = {labels[0]: k for k, labels in reversed([*enumerate(along)]) if len(labels) == 1}
    own = [axis.labels for axis in axes]
    if any(len(labels) != 1 or labels[0] not in places for labels in own) or (
        len({*own}) < len(own)
    ):
        return None
    return tuple(sorted(range(len(axes)), key=lambda k: places[own[k][0]]))


def made_in(operation: Operation, order: Order) -> Operation | None:
    """The operation whose result has its axes in an order; None where it cannot be had."""
    if isinstance(operation, Einsum | Combine):
        return replace(operation, output=tuple(operation.output[k] for k in order))
    if isinstance(operation, Overlay):
        patches = (
            replace(p, starts=_ordered(p.starts, order), extents=_ordered(p.extents, order))
            for p in operation.patches
        )
        sizes = tuple(operation.sizes[k] for k in order)
        return replace(operation, patches=tuple(patches), sizes=sizes)
    if isinstance(operation, Assemble):
        rows = len(operation.structure.out_shape)
        if order == (*range(rows, len(order)), *range(rows)):
            return replace(operation, structure=swapped(operation.structure))
    return None


def factor_read(factor: Factor, order: Order) -> Factor:
    """The factor of an array whose axes are in another order."""
    return replace(factor, axes=_ordered(factor.axes, order), shape=_ordered(factor.shape, order))


def reading(instruction: Instruction, position: int, order: Order) -> Instruction:
    """The instruction for an operand whose axes are in another order."""
    assert isinstance(instruction, EdgeInstruction)
    operation = instruction.operation
    if isinstance(operation, Combine):
        operands = list(operation.operands)
        coefficient, labels = operands[position]
        operands[position] = coefficient, _ordered(labels, order)
        return replace(instruction, operation=replace(operation, operands=tuple(operands)))
    if isinstance(operation, Overlay):
        patches = list(operation.patches)
        own = [k for k, patch in enumerate(patches) if patch.labels is not None][position]
        patches[own] = replace(patches[own], labels=_ordered(patches[own].labels or (), order))
        return replace(instruction, operation=replace(operation, patches=tuple(patches)))
    if isinstance(operation, Assemble):
        found = iter(range(len(_factors(operation))))
        terms = []
        for term in operation.structure.terms:
            factors = tuple(
                factor_read(factor, order) if next(found) == position else factor
                for factor in term.factors
            )
            terms.append(replace(term, factors=factors))
        structure = with_terms(operation.structure, terms)
        return replace(instruction, operation=replace(operation, structure=structure))
    assert isinstance(operation, Einsum)
    reads = list(operation.reads)
    reads[position] = replace(reads[position], axes=_ordered(reads[position].axes, order))
    return replace(instruction, operation=replace(operation, reads=tuple(reads)))


def _ordered(entries: Sequence[Entry], order: Order) -> tuple[Entry, ...]:
    return tuple(entries[k] for k in order)


def _factors(operation: Assemble) -> list[tuple[Term, Factor]]:
    """The factors of a structure with their terms, one for each operand."""
    return [(term, factor) for term in operation.structure.terms for factor in term.factors]
