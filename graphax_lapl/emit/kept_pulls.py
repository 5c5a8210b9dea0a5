"""Loops and branches whose value is needed and whose rows are pulled back: evaluated once for both.

A loss of a loop's result reads the value before there are rows to pull back. `jax.vjp` computes
the value and keeps of every step what the way back needs; without it the loop would run once for
the value and once more for the derivative. A branch is evaluated once for all its outputs; the
way back from a loop is kept for one pull, which may bring rows from several outputs at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..edges.operations import ApplyOpaque, MaterializeOpaque
from ..errors import NO_RULE_ERRORS
from ..program.instructions import (
    OpaqueInstruction,
    PrimalInstruction,
    Program,
)
from ..rules.loop_invariants import evaluated_for_rows
from ..rules.opaque import needs_all_tangents
from .holding import BARRIERS_STAND
from .innermost import samples_of
from .joined_pulls import JOINED, may_join
from .opaque import differentiable, is_reversed
from .small_loops import is_small_loop
from .summed_pulls import SummedPulls

__all__ = ["Kept", "kept_pulls", "value_and_pull"]

#: Rows of all samples whose numbers are carried sooner than what is kept, before JAX 0.12.
MANY = 2048


@dataclass(frozen=True)
class Kept:
    """A way back that is kept when an equation is evaluated.

    Attributes:
        maker: evaluates the equation.
        outs: the outputs that rows come from.
        into: the inputs that they go to.
        maps: for each linear map its slot, and its places among `outs` and `into`.
    """

    maker: PrimalInstruction
    outs: tuple[int, ...]
    into: tuple[int, ...]
    maps: tuple[tuple[int, int, int], ...]


def kept_pulls(
    program: Program,
    inputs: Sequence[Any],
    joined: Mapping[int, tuple[int, ...]],
    summed: Sequence[SummedPulls] = (),
) -> dict[int, Kept]:
    """Equations whose maps only pull rows back, by the place where they are evaluated.

    A loop is kept for one pull. One over small arrays has a form for batches that has no place for
    what is kept. Before JAX 0.12 several rows of many samples go back faster in that form.

    Args:
        program: the program.
        inputs: of the program.
        joined: pulls that are one, see `joined_pulls`.
        summed: those that are one from several outputs, see `summed_pulls`.
    """
    maps: dict[int, list[OpaqueInstruction]] = {}
    for instruction in program.instructions:
        if isinstance(instruction, OpaqueInstruction):
            maps.setdefault(id(instruction.reference.equation), []).append(instruction)
    uses: dict[int, list[int]] = {}
    for k, instruction in enumerate(program.instructions):
        for slot in instruction.inputs:
            uses.setdefault(slot, []).append(k)
    together = {k: first for first, group in joined.items() for k in group}
    together.update((k, pull.place) for pull in summed for k in pull.pulls)
    kept = {}
    for k, instruction in enumerate(program.instructions):
        if not isinstance(instruction, PrimalInstruction):
            continue
        equation = instruction.equation
        if equation.name not in JOINED:
            continue
        found = maps.get(id(equation), [])
        if not all(may_join(maker) and maker.inputs == instruction.inputs for maker in found):
            continue
        readers = [place for maker in found for place in uses.get(maker.outputs[0], [])]
        rows = [_rows(program.instructions[place]) for place in readers]
        if not rows or 0 in rows:
            continue
        sooner = not BARRIERS_STAND and max(rows) > 1 and is_small_loop(equation)
        if sooner and max(rows) * (samples_of(inputs) or 1) >= MANY:
            continue
        outs = tuple(dict.fromkeys(maker.reference.out for maker in found))
        pulls = len({together.get(place, place) for place in readers})
        if equation.name == "scan" and pulls > 1:
            continue
        into = tuple(dict.fromkeys(maker.reference.into for maker in found))
        places = tuple(
            (maker.outputs[0], outs.index(maker.reference.out), into.index(maker.reference.into))
            for maker in found
        )
        kept[k] = Kept(instruction, outs, into, places)
    return kept


def _rows(instruction: Any) -> int:
    """How many rows an instruction pulls back through an opaque map, 0 where it does not."""
    operation = getattr(instruction, "operation", None)
    if not isinstance(operation, ApplyOpaque | MaterializeOpaque) or not is_reversed(operation):
        return 0
    if isinstance(operation, ApplyOpaque):
        return math.prod(operation.extra)
    batch = operation.opaque.batch
    return math.prod(operation.map_shape[batch : batch + operation.opaque.outputs])


def value_and_pull(
    kept: Kept, values: Sequence[Any]
) -> tuple[Sequence[Any], Callable[[Mapping[int, Array]], Sequence[Array]] | None]:
    """What an equation computes, and the way back for a row from each of some of `kept.outs`.

    There is no such way where the equation has none; this is reported where rows are pulled back.
    """
    equation, places = kept.maker.equation, list(kept.into)
    if needs_all_tangents(equation):
        places += [k for k in differentiable(values) if k not in kept.into]

    def along(*moving: Array) -> tuple[list[Array], list[Array]]:
        full = list(values)
        for position, value in zip(places, moving, strict=True):
            full[position] = value
        results = evaluated_for_rows(equation, full)
        return [results[out] for out in kept.outs], results

    try:
        outs, pull, results = jax.vjp(along, *(values[k] for k in places), has_aux=True)
    except NO_RULE_ERRORS:
        return equation.evaluate(*values), None

    def pulled(given: Mapping[int, Array]) -> Sequence[Array]:
        rows = [jnp.zeros_like(out) for out in outs]
        for place, row in given.items():
            rows[place] = row.astype(rows[place].dtype)
        arrived: Sequence[Array] = pull(rows)
        return arrived

    return results, pulled
