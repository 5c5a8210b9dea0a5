"""`jax.numpy.linalg.slogdet`, whose derivatives are written with the inverse.

With B the inverse of A,

    d log|det A| = sum_ij B[j, i] dA[i, j],      dB[j, i] = - sum_kl B[j, k] B[l, i] dA[k, l]

(Petersen and Pedersen, The Matrix Cookbook, 2012, eqs. 43 and 40). So the inverse is computed once,
and all columns of a second derivative are products with it, where the rule that JAX derives solves
with the matrix once per column.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.maps import label
from ..edges.terms import Factor, Term
from .registry import defrule
from .site import Local, Piece, Site

__all__ = ["known_call"]


def known_call(name: str, params: dict[str, Any]) -> str | None:
    """The name under which a call has a rule as a whole, None for all others.

    A call is known by its program, so that nobody else's function is taken for it.
    """
    if name != "custom_jvp_call":
        return None
    return "slogdet" if _layout(params) is not None else None


def _layout(params: dict[str, Any]) -> tuple[int, ...] | None:
    """Dimensions of the argument of `slogdet`: those of the result, rows, columns.

    Under `jax.vmap` the argument is mapped along any of its dimensions, which the call's program
    brings to the front. None where the program is another one.
    """
    program = params["call_jaxpr"].jaxpr
    if len(program.invars) != 1 or not any(e.primitive.name == "lu" for e in program.eqns[:4]):
        return None
    aval = program.invars[0].aval
    if not np.issubdtype(aval.dtype, np.floating):
        return None  # a complex phase turns with the matrix
    text, rank = str(program), aval.ndim
    for depth in range(rank - 1):
        for mapped in itertools.product(*(range(rank - n) for n in range(depth))):
            rest = list(range(rank))
            layout = (*(rest.pop(axis) for axis in mapped), *rest)
            square = aval.shape[layout[-2]] == aval.shape[layout[-1]]
            if square and text == _slogdet_program(aval.shape, str(aval.dtype), mapped):
                return layout
    return None


@lru_cache(maxsize=256)
def _slogdet_program(shape: tuple[int, ...], dtype: str, mapped: tuple[int, ...]) -> str:
    """The text of JAX's own program, under a `vmap` for each of the axes, outermost first."""
    function: Any = jnp.linalg.slogdet
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


@defrule("slogdet")
def _slogdet(site: Site, i: int, k: int) -> list[Piece]:
    """The sign is constant; the logarithm moves with the transposed inverse."""
    if k == 0:
        return []
    layout = _layout(site.params)
    assert layout is not None
    shape = tuple(site.shape(i)[d] for d in layout)
    batch = len(shape) - 2
    rows, columns = label(batch), label(batch + 1)
    leading = [label(n) for n in range(batch)]
    name = f"inverse {layout}"
    inverse = Local(name, _inverse(layout), (site.value(i),), shape, _inverse_slope(layout))
    factor = Factor((*leading, columns, rows), shape)
    into = _placed(layout, [*leading, rows, columns])
    return site.piece(shape, leading, into, [(inverse, factor)])


def _placed(layout: tuple[int, ...], maps: Sequence[Any]) -> list[Any]:
    """Maps of (batch, rows, columns) in the order of the argument's dimensions."""
    return [maps[layout.index(d)] for d in range(len(layout))]


@lru_cache(maxsize=256)
def _inverse(layout: tuple[int, ...]) -> Callable[[Array], Array]:
    def inverse(matrix: Array) -> Array:
        return jnp.linalg.inv(lax.transpose(matrix, layout))

    return inverse


@lru_cache(maxsize=256)
def _inverse_slope(layout: tuple[int, ...]) -> Callable[[Local], list[tuple[int, Piece]]]:
    def slope(reference: Local) -> list[tuple[int, Piece]]:
        shape = reference.shape
        batch, size = len(shape) - 2, shape[-1]
        leading = tuple(label(n) for n in range(batch))
        j, i, k, m = (label(batch + n) for n in range(4))
        term = Term(
            (*shape[:-2], size, size, size, size),
            (*leading, j, i),
            tuple(_placed(layout, (*leading, k, m))),
            (Factor((*leading, j, k), shape), Factor((*leading, m, i), shape)),
            -1,
        )
        return [(0, Piece(term, (reference, reference)))]

    return slope
