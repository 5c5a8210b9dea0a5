"""Operation counts, read off a program without running anything."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax

from ..edges.operations import Cost
from ..errors import InvalidArgumentError
from .instructions import (
    EdgeInstruction,
    Instruction,
    LocalInstruction,
    PrimalInstruction,
    Program,
)

__all__ = [
    "OpCounts",
    "TracedWork",
    "Types",
    "count_function",
    "count_program",
    "local_jaxpr",
    "primitive_counts",
    "traced_work",
    "work_per_sample",
]

CONVENTIONS = ("ad", "flops")
#: Bytes of memory traffic that weigh as much as one operation: between what a fused loop and a
#: separate kernel cost.
BYTES_PER_OPERATION = 16
#: Weight of what is computed once for many samples.
SHARED_WEIGHT = 1 / 64

#: What is counted as arithmetic: what derivatives are multiplied and added by.
ARITHMETIC = frozenset({"mul", "add", "add_any", "sub", "neg", "div", "dot_general", "reduce_sum"})

#: Shapes and dtypes of the inputs of a local partial.
Types = tuple[tuple[tuple[int, ...], Any], ...]


@dataclass(frozen=True)
class OpCounts:
    """Counted cost of a Jacobian.

    Attributes:
        muls: multiplications.
        adds: additions and subtractions.
        bytes: bytes that the instructions read and write.
        peak_bytes: largest number of bytes alive at once, instructions taken in order.
        by_vertex: multiplications of each vertex' elimination; Hessians, Laplacians and traces have
            others besides.
        convention: "ad": the elimination literature's count, one multiplication per pair of
            entries that meet, accumulation only. "flops": the multiplications and additions that
            the emitted program holds, those of the function and its local partials included.
    """

    muls: int
    adds: int
    bytes: int
    peak_bytes: int
    by_vertex: Mapping[int | str, int] = field(repr=False)
    convention: str = "ad"

    @property
    def flops(self) -> int:
        """Multiplications and additions together."""
        return self.muls + self.adds


def count_program(program: Program, convention: str = "ad") -> OpCounts:
    """Counts of a program.

    Raises:
        InvalidArgumentError: for an unknown convention.
    """
    if convention not in CONVENTIONS:
        raise InvalidArgumentError(
            f"convention must be one of {', '.join(map(repr, CONVENTIONS))}, got {convention!r}."
        )
    eliminations = Cost.total([elimination.cost for elimination in program.eliminations])
    if convention == "ad":
        # Operators of second order and traces multiply outside of eliminations too.
        total = eliminations + program.local_cost
        muls, adds = total.ad, total.adds
        by_vertex = {e.vertex: e.cost.ad for e in program.eliminations}
    else:
        muls, adds = _emitted(program)
        by_vertex = {e.vertex: e.cost.muls for e in program.eliminations}
    moved = _bytes_moved(program)
    return OpCounts(muls, adds, moved, program.peak_bytes(), by_vertex, convention)


def _bytes_moved(program: Program) -> int:
    """Bytes that the instructions read and write."""
    sizes = [slot.bytes for slot in program.slots]
    return sum(
        sizes[slot]
        for instruction in program.instructions
        for slot in (*instruction.inputs, *instruction.outputs)
    )


def count_function(program: Program) -> int:
    """Multiplications and additions of the function itself."""
    counts = [
        _equation_counts(instruction, program)
        for instruction in program.instructions
        if isinstance(instruction, PrimalInstruction)
    ]
    return sum(muls + adds for muls, adds in counts)


@dataclass(frozen=True)
class TracedWork:
    """What a JAX function does, read off its jaxpr; loops of unknown length count once.

    Attributes:
        muls: multiplications.
        adds: additions and subtractions.
        bytes: bytes that the equations read and write.
        peak_bytes: largest number of bytes alive at once, equations taken in order.
        equations: how many of them make arrays of more than a number, those of loops once. What
            makes numbers is fused.
        starts: how many of them by their primitive, those of loops at every step.
        arithmetic: how many equations are of `ARITHMETIC`, on numbers too, those of loops once.
    """

    muls: int
    adds: int
    bytes: int
    peak_bytes: int
    equations: int
    starts: Mapping[str, int]
    arithmetic: int

    @property
    def predicted(self) -> float:
        """Operations plus memory traffic, in operations (sixteen bytes count as one)."""
        return self.muls + self.adds + self.bytes / BYTES_PER_OPERATION


def traced_work(fun: Any, types: Sequence[Any]) -> TracedWork:
    """The work of `fun(list of arrays of these types)`, from an abstract trace."""
    jaxpr = jax.make_jaxpr(fun)(list(types)).jaxpr
    muls, adds = _jaxpr_counts(jaxpr)
    once, moved, peak = _jaxpr_equations(jaxpr), _jaxpr_bytes(jaxpr), _jaxpr_peak(jaxpr)
    starts, computing = _jaxpr_starts(jaxpr), _jaxpr_arithmetic(jaxpr)
    return TracedWork(muls, adds, moved, peak, once, starts, computing)


def _bytes(variable: Any) -> int:
    aval = variable.aval
    itemsize = getattr(getattr(aval, "dtype", None), "itemsize", 4)
    return math.prod(getattr(aval, "shape", ())) * int(itemsize)


def _jaxpr_bytes(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        bodies = _bodies(equation.params)
        repeated = equation.params["length"] if equation.primitive.name == "scan" else 1
        inner = sum(_jaxpr_bytes(body) for body in bodies)
        own = sum(_bytes(v) for v in (*equation.invars, *equation.outvars))
        total += repeated * inner if bodies else own
    return total


def _jaxpr_equations(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        bodies = _bodies(equation.params)
        inner = sum(_jaxpr_equations(body) for body in bodies)
        own = any(math.prod(getattr(v.aval, "shape", ())) > 1 for v in equation.outvars)
        total += inner if bodies else own
    return total


def _jaxpr_starts(jaxpr: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for equation in jaxpr.eqns:
        name, bodies = equation.primitive.name, _bodies(equation.params)
        steps = equation.params["length"] if name == "scan" else 1
        for body in bodies:
            found.update({k: steps * count for k, count in _jaxpr_starts(body).items()})
        if not bodies and any(
            math.prod(getattr(v.aval, "shape", ())) > 1 for v in equation.outvars
        ):
            found[name] += 1
    return found


def _jaxpr_arithmetic(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        bodies = _bodies(equation.params)
        inner = sum(_jaxpr_arithmetic(body) for body in bodies)
        total += inner if bodies else equation.primitive.name in ARITHMETIC
    return total


def _jaxpr_peak(jaxpr: Any) -> int:
    last: dict[Any, int] = {}
    for step, equation in enumerate(jaxpr.eqns):
        last.update((v, step) for v in (*equation.outvars, *equation.invars) if _is_variable(v))
    last.update((v, len(jaxpr.eqns)) for v in jaxpr.outvars if _is_variable(v))
    ends: dict[int, list[Any]] = {}
    for variable, step in last.items():
        ends.setdefault(step, []).append(variable)
    total = peak = sum(_bytes(v) for v in (*jaxpr.constvars, *jaxpr.invars) if v in last)
    for step, equation in enumerate(jaxpr.eqns):
        total += sum(_bytes(v) for v in equation.outvars)
        peak = max(peak, total)
        total -= sum(_bytes(v) for v in ends.get(step, ()))
    return peak


def _is_variable(atom: Any) -> bool:
    return not hasattr(atom, "val")


def work_per_sample(program: Program, moving: Iterable[int], function: bool = True) -> float:
    """Predicted work of one of many evaluations that differ in the slots `moving` only.

    What does not depend on them is computed once for all, and weighs next to nothing. Without
    `function` only what is accumulated counts.
    """
    reached = set(moving)
    total = 0.0
    for instruction in program.instructions:
        moves = any(slot in reached for slot in instruction.inputs)
        if moves:
            reached.update(instruction.outputs)
        if isinstance(instruction, PrimalInstruction) and not function:
            continue
        muls, adds = _instruction_counts(instruction, program)
        bytes_moved = sum(
            program.slots[slot].bytes for slot in (*instruction.inputs, *instruction.outputs)
        )
        work = muls + adds + bytes_moved / BYTES_PER_OPERATION
        total += work if moves else work * SHARED_WEIGHT
    return total


def _instruction_counts(instruction: Instruction, program: Program) -> tuple[int, int]:
    """Multiplications and additions of one instruction."""
    if isinstance(instruction, EdgeInstruction):
        return instruction.operation.cost.muls, instruction.operation.cost.adds
    if isinstance(instruction, PrimalInstruction):
        return _equation_counts(instruction, program)
    if isinstance(instruction, LocalInstruction):
        types = tuple((program.slots[s].shape, program.slots[s].dtype) for s in instruction.inputs)
        return _traced_counts(instruction.local.fun, types)
    return 0, 0


def _emitted(program: Program) -> tuple[int, int]:
    """Multiplications and additions of all instructions, and of assembling the blocks."""
    muls = adds = 0
    for instruction in program.instructions:
        more = _instruction_counts(instruction, program)
        muls, adds = muls + more[0], adds + more[1]
    for row in program.blocks:
        for block in row:
            if block.structure is None:
                continue
            for term in block.structure.terms:
                labels = set().union(*(f.labels for f in term.factors))
                size = math.prod(term.sizes[n] for n in labels)
                count = max(0, len(term.factors) - 1)
                muls += size * (count + (bool(term.factors) and abs(term.coefficient) != 1))
    return muls, adds


def _equation_counts(instruction: PrimalInstruction, program: Program) -> tuple[int, int]:
    shapes = [program.slots[s].shape for s in instruction.inputs]
    outputs = [program.slots[s].shape for s in instruction.outputs]
    return primitive_counts(instruction.equation.name, instruction.equation.params, shapes, outputs)


def primitive_counts(
    name: str,
    params: Mapping[str, Any],
    shapes: list[tuple[int, ...]],
    outputs: list[tuple[int, ...]],
) -> tuple[int, int]:
    """Multiplications and additions of one primitive; calls are counted through."""
    size = math.prod(outputs[0]) if outputs else 0
    if name == "mul":
        return size, 0
    if name in ("add", "sub", "add_any"):
        return 0, size
    if name == "reduce_sum":
        return 0, max(0, math.prod(shapes[0]) - size)
    if name == "dot_general":
        contracting = params["dimension_numbers"][0][0]
        depth = math.prod(shapes[0][d] for d in contracting)
        return size * depth, size * max(0, depth - 1)
    if name == "conv_general_dilated":
        kernel = shapes[1]
        depth = math.prod(kernel) // max(1, kernel[params["dimension_numbers"].rhs_spec[0]])
        return size * depth, size * max(0, depth - 1)
    repeated = params["length"] if name == "scan" else 1
    muls = adds = 0
    for body in _bodies(params):
        more = _jaxpr_counts(body)
        muls, adds = muls + repeated * more[0], adds + repeated * more[1]
    return muls, adds


def _bodies(params: Mapping[str, Any]) -> list[Any]:
    """The jaxprs among an equation's parameters."""
    return [
        getattr(body, "jaxpr", body)
        for value in params.values()
        for body in (value if isinstance(value, tuple | list) else (value,))
        if hasattr(body, "eqns") or hasattr(body, "jaxpr")
    ]


def _jaxpr_counts(jaxpr: Any) -> tuple[int, int]:
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    muls = adds = 0
    for equation in jaxpr.eqns:
        more = primitive_counts(
            equation.primitive.name,
            equation.params,
            [tuple(getattr(v.aval, "shape", ())) for v in equation.invars],
            [tuple(getattr(v.aval, "shape", ())) for v in equation.outvars],
        )
        muls, adds = muls + more[0], adds + more[1]
    return muls, adds


@lru_cache(maxsize=4096)
def _traced_counts(fun: Any, types: Types) -> tuple[int, int]:
    """Counts of a local partial."""
    return _jaxpr_counts(local_jaxpr(fun, types))


@lru_cache(maxsize=4096)
def local_jaxpr(fun: Any, types: Types) -> Any:
    """An abstract trace of a local partial for inputs of the given shapes and dtypes."""
    avals = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in types]
    with jax.numpy_dtype_promotion("standard"):  # as it is emitted
        return jax.make_jaxpr(fun)(*avals)
