"""Negative powers as products of a reciprocal that is there already."""

from __future__ import annotations

from dataclasses import replace

import jax
from jax import lax

from ..edges.values import immutable
from ..rules.elementwise import Power, minus_quotient, reciprocal, squared_reciprocal
from ..rules.site import Local
from .instructions import Instruction, LocalInstruction, PrimalInstruction, Program

__all__ = ["powers_of_reciprocals"]

#: Partials that divide by one of their arguments, and which.
DIVISORS = {reciprocal: 0, squared_reciprocal: 0, minus_quotient: 1}


def powers_of_reciprocals(program: Program) -> Program:
    """The program that multiplies where it divides by an array and by its powers.

    First and second derivatives of a quotient are made of `1 / y`, `y**-2` and `y**-3`. XLA keeps a
    division that several kernels read in memory, and these are three; products of one reciprocal
    are evaluated where they are read.
    """
    divisors = {slot for i in program.instructions if (slot := _divisor(i)) is not None}
    instructions: list[Instruction] = []
    for instruction in program.instructions:
        exponent = _exponent(instruction)
        if exponent < -1 and instruction.inputs[0] in divisors:
            shape = program.slots[instruction.outputs[0]].shape
            power = PowerOfReciprocal(-exponent)
            local = Local(f"x**{exponent}", power, (), shape, "elementwise")
            instruction = LocalInstruction(local, instruction.inputs, instruction.outputs)
        instructions.append(instruction)
    return replace(program, instructions=instructions)


@immutable
class PowerOfReciprocal:
    """x**-n as a product of n reciprocals."""

    exponent: int

    def __call__(self, x: jax.Array) -> jax.Array:
        """x**-n."""
        return lax.integer_pow(reciprocal(x), self.exponent)


def _divisor(instruction: Instruction) -> int | None:
    """The slot whose reciprocal an instruction evaluates."""
    if not isinstance(instruction, LocalInstruction):
        return None
    place = DIVISORS.get(instruction.local.fun)
    return None if place is None else instruction.inputs[place]


def _exponent(instruction: Instruction) -> int:
    """The exponent of an integer power; 1 where an instruction is none."""
    if isinstance(instruction, PrimalInstruction) and instruction.equation.name == "integer_pow":
        return int(instruction.equation.params["y"])
    if isinstance(instruction, LocalInstruction) and isinstance(instruction.local.fun, Power):
        return instruction.local.fun.exponent
    return 1
