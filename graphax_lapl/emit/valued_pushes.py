"""Loops whose value is needed and whose columns are pushed: evaluated once for both.

`jax.jvp` of a loop computes the value beside the tangents. Columns of an identity, and those that
are there before the loop (`program/seeds_first.py`), are pushed when the value is due, by a loop
that carries both; without it the loop would run once for the value, and once more for the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..edges.operations import ApplyOpaque, MaterializeOpaque
from ..program.instructions import OpaqueInstruction, PrimalInstruction, Program
from ..program.seeds_first import LOOPS
from .holding import BARRIERS_STAND
from .innermost import samples_of
from .joined_pushes import is_plain
from .numbers import BATCH
from .small_loops import is_small_loop

__all__ = ["valued_pushes"]


def valued_pushes(
    program: Program, inputs: Sequence[Any], joined: Mapping[int, tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    """Instructions that push columns through a loop, by the place where it is evaluated.

    Before JAX 0.12 rows of a loop over small arrays, which are fewer, go back sooner for many
    samples, in the form that such a loop takes under `jax.vmap`.

    Args:
        program: the program.
        inputs: of the program.
        joined: those that are written at once, by the place of the first one.

    Returns:
        For each loop the places of the instructions, where no other ones read maps of it.
    """
    loops: dict[int, PrimalInstruction] = {}
    makers: dict[int, list[OpaqueInstruction]] = {}
    readers: dict[int, list[int]] = {}
    made: dict[int, int] = {}
    for k, instruction in enumerate(program.instructions):
        if isinstance(instruction, PrimalInstruction) and instruction.equation.name in LOOPS:
            loops[k] = instruction
        made.update(dict.fromkeys(instruction.outputs, k))
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
        if places and all(_is_pushed(program, k, made, place) for k in places):
            # What enters by several inputs is added: products with seeds have fewer columns then.
            columns = {program.instructions[k].inputs[1:] for k in places} - {()}
            if len(columns) <= 1:
                found[place] = places
        elif places and places == joined.get(places[0]):
            rows = any(_has_rows(program.instructions[k]) for k in places)
            sooner = not BARRIERS_STAND and rows and is_small_loop(loop.equation)
            if not (sooner and _is_batch(inputs)):
                found[place] = places
    return found


def _is_batch(inputs: Sequence[Any]) -> bool:
    """Whether loops over small arrays become loops over numbers."""
    return (samples_of(inputs) or 1) >= BATCH


def _is_pushed(program: Program, place: int, made: Mapping[int, int], loop: int) -> bool:
    """Whether columns are pushed: those of an identity, or of a slot made before the loop."""
    instruction = program.instructions[place]
    operation = getattr(instruction, "operation", None)
    if isinstance(operation, ApplyOpaque):
        columns = instruction.inputs[1]
        real = np.issubdtype(program.slots[columns].dtype, np.floating)
        return not operation.reverse and made.get(columns, -1) < loop and real
    if not isinstance(operation, MaterializeOpaque):
        return False
    return operation.opaque.forward and not operation.by_rows


def _has_rows(instruction: Any) -> bool:
    """Whether a map that is diagonal along no dimension would be written by rows on its own."""
    operation = instruction.operation
    return bool(operation.by_rows and not operation.opaque.batch)
