"""Maps of one loop or branch that are written out: by columns of several inputs, at once.

A loop that carries position and velocity has four maps. Written out one after the other, rows are
pulled back from either output; columns of both inputs pushed together give all four, by one loop.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

import jax.numpy as jnp

from ..edges.operations import MaterializeOpaque
from ..program.instructions import (
    EdgeInstruction,
    OpaqueInstruction,
    PrimalInstruction,
    Program,
)

__all__ = ["is_plain", "joined_pushes"]

#: Equations that are worth evaluating once for all their maps.
LOOPS = frozenset({"scan", "while", "cond"})


def joined_pushes(program: Program) -> dict[int, tuple[int, ...]]:
    """Instructions that write out all maps from some inputs to some outputs of one equation.

    Returns:
        By the position of the first instruction the positions of all, where each by itself is
        written by columns, or columns of all these inputs are no more than rows of several outputs.
        What they read is there when the first one is due.
    """
    # A loop whose value is read keeps the way back when it is evaluated (`kept_pulls`).
    valued = {id(i.equation) for i in program.instructions if isinstance(i, PrimalInstruction)}
    made: dict[int, tuple[int, OpaqueInstruction]] = {}
    groups: dict[Hashable, dict[tuple[int, int], int]] = {}
    unfit: set[Hashable] = set()
    for k, instruction in enumerate(program.instructions):
        if isinstance(instruction, OpaqueInstruction):
            made[instruction.outputs[0]] = k, instruction
            continue
        operation = getattr(instruction, "operation", None)
        if not isinstance(operation, MaterializeOpaque):
            continue
        place, maker = made[instruction.inputs[0]]
        reference = maker.reference
        kept = id(reference.equation) in valued and reference.equation.name != "scan"
        if not is_plain(maker) or (operation.by_rows and kept):
            continue
        diagonal = operation.map_shape[: operation.opaque.batch]
        key = (id(reference.equation), maker.inputs, maker.present, diagonal)
        group = groups.setdefault(key, {})
        late = bool(group) and place > min(group.values())
        twice = (reference.out, reference.into) in group
        if late or twice or not operation.opaque.forward:
            unfit.add(key)
        group[reference.out, reference.into] = k
    fit = (group for key, group in groups.items() if key not in unfit and len(group) > 1)
    return {min(g.values()): tuple(sorted(g.values())) for g in fit if _by_columns(g, program)}


def is_plain(maker: OpaqueInstruction) -> bool:
    """Whether a map is one between real arrays, of a kind that is worth sharing."""
    reference = maker.reference
    is_complex = any(jnp.issubdtype(type_.dtype, jnp.complexfloating) for type_ in maker.types)
    plain = not reference.slot and reference.conjugate is None and not is_complex
    return plain and reference.equation.name in LOOPS


def _by_columns(group: dict[tuple[int, int], int], program: Program) -> bool:
    """Whether all maps of a group exist, and columns of all inputs are no dearer than rows."""
    outs, intos = ({pair[k] for pair in group} for k in (0, 1))
    if len(group) < len(outs) * len(intos):
        return False
    operations = {pair: _operation(program, place) for pair, place in group.items()}
    if not any(operation.by_rows for operation in operations.values()):
        return True
    out, into = min(outs), min(intos)
    rows = sum(_sizes((operations[k, into] for k in outs), 0))
    columns = sum(_sizes((operations[out, k] for k in intos), 1))
    return len(outs) > 1 and columns <= rows


def _operation(program: Program, place: int) -> MaterializeOpaque:
    instruction = program.instructions[place]
    assert isinstance(instruction, EdgeInstruction)
    assert isinstance(instruction.operation, MaterializeOpaque)
    return instruction.operation


def _sizes(operations: Iterable[MaterializeOpaque], side: int) -> list[int]:
    """Sizes of outputs (0) or inputs (1)."""
    found = []
    for operation in operations:
        core = operation.map_shape[operation.opaque.batch :]
        split = operation.opaque.outputs
        found.append(math.prod(core[split:] if side else core[:split]))
    return found
