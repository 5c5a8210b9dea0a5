"""Determinants of four rows and more, differentiated twice.

The derivative of det A is its matrix of cofactors C. With `P A = L U`, t one of the pivots, D the
product of the others, up to the sign, and V the factor U with a one in the place of t,

    A^-1 = a b^T / t + R,      C^T = S + D t R,      S = D a b^T,      det A = D t,

where a and c are column and row of `V^-1` at the place of t, `b^T = c^T L^-1 P`, and
`R = (V^-1 - a c^T) L^-1 P` is what the other pivots alone make of the inverse. No term is divided
by t, which is the smallest pivot, compared with its row and column of A: two equal rows leave the
last one zero, two equal columns that of the second. So near singular matrices all of it is as
exact as elsewhere; `C C / det` would not be. Where a matrix of n rows has rank n - 2 or less, so
that two pivots vanish, there is NaN. Of `L^-1 P dA U^-1` the part below the diagonal
moves L and the rest moves U, from which

    dR = -R dA R,      dS = tr(R dA) S - R dA S - S dA R,      d det A = tr(C^T dA),
    dC^T = tr(R dA) M + tr(M dA) R - R dA M - M dA R,      M = S + D t R / 2,

so the reverse pass of a training step factorises and solves nothing either. Once differentiated, a
determinant has the rule that JAX derives.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..edges.maps import label
from ..edges.terms import Factor, Term
from ..graph.inline import Rewritten
from ..graph.listing import nested_primitives
from ..graph.users_rules import is_users_rule
from .matrix_calls import KNOWN_BY, layout_of, of_layout
from .registry import defrule
from .site import Local, Piece, Site

__all__ = ["rewritten_det"]

#: Signs of the products of M^T and R^T, and which of i, k and j, l each of them has.
_PRODUCTS = ((1, "ij", "kl"), (1, "kl", "ij"), (-1, "il", "kj"), (-1, "kj", "il"))


def rewritten_det(name: str, params: dict[str, Any], orders: int) -> Rewritten | None:
    """What stands in the place of a call of `det`, None for all others.

    Args:
        name: name of the primitive.
        params: its parameters.
        orders: how often it is differentiated.
    """
    if name != "custom_jvp_call" or is_users_rule(params):
        return None
    empty = 0 in params["call_jaxpr"].in_avals[0].shape
    if not (empty or orders >= 2) or "lu" not in nested_primitives(params):
        return None
    layout = layout_of(params["call_jaxpr"].jaxpr, jnp.linalg.det)
    return None if layout is None else Rewritten(of_layout(_determinants, layout))


def _determinants(matrix: Array) -> list[Array]:
    if 0 in matrix.shape:  # a product of no pivots, of which JAX has no derivative
        return [jnp.ones(matrix.shape[:-2], matrix.dtype)]
    return [_det(matrix)[0]]


@jax.custom_jvp
def _det(matrix: Array) -> tuple[Array, Array, Array]:
    """The determinants, S and R of the matrices in an array."""
    size = matrix.shape[-1]
    factors, pivots, permutation = lax.linalg.lu(matrix)
    unit = jnp.eye(size, dtype=matrix.dtype)
    diagonal = jnp.diagonal(factors, axis1=-2, axis2=-1)
    apart = _smallest(matrix, diagonal, permutation)
    swaps = jnp.sum(pivots != jnp.arange(size, dtype=pivots.dtype), axis=-1)
    others = jnp.prod(jnp.where(apart, 1, diagonal), axis=-1)
    product = jnp.where(swaps % 2 == 1, -others, others)
    upper = jnp.where(unit.astype(bool) & apart[..., None], 1, jnp.triu(factors))
    rows = jnp.take(unit, permutation, axis=0)
    lower = lax.linalg.triangular_solve(
        factors, rows, left_side=True, lower=True, unit_diagonal=True
    )
    whole = jnp.broadcast_to(unit, factors.shape)
    inverse = lax.linalg.triangular_solve(upper, whole, left_side=True, lower=False)
    column = jnp.sum(jnp.where(apart[..., None, :], inverse, 0), -1, keepdims=True)
    row = jnp.sum(jnp.where(apart[..., None], inverse, 0), -2, keepdims=True)
    regular = _times(inverse - column * row, lower)
    single = product[..., None, None] * column * _times(row, lower)
    return product * jnp.sum(jnp.where(apart, diagonal, 0), -1), single, regular


def _smallest(matrix: Array, diagonal: Array, permutation: Array) -> Array:
    """A mask of one pivot: the smallest one, however rows and columns are scaled."""
    size = jnp.abs(matrix)
    columns = jnp.max(size, axis=-2)
    rows = jnp.take_along_axis(jnp.max(size, axis=-1), permutation, axis=-1)
    pivots = jnp.abs(diagonal)
    relative = jnp.where(pivots == 0, 0, pivots / columns / rows)
    return jnp.arange(pivots.shape[-1]) == jnp.argmin(relative, axis=-1, keepdims=True)


@_det.defjvp
def _det_jvp(primals: Any, tangents: Any) -> Any:
    ((matrix,), (moved,)) = (primals, tangents)
    det, single, regular = _det(matrix)
    left = _times(regular, moved)
    trace = jnp.trace(left, axis1=-2, axis2=-1)
    slope = jnp.sum(single.mT * moved, (-2, -1)) + det * trace
    turned = _times(left, single) + _times(single, _times(moved, regular))
    slopes = (slope, trace[..., None, None] * single - turned, -_times(left, regular))
    return (det, single, regular), slopes


KNOWN_BY[__file__] = "det"


def _times(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


@defrule("det")
def _rule(site: Site, i: int, k: int) -> list[Piece]:
    """A determinant moves with its cofactors."""
    if k:
        return []
    shape = site.shape(i)
    axes = tuple(label(n) for n in range(len(shape)))
    arguments = (site.out(0), site.out(1), site.out(2), site.value(i))
    cofactors = Local("cofactors", _cofactors, arguments, shape, _slope)
    factor = Factor((*axes[:-2], axes[-1], axes[-2]), shape)
    return site.piece(shape, axes[:-2], axes, [(cofactors, factor)])


def _slope(reference: Local) -> list[tuple[int, Piece]]:
    shape = reference.shape
    batch, size = len(shape) - 2, shape[-1]
    leading = tuple(label(n) for n in range(batch))
    names = {name: label(batch + n) for n, name in enumerate("ijkl")}
    halves = Local("half of the cofactors", _halves, reference.arguments[:3], shape)
    pieces = []
    for sign, first, second in _PRODUCTS:
        # Both are stored transposed, as C^T is.
        axes = [(*leading, names[each[1]], names[each[0]]) for each in (first, second)]
        term = Term(
            (*shape[:-2], size, size, size, size),
            (*leading, names["j"], names["i"]),
            (*leading, names["k"], names["l"]),
            tuple(Factor(each, shape) for each in axes),
            sign,
        )
        pieces.append((3, Piece(term, (halves, reference.arguments[2]))))
    return pieces


def _cofactors(det: Array, single: Array, regular: Array, matrix: Array) -> Array:
    del matrix
    return single + det[..., None, None] * regular


def _halves(det: Array, single: Array, regular: Array) -> Array:
    return single + 0.5 * det[..., None, None] * regular
