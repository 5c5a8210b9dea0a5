"""Determinants of four rows and more, differentiated once.

The derivative of det A is its matrix of cofactors, the transposed adjugate `det A * A^-1`, which
is finite for every A, and zero where its rank is n - 2 or less. JAX's rule divides by all pivots
but the last: where another one vanishes, as with two equal columns, it has zeros. Here pivots that
vanish are replaced by rounding errors of their columns (`factors.py`): the result is that of a
matrix that differs by as much as factorising it does.

In the names of `cofactors.py` the derivative of the adjugate is that of c b^T + det A R.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..edges.maps import label
from ..edges.terms import Factor
from .cofactors import det_parts
from .factors import determinant_and_adjugate
from .matrix_calls import KNOWN_BY
from .registry import defrule
from .site import Piece, Site

__all__ = ["determinants_once"]


def determinants_once(matrix: Array) -> list[Array]:
    """The determinants of the matrices in an array, with a rule as a whole."""
    return [_with_adjugate(matrix)[0]]


@jax.custom_jvp
def _with_adjugate(matrix: Array) -> tuple[Array, Array]:
    """The determinants and adjugates of the matrices in an array."""
    return determinant_and_adjugate(matrix)


@_with_adjugate.defjvp
def _with_adjugate_jvp(primals: Any, tangents: Any) -> Any:
    (matrix,) = primals
    det, adjugate = _with_adjugate(matrix)
    slope = jnp.sum(adjugate.mT * tangents[0], (-2, -1))
    # Its own slope of the determinant: `regular` may be as large as that one is small.
    (det_, c, b, regular), (along, dc, db, moved) = jax.jvp(det_parts, primals, tangents)
    outer = dc[..., None] * b[..., None, :] + c[..., None] * db[..., None, :]
    turned = outer + along[..., None, None] * regular + det_[..., None, None] * moved
    return (det, adjugate), (slope, turned)


KNOWN_BY[__file__] = "adjugate"


@defrule("adjugate")
def _rule(site: Site, i: int, k: int) -> list[Piece]:
    """A determinant moves with its cofactors."""
    if k:
        return []
    shape = site.shape(i)
    batch = len(shape) - 2
    leading = [label(n) for n in range(batch)]
    row, column = label(batch), label(batch + 1)
    factor = Factor((*leading, column, row), shape)
    return site.piece(shape, leading, [*leading, row, column], [(site.out(1), factor)])
