"""Small matrices that every sample has of its own, multiplied in loops."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import replace

import numpy as np

from ..edges.maps import label
from ..edges.operations import Einsum, Read
from .instructions import EdgeInstruction, Instruction, PrimalInstruction, Program
from .orientation import multiplies

__all__ = ["products_of_many_whole", "small_products_in_loops"]

#: Multiplications of a product up to which a loop is quicker than a call, and from which on: XLA
#: has no call for fewer.
MOST, LEAST = 1 << 15, 64
#: The former where columns or derivatives make several products of each.
MOST_AGAIN = 1 << 8
#: Products of matrices with multiples of so many rows and columns, and of no more multiplications,
#: are compiled, and quicker than loops.
TILE, TILED = 8, 1 << 10
#: Rows of the result that a loop goes along.
LONG = 5


def small_products_in_loops(
    program: Program, moving: Set[int], again: bool = False, many: bool = False
) -> Program:
    """Write products of small matrices of each sample as sums of products, entry by entry.

    For a batch XLA's CPU compiler calls its library once for every sample, which takes about a
    microsecond whatever the size (matrices of 4 x 4 to 7 x 7 five times as long as a loop does, of
    16 x 16 twice). A loop over all entries of all samples is vectorised, and its readers are in it.

    What only some of the inputs enter that may move is left to the library: it may be weights.

    Args:
        program: the program for a batch.
        moving: its inputs that samples may have of their own.
        again: whether its results are probably differentiated.
        many: whether there are so many samples that arrays are in memory before a loop reads them.
            Products of the function that sum few entries are then written out, too.

    Returns:
        The program; itself where there are no such products.
    """
    reached, most = _reached(program, moving), MOST_AGAIN if again else MOST
    instructions = [
        _looped(made, program, moving, reached, most, many) or made for made in program.instructions
    ]
    same = all(a is b for a, b in zip(instructions, program.instructions, strict=True))
    return program if same else replace(program, instructions=instructions)


def products_of_many_whole(program: Program) -> Program:
    """The program whose products of many small matrices are products.

    A training step pulls back through each term of one that is written out, and keeps its arrays.
    """
    instructions = [
        replace(made, operation=replace(made.operation, whole=True))
        if isinstance(made, EdgeInstruction)
        and isinstance(made.operation, Einsum)
        and made.operation.multiplies_many
        else made
        for made in program.instructions
    ]
    same = all(a is b for a, b in zip(instructions, program.instructions, strict=True))
    return program if same else replace(program, instructions=instructions)


def _looped(
    made: Instruction,
    program: Program,
    moving: Set[int],
    reached: Mapping[int, frozenset[int]],
    most: int,
    many: bool,
) -> EdgeInstruction | None:
    """The product of an instruction in a loop, if it is one of small matrices of a sample."""
    operation = _product(made, program)
    if operation is None or operation.looped:
        return None
    written_out = many and isinstance(made, PrimalInstruction) and operation.written_out
    if not written_out and not _is_small(operation, most):
        return None
    # Weights may be differentiated too, and are the same for all samples.
    entering = {reached.get(slot, frozenset()) for slot in made.inputs}
    if len(entering) > 1 or entering == {frozenset()} or not moving.isdisjoint(made.inputs):
        return None
    dtypes = {program.slots[s].dtype for s in (*made.inputs, *made.outputs)}
    if not dtypes <= {np.dtype("f4"), np.dtype("f8")}:
        return None
    operation = replace(operation, looped=True)
    if isinstance(made, EdgeInstruction):
        return replace(made, operation=operation)
    (out,) = made.outputs
    return EdgeInstruction(operation, made.inputs, made.outputs, program.slots[out].dtype)


def _product(made: Instruction, program: Program) -> Einsum | None:
    """What an instruction computes, if it is a product of the derivative or of two matrices."""
    if isinstance(made, EdgeInstruction):
        return made.operation if isinstance(made.operation, Einsum) else None
    if not isinstance(made, PrimalInstruction) or made.equation.name != "dot_general":
        return None
    shapes = [program.slots[slot].shape for slot in made.inputs]
    contracting, batch = made.equation.params["dimension_numbers"]
    count = len(batch[0])
    if any(len(axes) != 1 for axes in contracting) or any(len(s) != 2 + count for s in shapes):
        return None
    summed, rows, columns = range(count, count + 3)
    names = []
    for own, also, free in zip(contracting, batch, (rows, columns), strict=True):
        known = {own[0]: summed, **{axis: k for k, axis in enumerate(also)}}
        names.append(tuple(known.get(axis, free) for axis in range(2 + count)))
    sizes = dict(zip((*names[0], *names[1]), (*shapes[0], *shapes[1]), strict=True))
    reads = tuple(Read(tuple(label(name) for name in own)) for own in names)
    return Einsum(reads, tuple(sorted(sizes.items())), (*range(count), rows, columns))


def _reached(program: Program, moving: Collection[int]) -> dict[int, frozenset[int]]:
    """For every slot the inputs that samples may have of their own and that it depends on."""
    reached = {slot: frozenset([slot]) for slot in moving}
    nothing: frozenset[int] = frozenset()
    for instruction in program.instructions:
        entering = [reached[slot] for slot in instruction.inputs if slot in reached]
        if entering:
            reached.update(dict.fromkeys(instruction.outputs, nothing.union(*entering)))
    return reached


def _is_small(operation: Einsum, most: int) -> bool:
    """Whether it is a product of matrices that a loop makes faster."""
    if not multiplies(operation) or len(operation.sizes) > 3:
        return False
    sizes = dict(operation.sizes)
    work, written = (math.prod(s) for s in (sizes.values(), operation.shape))
    tiled = work <= TILED and all(size % TILE == 0 for size in sizes.values())
    return (
        LEAST <= work <= most
        and written * written >= work  # no fewer entries than what each of them adds up
        and operation.shape[-1] >= LONG
        and not tiled
    )
