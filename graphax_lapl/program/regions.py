"""Entrywise expressions that one sum of all entries reads, and nothing else does.

Such an expression is one function of its entries' arguments, however many instructions it takes.
It is evaluated as a whole (`emit/regions.py`): with sines by polynomials inside of its loop, and
differentiated by partials of the whole, which are as many arrays as it has moving arguments instead
of one for every instruction.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import dtypes

from ..edges.operations import Combine, Einsum
from ..rules.elementwise import PRIMITIVE_PARTIALS
from .instructions import (
    EdgeInstruction,
    Instruction,
    LocalInstruction,
    PrimalInstruction,
    Program,
)
from .repetition import behind_layers
from .timings import local_primitives

__all__ = ["SINES", "SINE_DTYPES", "Region", "regions", "sine_name"]

#: Primitives that are evaluated together.
SINES = ("sin", "cos")
#: For which there is an evaluation by vector instructions.
SINE_DTYPES = frozenset({np.dtype(np.float32), np.dtype(np.float64)})
#: Instructions from which on partials of the whole take fewer arrays than those one by one.
MANY = 4
#: Primitives that work entry by entry. A number may be repeated; arrays keep their shape.
ENTRYWISE = frozenset(
    """
    abs add add_any broadcast_in_dim ceil convert_element_type copy cos cosh div eq erf erf_inv erfc
    exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min mul ne neg not
    and or pow rsqrt select_n sign sin sinh sqrt square stop_gradient sub tan tanh xor
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Region:
    """Instructions whose last result is summed.

    Attributes:
        place: the sum among the instructions of the program.
        result: the slot that is summed.
        inputs: the slots that the instructions read, arguments of sines among them.
        sines: for slots that are sines (0) or cosines (1), the argument's place in `inputs`.
        instructions: the others, in order.
        slots: all slots that are made here.
        layered: whether products of matrices enter it.
    """

    place: int
    result: int
    inputs: tuple[int, ...]
    sines: dict[int, tuple[int, int]]
    instructions: tuple[Instruction, ...]
    slots: frozenset[int]
    layered: bool

    @property
    def has_pairs(self) -> bool:
        """Whether both the sine and the cosine of an argument are read."""
        found = set(self.sines.values())
        return len(found) > len({argument for argument, _ in found})


def regions(program: Program) -> dict[int, Region]:
    """The expressions of a program that are evaluated as a whole, by the slots that are summed."""
    readers = program.readers()
    makers = {slot: k for k, i in enumerate(program.instructions) for slot in i.outputs}
    layers = behind_layers(program)
    found: dict[int, Region] = {}
    for place, instruction in enumerate(program.instructions):
        if _is_total(instruction, program):
            for slot in instruction.inputs:
                if readers[slot] == 1 and slot in makers:
                    region = _region(program, place, slot, readers, makers, layers)
                    if region is not None:
                        found[slot] = region
                        break
    return found


def sine_name(instruction: Instruction) -> str | None:
    """Of what sines are, the primitive of an instruction, unless someone asks for an accuracy."""
    if isinstance(instruction, LocalInstruction):
        return PRIMITIVE_PARTIALS.get(instruction.local.fun)
    if isinstance(instruction, PrimalInstruction):
        name, params = instruction.equation.name, instruction.equation.params
        return name if name in SINES and all(p is None for p in params.values()) else None
    return None


def _region(
    program: Program,
    place: int,
    result: int,
    readers: Counter[int],
    makers: dict[int, int],
    layers: frozenset[int],
) -> Region | None:
    """The largest expression behind a slot that nothing else reads, if it is worth it."""
    shape = program.slots[result].shape
    reads = Counter({result: 1})
    waiting = [-makers[result]]
    taken: list[Instruction] = []  # the last one first
    while waiting:
        instruction = program.instructions[-heapq.heappop(waiting)]
        outputs = instruction.outputs
        if len(outputs) > 1 or reads[outputs[0]] < readers[outputs[0]]:
            continue
        if _is_entrywise(instruction, program, shape):
            taken.append(instruction)
            for slot in instruction.inputs:
                if not reads[slot] and slot in makers:
                    heapq.heappush(waiting, -makers[slot])
                reads[slot] += 1
    # Arguments of sines are evaluated first, with what they are made of.
    before: set[int] = set()
    rest: list[Instruction] = []
    sines: dict[int, tuple[int, int]] = {}
    for instruction in taken:
        (slot,) = instruction.outputs
        if slot in before:
            before.update(instruction.inputs)
        elif _is_sine(instruction, program):
            sines[slot] = (instruction.inputs[0], SINES.index(sine_name(instruction) or ""))
            before.update(instruction.inputs)
        else:
            rest.append(instruction)
    made = {instruction.outputs[0] for instruction in rest} - before
    rest = [instruction for instruction in rest[::-1] if instruction.outputs[0] in made]
    if result not in made | sines.keys() or (not sines and len(rest) < MANY):
        return None
    read = [slot for instruction in rest for slot in instruction.inputs]
    read += [argument for argument, _ in sines.values()]
    inputs = tuple(dict.fromkeys(s for s in read if s not in made and s not in sines))
    return Region(
        place,
        result,
        inputs,
        {slot: (inputs.index(argument), n) for slot, (argument, n) in sines.items()},
        tuple(rest),
        frozenset(made | sines.keys()),
        not layers.isdisjoint(inputs),
    )


def _is_sine(instruction: Instruction, program: Program) -> bool:
    dtype = program.slots[instruction.outputs[0]].dtype
    return sine_name(instruction) in SINES and dtype in SINE_DTYPES


def _is_total(instruction: Instruction, program: Program) -> bool:
    """Whether all entries of an array, or of a product of two of one shape, are summed.

    A product of numbers sums nothing: it works entry by entry itself.
    """
    operation = getattr(instruction, "operation", None)
    if not isinstance(operation, Einsum) or operation.output or operation.real:
        return False
    if not operation.sizes:
        return False
    types = {(program.slots[s].shape, program.slots[s].dtype) for s in instruction.inputs}
    names = {read.plain_labels for read in operation.reads}
    if len(types) > 1 or len(names) > 1 or None in names:
        return False
    ((shape, _),), (own,) = types, names
    sizes = dict(operation.sizes)
    return own is not None and tuple(sizes[name] for name in own) == shape


def _is_entrywise(instruction: Instruction, program: Program, shape: tuple[int, ...]) -> bool:
    """Whether every entry of a result is made of the same entries of arrays, and of numbers."""
    slots = program.slots
    types = [(slots[s].shape, slots[s].dtype) for s in (*instruction.inputs, *instruction.outputs)]
    if not all(own in ((), shape) and _is_real(dtype) for own, dtype in types):
        return False
    if isinstance(instruction, PrimalInstruction):
        return instruction.equation.name in ENTRYWISE and not instruction.equation.effects
    if isinstance(instruction, LocalInstruction):
        return ENTRYWISE.issuperset(local_primitives(instruction.local.fun, tuple(types[:-1])))
    if not isinstance(instruction, EdgeInstruction):
        return False
    operation = instruction.operation
    if isinstance(operation, Combine):
        names = [names for _, names in operation.operands]
    elif isinstance(operation, Einsum) and len(operation.sizes) == len(operation.output):
        found = [read.plain_labels for read in operation.reads]
        if None in found or operation.real:
            return False
        names = [own for own in found if own is not None]
    else:
        return False
    return all(own in ((), operation.output) for own in names)


def _is_real(dtype: Any) -> bool:
    if dtypes.issubdtype(dtype, dtypes.extended):
        return False  # a random key
    return np.dtype(dtype).kind in "fbiu" or str(dtype) == "bfloat16"
