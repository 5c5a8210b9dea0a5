"""Determinants, whose derivatives are written with the inverse, or with cofactors.

With B the inverse of A,

    d log|det A| = sum_ij B[j, i] dA[i, j],      dB[j, i] = - sum_kl B[j, k] B[l, i] dA[k, l]

(Petersen and Pedersen, The Matrix Cookbook, 2012, eqs. 43 and 40). So `slogdet` computes the
inverse once, beside its value, and all columns of a second derivative are products with it, as
is the reverse pass of a training step, where the rule that JAX derives solves with the matrix once
per column. Of a complex matrix neither the logarithm's real part nor the sign is holomorphic. Their
common part is: with s the sign where the derivative is taken, held fixed,

    log det A - log s = log|det A|  at this place,     log|det A| = Re(log det A - log s),
    sign = s exp(i Im(log det A - log s)).

So the call is written with that logarithm, which has the rule above.

`det` of two or three rows is a call with a rule of its own since JAX 0.12, which factorises the
matrix and solves; the second derivative is NaN at a singular matrix. Here it is the polynomial
`sum_ij C[i, j] dA[i, j]`, with the cofactors C.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.maps import label
from ..edges.terms import Factor
from ..graph.inline import Rewritten
from ..graph.listing import nested_primitives
from ..graph.users_rules import is_users_rule
from .adjugates import determinants_once
from .cofactors import determinants_twice
from .factors import inverse_of, sign_and_logarithm
from .inverses import inverse_moves, moved_inverse
from .matrix_calls import KNOWN_BY, layout_of, of_layout
from .registry import defrule
from .site import Local, Piece, Site

__all__ = ["known_tangent", "rewritten_det", "rewritten_slogdet"]


def rewritten_slogdet(name: str, params: dict[str, Any]) -> Rewritten | None:
    """What stands in the place of a call of `slogdet`, None for all others."""
    if name != "custom_jvp_call" or len(params["call_jaxpr"].out_avals) != 2:
        return None
    by_factors = any(e.primitive.name == "lu" for e in params["call_jaxpr"].jaxpr.eqns[:4])
    aval = params["call_jaxpr"].in_avals[0]
    is_complex = bool(np.issubdtype(aval.dtype, np.complexfloating))
    if not (by_factors or is_complex):
        return None
    layout = layout_of(params["call_jaxpr"].jaxpr, jnp.linalg.slogdet)
    if layout is None:
        return None
    if by_factors:
        return Rewritten(of_layout(_complex_slogdet if is_complex else _real_slogdet, layout))
    return (
        Rewritten(_slogdet_by_polynomial(layout)) if aval.shape[layout[-1]] in (1, 2, 3) else None
    )


def rewritten_det(name: str, params: dict[str, Any], orders: int) -> Rewritten | None:
    """What stands in the place of a call of `det` that factorises, None for all others.

    Args:
        name: name of the primitive.
        params: its parameters.
        orders: how often it is differentiated.
    """
    if name != "custom_jvp_call" or is_users_rule(params):
        return None
    if "lu" not in nested_primitives(params):
        return None
    layout = layout_of(params["call_jaxpr"].jaxpr, jnp.linalg.det)
    if layout is None:
        return None
    if 0 in params["call_jaxpr"].in_avals[0].shape:
        return Rewritten(of_layout(_products_of_nothing, layout))
    return Rewritten(of_layout(determinants_twice if orders >= 2 else determinants_once, layout))


def _products_of_nothing(matrix: Array) -> list[Array]:
    """Determinants of no rows, of which JAX has no derivative."""
    return [jnp.ones(matrix.shape[:-2], matrix.dtype)]


def known_tangent(name: str, params: dict[str, Any]) -> Callable[..., Any] | None:
    """From the value and tangent of a call's argument to the tangent of its result."""
    if name != "custom_jvp_call" or is_users_rule(params):
        return None
    aval = params["call_jaxpr"].in_avals[0]
    if not any(size in (2, 3) for size in aval.shape):
        return None
    layout = layout_of(params["call_jaxpr"].jaxpr, jnp.linalg.det)
    if layout is None or aval.shape[layout[-1]] not in (2, 3):
        return None
    return _tangent_of_det(layout)


def _real_slogdet(matrix: Array) -> list[Array]:
    return list(_slogdet(matrix)[:2])


def _complex_slogdet(matrix: Array) -> list[Array]:
    sign, logarithm, _ = _slogdet(matrix)
    size, angle = lax.real(logarithm), lax.imag(logarithm)
    return [sign * lax.exp(lax.complex(lax.full_like(angle, 0), angle)), size]


@functools.lru_cache(maxsize=256)
def _slogdet_by_polynomial(layout: tuple[int, ...]) -> Callable[[Array], list[Array]]:
    """Of one to three rows; JAX's own has a sign that does not turn in its body before 0.12."""

    def by_polynomial(matrix: Array) -> list[Array]:
        a, size = _entries(lax.transpose(matrix, layout)), matrix.shape[layout[-1]]
        terms = [a[0, j] * _cofactor(a, 0, j, size) for j in range(size)]
        determinant = functools.reduce(operator.add, terms)
        magnitude = lax.abs(determinant)
        divisor = lax.select(magnitude == 0, lax.full_like(magnitude, 1), magnitude)
        sign = determinant / lax.convert_element_type(divisor, determinant.dtype)
        return [sign, lax.log(magnitude)]

    return by_polynomial


@jax.custom_jvp
def _slogdet(matrix: Array) -> tuple[Array, Array, Array]:
    """The sign s of a determinant, which is held fixed, log det - log s, and the inverse."""
    if jnp.iscomplexobj(matrix):
        sign, size = jnp.linalg.slogdet(matrix)
        return sign, lax.convert_element_type(size, sign.dtype), inverse_of(matrix)
    return *sign_and_logarithm(matrix), inverse_of(matrix)


@_slogdet.defjvp
def _slogdet_jvp(primals: Any, tangents: Any) -> Any:
    ((matrix,), (moved,)) = (primals, tangents)
    sign, logarithm, inverse = _slogdet(matrix)
    turned = jnp.sum(inverse.mT * moved, (-2, -1))
    slopes = (lax.full_like(sign, 0), turned, moved_inverse(inverse, moved))
    return (sign, logarithm, inverse), slopes


KNOWN_BY[__file__] = "slogdet"


@defrule("slogdet")
def _rule(site: Site, i: int, k: int) -> list[Piece]:
    """The sign is constant; the logarithm moves with the transposed inverse."""
    if k != 1:
        return []
    shape = site.shape(i)
    batch = len(shape) - 2
    rows, columns = label(batch), label(batch + 1)
    leading = [label(n) for n in range(batch)]
    inverse = Local("inverse", _first, (site.out(2), site.value(i)), shape, _inverse_slope)
    factor = Factor((*leading, columns, rows), shape)
    return site.piece(shape, leading, [*leading, rows, columns], [(inverse, factor)])


def _first(inverse: Array, matrix: Array) -> Array:
    del matrix
    return inverse


def _inverse_slope(reference: Local) -> list[tuple[int, Piece]]:
    return [(1, Piece(inverse_moves(reference.shape), (reference, reference)))]


@functools.lru_cache(maxsize=256)
def _tangent_of_det(layout: tuple[int, ...]) -> Callable[[Array, Array], Array]:
    def tangent(matrix: Array, moved: Array) -> Array:
        a, da = (_entries(lax.transpose(array, layout)) for array in (matrix, moved))
        size = matrix.shape[layout[-1]]
        terms = [_cofactor(a, i, j, size) * entry for (i, j), entry in da.items()]
        return functools.reduce(operator.add, terms)

    return tangent


def _entries(matrix: Array) -> dict[tuple[int, int], Array]:
    """An array of each entry of the matrices in an array."""
    rows, columns = matrix.shape[-2:]
    return {(i, j): matrix[..., i, j] for i in range(rows) for j in range(columns)}


def _cofactor(a: dict[tuple[int, int], Array], i: int, j: int, size: int) -> Array:
    """The derivative of a determinant with respect to one entry."""
    if size == 1:
        return lax.full_like(a[0, 0], 1)
    if size == 2:
        return a[1 - i, 1 - j] if i == j else -a[1 - i, 1 - j]
    (k, m), (n, p) = (((row + 1) % 3, (row + 2) % 3) for row in (i, j))
    return a[k, n] * a[m, p] - a[k, p] * a[m, n]
