"""What rewritings of a complete program share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property

from .instructions import EdgeInstruction, Instruction, Program

__all__ = ["BatchRewriting", "Rewriting"]


class Rewriting(ABC):
    """Replaces instructions together with some of those that they alone read.

    Attributes:
        slots: of the program; new ones are appended.
        absorbed: slots that no instruction of the new program makes.
    """

    def __init__(self, program: Program):
        """Start with nothing absorbed."""
        self.program = program
        self.slots = program.slots
        self.absorbed: set[int] = set()

    @cached_property
    def makers(self) -> dict[int, Instruction]:
        """The instruction that makes each slot."""
        return {slot: i for i in self.program.instructions for slot in i.outputs}

    @cached_property
    def readers(self) -> Counter[int]:
        """How often each slot is read, results included."""
        return self.program.readers()

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


class BatchRewriting(Rewriting):
    """A rewriting that tells what all samples of a batch share from what is a sample's own."""

    def __init__(self, program: Program, moving: Collection[int]):
        """Start with the inputs that are not the same for all samples."""
        super().__init__(program)
        self.moving = moving

    @cached_property
    def fixed(self) -> set[int]:
        """Slots that are the same for all samples."""
        return self.program.unreached(self.moving)
