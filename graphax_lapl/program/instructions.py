"""The program: an explicit list of instructions on numbered slots.

A slot holds an array (or an opaque linear map). Instructions are evaluated in order; each writes
one slot, except primal equations, which write one per output. The program knows shapes, dtypes and
costs, and nothing of how it will be run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..edges.operations import Combine, Cost, Einsum, Operation, Recipe
from ..edges.terms import Structure
from ..edges.values import immutable, lazy, record
from ..graph.listing import Equation, Listing, Variable
from ..rules.cotangents import BILINEAR
from ..rules.site import Local, OpaqueMap

__all__ = [
    "Block",
    "ConstantInstruction",
    "CurvatureInstruction",
    "EdgeInstruction",
    "Instruction",
    "LocalInstruction",
    "OpaqueInstruction",
    "PrimalInstruction",
    "Program",
    "RowHessianInstruction",
    "Slot",
    "moving_inputs",
]


@immutable
class Slot:
    """Type of a slot.

    Attributes:
        shape: shape of the array.
        dtype: dtype of the array.
        array: False for an opaque linear map, which takes no memory.
    """

    shape: tuple[int, ...]
    dtype: Any
    array: bool = True

    @lazy
    def bytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * int(getattr(self.dtype, "itemsize", 4)) * self.array


@record
class ConstantInstruction:
    """Put a value known while planning into a slot."""

    value: np.ndarray
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __str__(self) -> str:
        return "constant"


@record
class PrimalInstruction:
    """Evaluate an equation of the function."""

    equation: Equation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __str__(self) -> str:
        return self.equation.name


@record
class LocalInstruction:
    """Compute a local partial from primal values."""

    local: Local
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __str__(self) -> str:
        return f"partial {self.local.name}"


@record
class OpaqueInstruction:
    """Make the linear map of an equation.

    `present` says which inputs of the equation have a value, `types` what they are.
    """

    reference: OpaqueMap
    present: tuple[bool, ...]
    types: tuple[Variable, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def depends_on(self) -> tuple[int, ...]:
        """The inputs whose values the map depends on: not that in whose place tangents stand."""
        linear = self.reference.slot or self.reference.equation.name in BILINEAR
        if not (linear and self.present[self.reference.into]):
            return self.inputs
        place = sum(self.present[: self.reference.into])
        return (*self.inputs[:place], *self.inputs[place + 1 :])

    def __str__(self) -> str:
        return f"linear map of {self.reference.equation.name}"


@record
class CurvatureInstruction:
    """Sum an equation's second derivative over columns, by `jvp` of `jvp`.

    Inputs are the values that are present, then a Jacobian of shape (*columns, *input) for each
    input that has a tangent, then one for each input whose value moves, then both of the output.

    Attributes:
        equation: the equation.
        out: which of its outputs is meant.
        present: which inputs have a value (the equation is linear in the others).
        tangents: which inputs have a tangent.
        moving: which inputs' values move.
        solution: whether the output's own Jacobian is there, along tangents and along moving.
        types: what the inputs are.
        rank: number of column dimensions.
    """

    equation: Equation
    out: int
    present: tuple[bool, ...]
    tangents: tuple[bool, ...]
    moving: tuple[bool, ...]
    solution: tuple[bool, ...]
    types: tuple[Variable, ...]
    rank: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __str__(self) -> str:
        return f"second derivative of {self.equation.name}"


@record
class RowHessianInstruction:
    """Second derivatives of a scalar within the rows of some arrays, by `jvp` of its gradient.

    Inputs are the arrays' values, then those of `captured`. Outputs are, for arrays i <= j in turn,
    arrays of shape (*dimensions of j within a row, *shape of i).

    Attributes:
        moving: variables of the arrays.
        batch: for each of them the dimensions that hold the row.
        captured: other variables that the equations read.
        width: numbers per row of all arrays, as many as there are products.
        equations: how the scalar is computed.
        end: its variable.
        listing: where the variables are defined.
    """

    moving: tuple[int, ...]
    batch: tuple[tuple[int, ...], ...]
    captured: tuple[int, ...]
    width: int
    equations: tuple[Equation, ...]
    end: int
    listing: Listing
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __str__(self) -> str:
        return f"second derivatives of rows through {len(self.equations)} equations"


@record
class EdgeInstruction:
    """An operation of the edge algebra, done for vertex `vertex` (None: local or final)."""

    operation: Operation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dtype: Any
    vertex: int | str | None = None

    def __str__(self) -> str:
        operation = self.operation
        if isinstance(operation, Einsum):
            letters = {name: chr(ord("a") + k % 26) for k, (name, _) in enumerate(operation.sizes)}
            reads = ",".join(
                "".join(letters.get(n, "?") for axis in read.axes for n in axis.labels)
                for read in operation.reads
            )
            out = "".join(letters[n] for n in operation.output)
            scale = f"{operation.coefficient:g}*" if operation.coefficient != 1 else ""
            return f"{scale}einsum {reads}->{out}"
        if isinstance(operation, Combine):
            return "add"
        return type(operation).__name__.lower()


Instruction = (
    ConstantInstruction
    | PrimalInstruction
    | LocalInstruction
    | OpaqueInstruction
    | CurvatureInstruction
    | RowHessianInstruction
    | EdgeInstruction
)


@immutable
class Block:
    """The Jacobian of one output leaf with respect to one input leaf.

    Attributes:
        structure: its structure, None where it is zero.
        slots: the slot of each factor.
        out_shape: shape of the output leaf.
        in_shape: shape of the input leaf.
        dtype: dtype of the block, that of the input leaf as in `jax.jacrev`.
    """

    structure: Structure | None
    slots: tuple[int, ...]
    out_shape: tuple[int, ...]
    in_shape: tuple[int, ...]
    dtype: Any


@dataclass
class Program:
    """Instructions with what goes in and what comes out.

    Attributes:
        slots: type of every slot.
        inputs: slots of the constants and the arguments' leaves.
        instructions: in order.
        blocks: `blocks[o][i]`, the Jacobian of output leaf o with respect to differentiated leaf i.
        values: slots of the function's outputs (value leaves, then auxiliary leaves).
        eliminations: for every eliminated vertex its in-degree, out-degree and cost.
        local_cost: cost of adding up the pieces of local partials.
        longest_sum: number of arrows in the longest sum that one block is.
        few_samples: another program with the same results, for small batches (None: this one).
        trace: whether it is that of a Jacobian's trace.
        sums: slots of sums of products that products read, which are in memory before.
    """

    slots: list[Slot] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    blocks: list[list[Block]] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    eliminations: list[Elimination] = field(default_factory=list)
    local_cost: Cost = field(default_factory=Cost)
    longest_sum: int = 0
    few_samples: Program | None = None
    trace: bool = False
    sums: frozenset[int] = frozenset()

    def without_dead_code(self, keep_values: int | None) -> Program:
        """The program without instructions that no result needs.

        Args:
            keep_values: how many of `values` count as results, from the end (auxiliary leaves);
                None for all.
        """
        values = (
            self.values if keep_values is None else self.values[len(self.values) - keep_values :]
        )
        needed = {slot for row in self.blocks for block in row for slot in block.slots}
        needed.update(values)
        kept: list[Instruction] = []
        for instruction in reversed(self.instructions):
            effects = isinstance(instruction, PrimalInstruction) and instruction.equation.effects
            if effects or not needed.isdisjoint(instruction.outputs):
                kept.append(instruction)
                needed.update(instruction.inputs)
        return Program(
            self.slots,
            self.inputs,
            kept[::-1],
            self.blocks,
            values,
            self.eliminations,
            self.local_cost,
            self.longest_sum,
            None if self.few_samples is None else self.few_samples.without_dead_code(keep_values),
            self.trace,
            self.sums,
        )

    @property
    def results(self) -> list[int]:
        """The slots that make up its blocks and values."""
        factors = [slot for row in self.blocks for block in row for slot in block.slots]
        return [*factors, *self.values]

    def readers(self) -> Counter[int]:
        """How often each slot is read, results included."""
        readers = Counter([slot for i in self.instructions for slot in i.inputs])
        readers.update(self.results)
        return readers

    def unreached(self, inputs: Collection[int]) -> set[int]:
        """The slots that none of these inputs enters."""
        touched = set(inputs)
        for instruction in self.instructions:
            read = instruction.inputs
            if isinstance(instruction, OpaqueInstruction):
                read = instruction.depends_on
            if not touched.isdisjoint(read):
                touched.update(instruction.outputs)
        return {slot for slot in range(len(self.slots)) if slot not in touched}

    def entering(self, slots: Iterable[int]) -> set[int]:
        """These slots and all that enter them."""
        found = set(slots)
        for instruction in reversed(self.instructions):
            if not found.isdisjoint(instruction.outputs):
                found.update(instruction.inputs)
        return found

    def peak_bytes(self) -> int:
        """Largest number of bytes alive at once when the instructions run in order."""
        last: dict[int, int] = {}
        for step, instruction in enumerate(self.instructions):
            for slot in (*instruction.inputs, *instruction.outputs):
                last[slot] = step
        for slot in [*self.values, *(s for row in self.blocks for b in row for s in b.slots)]:
            last[slot] = len(self.instructions)
        alive = {slot for slot in self.inputs if slot in last}
        sizes = [slot.bytes for slot in self.slots]
        total = sum(sizes[slot] for slot in alive)
        peak = total
        ends: dict[int, list[int]] = {}
        for slot, step in last.items():
            ends.setdefault(step, []).append(slot)
        for step, instruction in enumerate(self.instructions):
            for slot in instruction.outputs:
                if slot not in alive:
                    alive.add(slot)
                    total += sizes[slot]
            peak = max(peak, total)
            for slot in ends.get(step, ()):
                if slot in alive:
                    alive.discard(slot)
                    total -= sizes[slot]
        return peak

    def __str__(self) -> str:
        lines = [f"program: {len(self.instructions)} instructions, inputs {self.inputs}"]
        for instruction in self.instructions:
            outputs = ", ".join(
                f"%{s}:{self.slots[s].dtype}{list(self.slots[s].shape)}"
                for s in instruction.outputs
            )
            vertex = getattr(instruction, "vertex", None)
            note = f"    # eliminate {vertex}" if vertex is not None else ""
            inputs = " ".join(f"%{s}" for s in instruction.inputs)
            lines.append(f"  {outputs} = {instruction} {inputs}{note}")
        for o, row in enumerate(self.blocks):
            for i, block in enumerate(row):
                lines.append(f"  dy{o}/dx{i} = {block.structure!r} {list(block.slots)}")
        return "\n".join(lines)


@immutable
class Elimination:
    """What eliminating one vertex took.

    Attributes:
        vertex: its id.
        predecessors: number of arrows into it at that time.
        successors: number of arrows out of it.
        fill_in: number of arrows that were new.
        recipes: the products and sums of arrows that it took.
    """

    vertex: int | str
    predecessors: int
    successors: int
    fill_in: int
    recipes: tuple[Recipe, ...]

    @lazy
    def cost(self) -> Cost:
        """Counted cost."""
        return Cost.total([recipe.cost for recipe in self.recipes])


def moving_inputs(program: Program, listing: Listing, leaves: Collection[int]) -> set[int]:
    """Slots of a program's inputs that samples may have of their own.

    Args:
        program: the program.
        listing: the equations of its function.
        leaves: variables of the leaves that are differentiated.

    Returns:
        Those of these leaves, and of what comes with the operator.
    """
    places = (*listing.constants, *listing.inputs)
    pairs = zip(program.inputs, places, strict=False)
    return {s for s, v in pairs if v in leaves} | {*program.inputs[len(places) :]}
