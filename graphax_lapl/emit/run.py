"""Replaying a program under JAX."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..program.instructions import (
    Block,
    ConstantInstruction,
    CurvatureInstruction,
    EdgeInstruction,
    LocalInstruction,
    OpaqueInstruction,
    PrimalInstruction,
    Program,
    RowHessianInstruction,
)
from .assembly import assemble, term_values
from .coordinates import gathered_dense, is_gathered
from .holding import held
from .opaque import LinearMap, second_derivative
from .recipes import operate
from .rows import row_hessian

#: Calls whose rule exists for cotangents only.
COTANGENT_RULES = frozenset({"custom_vjp_call", "custom_vjp_call_jaxpr"})

__all__ = ["block_values", "dense_block", "run_program"]


def run_program(program: Program, inputs: Sequence[Any], hold: Collection[int] = ()) -> list[Any]:
    """Evaluate all instructions; returns the slots' contents.

    Args:
        program: the program.
        inputs: constants of the trace, then the arguments' leaves (arrays or tracers).
        hold: slots to be written to memory before they are read, see `emit.holding`.
    """
    slots: list[Any] = [None] * len(program.slots)
    for slot, value in zip(program.inputs, inputs, strict=True):
        # Constants of a trace may be arrays of other kinds, without the methods of JAX's.
        slots[slot] = value if isinstance(value, jax.Array) else jnp.asarray(value)
    # Derivative rules of JAX mix dtypes in places; the user's strictness is about the user's code.
    with jax.numpy_dtype_promotion("standard"):
        for instruction in program.instructions:
            values = [slots[slot] for slot in instruction.inputs]
            results = _execute(instruction, values)
            for slot, result in zip(instruction.outputs, results, strict=True):
                slots[slot] = held(result) if slot in hold else result
    return slots


def _execute(instruction: Any, values: list[Any]) -> Sequence[Any]:
    if isinstance(instruction, EdgeInstruction):
        return [operate(instruction.operation, values, instruction.dtype)]
    if isinstance(instruction, PrimalInstruction):
        return _evaluated(instruction.equation, values)
    if isinstance(instruction, LocalInstruction):
        return [instruction.local.fun(*values)]
    if isinstance(instruction, OpaqueInstruction):
        moving = iter(values)
        full = [next(moving) if present else None for present in instruction.present]
        return [LinearMap(instruction.reference, full, instruction.types)]
    if isinstance(instruction, CurvatureInstruction):
        return [second_derivative(instruction, values)]
    if isinstance(instruction, RowHessianInstruction):
        return row_hessian(instruction, values)
    assert isinstance(instruction, ConstantInstruction)
    return [jnp.asarray(instruction.value)]


def _evaluated(equation: Any, values: list[Any]) -> Sequence[Any]:
    """What an equation computes.

    A differentiated function with a rule for cotangents gives the value that this rule computes, as
    it does under `jax.vjp`: further derivatives are then those of the rule's code.
    """
    if equation.name not in COTANGENT_RULES or not any(equation.active):
        return equation.evaluate(*values)
    results: Sequence[Any] = jax.vjp(lambda *values: list(equation.evaluate(*values)), *values)[0]
    return results


def dense_block(block: Block, slots: Sequence[Any]) -> Array:
    """The dense Jacobian of one output leaf with respect to one input leaf."""
    shape = (*block.out_shape, *block.in_shape)
    if block.structure is None:
        return jnp.zeros(shape, block.dtype)
    if is_gathered(block.structure):
        return gathered_dense(block.structure, block_values(block, slots), block.dtype)
    dense = assemble(block.structure, [slots[slot] for slot in block.slots], block.dtype)
    return _cast(dense, block.dtype)


def block_values(block: Block, slots: Sequence[Any]) -> list[Array]:
    """For each term of a block its values, one axis per label that its positions depend on."""
    if block.structure is None:
        return []
    result, start = [], 0
    for term in block.structure.terms:
        own = [slots[slot] for slot in block.slots[start : start + len(term.factors)]]
        start += len(term.factors)
        values, names = term_values(term, own, block.dtype)
        labels = sorted(term.position_labels)
        sizes = tuple(term.sizes[name] for name in labels)
        places = [labels.index(name) for name in names]
        result.append(_cast(lax.broadcast_in_dim(values, sizes, places), block.dtype))
    return result


def _cast(value: Array, dtype: Any) -> Array:
    if jnp.iscomplexobj(value) and not jnp.issubdtype(dtype, jnp.complexfloating):
        value = lax.real(value)  # what a map to real arrays stands for
    return value if value.dtype == dtype else lax.convert_element_type(value, dtype)
