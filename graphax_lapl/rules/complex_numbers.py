"""Between real and complex arrays; see `edges.terms` for what a term means there."""

from __future__ import annotations

from functools import cache

import jax
from jax import Array, lax
from jax.extend.core import Literal

from .registry import defrule
from .site import Local, Piece, Site


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
