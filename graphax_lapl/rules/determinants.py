"""Determinants, whose derivatives are written with the inverse, or with cofactors.

With B the inverse of A,

    d log|det A| = sum_ij B[j, i] dA[i, j],      dB[j, i] = - sum_kl B[j, k] B[l, i] dA[k, l]

(Petersen and Pedersen, The Matrix Cookbook, 2012, eqs. 43 and 40). So `slogdet` computes the
inverse once, and all columns of a second derivative are products with it, where the rule that JAX
derives solves with the matrix once per column. Of a complex matrix neither the logarithm's real
part nor the sign is holomorphic. Their common part is: with s the sign where the derivative is
taken, held fixed,

    log det A - log s = log|det A|  at this place,     log|det A| = Re(log det A - log s),
    sign = s exp(i Im(log det A - log s)).

So the call is written with that logarithm, which has the rule above.

`det` of two or three rows is a call with a rule of its own since JAX 0.12, which factorises the
matrix and solves; the second derivative is NaN at a singular matrix. Here it is the polynomial
`sum_ij C[i, j] dA[i, j]`, with the cofactors C.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.maps import label
from ..edges.terms import Factor, Term
from ..graph.inline import Rewritten
from ..graph.listing import nested_primitives
from ..graph.users_rules import is_users_rule, rule_is_written_in
from .registry import defrule
from .site import Local, Piece, Site

__all__ = ["known_call", "known_tangent", "layout_of_call", "placed", "rewritten_call"]


def known_call(name: str, params: dict[str, Any], orders: int) -> str | None:
    """The name under which a call has a rule as a whole, None for all others.

    A call is known by its program, so that nobody else's function is taken for it.

    Args:
        name: name of the primitive.
        params: its parameters.
        orders: how often it is differentiated.
    """
    if name != "custom_jvp_call":
        return None
    if rule_is_written_in(params, __file__):
        return "complex slogdet"
    if _holds_lu(params):
        known = not _is_complex(params) and layout_of_call(params, jnp.linalg.slogdet) is not None
        return "slogdet" if known else None
    if orders < 2 or is_users_rule(params) or "lu" not in nested_primitives(params):
        return None
    return "det" if layout_of_call(params, jnp.linalg.det) is not None else None


def rewritten_call(name: str, params: dict[str, Any]) -> Rewritten | None:
    """What stands in the place of a call of `slogdet` of a complex matrix, None for all others."""
    if name != "custom_jvp_call" or not _is_complex(params):
        return None
    if rule_is_written_in(params, __file__) or len(params["call_jaxpr"].out_avals) != 2:
        return None
    layout = layout_of_call(params, jnp.linalg.slogdet)
    if layout is None:
        return None
    if _holds_lu(params):
        return Rewritten(_slogdet_by_logarithm(layout))
    rows = params["call_jaxpr"].in_avals[0].shape[layout[-1]]
    return Rewritten(_slogdet_by_polynomial(layout)) if rows in (1, 2, 3) else None


def _holds_lu(params: dict[str, Any]) -> bool:
    return any(e.primitive.name == "lu" for e in params["call_jaxpr"].jaxpr.eqns[:4])


def _is_complex(params: dict[str, Any]) -> bool:
    dtype = params["call_jaxpr"].in_avals[0].dtype
    return bool(np.issubdtype(dtype, np.complexfloating))


def known_tangent(name: str, params: dict[str, Any]) -> Callable[..., Any] | None:
    """From the value and tangent of a call's argument to the tangent of its result."""
    if name != "custom_jvp_call" or is_users_rule(params):
        return None
    aval = params["call_jaxpr"].in_avals[0]
    if not any(size in (2, 3) for size in aval.shape):
        return None
    layout = layout_of_call(params, jnp.linalg.det)
    if layout is None or aval.shape[layout[-1]] not in (2, 3):
        return None
    return _tangent_of_det(layout)


def layout_of_call(params: dict[str, Any], function: Callable[..., Any]) -> tuple[int, ...] | None:
    """Dimensions of the argument of a determinant: those of the result, rows, columns.

    Under `jax.vmap` the argument is mapped along any of its dimensions, which the call's program
    brings to the front. None where the program is another one.
    """
    program = params["call_jaxpr"].jaxpr
    if len(program.invars) != 1:
        return None
    aval = program.invars[0].aval
    rank = aval.ndim
    for depth in range(rank - 1):
        for mapped in itertools.product(*(range(rank - n) for n in range(depth))):
            rest = list(range(rank))
            layout = (*(rest.pop(axis) for axis in mapped), *rest)
            square = aval.shape[layout[-2]] == aval.shape[layout[-1]]
            if square and str(program) == _program(function, aval.shape, str(aval.dtype), mapped):
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
def _slogdet_by_logarithm(layout: tuple[int, ...]) -> Callable[[Array], list[Array]]:
    def by_logarithm(matrix: Array) -> list[Array]:
        sign, logarithm = _sign_and_logarithm(lax.transpose(matrix, layout))
        size, angle = lax.real(logarithm), lax.imag(logarithm)
        return [sign * lax.exp(lax.complex(lax.full_like(angle, 0), angle)), size]

    return by_logarithm


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
def _sign_and_logarithm(matrix: Array) -> tuple[Array, Array]:
    """The sign s of a determinant, which is held fixed, and log det - log s, a complex number."""
    sign, size = jnp.linalg.slogdet(matrix)
    return sign, lax.convert_element_type(size, sign.dtype)


@_sign_and_logarithm.defjvp
def _sign_and_logarithm_jvp(primals: Any, tangents: Any) -> Any:
    ((matrix,), (moved,)) = (primals, tangents)
    sign, logarithm = _sign_and_logarithm(matrix)
    turned = jnp.trace(jnp.linalg.solve(matrix, moved), axis1=-1, axis2=-2)
    return (sign, logarithm), (lax.full_like(sign, 0), turned)


@defrule("slogdet")
def _slogdet(site: Site, i: int, k: int) -> list[Piece]:
    """The sign is constant; the logarithm moves with the transposed inverse."""
    if k == 0:
        return []
    layout = layout_of_call(site.params, jnp.linalg.slogdet)
    assert layout is not None
    return _by_inverse(site, i, layout)


@defrule("complex slogdet")
def _complex_slogdet(site: Site, i: int, k: int) -> list[Piece]:
    """As of a real matrix; its dimensions are in order."""
    return [] if k == 0 else _by_inverse(site, i, tuple(range(len(site.shape(i)))))


def _by_inverse(site: Site, i: int, layout: tuple[int, ...]) -> list[Piece]:
    shape = tuple(site.shape(i)[d] for d in layout)
    batch = len(shape) - 2
    rows, columns = label(batch), label(batch + 1)
    leading = [label(n) for n in range(batch)]
    name = f"inverse {layout}"
    inverse = Local(name, _inverse(layout), (site.value(i),), shape, _inverse_slope(layout))
    factor = Factor((*leading, columns, rows), shape)
    into = placed(layout, [*leading, rows, columns])
    return site.piece(shape, leading, into, [(inverse, factor)])


def placed(layout: tuple[int, ...], maps: Sequence[Any]) -> list[Any]:
    """Maps of (batch, rows, columns) in the order of the argument's dimensions."""
    return [maps[layout.index(d)] for d in range(len(layout))]


@functools.lru_cache(maxsize=256)
def _inverse(layout: tuple[int, ...]) -> Callable[[Array], Array]:
    def inverse(matrix: Array) -> Array:
        return jnp.linalg.inv(lax.transpose(matrix, layout))

    return inverse


@functools.lru_cache(maxsize=256)
def _inverse_slope(layout: tuple[int, ...]) -> Callable[[Local], list[tuple[int, Piece]]]:
    def slope(reference: Local) -> list[tuple[int, Piece]]:
        shape = reference.shape
        batch, size = len(shape) - 2, shape[-1]
        leading = tuple(label(n) for n in range(batch))
        j, i, k, m = (label(batch + n) for n in range(4))
        term = Term(
            (*shape[:-2], size, size, size, size),
            (*leading, j, i),
            tuple(placed(layout, (*leading, k, m))),
            (Factor((*leading, j, k), shape), Factor((*leading, m, i), shape)),
            -1,
        )
        return [(0, Piece(term, (reference, reference)))]

    return slope


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
