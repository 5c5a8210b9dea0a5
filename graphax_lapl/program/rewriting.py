"""What rewritings of a complete program share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import replace

from .instructions import EdgeInstruction, Instruction, Program

__all__ = ["Rewriting"]


class Rewriting(ABC):
    """Replaces instructions together with some of those that they alone read.

    Attributes:
        slots: of the program; new ones are appended.
        makers: the instruction that makes each slot.
        readers: how often each slot is read, results included.
        absorbed: slots that no instruction of the new program makes.
    """

    def __init__(self, program: Program):
        """Read off who makes and who reads each slot."""
        self.program = program
        self.slots = program.slots
        self.makers = {slot: i for i in program.instructions for slot in i.outputs}
        self.readers = Counter(slot for i in program.instructions for slot in i.inputs)
        self.readers.update(s for row in program.blocks for block in row for s in block.slots)
        self.readers.update(program.values)
        self.absorbed: set[int] = set()

    def rewritten(self) -> Program:
        """The program with its instructions replaced, the last one first."""
        result: list[Instruction] = []
        for instruction in reversed(self.program.instructions):
            if not self.absorbed.isdisjoint(instruction.outputs):
                continue
            made: list[Instruction] = [instruction]
            if isinstance(instruction, EdgeInstruction) and self.applies(instruction):
                made = self.replacement(instruction)
            result += made[::-1]
        return replace(self.program, instructions=result[::-1])

    @abstractmethod
    def applies(self, instruction: EdgeInstruction) -> bool:
        """Whether an instruction is of the kind that may be replaced."""

    @abstractmethod
    def replacement(self, root: EdgeInstruction) -> list[Instruction]:
        """What stands for an instruction and for the slots that it adds to `absorbed`."""
