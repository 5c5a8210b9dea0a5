"""Sines and cosines among the instructions of a program, by the arrays that they are of."""

from __future__ import annotations

from dataclasses import dataclass

from .instructions import Program
from .regions import SINE_DTYPES, SINES, sine_name
from .summed import SINES_INSIDE, within_sums

__all__ = ["SINES_SIZE", "Sine", "sines"]

#: Elements, those of a batch together, from which on a loop of their own is worth it.
SINES_SIZE = 4096


@dataclass(frozen=True)
class Sine:
    """A slot that holds the sine or the cosine of another.

    Attributes:
        argument: the other slot.
        place: 0 for the sine, 1 for the cosine.
        inside: nothing but sums and products that evaluate them read those of its argument.
    """

    argument: int
    place: int
    inside: bool


def sines(program: Program) -> dict[int, Sine]:
    """The slots of a program that are sines and cosines."""
    found: dict[int, tuple[int, int]] = {}
    for instruction in program.instructions:
        name = sine_name(instruction)
        if name in SINES and program.slots[instruction.outputs[0]].dtype in SINE_DTYPES:
            found[instruction.outputs[0]] = (instruction.inputs[0], SINES.index(name))
    within = within_sums(program, True) if found and SINES_INSIDE else frozenset()
    elsewhere = {argument for slot, (argument, _) in found.items() if slot not in within}
    return {
        slot: Sine(argument, place, argument not in elsewhere)
        for slot, (argument, place) in found.items()
    }
