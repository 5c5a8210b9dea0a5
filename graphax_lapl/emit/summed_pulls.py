"""Rows that come back from several outputs of a loop or branch and are added: pulled as one.

The loss of a loop that carries position and velocity is pulled back from both. Elimination does so
one output after the other and adds what arrives; one `vjp` with a row for each output runs the loop
and its reverse once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..edges.maps import label
from ..edges.operations import ApplyOpaque, Combine, Einsum, MaterializeOpaque
from ..edges.terms import Number
from ..program.instructions import EdgeInstruction, OpaqueInstruction, Program
from .joined_pulls import is_real, may_join

__all__ = ["SummedPulls", "summed_pulls"]


@dataclass(frozen=True)
class SummedPulls:
    """A pull of rows from several outputs of an equation.

    Attributes:
        place: where it is done, a place in the program.
        operations: for every input how one output's rows are pulled to it.
        maps: for every output the slots of the maps to the inputs.
        rows: for every output the slot of its rows.
        weights: for every output what its rows are multiplied by.
        coefficient: what the result is multiplied by.
        results: for every input the place of the instruction whose value the result is.
        entries: places of these instructions, and of the other outputs': they are zero.
        pulls: places of the instructions that pull rows from one output to one input.
    """

    place: int
    operations: tuple[ApplyOpaque, ...]
    maps: tuple[tuple[int, ...], ...]
    rows: tuple[int, ...]
    weights: tuple[Number, ...]
    coefficient: Number
    results: tuple[int, ...]
    entries: tuple[int, ...]
    pulls: tuple[int, ...]


@dataclass(frozen=True)
class _Pull:
    """One output's rows on their way to one input: `coefficient` times the map's image of them.

    Attributes:
        place: of the instruction that pulls.
        entry: of the instruction whose value goes into a sum.
        ends: for every sum that it then is in, by its place, the coefficient and order of axes.
    """

    place: int
    entry: int
    operation: ApplyOpaque
    maker: OpaqueInstruction
    rows: int
    coefficient: Number
    ends: dict[int, tuple[Number, tuple[int, ...]]]


def summed_pulls(program: Program, excluded: Collection[int] = frozenset()) -> list[SummedPulls]:
    """Pulls that are one, because all that arrives from several outputs is added.

    Args:
        program: the program.
        excluded: slots that are evaluated with others, as a whole.
    """
    packets: dict[tuple[Hashable, int, int, Number], dict[int, _Pull]] = {}
    for pull in _pulls(program, excluded):
        reference = pull.maker.reference
        point = (id(reference.equation), pull.maker.inputs, pull.maker.present)
        key = (point, reference.out, pull.rows, pull.coefficient)
        packet = packets.setdefault(key, {})
        if packet.setdefault(reference.into, pull) is not pull:
            packet[-1] = pull  # two sums of the same: such a packet meets no other
    groups: list[tuple[Hashable, list[int], list[dict[int, _Pull]]]] = []
    for (equation, out, _, _), packet in packets.items():
        for other, outs, group in groups:
            alike = other == equation and out not in outs
            if alike and all(_weight(own, packet) is not None for own in group):
                group.append(packet)
                outs.append(out)
                break
        else:
            groups.append((equation, [out], [packet]))
    makers = {i.outputs[0]: k for k, i in enumerate(program.instructions) if i.outputs}
    found = (_summed(group) for _, _, group in groups if len(group) > 1)
    return [
        pull
        for pull in found
        if all(makers[slot] < pull.place for own in pull.maps for slot in own)
    ]


def _weight(first: dict[int, _Pull], second: dict[int, _Pull]) -> Number | None:
    """How often as large the rows of a second output are as those of a first one.

    None where they do not end, for every input, in one sum, in one order of axes and equally often.
    """
    if first.keys() != second.keys() or -1 in first:
        return None
    weights = set()
    for into, one in first.items():
        other = second[into]
        sums = [k for k in one.ends if k in other.ends]
        if _form(one) != _form(other) or not sums:
            return None
        (own, order), (factor, turned) = (pull.ends[min(sums)] for pull in (one, other))
        if order != turned or own == 0:
            return None
        weights.add(1 if factor == own else factor / own)
    return weights.pop() if len(weights) == 1 else None


def _form(pull: _Pull) -> tuple[Any, ...]:
    return pull.operation.extra, pull.operation.shape, pull.maker.reference.batch_in


def _summed(group: list[dict[int, _Pull]]) -> SummedPulls:
    intos = [*group[0]]
    begun = [min(pull.entry for pull in packet.values()) for packet in group]
    last = group[begun.index(max(begun))]
    pulls = [pull for packet in group for pull in packet.values()]
    weights = [_weight(last, packet) for packet in group]
    return SummedPulls(
        max(begun),
        tuple(last[into].operation for into in intos),
        tuple(tuple(packet[into].maker.outputs[0] for into in intos) for packet in group),
        tuple(packet[intos[0]].rows for packet in group),
        tuple(weight for weight in weights if weight is not None),
        last[intos[0]].coefficient,
        tuple(last[into].entry for into in intos),
        tuple(pull.entry for pull in pulls),
        tuple(pull.place for pull in pulls),
    )


def _pulls(program: Program, excluded: Collection[int]) -> Iterator[_Pull]:
    """All pulls whose result goes into a sum and nowhere else."""
    instructions = program.instructions
    made = {i.outputs[0]: i for i in instructions if isinstance(i, OpaqueInstruction)}
    if not any(map(may_join, made.values())):
        return
    count = Counter(slot for i in instructions for slot in i.inputs)
    count.update(s for row in program.blocks for block in row for s in block.slots)
    count.update(program.values)
    readers = {s: k for k, i in enumerate(instructions) for s in i.inputs if count[s] == 1}
    for place, instruction in enumerate(instructions):
        if not isinstance(instruction, EdgeInstruction):
            continue
        operation = instruction.operation
        if not isinstance(operation, ApplyOpaque | MaterializeOpaque):
            continue
        maker = made[instruction.inputs[0]]
        if not (may_join(maker) and is_real(maker)):
            continue
        found: tuple[int, ApplyOpaque, int, Number] | None = None
        if isinstance(operation, ApplyOpaque):
            if operation.reverse:
                found = place, operation, instruction.inputs[1], 1
        elif operation.opaque.pushes_sooner_than(1):
            continue  # the columns of all inputs take less
        elif instruction.outputs[0] in readers:
            found = _weighted(program, readers[instruction.outputs[0]], instruction)
        if found is None or not np.issubdtype(program.slots[found[2]].dtype, np.floating):
            continue
        entry, applied, rows, coefficient = found
        slot = instructions[entry].outputs[0]
        if slot in excluded or instruction.outputs[0] in excluded:
            continue
        ends = _ends(program, readers, slot, coefficient)
        yield _Pull(place, entry, applied, maker, rows, coefficient, ends)


def _weighted(
    program: Program, place: int, pulled: EdgeInstruction
) -> tuple[int, ApplyOpaque, int, Number] | None:
    """An elementwise product with a diagonal map: the map's image of the other factor."""
    operation, (slot,) = pulled.operation, pulled.outputs
    reader = program.instructions[place]
    assert isinstance(operation, MaterializeOpaque)
    if operation.opaque.batch < len(operation.map_shape) or not operation.opaque.reverse:
        return None
    if not isinstance(reader, EdgeInstruction) or not isinstance(reader.operation, Einsum):
        return None
    product = reader.operation
    axes = tuple(label(name) for name in product.output)
    if product.real or any(read.axes != axes or read.conj for read in product.reads):
        return None
    others = [s for s in reader.inputs if s != slot]
    shapes = {program.slots[s].shape for s in (*others, slot)}
    if len(others) != 1 or shapes != {product.shape}:
        return None
    applied = ApplyOpaque(operation.opaque, operation.map_shape, (), True)
    return place, applied, others[0], product.coefficient


def _ends(
    program: Program, readers: dict[int, int], slot: int, coefficient: Number
) -> dict[int, tuple[Number, tuple[int, ...]]]:
    """Sums of arrays that an array goes into: by their places its coefficient and axes there."""
    ends: dict[int, tuple[Number, tuple[int, ...]]] = {}
    order = tuple(range(len(program.slots[slot].shape)))
    while slot in readers:
        place = readers[slot]
        reader = program.instructions[place]
        operation = getattr(reader, "operation", None)
        if not isinstance(operation, Combine):
            break
        factor, names = operation.operands[reader.inputs.index(slot)]
        if len(names) < len(operation.output):
            break
        coefficient = coefficient * factor
        order = tuple(order[names.index(name)] for name in operation.output)
        ends[place] = coefficient, order
        (slot,) = reader.outputs
    return ends
