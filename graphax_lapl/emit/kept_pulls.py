"""Loops whose value is needed and whose rows are pulled back: evaluated once for both.

A loss of a loop's result reads the value before there are rows to pull back. `jax.vjp` computes
the value and keeps of every step what the way back needs; without it the loop would run once for
the value and once more for the derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array

from ..edges.operations import ApplyOpaque, MaterializeOpaque
from ..errors import NO_RULE_ERRORS
from ..program.instructions import (
    OpaqueInstruction,
    PrimalInstruction,
    Program,
)
from .joined_pulls import may_join
from .opaque import is_reversed, varying_like
from .small_loops import is_small_loop

__all__ = ["Kept", "kept_pulls", "value_and_pull"]


@dataclass(frozen=True)
class Kept:
    """A way back that is kept when an equation is evaluated.

    Attributes:
        maker: evaluates the equation.
        out: the output that rows come from.
        into: the inputs that they go to.
        maps: slots of the linear maps, in the order of `into`.
    """

    maker: PrimalInstruction
    out: int
    into: tuple[int, ...]
    maps: tuple[int, ...]


def kept_pulls(program: Program, joined: Mapping[int, tuple[int, ...]]) -> dict[int, Kept]:
    """Loops whose maps are all used by one pull of rows, by the place where they are evaluated.

    Several rows go back through a loop over small arrays faster in the form that it takes under
    `jax.vmap`, which has no place for what is kept.

    Args:
        program: the program.
        joined: pulls that are one, see `joined_pulls`.
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
    kept = {}
    for k, instruction in enumerate(program.instructions):
        if not isinstance(instruction, PrimalInstruction) or instruction.equation.name != "scan":
            continue
        found = maps.get(id(instruction.equation), [])
        outs = {maker.reference.out for maker in found}
        readers = [place for maker in found for place in uses.get(maker.outputs[0], [])]
        if (
            len(outs) == 1
            and all(may_join(maker) and maker.inputs == instruction.inputs for maker in found)
            and len({together.get(place, place) for place in readers}) == 1
        ):
            rows = [_rows(program.instructions[place]) for place in readers]
            if 0 in rows or (max(rows) > 1 and is_small_loop(instruction.equation)):
                continue
            into = tuple(maker.reference.into for maker in found)
            kept[k] = Kept(
                instruction, outs.pop(), into, tuple(maker.outputs[0] for maker in found)
            )
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
) -> tuple[Sequence[Any], Callable[[Array], Sequence[Array]] | None]:
    """What an equation computes, and the way back for one row; None where it has none."""

    def along(*moving: Array) -> tuple[Array, list[Array]]:
        full = list(values)
        for position, value in zip(kept.into, moving, strict=True):
            full[position] = value
        results = list(kept.maker.equation.evaluate(*full))
        return results[kept.out], results

    try:
        out, pull, results = jax.vjp(along, *(values[k] for k in kept.into), has_aux=True)
    except NO_RULE_ERRORS:  # is reported where rows are pulled back
        return kept.maker.equation.evaluate(*values), None
    return results, lambda row: pull(varying_like(row.astype(out.dtype), [out]))
