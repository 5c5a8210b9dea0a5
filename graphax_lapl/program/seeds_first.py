"""Loops behind what is pushed through them.

A program evaluates the function first, and then derivatives. A loop whose columns are there before
it carries them beside its value, so it waits for them where they do not wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..edges.operations import ApplyOpaque
from .instructions import Instruction, OpaqueInstruction, PrimalInstruction, Program

__all__ = ["LOOPS", "seeds_first"]

#: Equations that evaluate much, and all of it for columns again.
LOOPS = frozenset({"scan", "while"})


def seeds_first(program: Program) -> Program:
    """The program in an order in which loops come after the columns that are pushed through them.

    Nothing else changes; where columns depend on what the loop computes, neither does its place.
    What does more than compute, as printing, does it in the order of before.
    """
    if program.few_samples is not None:
        program = replace(program, few_samples=seeds_first(program.few_samples))
    awaited = _awaited(program)
    if not awaited:
        return program
    made = {slot: k for k, i in enumerate(program.instructions) for slot in i.outputs}
    effects = [k for k, i in enumerate(program.instructions) if _has_effects(i)]
    before = dict(zip(effects[1:], effects, strict=False))
    order: list[Instruction] = []
    done: set[int] = set()

    def add(place: int) -> None:
        # Without recursion: programs are long.
        waiting = [place]
        while waiting:
            k = waiting[-1]
            instruction = program.instructions[k]
            slots = (*instruction.inputs, *awaited.get(k, ()))
            needed = [made[s] for s in slots if s in made]
            if k in before:
                needed.append(before[k])
            missing = [own for own in needed if own not in done]
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
        place = loops.get(equation)
        if place is not None and _reached(program, place, found).isdisjoint(slots):
            found[place] = slots
    return found


def _reached(program: Program, place: int, awaited: Mapping[int, Sequence[int]]) -> set[int]:
    """The slots that depend on an instruction, or come after it for its effects.

    Args:
        program: the program.
        place: of the instruction.
        awaited: what others wait for, beside what they read.
    """
    first = program.instructions[place]
    found = set(first.outputs)
    effects = place if _has_effects(first) else len(program.instructions)
    size = 0
    while size < len(found):
        size = len(found)
        for k, instruction in enumerate(program.instructions):
            after = k > effects and _has_effects(instruction)
            if after or not found.isdisjoint((*instruction.inputs, *awaited.get(k, ()))):
                found.update(instruction.outputs)
                effects = min(effects, k) if _has_effects(instruction) else effects
    return found


def _has_effects(instruction: Instruction) -> bool:
    return isinstance(instruction, PrimalInstruction) and bool(instruction.equation.effects)
