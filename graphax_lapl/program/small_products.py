"""Small matrices that every sample has of its own, multiplied in loops."""

from __future__ import annotations

import math
from collections.abc import Collection, Set
from dataclasses import replace

import numpy as np

from ..edges.operations import Einsum
from .instructions import EdgeInstruction, Program
from .orientation import multiplies

__all__ = ["small_products_in_loops"]

#: Multiplications of a product up to which a loop is quicker than a call, and from which on: XLA
#: has no call for fewer.
MOST, LEAST = 1 << 15, 64
#: Products of matrices with multiples of so many rows and columns, and of no more multiplications,
#: are compiled, and quicker than loops.
TILE, TILED = 8, 1 << 10
#: Rows of the result that a loop goes along.
LONG = 5


def small_products_in_loops(program: Program, moving: Set[int]) -> Program:
    """Write products of small matrices of each sample as sums of products, entry by entry.

    For a batch XLA's CPU compiler calls its library once for every sample, which takes about a
    microsecond whatever the size (matrices of 4 x 4 to 7 x 7 five times as long as a loop does, of
    16 x 16 twice). A loop over all entries of all samples is vectorised, and its readers are in it.

    What only some of the inputs enter that may move is left to the library: it may be weights.

    Args:
        program: the program for a batch.
        moving: its inputs that samples may have of their own.

    Returns:
        The program; itself where there are no such products.
    """
    reached = _reached(program, moving)
    instructions = list(program.instructions)
    for place, made in enumerate(instructions):
        if isinstance(made, EdgeInstruction) and isinstance(made.operation, Einsum):
            # Weights may be differentiated too, and are the same for all samples.
            entering = {reached.get(slot, frozenset()) for slot in made.inputs}
            own = len(entering) == 1 and entering != {frozenset()}
            own = own and moving.isdisjoint(made.inputs)
            dtypes = {program.slots[s].dtype for s in (*made.inputs, *made.outputs)}
            if own and _is_small(made.operation) and dtypes <= {np.dtype("f4"), np.dtype("f8")}:
                operation = replace(made.operation, looped=True)
                instructions[place] = replace(made, operation=operation)
    same = all(a is b for a, b in zip(instructions, program.instructions, strict=True))
    return program if same else replace(program, instructions=instructions)


def _reached(program: Program, moving: Collection[int]) -> dict[int, frozenset[int]]:
    """For every slot the inputs that samples may have of their own and that it depends on."""
    reached = {slot: frozenset([slot]) for slot in moving}
    nothing: frozenset[int] = frozenset()
    for instruction in program.instructions:
        entering = [reached[slot] for slot in instruction.inputs if slot in reached]
        if entering:
            reached.update(dict.fromkeys(instruction.outputs, nothing.union(*entering)))
    return reached


def _is_small(operation: Einsum) -> bool:
    """Whether it is a product of matrices that a loop makes faster."""
    if not multiplies(operation) or len(operation.sizes) > 3:
        return False
    sizes = dict(operation.sizes)
    work, written = (math.prod(s) for s in (sizes.values(), operation.shape))
    tiled = work <= TILED and all(size % TILE == 0 for size in sizes.values())
    return (
        LEAST <= work <= MOST
        and written * written >= work  # no fewer entries than what each of them adds up
        and operation.shape[-1] >= LONG
        and not tiled
    )
