"""Determinants of four rows and more, differentiated twice.

The derivative of det A is its matrix of cofactors C. With `P A = L U`, t one of the pivots, D the
product of the others, up to the sign, V the factor U without the row and the column of t, and r and
s what stands there beside t,

    U^-1 = a d^T / t + V^-1,      a = e_t - V^-1 s,      d^T = e_t^T - r^T V^-1,
    A^-1 = a b^T / t + R,         b^T = d^T L^-1 P,      R = V^-1 L^-1 P,
    C^T = D a b^T + det A R,      det A = D t.

No term is divided by t, which is the smallest pivot, compared with its row and column of A: two
equal rows leave the last one zero, two equal columns that of the second. So near singular matrices
all of it is as exact as elsewhere; `C C / det` would not be. Where other pivots vanish as well,
with the rank, they are rounding errors of their columns: R is as large as D is small, and two
derivatives are exact. Where the rank is that of columns without a pivot, a or d is as large, and R
is NaN. Of `L^-1 P dA U^-1` the part below the diagonal moves L and the rest moves U, from which,
with c = D a,

    d det A = tr(C^T dA),      dR = -R dA R,
    dc = tr(R dA) c - R dA c,      db^T = -b^T dA R,

so the reverse pass of a training step factorises and solves nothing either. c b^T is never written
out: the second derivative along dA is

    2 tr(R dA) b^T dA c + det A tr(R dA)^2 - 2 b^T dA R dA c - det A tr(R dA R dA),

one product of matrices for each column, and vectors. Once differentiated, a determinant has its
cofactors as one array (`adjugates.py`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..edges.maps import label
from ..edges.terms import Factor, Term
from .inverses import inverse_moves
from .matrix_calls import KNOWN_BY
from .registry import defrule
from .site import Local, Piece, Site

__all__ = ["det_parts", "determinants_twice"]


def determinants_twice(matrix: Array) -> list[Array]:
    """The determinants of the matrices in an array, with a rule as a whole for two derivatives."""
    return [det_parts(matrix)[0]]


@jax.custom_jvp
def det_parts(matrix: Array) -> tuple[Array, Array, Array, Array]:
    """The determinants, c, b and R of the matrices in an array."""
    size = matrix.shape[-1]
    factors, pivots, permutation = lax.linalg.lu(matrix)
    unit = jnp.eye(size, dtype=matrix.dtype)
    diagonal = jnp.diagonal(factors, axis1=-2, axis2=-1)
    columns = jnp.max(jnp.abs(matrix), axis=-2)
    rows = jnp.take_along_axis(jnp.max(jnp.abs(matrix), axis=-1), permutation, axis=-1)
    apart = _smallest(diagonal, columns, rows)
    least = jnp.finfo(matrix.dtype).eps * jnp.where(columns == 0, 1, columns)
    diagonal = jnp.where((diagonal == 0) & ~apart, least.astype(matrix.dtype), diagonal)
    here, there = apart[..., None], apart[..., None, :]
    swaps = jnp.sum(pivots != jnp.arange(size, dtype=pivots.dtype), axis=-1)
    others = jnp.prod(jnp.where(apart, 1, diagonal), axis=-1)
    product = jnp.where(swaps % 2 == 1, -others, others)
    permuted = jnp.take(unit, permutation, axis=0)
    lower = lax.linalg.triangular_solve(
        factors, permuted, left_side=True, lower=True, unit_diagonal=True
    )
    # Without its row and column, not with a one in its place: from that R would be a difference,
    # which loses digits where entries are large. What remains of the column becomes a.
    upper = jnp.where(unit == 1, diagonal[..., None], jnp.triu(factors))
    whole = jnp.broadcast_to(unit, factors.shape)
    solved = lax.linalg.triangular_solve(
        jnp.where(here, unit, upper), whole, left_side=True, lower=False
    )
    column = jnp.sum(jnp.where(there, solved, 0), -1)
    solved = jnp.where(there, 0, solved)
    beside = jnp.sum(jnp.where(here & ~there, upper, 0), -2)
    row = apart.astype(matrix.dtype) - _times(beside[..., None, :], solved)[..., 0, :]
    doubtful = _is_large(column, columns, apart) | _is_large(row, rows, apart)
    regular = jnp.where(doubtful[..., None, None], jnp.nan, _times(solved, lower))
    row = _times(row[..., None, :], lower)[..., 0, :]
    det = product * jnp.sum(jnp.where(apart, diagonal, 0), -1)
    return det, product[..., None] * column, row, regular


def _smallest(diagonal: Array, columns: Array, rows: Array) -> Array:
    """A mask of one pivot: the smallest one, however rows and columns are scaled."""
    pivots = jnp.abs(diagonal)
    relative = jnp.where(pivots == 0, 0, pivots / columns / rows)
    return jnp.arange(pivots.shape[-1]) == jnp.argmin(relative, axis=-1, keepdims=True)


def _is_large(vector: Array, units: Array, apart: Array) -> Array:
    """Whether an entry, compared with the one of t, is a quotient by a rounding error."""
    units = jnp.where(units == 0, jnp.max(units, -1, keepdims=True), units)
    sizes = jnp.abs(vector) * units * jnp.finfo(vector.dtype).eps ** 0.75
    return jnp.max(sizes, -1) > jnp.sum(jnp.where(apart, units, 0), -1)


@det_parts.defjvp
def _det_jvp(primals: Any, tangents: Any) -> Any:
    ((matrix,), (moved,)) = (primals, tangents)
    det, column, row, regular = det_parts(matrix)
    left = _times(regular, moved)
    trace = jnp.trace(left, axis1=-2, axis2=-1)
    along = _times(row[..., None, :], moved)
    slope = jnp.sum(along[..., 0, :] * column, -1) + det * trace
    turned = trace[..., None] * column - _times(left, column[..., None])[..., 0]
    slopes = (slope, turned, -_times(along, regular)[..., 0, :], -_times(left, regular))
    return (det, column, row, regular), slopes


KNOWN_BY[__file__] = "det"


def _times(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


@defrule("det")
def _rule(site: Site, i: int, k: int) -> list[Piece]:
    """A determinant moves with its cofactors, `C[i, j] = c[j] b[i] + det R[j, i]`."""
    if k:
        return []
    shape = site.shape(i)
    rank = len(shape)
    leading, (row, column) = _labels(rank - 2, 2)
    det, *vectors, whole = (site.out(n) for n in range(4))
    regular = Local("regular", _first, (whole, site.value(i)), shape, _regular_moves)
    arguments = (site.value(i), regular)
    c, b = (
        Local(name, _first, (vector, *arguments), shape[:-1], moves)
        for name, vector, moves in zip(
            ("column", "row"), vectors, (_column_moves, _row_moves), strict=True
        )
    )
    outer = [
        (c, Factor((*leading, column), shape[:-1])),
        (b, Factor((*leading, row), shape[:-1])),
    ]
    rest = [
        (det, Factor(leading, shape[:-2])),
        (regular, Factor((*leading, column, row), shape)),
    ]
    axes = (*leading, row, column)
    return [
        *site.piece(shape, leading, axes, outer),
        *site.piece(shape, leading, axes, rest),
    ]


def _first(part: Array, *_: Array) -> Array:
    return part


def _labels(batch: int, count: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return tuple(label(n) for n in range(batch)), tuple(label(batch + n) for n in range(count))


def _column_moves(c: Local) -> list[tuple[int, Piece]]:
    """`c[j] R[m, k] - R[j, k] c[m]`, along entry (k, m)."""
    batch, size = len(c.shape) - 1, c.shape[-1]
    leading, (j, k, m) = _labels(batch, 3)
    pieces = []
    for sign, first, second in ((1, (j,), (m, k)), (-1, (m,), (j, k))):
        factors = (
            Factor((*leading, *first), c.shape),
            Factor((*leading, *second), (*c.shape, size)),
        )
        term = Term(
            (*c.shape[:-1], size, size, size), (*leading, j), (*leading, k, m), factors, sign
        )
        pieces.append((1, Piece(term, (c, c.arguments[2]))))
    return pieces


def _row_moves(b: Local) -> list[tuple[int, Piece]]:
    """`-b[k] R[m, i]`, along entry (k, m)."""
    batch, size = len(b.shape) - 1, b.shape[-1]
    leading, (i, k, m) = _labels(batch, 3)
    factors = (Factor((*leading, k), b.shape), Factor((*leading, m, i), (*b.shape, size)))
    term = Term((*b.shape[:-1], size, size, size), (*leading, i), (*leading, k, m), factors, -1)
    return [(1, Piece(term, (b, b.arguments[2])))]


def _regular_moves(regular: Local) -> list[tuple[int, Piece]]:
    return [(1, Piece(inverse_moves(regular.shape), (regular, regular)))]
