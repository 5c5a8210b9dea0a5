"""Loops whose value is needed and whose columns are pushed: evaluated once for both.

`jax.jvp` of a loop computes the value beside the tangents. Columns of an identity wait for nothing,
so they are pushed when the value is due, by a loop that carries both; without it the loop would run
once for the value, and once more for the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..edges.operations import MaterializeOpaque
from ..program.instructions import OpaqueInstruction, PrimalInstruction, Program
from .holding import BARRIERS_STAND
from .innermost import samples_of
from .joined_pushes import is_plain
from .numbers import BATCH
from .small_loops import is_small_loop

__all__ = ["valued_pushes"]

#: Equations that evaluate much, and all of it for columns again.
LOOPS = frozenset({"scan", "while"})


def valued_pushes(
    program: Program, inputs: Sequence[Any], joined: Mapping[int, tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    """Instructions that write maps of a loop by columns, by the place where it is evaluated.

    Before JAX 0.12 rows of a loop over small arrays, which are fewer, go back sooner for many
    samples, in the form that such a loop takes under `jax.vmap`.

    Args:
        program: the program.
        inputs: of the program.
        joined: those that are written at once, by the place of the first one.

    Returns:
        For each loop the places of the instructions, as `joined` has them or only one, where no
        other ones read maps of it.
    """
    loops: dict[int, PrimalInstruction] = {}
    makers: dict[int, list[OpaqueInstruction]] = {}
    readers: dict[int, list[int]] = {}
    for k, instruction in enumerate(program.instructions):
        if isinstance(instruction, PrimalInstruction) and instruction.equation.name in LOOPS:
            loops[k] = instruction
        if isinstance(instruction, OpaqueInstruction):
            makers.setdefault(id(instruction.reference.equation), []).append(instruction)
            readers[instruction.outputs[0]] = []
        for slot in instruction.inputs:
            if slot in readers:
                readers[slot].append(k)
    found: dict[int, tuple[int, ...]] = {}
    for place, loop in loops.items():
        maps = makers.get(id(loop.equation), [])
        places = tuple(sorted(k for maker in maps for k in readers[maker.outputs[0]]))
        if not all(is_plain(maker) and maker.inputs == loop.inputs for maker in maps):
            continue
        operations = [getattr(program.instructions[k], "operation", None) for k in places]
        if len(places) == 1 and _is_pushed(operations[0]):
            found[place] = places
        elif places and places == joined.get(places[0]):
            sooner = not BARRIERS_STAND and is_small_loop(loop.equation)
            if not (sooner and any(map(_has_rows, operations)) and _is_batch(inputs)):
                found[place] = places
    return found


def _is_batch(inputs: Sequence[Any]) -> bool:
    """Whether loops over small arrays become loops over numbers."""
    return (samples_of(inputs) or 1) >= BATCH


def _is_pushed(operation: Any) -> bool:
    """Whether a map is written out, by columns."""
    written = isinstance(operation, MaterializeOpaque) and operation.opaque.forward
    return written and not operation.by_rows


def _has_rows(operation: Any) -> bool:
    """Whether a map that is diagonal along no dimension would be written by rows on its own."""
    return bool(operation.by_rows and not operation.opaque.batch)
