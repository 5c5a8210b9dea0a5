"""`jax.numpy.linalg.slogdet`, whose derivatives are written with the inverse.

With B the inverse of A,

    d log|det A| = sum_ij B[j, i] dA[i, j],      dB[j, i] = - sum_kl B[j, k] B[l, i] dA[k, l]

(Petersen and Pedersen, The Matrix Cookbook, 2012, eqs. 43 and 40). So the inverse is computed once,
and all columns of a second derivative are products with it, where the rule that JAX derives solves
with the matrix once per column.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

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
    program = params["call_jaxpr"].jaxpr
    if not program.eqns or program.eqns[0].primitive.name != "lu" or len(program.invars) != 1:
        return None
    aval = program.invars[0].aval
    if not np.issubdtype(aval.dtype, np.floating):
        return None  # a complex phase turns with the matrix
    return "slogdet" if str(program) == _slogdet_program(aval.shape, str(aval.dtype)) else None


@lru_cache(maxsize=256)
def _slogdet_program(shape: tuple[int, ...], dtype: str) -> str:
    """The text of JAX's own program."""
    argument = jax.ShapeDtypeStruct(shape, dtype)
    jaxpr: Any = jax.make_jaxpr(jnp.linalg.slogdet)(argument).jaxpr
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
    shape = site.shape(i)
    batch = len(shape) - 2
    rows, columns = label(batch), label(batch + 1)
    leading = [label(n) for n in range(batch)]
    inverse = Local("inverse", _inverse, (site.value(i),), shape, _inverse_slope)
    factor = Factor((*leading, columns, rows), shape)
    return site.piece(shape, leading, [*leading, rows, columns], [(inverse, factor)])


def _inverse(matrix: Array) -> Array:
    return jnp.linalg.inv(matrix)


def _inverse_slope(reference: Local) -> list[tuple[int, Piece]]:
    shape = reference.shape
    batch, size = len(shape) - 2, shape[-1]
    leading = tuple(label(n) for n in range(batch))
    j, i, k, m = (label(batch + n) for n in range(4))
    term = Term(
        (*shape[:-2], size, size, size, size),
        (*leading, j, i),
        (*leading, k, m),
        (Factor((*leading, j, k), shape), Factor((*leading, m, i), shape)),
        -1,
    )
    return [(0, Piece(term, (reference, reference)))]
