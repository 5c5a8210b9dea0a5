"""Operations across a mapped axis (`psum` under `vmap` or `shard_map`): refused, with the reason.

The derivative of one sample's output then includes other samples. Its Jacobian as a function of
one sample is not defined: forward mode moves all samples at once, reverse mode adds the cotangents
of all of them, and `jax.jacfwd` and `jax.jacrev` give different numbers. Elimination applies
either, place by place, and would give a third.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ..errors import CollectiveError
from ..graph.listing import Equation

__all__ = ["COLLECTIVES", "refuse_collectives"]

#: Primitives that read values from other places of a mapped axis.
COLLECTIVES = (
    *("psum", "psum2", "psum_invariant", "unreduced_psum", "pmax", "pmin"),
    *("ppermute", "pshuffle", "pbroadcast", "pgather", "all_to_all", "ragged_all_to_all"),
    *("all_gather", "all_gather_invariant", "all_gather_reduced"),
    *("reduce_scatter", "unreduced_reduce_scatter"),
)


def _names(params: dict[str, Any]) -> frozenset[str]:
    """The mapped axes that a collective works along; a number is an axis of its operand."""
    axes = params.get("axes", params.get("axis_name", ()))
    axes = axes if isinstance(axes, tuple | list | frozenset) else (axes,)
    return frozenset(str(axis) for axis in axes if not isinstance(axis, int))


def _crossings(name: str, params: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Collectives of an equation and of what is nested in it, with an axis bound outside."""
    if name in COLLECTIVES:
        yield from ((name, axis) for axis in sorted(_names(params)))
    bound = params["mesh"].axis_names if name == "shard_map" else ()
    stack: list[Any] = list(params.values())
    while stack:
        value = stack.pop()
        if isinstance(value, tuple | list):
            stack.extend(value)
        for inner in getattr(getattr(value, "jaxpr", value), "eqns", ()):
            found = _crossings(str(inner.primitive.name), inner.params)
            yield from (pair for pair in found if pair[1] not in bound)


@lru_cache(maxsize=512)
def refuse_collectives(equation: Equation) -> None:
    """Let no equation be differentiated as a whole that holds a collective over an outer axis.

    Raises:
        CollectiveError: naming the collective, its axis and the line.
    """
    for name, axis in _crossings(str(equation.primitive.name), equation.params):
        raise CollectiveError(name, axis, equation.source)
