"""Columns of a first layer in derivatives: repeated for a batch once, by a product of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from ..edges.operations import Einsum
from ..program.instructions import EdgeInstruction, Program
from ..program.shared_columns import SharedColumns
from .recipes import operate

__all__ = ["columns_at_once"]

#: Numbers of all identities together, up to which columns are repeated so. They are a constant.
MAX_IDENTITIES = 1 << 15


def columns_at_once(
    columns: SharedColumns, program: Program, slots: Sequence[Any], dot: Callable[..., Array]
) -> dict[int, Sequence[Array]]:
    """Results of all readers of shared columns, by their places.

    Where something is differentiated XLA's library reads both factors of `W diag(s)` as arrays
    repeated for batch and columns, and the loops around it are others than those of later layers.
    There W is repeated at once, as a product with stacked identities: the library makes it, its
    cotangent is a product too, and it is read as the columns of later layers are.

    Args:
        columns: who reads them.
        program: the program.
        slots: what its slots hold.
        dot: makes products of derivatives.
    """
    instructions = {
        k: instruction
        for k, instruction in enumerate(program.instructions)
        if isinstance(instruction, EdgeInstruction)
    }
    square = None if columns.squares is None else instructions[columns.squares]
    shared = {columns.columns} | (set() if square is None else {*square.outputs})
    read = dict.fromkeys(s for k in columns.places for s in instructions[k].inputs)
    own = [slot for slot in read if slot not in shared]

    def results(whole: Array, *values: Array) -> list[Array]:
        known = dict(zip(own, values, strict=True)) | {columns.columns: whole}
        found = [_product(instructions[k], known, columns.columns, dot) for k in columns.scaled]
        if square is not None:  # after what is scaled, as it is done for later layers
            total = square.outputs[0]
            known[total] = operate(square.operation, [whole, whole], square.dtype, dot)
            found += [_product(instructions[k], known, total, dot) for k in columns.weighted]
        return found

    def differentiated(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Any, Any]:
        moving = [k for k, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]

        def along(*values: Array) -> list[Array]:
            full = list(primals)
            for k, value in zip(moving, values, strict=True):
                full[k] = value
            if moving[0] == 0 and jax.default_backend() == "cpu":
                full[0] = _repeated(full[0], full[1], columns.axes)
            return results(*full)

        return jax.jvp(along, [primals[k] for k in moving], [tangents[k] for k in moving])

    evaluated = jax.custom_jvp(results)
    evaluated.defjvp(differentiated, symbolic_zeros=True)
    found = evaluated(slots[columns.columns], *(slots[slot] for slot in own))
    return {k: [result] for k, result in zip(columns.places, found, strict=True)}


def _product(
    instruction: EdgeInstruction, known: Mapping[int, Array], shared: int, dot: Callable[..., Array]
) -> Array:
    """A product of two arrays; what a sample has of its own comes first, as in later layers."""
    operation, inputs = instruction.operation, instruction.inputs
    if inputs[0] == shared and isinstance(operation, Einsum):
        operation, inputs = replace(operation, reads=operation.reads[::-1]), inputs[::-1]
    return operate(operation, [known[slot] for slot in inputs], instruction.dtype, dot)


def _repeated(shared: Array, own: Array, axes: tuple[int, ...]) -> Array:
    """A shared array; under `jax.vmap` over another one it is repeated for all samples.

    A function with a rule for `jax.vmap` has no transpose. The rule is therefore used where
    batching is the innermost transformation, so that it has run when the call returns.

    Args:
        shared: the array.
        own: what each sample has of its own.
        axes: the order of axes in which the result is to lie in memory.
    """
    ran: list[bool] = []

    @custom_vmap
    def repeat(own: Array, shared: Array) -> Array:
        del own
        return shared

    @repeat.def_vmap
    def _(size: Any, batched: list[bool], own: Array, shared: Array) -> tuple[Array, bool]:
        del own
        rows = math.prod(shared.shape[axis] for axis in axes[:-1])
        # The batch may be a symbol of `jax.export`.
        few = isinstance(size, int) and size * rows * rows <= MAX_IDENTITIES
        if batched != [True, False] or not few:
            return shared, batched[1]
        ran.append(True)
        whole = lax.transpose(shared, axes)
        matrix = lax.reshape(whole, (rows, whole.shape[-1]))
        # Other rows are multiplied by zero: an infinite weight makes them NaN, as the loss is.
        identities = np.tile(np.eye(rows, dtype=shared.dtype), (size, 1))
        stacked = lax.dot(identities, matrix, precision="highest")
        back = (0, *(1 + axes.index(axis) for axis in range(len(axes))))
        return lax.transpose(lax.reshape(stacked, (size, *whole.shape)), back), True

    result: Array = repeat(own, shared)
    return result if ran else shared
