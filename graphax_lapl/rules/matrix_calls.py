"""Calls of JAX's functions of a matrix, known by their programs, and what stands in their place."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
from jax import Array, lax

from ..graph.users_rules import rule_is_written_in

__all__ = ["KNOWN_BY", "known_call", "layout_of", "of_layout"]

#: Functions of this package that stand in the place of JAX's: the name of the rule that each has
#: as a whole, by the file that its derivative is written in.
KNOWN_BY: dict[str, str] = {}


def known_call(name: str, params: dict[str, Any]) -> str | None:
    """The name under which a call has a rule as a whole, None for all others."""
    if name == "custom_jvp_call":
        for file, known in KNOWN_BY.items():
            if rule_is_written_in(params, file):
                return known
    return None


def layout_of(program: Any, function: Callable[..., Any]) -> tuple[int, ...] | None:
    """Dimensions of the argument of a function of a matrix: those that are mapped, rows, columns.

    Under `jax.vmap` the argument is mapped along any of its dimensions, which the call's program
    brings to the front. None where the program is another one, so that nobody else's function is
    taken for JAX's.
    """
    if len(program.invars) != 1:
        return None
    aval = program.invars[0].aval
    rank, text = aval.ndim, str(program)
    for depth in range(rank - 1):
        for mapped in itertools.product(*(range(rank - n) for n in range(depth))):
            rest = list(range(rank))
            layout = (*(rest.pop(axis) for axis in mapped), *rest)
            square = aval.shape[layout[-2]] == aval.shape[layout[-1]]
            if square and text == _program(function, aval.shape, str(aval.dtype), mapped):
                return layout
    return None


@functools.lru_cache(maxsize=256)
def _program(
    function: Callable[..., Any], shape: tuple[int, ...], dtype: str, mapped: tuple[int, ...]
) -> str:
    """The text of JAX's own program, under a `vmap` for each of the axes, outermost first."""
    for axis in reversed(mapped):
        function = jax.vmap(function, axis)
    jaxpr: Any = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(shape, dtype)).jaxpr
    while len(jaxpr.eqns) == 1:
        params = jaxpr.eqns[0].params
        inner = params.get("call_jaxpr") or params.get("jaxpr")
        if inner is None:
            break
        jaxpr = inner.jaxpr
    return str(jaxpr)


@functools.lru_cache(maxsize=256)
def of_layout(
    function: Callable[[Array], list[Array]], layout: tuple[int, ...]
) -> Callable[[Array], list[Array]]:
    """A function of matrices whose argument has that layout."""

    def of_matrix(matrix: Array) -> list[Array]:
        return function(lax.transpose(matrix, layout))

    return of_matrix
