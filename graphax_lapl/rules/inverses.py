"""Inverses of matrices, recognised as a whole.

JAX's `inv` is a linear solve with an identity. As a solve its derivative solves once more for every
column, and in a training step again for every cotangent. As an inverse all of it is products,

    B = A^-1,      dB = - B dA B,      dB[i, j] = - sum_kl B[i, k] B[l, j] dA[k, l]

(Petersen and Pedersen, The Matrix Cookbook, 2012, eqs. 59 and 60), and the second derivative is
that of the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..edges.maps import label
from ..edges.terms import Factor, Term
from ..graph.calls import INLINED_CALLS
from ..graph.inline import Rewritten
from .factors import inverse_of
from .matrix_calls import KNOWN_BY, layout_of, of_layout
from .registry import CALLS, defrule
from .site import Piece, Site

__all__ = ["inverse_moves", "moved_inverse", "rewritten_inverse"]


@jax.custom_jvp
def _inverse(matrix: Array) -> Array:
    """The inverses of the matrices in an array."""
    return inverse_of(matrix)


@_inverse.defjvp
def _inverse_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    ((matrix,), (moved,)) = (primals, tangents)
    result = _inverse(matrix)
    return result, moved_inverse(result, moved)


KNOWN_BY[__file__] = "inverse"


def moved_inverse(inverse: Array, moved: Array) -> Array:
    """The tangent of an inverse, from that of the matrix."""
    left = jnp.matmul(inverse, moved, precision=lax.Precision.HIGHEST)
    return -jnp.matmul(left, inverse, precision=lax.Precision.HIGHEST)


def rewritten_inverse(name: str, params: dict[str, Any]) -> Rewritten | None:
    """What stands in the place of a call of `jnp.linalg.inv`, None for all others."""
    if name not in CALLS or params["name"] != "inv":
        return None
    layout = layout_of(params[INLINED_CALLS[name]].jaxpr, jnp.linalg.inv)
    return None if layout is None else Rewritten(of_layout(_inverses, layout))


def _inverses(matrix: Array) -> list[Array]:
    return [_inverse(matrix)]


@defrule("inverse")
def _rule(site: Site, i: int, k: int) -> list[Piece]:
    """An inverse moves with itself, from both sides."""
    del i
    term = inverse_moves(site.out_shape)
    factors = [(site.out(k), factor) for factor in term.factors]
    return site.piece(term.sizes, term.out, term.into, factors, term.coefficient)


def inverse_moves(shape: Sequence[int]) -> Term:
    """`-B[i, k] B[l, j]`, from entry (k, l) of a matrix to entry (i, j) of its inverse B."""
    batch, size = len(shape) - 2, shape[-1]
    leading = tuple(label(n) for n in range(batch))
    i, j, k, m = (label(batch + n) for n in range(4))
    return Term(
        (*shape[:-2], size, size, size, size),
        (*leading, i, j),
        (*leading, k, m),
        (Factor((*leading, i, k), tuple(shape)), Factor((*leading, m, j), tuple(shape))),
        -1,
    )
