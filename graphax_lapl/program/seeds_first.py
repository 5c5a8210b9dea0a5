"""Loops behind what is pushed through them.

A program evaluates the function first, and then derivatives. A loop whose columns are there before
it carries them beside its value, so it waits for them where they do not wait for it.
"""

from __future__ import annotations

from dataclasses import replace

from ..edges.operations import ApplyOpaque
from .instructions import Instruction, OpaqueInstruction, PrimalInstruction, Program

__all__ = ["LOOPS", "seeds_first"]

#: Equations that evaluate much, and all of it for columns again.
LOOPS = frozenset({"scan", "while"})


def seeds_first(program: Program) -> Program:
    """The program in an order in which loops come after the columns that are pushed through them.

    Nothing else changes; where columns depend on what the loop computes, neither does its place.
    """
    if program.few_samples is not None:
        program = replace(program, few_samples=seeds_first(program.few_samples))
    awaited = _awaited(program)
    if not awaited:
        return program
    made = {slot: k for k, i in enumerate(program.instructions) for slot in i.outputs}
    order: list[Instruction] = []
    done: set[int] = set()

    def add(place: int) -> None:
        # Without recursion: programs are long.
        waiting = [place]
        while waiting:
            k = waiting[-1]
            instruction = program.instructions[k]
            needed = (*instruction.inputs, *awaited.get(k, ()))
            missing = [made[s] for s in needed if s in made and made[s] not in done]
            if k in done or not missing:
                waiting.pop()
                if k not in done:
                    done.add(k)
                    order.append(instruction)
            else:
                waiting += missing

    for place in range(len(program.instructions)):
        add(place)
    return replace(program, instructions=order)


def _awaited(program: Program) -> dict[int, list[int]]:
    """For the places of loops the slots of the columns that they may wait for."""
    loops: dict[int, int] = {}
    makers: dict[int, OpaqueInstruction] = {}
    pushed: dict[int, list[int]] = {}
    for k, instruction in enumerate(program.instructions):
        if isinstance(instruction, PrimalInstruction) and instruction.equation.name in LOOPS:
            loops[id(instruction.equation)] = k
        elif isinstance(instruction, OpaqueInstruction):
            makers[instruction.outputs[0]] = instruction
        operation = getattr(instruction, "operation", None)
        if isinstance(operation, ApplyOpaque) and not operation.reverse:
            maker = makers[instruction.inputs[0]]
            pushed.setdefault(id(maker.reference.equation), []).append(instruction.inputs[1])
    found: dict[int, list[int]] = {}
    for equation, slots in pushed.items():
        if equation in loops and _reached(program, loops[equation]).isdisjoint(slots):
            found[loops[equation]] = slots
    return found


def _reached(program: Program, place: int) -> set[int]:
    """The slots that depend on what an instruction results in."""
    found = set(program.instructions[place].outputs)
    for instruction in program.instructions[place + 1 :]:
        if not found.isdisjoint(instruction.inputs):
            found.update(instruction.outputs)
    return found
