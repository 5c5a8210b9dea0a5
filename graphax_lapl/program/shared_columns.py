"""Columns that all samples share until a sample scales them: those of a first layer."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from ..edges.operations import Einsum
from .fixed_factors import plain_labels
from .instructions import EdgeInstruction, Program
from .repetition import LARGE

__all__ = ["SharedColumns", "shared_columns"]

#: Numbers of a row for each row, from which on a product of an identity with all rows is cheap.
LONG_ROWS = 8


@dataclass(frozen=True)
class SharedColumns:
    """Readers of columns that all samples share, which have them repeated in a derivative.

    Attributes:
        columns: the slot of the columns.
        axes: their axes in the order in which the scaled columns have them.
        scaled: places of the instructions that scale them by numbers of a sample.
        squares: place of the instruction that sums their squares, None where there is none.
        weighted: places of the instructions that multiply these sums by numbers of a sample.
    """

    columns: int
    axes: tuple[int, ...]
    scaled: tuple[int, ...]
    squares: int | None
    weighted: tuple[int, ...]

    @property
    def places(self) -> tuple[int, ...]:
        """All instructions whose results are read elsewhere."""
        return (*self.scaled, *self.weighted)


def shared_columns(
    program: Program, moving: Collection[int], apart: Collection[int]
) -> dict[int, SharedColumns]:
    """Columns that a sample scales, by the place of the first instruction that does so.

    Such is `W diag(s)` in a first layer, and `sum(W^2)` beside it. Everything that its readers read
    is there at that place.

    Args:
        program: the program.
        moving: its inputs that move; what depends on none of them is the same for a batch.
        apart: slots that are evaluated in a way of their own.
    """
    fixed = program.unreached(moving)
    made = {s: k for k, i in enumerate(program.instructions) for s in i.outputs}
    readers: dict[int, list[int]] = {}
    for k, instruction in enumerate(program.instructions):
        for slot in {*instruction.inputs}:
            readers.setdefault(slot, []).append(k)
    kept = {*apart, *program.values}
    kept.update(slot for row in program.blocks for block in row for slot in block.slots)

    def scaling(k: int, slot: int) -> bool:
        """Whether an instruction multiplies a shared slot by what a sample has, entry by entry."""
        instruction = program.instructions[k]
        return (
            _is_entrywise(program, instruction)
            and instruction.inputs.count(slot) == 1
            and kept.isdisjoint(instruction.outputs)
            and fixed.isdisjoint({*instruction.inputs} - {slot})
        )

    found: dict[int, SharedColumns] = {}
    for slot in sorted(fixed & readers.keys()):
        ways = {k: _repeated(program, k, slot) for k in readers[slot] if scaling(k, slot)}
        scaled = tuple(k for k, axes in ways.items() if axes is not None)
        if not scaled or any(ways[k] != ways[scaled[0]] for k in scaled):
            continue
        axes = ways[scaled[0]]
        assert axes is not None

        def ready(places: Collection[int], first: int = scaled[0]) -> bool:
            slots = {s for k in places for s in program.instructions[k].inputs} - fixed
            return all(made.get(s, -1) < first for s in slots)

        if not ready(scaled):
            continue
        squares: int | None = None
        weighted: tuple[int, ...] = ()
        for k in readers[slot]:
            if not _is_square(program.instructions[k]):
                continue
            (total,) = program.instructions[k].outputs
            behind = tuple(readers.get(total, ()))
            if (
                total not in kept
                and behind
                and behind[0] > scaled[0]
                and all(scaling(n, total) for n in behind)
                and ready(behind)
            ):
                squares, weighted = k, behind
        found[scaled[0]] = SharedColumns(slot, axes, scaled, squares, weighted)
    return found


def _is_entrywise(program: Program, instruction: object) -> bool:
    """Whether it is a product of two arrays of one dtype without a sum."""
    if not isinstance(instruction, EdgeInstruction):
        return False
    operation = instruction.operation
    slots = (*instruction.inputs, *instruction.outputs)
    return (
        isinstance(operation, Einsum)
        and len(operation.reads) == 2
        and len(operation.output) == len(operation.sizes)
        and not operation.real
        and len({program.slots[s].dtype for s in slots}) == 1
    )


def _repeated(program: Program, k: int, slot: int) -> tuple[int, ...] | None:
    """Axes of a shared operand in the result's order, if the other one is repeated along some.

    None too where a product with identities is not cheap beside those of later layers.
    """
    instruction = program.instructions[k]
    operation = getattr(instruction, "operation", None)
    assert isinstance(operation, Einsum)
    place = instruction.inputs.index(slot)
    names, others = (plain_labels(operation.reads[p]) for p in (place, 1 - place))
    shape = program.slots[slot].shape
    if (
        names is None
        or others is None
        or len(shape) < 2
        or 0 in shape
        or len(names) != len(operation.output)
        or len(others) == len(names)
        or math.prod(shape) != math.prod(size for _, size in operation.sizes)
    ):
        return None
    axes = tuple(names.index(name) for name in operation.output)
    length = shape[axes[-1]]
    rows = math.prod(shape) // length
    return axes if 1 < rows <= length // LONG_ROWS and rows * length < LARGE else None


def _is_square(instruction: object) -> bool:
    """Whether it sums the squares of an array over some of its axes."""
    if not isinstance(instruction, EdgeInstruction):
        return False
    operation = instruction.operation
    return (
        isinstance(operation, Einsum)
        and len(operation.reads) == 2
        and len({*instruction.inputs}) == 1
        and operation.reads[0] == operation.reads[1]
        and plain_labels(operation.reads[0]) is not None
        and not operation.real
    )
