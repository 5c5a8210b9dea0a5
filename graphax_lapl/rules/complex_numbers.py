"""Between real and complex arrays; see `edges.terms` for what a term means there.

A second derivative of a real function of a complex number is not a complex product, nor the real
part of one. So where two derivatives are taken, the magnitude of z = x + iy is one of x and y:

    d|z| = c dx + s dy,     d2|z| = (s dx - c dy)^2 / |z|,     c = x / |z|,     s = y / |z|.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
from jax import Array, lax
from jax.extend.core import Literal

from ..edges.maps import label
from ..edges.terms import Factor, Term
from ..graph.inline import Rewritten
from .matrix_calls import KNOWN_BY
from .registry import defrule
from .site import Local, Piece, Site

__all__ = ["rewritten_abs"]


@defrule("real")
def _real(site: Site, i: int, k: int) -> list[Piece]:
    """Re(dz)."""
    del k
    return site.diagonal(i)


@defrule("imag")
def _imag(site: Site, i: int, k: int) -> list[Piece]:
    """Im(dz) = Re(-i dz)."""
    del k
    return site.diagonal(i, None, -1j)


@defrule("conj")
def _conj(site: Site, i: int, k: int) -> list[Piece]:
    """conj(dz); of a real input, the identity."""
    del k
    return site.diagonal(i, conj=site.inputs[i].is_complex)


@defrule("complex")
def _complex(site: Site, i: int, k: int) -> list[Piece]:
    """Dx + i dy."""
    del k
    return site.diagonal(i, None, 1 if i == 0 else 1j)


@defrule("sign")
def _sign(site: Site, i: int, k: int) -> list[Piece]:
    """Of s = z / |z|: (dz - s^2 conj(dz)) / (2 |z|), and zero at zero; of a real number zero."""
    del k
    if not site.inputs[i].is_complex or not _signs_turn():
        return []
    z, s = site.value(i), site.out()
    turning = Local("1/(2|z|)", _half_of_reciprocal, (z,), site.out_shape)
    turned = Local("s^2/(2|z|)", _turned_back, (z, s), site.out_shape)
    return site.diagonal(i, turning) + site.diagonal(i, turned, -1, conj=True)


@cache
def _signs_turn() -> bool:
    """Whether JAX differentiates signs of complex numbers; before 0.12 they were constant."""
    tangent = jax.make_jaxpr(lambda z: jax.jvp(lax.sign, (z,), (z,))[1])(1j)
    return not isinstance(tangent.jaxpr.outvars[0], Literal)


def _half_of_reciprocal(z: Array) -> Array:
    size = lax.abs(z)
    at_zero = lax.eq(size, lax.full_like(size, 0))
    half = lax.select(at_zero, size, lax.full_like(size, 0.5))
    return lax.div(half, lax.select(at_zero, lax.full_like(size, 1), size)).astype(z.dtype)


def _turned_back(z: Array, s: Array) -> Array:
    return s * s * _half_of_reciprocal(z)


def rewritten_abs(name: str, is_complex: bool, orders: int) -> Rewritten | None:
    """What stands in the place of `abs`, None for all others.

    Args:
        name: of the primitive.
        is_complex: whether its first operand is.
        orders: how often it is differentiated.
    """
    return Rewritten(_by_parts) if name == "abs" and is_complex and orders >= 2 else None


def _by_parts(z: Array) -> list[Array]:
    return [_magnitude(lax.real(z), lax.imag(z))]


@jax.custom_jvp
def _magnitude(x: Array, y: Array) -> Array:
    """|x + iy|."""
    return lax.abs(lax.complex(x, y))


@_magnitude.defjvp
def _magnitude_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    size = _magnitude(*primals)
    shares = [_share(part, size) * moved for part, moved in zip(primals, tangents, strict=True)]
    return size, shares[0] + shares[1]


KNOWN_BY[__file__] = "magnitude"


@defrule("magnitude")
def _rule_of_magnitude(site: Site, i: int, k: int) -> list[Piece]:
    """The share that either part has; their own derivatives are those of two turned parts."""
    parts = (site.value(i), site.value(1 - i), site.out(k))
    share = Local("x/|z|", _first_share, parts, site.out_shape, _turning)
    return site.diagonal(i, share)


def _turning(share: Local) -> list[tuple[int, Piece]]:
    """Of x / |z|, along x and along y."""
    axes = tuple(label(d) for d in range(len(share.shape)))
    found = []
    for place, fun in enumerate((_along_itself, _along_the_other)):
        slope = Local(f"d(x/|z|)/d{'xy'[place]}", fun, share.arguments, share.shape)
        term = Term(share.shape, axes, axes, (Factor(axes, share.shape),))
        found.append((place, Piece(term, (slope,))))
    return found


def _share(part: Array, size: Array) -> Array:
    return lax.div(part, _above_zero(size))


def _first_share(x: Array, y: Array, size: Array) -> Array:
    del y
    return _share(x, size)


def _along_itself(x: Array, y: Array, size: Array) -> Array:
    """At zero one, as JAX has it."""
    share, one = _share(y, size), lax.full_like(x, 1)
    return lax.div(
        lax.select(lax.eq(size, lax.full_like(size, 0)), one, share * share), _above_zero(size)
    )


def _along_the_other(x: Array, y: Array, size: Array) -> Array:
    return lax.div(-_share(x, size) * _share(y, size), _above_zero(size))


def _above_zero(size: Array) -> Array:
    return lax.select(lax.eq(size, lax.full_like(size, 0)), lax.full_like(size, 1), size)
