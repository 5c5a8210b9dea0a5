"""Second derivatives within rows: a product per number of a row, all rows at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..program.instructions import RowHessianInstruction

__all__ = ["row_hessian"]


def row_hessian(instruction: RowHessianInstruction, operands: Sequence[Array]) -> list[Array]:
    """The blocks of arrays i <= j, see the instruction."""
    count = len(instruction.moving)
    points = tuple(operands[:count])
    value = _function(instruction, operands[count:])

    def gradient(*moving: Array) -> tuple[Array, ...]:
        out, pull = jax.vjp(value, *moving)
        result: tuple[Array, ...] = pull(lax.full_like(out, 1))
        return result

    cores = [
        tuple(d for d in range(point.ndim) if d not in batch)
        for point, batch in zip(points, instruction.batch, strict=True)
    ]
    widths = [math.prod(p.shape[d] for d in core) for p, core in zip(points, cores, strict=True)]
    starts = [0, *np.cumsum(widths).tolist()]
    seeds = [
        _seeds(point, core, start, starts[-1])
        for point, core, start in zip(points, cores, starts, strict=False)
    ]
    pushed = jax.vmap(lambda *tangents: jax.jvp(gradient, points, tangents)[1])(*seeds)
    blocks = []
    for i in range(count):
        for j in range(i, count):
            rows = lax.slice_in_dim(pushed[i], starts[j], starts[j + 1])
            core = [points[j].shape[d] for d in cores[j]]
            blocks.append(lax.reshape(rows, (*core, *points[i].shape)))
    return blocks


def _function(
    instruction: RowHessianInstruction, captured: Sequence[Array]
) -> Callable[..., Array]:
    """The scalar as a function of the arrays."""
    listing = instruction.listing
    outside = dict(zip(instruction.captured, captured, strict=True))

    def value(*moving: Array) -> Array:
        held: dict[int, Any] = {**outside, **dict(zip(instruction.moving, moving, strict=True))}

        def read(atom: Any) -> Any:
            found = listing.value(atom)
            if isinstance(found, int):
                return held[found]
            assert found is not None
            return found.value

        for equation in instruction.equations:
            results = equation.evaluate(*(read(atom) for atom in equation.inputs))
            held.update(zip(equation.outputs, results, strict=True))
        result: Array = held[instruction.end]
        return result

    return value


def _seeds(point: Array, core: Sequence[int], start: int, count: int) -> Array:
    """For every number of a row its indicator in all rows at once; shape `(count, *point)`."""
    place = np.full((count, *(point.shape[d] for d in core)), False)
    width = math.prod(place.shape[1:])
    flat = place.reshape(count, width)
    flat[start : start + width] = np.eye(width, dtype=bool)
    shape = [count, *(point.shape[d] if d in core else 1 for d in range(point.ndim))]
    indicator = jnp.asarray(place.reshape(shape).astype(np.float32), point.dtype)
    return lax.broadcast_in_dim(
        indicator.reshape(shape), (count, *point.shape), range(point.ndim + 1)
    )
