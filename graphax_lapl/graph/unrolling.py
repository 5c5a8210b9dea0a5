"""A `scan` without a loop, its steps one after the other, and a `reduce` as calls of its body."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import lax
from jax.extend.core import jaxpr_as_fun

__all__ = ["in_pairs", "written_out"]


def written_out(
    params: Mapping[str, Any], constants: int, carries: int
) -> Callable[..., list[Any]]:
    """What a `scan` computes from its operands, step by step.

    Args:
        params: those of its equation.
        constants: number of its operands that are the same in all steps.
        carries: number of those that follow, which a step hands to the next one.
    """
    body = jaxpr_as_fun(params["jaxpr"])
    order = range(params["length"])

    def steps(*values: Any) -> list[Any]:
        carry = list(values[constants : constants + carries])
        stacked: dict[int, list[Any]] = {}
        for step in reversed(order) if params["reverse"] else order:
            rows = [lax.index_in_dim(x, step, 0, False) for x in values[constants + carries :]]
            results = body(*values[:constants], *carry, *rows)
            carry = results[:carries]
            stacked[step] = [lax.expand_dims(y, [0]) for y in results[carries:]]
        columns = zip(*(stacked[step] for step in order), strict=True)
        return [*carry, *(lax.concatenate(column, 0) for column in columns)]

    return steps


def in_pairs(params: Mapping[str, Any]) -> Callable[..., list[Any]]:
    """What a `reduce` computes from its operands, neighbours with one another until one is left.

    JAX differentiates it as a tree too, but only where all operands move. The initial values, of
    which it pads odd rows, are met once here, first, as by the value.

    Args:
        params: those of its equation.
    """
    body, dimensions = jaxpr_as_fun(params["jaxpr"]), tuple(params["dimensions"])

    def pairs(*values: Any) -> list[Any]:
        count = len(values) // 2
        arrays, starts = values[:count], values[count:]
        shape = arrays[0].shape
        kept = tuple(d for d in range(len(shape)) if d not in dimensions)
        length = math.prod(shape[d] for d in dimensions)
        left = tuple(shape[d] for d in kept)
        result = [lax.broadcast(start, left) for start in starts]
        if not math.prod(shape):
            return result
        both = body
        for _ in kept:
            both = jax.vmap(both)
        joined = jax.vmap(both)
        rows = [
            lax.reshape(lax.transpose(array, (*dimensions, *kept)), (length, *left))
            for array in arrays
        ]
        while length > 1:
            half = length // 2
            halves = joined(
                *(lax.slice_in_dim(row, 0, 2 * half, 2) for row in rows),
                *(lax.slice_in_dim(row, 1, 2 * half, 2) for row in rows),
            )
            if length % 2:
                last = (lax.slice_in_dim(row, length - 1, length) for row in rows)
                halves = [lax.concatenate(two, 0) for two in zip(halves, last, strict=True)]
            rows, length = list(halves), half + length % 2
        return list(both(*result, *(lax.squeeze(row, (0,)) for row in rows)))

    return pairs
