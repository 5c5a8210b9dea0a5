"""How many samples of a batch are worth evaluating at once.

A program of second order writes columns: between products of matrices they are in memory, the
compiler's own or that of its library. For a large batch they are more than the cache holds, and so
many that the system clears every page of them anew in each call.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from ..graph.listing import Equation
from .holding import FusedProgram
from .instructions import (
    CurvatureInstruction,
    OpaqueInstruction,
    PrimalInstruction,
    Program,
    RowHessianInstruction,
)
from .recomputation import all_primitives

__all__ = ["Footprint", "can_be_divided"]

#: Bytes of the largest array that are left as they are, and what it has in pieces beyond that: on a
#: processor with 512 kB of cache for each of two cores pieces of twice as many take 0.9 to 2.1
#: times as long, 1.2 in the mean.
WHOLE, PIECE = 6 << 20, 2 << 20
#: The same where no array is larger than those of the function itself: nothing but passes through
#: memory is between its elementwise loops then, ...
PIECE_OF_ONE = 1 << 20
#: ... and loops of so few bytes run on one core, without waiting for the others.
PIECE_OF_ONE_CORE = 1 << 16
#: Pieces have at least so many samples where those are no more than twice a `PIECE`: more arrays
#: are held in memory from there on, see `holding.py`.
MANY = 512
#: In so many pieces or fewer a smaller peak is not worth the loop.
FEWEST = 3
#: Primitives that start something of their own for every piece.
APART = frozenset({"cond", "custom_vmap_call", "pure_callback", "scan", "shard_map", "while"})


@dataclass(frozen=True)
class Footprint:
    """What one sample has in memory between products of matrices.

    Attributes:
        largest: bytes of its largest array.
        function: bytes of the function's own largest array.
        results: bytes of its results.
    """

    largest: int
    function: int
    results: int

    @classmethod
    def of(cls, program: Program, own: Collection[int]) -> Footprint:
        """That of a program of whose inputs every sample has some slots of its own."""
        shared = program.unreached(own)
        steps = [step for step in FusedProgram(program).steps if not step.inside]
        read = {slot for step in steps for slot in (*step.inputs, *step.outputs)} - shared
        made = {
            slot
            for instruction in program.instructions
            if isinstance(instruction, PrimalInstruction)
            for slot in instruction.outputs
        }
        sizes = [slot.bytes for slot in program.slots]
        return cls(
            max((sizes[slot] for slot in read), default=0),
            max((sizes[slot] for slot in made - shared), default=0),
            sum(
                math.prod((*block.out_shape, *block.in_shape)) * np.dtype(block.dtype).itemsize
                for row in program.blocks
                for block in row
            ),
        )

    def samples(self, size: int) -> int:
        """How many samples of a batch of some size are evaluated at once."""
        total = size * self.largest
        if FEWEST * self.results > self.largest:  # which have to be written one chunk at a time
            return size
        if self.largest <= self.function:
            if total > FEWEST * PIECE_OF_ONE:
                return self._samples(size, PIECE_OF_ONE)
            if self.largest <= PIECE_OF_ONE_CORE and total > FEWEST * PIECE_OF_ONE_CORE:
                return self._samples(size, PIECE_OF_ONE_CORE)
        if total <= WHOLE:
            return size
        if PIECE < MANY * self.largest <= 2 * PIECE:
            return -(-size // (size // MANY))
        return self._samples(size, PIECE)

    def _samples(self, size: int, piece: int) -> int:
        """Samples in equal chunks, in each of them at most so many bytes of the largest array.

        The last chunk begins early enough to be whole, so samples are evaluated twice where their
        number is no multiple of it. A few chunks more are taken if then none is.
        """
        fewest = -(-size // max(1, piece // self.largest))
        for chunks in range(fewest, fewest + fewest // FEWEST + 1):
            if size % chunks == 0:
                return size // chunks
        return -(-size // fewest)


def can_be_divided(program: Program) -> bool:
    """Whether a batch in pieces does the same, and does nothing small over and over.

    Nothing has effects or sees an axis that `jax.vmap` names, and there is no loop: its steps on
    small arrays would be taken for every piece.
    """
    return not any(
        equation.effects or not APART.isdisjoint(all_primitives(equation.name, equation.params))
        for equation in _equations(program)
    )


def _equations(program: Program) -> Iterator[Equation]:
    for instruction in program.instructions:
        if isinstance(instruction, PrimalInstruction | CurvatureInstruction):
            yield instruction.equation
        elif isinstance(instruction, OpaqueInstruction):
            yield instruction.reference.equation
        elif isinstance(instruction, RowHessianInstruction):
            yield from instruction.equations
