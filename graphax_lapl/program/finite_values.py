"""Which instructions may give infinite numbers or NaN where they read finite ones."""

from __future__ import annotations

import math
from collections.abc import Collection

from jax import lax

from ..edges.operations import Assemble, Combine, Einsum, Overlay
from ..rules.elementwise import FINITE_SLOPES, LAYING_OUT, has_finite_slopes
from .instructions import (
    ConstantInstruction,
    EdgeInstruction,
    Instruction,
    LocalInstruction,
    PrimalInstruction,
    Program,
)

__all__ = ["is_finite_here", "may_be_infinite", "overflows"]

#: Equations whose values are finite numbers where their arguments are, but for overflow.
FINITE_VALUES = frozenset(
    """
    abs and argmax argmin clamp concatenate conv_general_dilated cummax cummin cumsum dot_general
    dynamic_slice dynamic_update_slice eq floor ceil round gather ge gt imag iota is_finite le lt
    max min ne not or pad real reduce_and reduce_max reduce_min reduce_or reduce_sum rev scatter
    scatter-add select_n sign slice sort split stop_gradient xor
    """.split()  # noqa: SIM905
).union(LAYING_OUT)
#: Equations whose values are infinite by overflow alone, and the names of partials made of them.
OVERFLOWING = frozenset(["exp", "exp2", "expm1", "sinh", "cosh"])
OVERFLOWING_PARTIALS = frozenset([f"d{name}" for name in OVERFLOWING])
#: Names of partials that are finite wherever their arguments are.
FINITE_PARTIALS = frozenset([f"d{name}" for name in FINITE_SLOPES])


def may_be_infinite(program: Program) -> set[int]:
    """Slots that may hold infinite numbers or NaN where the inputs of a program are finite."""
    infinite: set[int] = set()
    known: set[int] = set()
    for made in program.instructions:
        if isinstance(made, ConstantInstruction):
            known.update(made.outputs)
        if not infinite.isdisjoint(made.inputs) or not is_finite_here(made, known):
            infinite.update(made.outputs)
    return infinite


def is_finite_here(instruction: Instruction, known: Collection[int]) -> bool:
    """Whether finite numbers come out of an instruction where finite ones go in."""
    if isinstance(instruction, LocalInstruction):
        local = instruction.local
        return local.slope == "constant" or local.name in FINITE_PARTIALS
    if isinstance(instruction, PrimalInstruction):
        equation = instruction.equation
        if equation.name == "gather" and instruction.inputs[-1] not in known:
            filled = equation.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
            value = equation.params["fill_value"]
            return not filled or (value is not None and math.isfinite(abs(value)))
        return equation.name in FINITE_VALUES or has_finite_slopes(equation)
    if isinstance(instruction, EdgeInstruction):
        return isinstance(instruction.operation, Einsum | Combine | Overlay | Assemble)
    return isinstance(instruction, ConstantInstruction)


def overflows(instruction: Instruction) -> bool:
    """Whether infinite numbers come out of an instruction by overflow alone."""
    if isinstance(instruction, LocalInstruction):
        return instruction.local.name in OVERFLOWING_PARTIALS
    if isinstance(instruction, PrimalInstruction):
        return instruction.equation.name in OVERFLOWING
    return False
