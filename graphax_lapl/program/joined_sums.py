"""Sums of sums taken over one index space together: `sum(a) + sum(b)` as `sum(a + b)`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from ..edges.maps import label
from ..edges.operations import Combine, Einsum, Operation, Read
from ..edges.terms import Number
from .instructions import EdgeInstruction, Instruction, Program, Slot
from .rewriting import Rewriting

__all__ = ["join_sums"]

#: The axes of a product before it is summed: size, and place in the result (None: summed).
Axes = tuple[tuple[int, int | None], ...]


def join_sums(program: Program) -> Program:
    """Add the sums that make up one result entry by entry, before they are summed.

    Pulled back from a scalar, every nonlinear vertex adds a sum of its own over the same entries. A
    compiler makes a loop, or a library call, of each, and writes what they share to memory. One sum
    of the added products is one loop, in which shared expressions are evaluated once. The number
    of operations is the same.
    """
    return _Joiner(program).rewritten()


@dataclass
class _Total:
    """A sum with the sums that it adds written out.

    Attributes:
        constant: a number added everywhere.
        summands: coefficient and slot of what is added.
        nested: slots of the sums that were written out.
    """

    constant: Number = 0
    summands: list[tuple[Number, int]] = field(default_factory=list)
    nested: list[int] = field(default_factory=list)


class _Joiner(Rewriting):
    def applies(self, instruction: EdgeInstruction) -> bool:
        return _is_plain(instruction.operation)

    def only_read_by(self, slot: int, reader: int) -> EdgeInstruction | None:
        """What makes a slot that nothing but the maker of `reader`, of its dtype, reads."""
        maker = self.makers.get(slot)
        if not isinstance(maker, EdgeInstruction) or self.readers[slot] > 1:
            return None
        return maker if self.slots[slot].dtype == self.slots[reader].dtype else None

    def collect(self, instruction: EdgeInstruction, scale: Number, total: _Total) -> None:
        """Add a sum, times a number, to a total."""
        operation = instruction.operation
        assert isinstance(operation, Combine)
        total.constant += scale * operation.constant
        for (coefficient, _), slot in zip(operation.operands, instruction.inputs, strict=True):
            inner = self.only_read_by(slot, instruction.outputs[0])
            if inner is not None and _is_plain(inner.operation):
                total.nested.append(slot)
                self.collect(inner, scale * coefficient, total)
            else:
                total.summands.append((scale * coefficient, slot))

    def replacement(self, root: EdgeInstruction) -> list[Instruction]:
        """The instructions of a sum whose summands are summed together where they can be."""
        total = _Total()
        self.collect(root, 1, total)
        (slot,) = root.outputs
        groups: dict[Axes, list[tuple[Number, EdgeInstruction]]] = {}
        rest: list[tuple[Number, int]] = []
        for coefficient, summand in total.summands:
            maker = self.only_read_by(summand, slot)
            axes = None if maker is None else _summed_axes(maker.operation)
            if maker is None or axes is None:
                rest.append((coefficient, summand))
            else:
                groups.setdefault(axes, []).append((coefficient, maker))
        for axes, members in list(groups.items()):
            if len(members) == 1:
                ((coefficient, maker),) = members
                rest.append((coefficient, maker.outputs[0]))
                del groups[axes]
        if not groups:
            return [root]
        self.absorbed.update(total.nested)
        made: list[Instruction] = []
        last = len(groups) == 1 and not rest and not total.constant
        for axes, members in groups.items():
            self.absorbed.update(maker.outputs[0] for _, maker in members)
            sum_slot = slot if last else self.like(slot, self.slots[slot].shape)
            made += self.summed_together(axes, members, sum_slot)
            rest.append((1, sum_slot))
        if not last:
            assert isinstance(root.operation, Combine)
            operands = tuple((c, root.operation.output) for c, _ in rest)
            operation = replace(root.operation, operands=operands, constant=total.constant)
            made.append(replace(root, operation=operation, inputs=tuple(s for _, s in rest)))
        return made

    def like(self, slot: int, shape: tuple[int, ...]) -> int:
        """A new slot of another one's dtype."""
        self.slots.append(Slot(shape, self.slots[slot].dtype))
        return len(self.slots) - 1

    def summed_together(
        self, axes: Axes, members: list[tuple[Number, EdgeInstruction]], slot: int
    ) -> list[Instruction]:
        """Products of all members, their sum, and its sum over the axes that `slot` lacks."""
        names = tuple(range(len(axes)))
        sizes = tuple(enumerate(size for size, _ in axes))
        shape = tuple(size for size, _ in axes)
        made: list[Instruction] = []

        def add(operation: Operation, inputs: tuple[int, ...], output: int) -> None:
            dtype, vertex = members[0][1].dtype, members[-1][1].vertex
            made.append(EdgeInstruction(operation, inputs, (output,), dtype, vertex))

        products = []
        for _, maker in members:
            assert isinstance(maker.operation, Einsum)
            products.append(self.like(slot, shape))
            operation = replace(maker.operation, output=_order(maker.operation))
            add(operation, maker.inputs, products[-1])
        operands = tuple((coefficient, names) for coefficient, _ in members)
        together = self.like(slot, shape)
        add(Combine(operands, sizes, names), tuple(products), together)
        kept = sorted((place, name) for name, (_, place) in enumerate(axes) if place is not None)
        read = Read(tuple(label(name) for name in names))
        add(Einsum((read,), sizes, tuple(name for _, name in kept)), (together,), slot)
        return made


def _is_plain(operation: Operation) -> bool:
    """Whether arrays of one shape are added, without repetition."""
    return isinstance(operation, Combine) and all(
        names == operation.output for _, names in operation.operands
    )


def _order(operation: Einsum) -> tuple[int, ...]:
    """The labels in the order in which the first operand holds them."""
    return tuple(dict.fromkeys(name for axis in operation.reads[0].axes for name in axis.labels))


@lru_cache(maxsize=1 << 12)
def _summed_axes(operation: Operation) -> Axes | None:
    """The axes of a sum over entries that all operands have; None for other operations."""
    if not isinstance(operation, Einsum) or operation.real:
        return None
    sizes = dict(operation.sizes)
    if len(operation.output) == len(sizes) or any(r.labels != {*sizes} for r in operation.reads):
        return None
    places = {name: place for place, name in enumerate(operation.output)}
    return tuple((sizes[name], places.get(name)) for name in _order(operation))
