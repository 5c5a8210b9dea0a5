"""What XLA's CPU compiler makes of elementwise expressions whose only readers are sums.

A sum and the expression that is summed are one kernel of a library, which has its own vectorised
functions. Since JAX 0.12 these include sines and cosines: nothing is held inside of sums there, and
no sine that only sums and products of matrices read is evaluated elsewhere. A product of two
vectors is not given to it; of an expression of sines it is written as a sum (`emit/regions.py`).
What is made of a sum, entry by entry, is evaluated in its kernel too, with all that enters there: a
Laplacian ends so, where squares of columns are summed and scaled by slopes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from functools import lru_cache

import jax

from ..edges.operations import Combine, Einsum
from .counts import Types
from .instructions import EdgeInstruction, Instruction, LocalInstruction, PrimalInstruction, Program
from .regions import regions
from .timings import local_primitives

__all__ = ["INSIDE", "SINES_INSIDE", "elementwise_primitives", "within_sums"]

#: Whether sums evaluate sines and cosines themselves.
SINES_INSIDE = jax.__version_info__ >= (0, 12)
#: Elementwise primitives that are evaluated inside of a sum.
INSIDE = frozenset(
    """
    abs add add_any broadcast_in_dim convert_element_type copy cos div erf exp expm1 integer_pow log
    log1p logistic max min mul neg pow reshape rsqrt sign sin sqrt square stop_gradient sub tan tanh
    transpose
    """.split()  # noqa: SIM905
)
REDUCTIONS = frozenset({"reduce_max", "reduce_min", "reduce_sum"})


def within_sums(program: Program, products: bool = False) -> frozenset[int]:
    """Slots that nothing but sums read, directly or through expressions evaluated inside.

    Args:
        program: the program.
        products: whether products of matrices count as sums; of two vectors they do where they are
            written as sums.
    """
    return frozenset(_sums_of(program, products))


def _sums_of(program: Program, products: bool) -> dict[int, frozenset[int]]:
    """For every slot that only sums read the places of these among the instructions."""
    totals = {region.place for region in regions(program).values() if region.sines}
    results = {*program.values, *(s for row in program.blocks for b in row for s in b.slots)}
    ends = _ends_of_sums(program, results) if products else frozenset()
    sums: dict[int, set[int]] = {}
    other = set(results)
    for place in range(len(program.instructions) - 1, -1, -1):
        instruction = program.instructions[place]
        if place in totals or place in ends or _is_sum(instruction, program, products):
            read: set[int] | None = {place}
        elif other.isdisjoint(instruction.outputs) and elementwise_primitives(instruction, program):
            read = set().union(*(sums.get(slot, ()) for slot in instruction.outputs))
        else:
            read = None
        for slot in instruction.inputs:
            if read is None:
                other.add(slot)
            else:
                sums.setdefault(slot, set()).update(read)
    made = {slot for instruction in program.instructions for slot in instruction.outputs}
    return {slot: frozenset(sums[slot]) for slot in sums if slot in made - other}


def _ends_of_sums(program: Program, results: Container[int]) -> frozenset[int]:
    """Places of the elementwise instructions behind sums of their shape without another reader."""
    readers = Counter(slot for i in program.instructions for slot in set(i.inputs))
    made: set[int] = set()
    found = []
    for place, instruction in enumerate(program.instructions):
        alone = [s for s in instruction.outputs if readers[s] == 1 and s not in results]
        if _is_sum(instruction, program, True) and not _is_matrix_product(instruction):
            made.update(alone)
        elif (
            (behind := made.intersection(instruction.inputs))
            and elementwise_primitives(instruction, program)
            and program.slots[instruction.outputs[0]].shape
            in {program.slots[slot].shape for slot in behind}
        ):
            found.append(place)
            made.update(alone)
    return frozenset(found)


def _is_sum(instruction: Instruction, program: Program, products: bool) -> bool:
    if isinstance(instruction, PrimalInstruction):
        name = instruction.equation.name
        matrix = any(program.slots[slot].shape for slot in instruction.outputs)
        return name in REDUCTIONS or (products and name == "dot_general" and matrix)
    operation = getattr(instruction, "operation", None)
    if not isinstance(operation, Einsum) or not _reads_whole(operation):
        return False
    reads = [read.labels for read in operation.reads]
    # As `emit/arrays.py` writes it: products of matrices and vectors are no sums.
    together = (
        (products and operation.output)
        or len(reads) == 1
        or (operation.output and set(operation.output) == reads[0] & reads[1])
    )
    return bool(together) and len(operation.sizes) > len(operation.output)


def _is_matrix_product(instruction: Instruction) -> bool:
    """Whether operands have entries of their own: not of sums of one array, or of squares."""
    if isinstance(instruction, PrimalInstruction):
        return instruction.equation.name == "dot_general"
    reads = getattr(instruction, "operation", None)
    return isinstance(reads, Einsum) and len({r.labels for r in reads.reads}) > 1


def elementwise_primitives(instruction: Instruction, program: Program) -> list[str] | None:
    """What an expression that sums evaluate consists of; None for anything else."""
    names: list[str] | None = None
    if isinstance(instruction, PrimalInstruction):
        names = [instruction.equation.name]
    elif isinstance(instruction, LocalInstruction):
        slots = program.slots
        types: Types = tuple((slots[s].shape, slots[s].dtype) for s in instruction.inputs)
        names = local_primitives(instruction.local.fun, types)
    elif isinstance(instruction, EdgeInstruction):
        operation = instruction.operation
        if isinstance(operation, Combine):
            names = ["add"]
        elif isinstance(operation, Einsum) and len(operation.sizes) == len(operation.output):
            names = ["mul"] if _reads_whole(operation) else None
    return names if names and INSIDE.issuperset(names) else None


@lru_cache(maxsize=1 << 12)
def _reads_whole(operation: Einsum) -> bool:
    """Whether every operand is read entry by entry, with a label of its own for each axis read."""
    for read in operation.reads:
        axes = [axis for axis in read.axes if axis.parts]
        if len(read.labels) != len(axes) or any(axis.offset for axis in read.axes):
            return False
        if any([stride for _, stride in axis.parts] != [1] for axis in axes):
            return False
    return True
