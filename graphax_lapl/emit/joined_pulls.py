"""Rows that are pulled back through one equation to several of its inputs: once for all of them.

An opaque map leads from one input to one output. A loop that reads two matrices of weights has two
maps, and pulling a row through both runs the loop and its reverse twice; one `vjp` gives both. It
gives both halves of a map of complex arrays too, and what a user's backward function returns.
"""

from __future__ import annotations

from collections.abc import Hashable

import jax.numpy as jnp

from ..edges.operations import ApplyOpaque, MaterializeOpaque
from ..program.instructions import EdgeInstruction, OpaqueInstruction, Program
from .opaque import is_reversed

__all__ = ["JOINED", "is_real", "joined_pulls", "may_join"]

#: Other opaque equations are differentiated with respect to one operand at a time: what stands
#: still matters to some rules, and there is less to share.
JOINED = frozenset({"scan", "cond", "custom_vjp_call"})


def joined_pulls(program: Program) -> dict[int, tuple[int, ...]]:
    """Instructions that pull the same rows through one equation.

    Returns:
        By the position of the first instruction the positions of all, for groups of two or more.
        What they read is there when the first one is due.
    """
    made: dict[int, tuple[int, OpaqueInstruction]] = {}
    groups: dict[Hashable, list[int]] = {}
    for k, instruction in enumerate(program.instructions):
        if isinstance(instruction, OpaqueInstruction):
            made[instruction.outputs[0]] = k, instruction
            continue
        if not isinstance(instruction, EdgeInstruction):
            continue
        operation = instruction.operation
        if not isinstance(operation, ApplyOpaque | MaterializeOpaque):
            continue
        if not is_reversed(operation):
            continue
        place, maker = made[instruction.inputs[0]]
        if not may_join(maker):
            continue
        reference, split = maker.reference, operation.opaque.batch + operation.opaque.outputs
        key = (
            id(reference.equation),
            reference.out,
            reference.batch_out,
            maker.inputs,
            maker.present,
            type(operation),
            operation.map_shape[:split],
            instruction.inputs[1:],
        )
        group = groups.setdefault(key, [])
        if not group or place < group[0]:
            group.append(k)
    return {group[0]: tuple(group) for group in groups.values() if len(group) > 1}


def may_join(maker: OpaqueInstruction) -> bool:
    """Whether a map is of a kind that is pulled back through with others."""
    return not maker.reference.slot and maker.reference.equation.name in JOINED


def is_real(maker: OpaqueInstruction) -> bool:
    """Whether a map is between real arrays, and those that stand still are real too."""
    is_complex = any(jnp.issubdtype(type_.dtype, jnp.complexfloating) for type_ in maker.types)
    return maker.reference.conjugate is None and not is_complex
