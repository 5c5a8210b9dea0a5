"""Determinants of four rows and more, differentiated twice.

The derivative of det A is its matrix of cofactors C. With `P A = L U`, t the last pivot and D the
product of the others, up to the sign,

    A^-1 = a b^T / t + R,      C = D (b a^T + t R^T),
    dC_ij / dA_kl = M_ij Q_kl + Q_ij M_kl - M_il Q_kj - Q_il M_kj,
    M = D (b a^T + t R^T / 2),      Q = R^T,

where U a is t times the last unit vector, b^T is the last row of `L^-1 P`, and R is what the other
pivots alone make of the inverse. No term is divided by t, so that near singular matrices all of it
is as exact as elsewhere; `C C / det` would not be. Once differentiated, a determinant has the rule
that JAX derives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from ..edges.maps import label
from ..edges.terms import Factor, Term
from .determinants import layout_of_call, placed
from .registry import defrule
from .site import Local, Piece, Site

__all__: list[str] = []

#: Signs of the products of M and Q, and which of i, k and j, l each of them has.
_PRODUCTS = ((1, "ij", "kl"), (1, "kl", "ij"), (-1, "il", "kj"), (-1, "kj", "il"))


@defrule("det")
def _det(site: Site, i: int, k: int) -> list[Piece]:
    """A determinant moves with its cofactors."""
    del k
    layout = layout_of_call(site.params, jnp.linalg.det)
    assert layout is not None
    shape = tuple(site.shape(i)[d] for d in layout)
    axes = tuple(label(n) for n in range(len(shape)))
    cofactors = _local("cofactors", _cofactors, layout, shape, site.value(i), _slope(layout))
    into = placed(layout, axes)
    return site.piece(shape, axes[:-2], into, [(cofactors, Factor(axes, shape))])


def _local(
    name: str,
    fun: Callable[[Array], Array],
    layout: tuple[int, ...],
    shape: tuple[int, ...],
    argument: Any,
    slope: Any = "unknown",
) -> Local:
    return Local(f"{name} {layout}", _of_layout(fun, layout), (argument,), shape, slope)


@functools.lru_cache(maxsize=256)
def _of_layout(fun: Callable[[Array], Array], layout: tuple[int, ...]) -> Callable[[Array], Array]:
    def of_matrix(matrix: Array) -> Array:
        return fun(lax.transpose(matrix, layout))

    return of_matrix


@functools.lru_cache(maxsize=256)
def _slope(layout: tuple[int, ...]) -> Callable[[Local], list[tuple[int, Piece]]]:
    def slope(reference: Local) -> list[tuple[int, Piece]]:
        shape, (argument,) = reference.shape, reference.arguments
        batch, size = len(shape) - 2, shape[-1]
        leading = tuple(label(n) for n in range(batch))
        names = {name: label(batch + n) for n, name in enumerate("ijkl")}
        halves = _local("half of the cofactors", _halves, layout, shape, argument)
        regular = _local("inverse of the other pivots", _regular, layout, shape, argument)
        pieces = []
        for sign, first, second in _PRODUCTS:
            factors = tuple(Factor((*leading, *_pick(names, n)), shape) for n in (first, second))
            term = Term(
                (*shape[:-2], size, size, size, size),
                (*leading, *_pick(names, "ij")),
                tuple(placed(layout, (*leading, *_pick(names, "kl")))),
                factors,
                sign,
            )
            pieces.append((0, Piece(term, (halves, regular))))
        return pieces

    return slope


def _pick(names: dict[str, Any], wanted: str) -> Sequence[Any]:
    return [names[name] for name in wanted]


def _parts(matrix: Array) -> tuple[Array, Array, Array]:
    """`D b a^T`, `D t` and `R^T` of the matrices in an array."""
    size = matrix.shape[-1]
    factors, pivots, permutation = lax.linalg.lu(matrix)
    unit = jnp.eye(size, dtype=matrix.dtype)
    last = jnp.arange(size) == size - 1
    diagonal = jnp.diagonal(factors, axis1=-2, axis2=-1)
    swaps = jnp.sum(pivots != jnp.arange(size, dtype=pivots.dtype), axis=-1)
    others = jnp.prod(jnp.where(last, 1, diagonal), axis=-1)
    product = jnp.where(swaps % 2 == 1, -others, others)[..., None, None]
    upper = jnp.where(last[:, None] & last, 1, jnp.triu(factors))
    rows = jnp.take(unit, permutation, axis=0)
    lower = lax.linalg.triangular_solve(
        factors, rows, left_side=True, lower=True, unit_diagonal=True
    )
    whole = jnp.broadcast_to(unit, factors.shape)
    inverse = lax.linalg.triangular_solve(upper, whole, left_side=True, lower=False)
    single = product * lower[..., -1, :, None] * inverse[..., None, :, -1]
    regular = jnp.where(last, 0, inverse) @ lower
    return single, product * diagonal[..., -1:, None], regular.mT


def _cofactors(matrix: Array) -> Array:
    single, factor, regular = _parts(matrix)
    return single + factor * regular


def _halves(matrix: Array) -> Array:
    single, factor, regular = _parts(matrix)
    return single + 0.5 * factor * regular


def _regular(matrix: Array) -> Array:
    return _parts(matrix)[2]
