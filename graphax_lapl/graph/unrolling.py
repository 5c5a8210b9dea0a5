"""A `scan` without a loop: its steps one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jax import lax
from jax.extend.core import jaxpr_as_fun

__all__ = ["written_out"]


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
