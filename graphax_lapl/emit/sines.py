"""Sines and cosines on a processor: both of an array at once, by vector instructions.

XLA's CPU compiler calls the C library for every sine and every cosine, 4 to 8 ns each, where a
polynomial takes 0.2. Here an argument x is reduced to r = x - n pi / 2 with pi / 2 as a sum of
parts so short that their products with n are exact (Cody, Waite, Software Manual for the Elementary
Functions, 1980, chapter 8), and both functions of r are polynomials. Results are
within 1.1 units in the last place. Where an array holds a larger argument than n is made for, or an
infinite one, the library is called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from ..program.sines import SINES_SIZE
from .holding import known_size
from .innermost import samples_first
from .packing import piled, unpiled

__all__ = [
    "Pair",
    "by_library",
    "by_polynomials",
    "by_polynomials_within_sums",
    "sine_and_cosine",
    "sine_and_cosine_from",
    "sine_and_cosine_inside",
    "sines_and_cosines_from",
    "where_polynomials_fit",
]

Pair = tuple[Array, Array]


class _Evaluation(NamedTuple):
    """What the evaluation takes in one dtype.

    Attributes:
        limit: largest argument; n has as many bits as the parts leave.
        half_pi: parts of pi / 2, the largest first.
        sine: coefficients of r^2 in (sin(r) / r - 1) / r^2, of the highest power first.
        cosine: coefficients of r^2 in (cos(r) - 1 + r^2 / 2) / r^4, likewise.
    """

    limit: float
    half_pi: tuple[float, ...]
    sine: tuple[float, ...]
    cosine: tuple[float, ...]


def _hex(*numbers: str) -> tuple[float, ...]:
    return tuple(map(float.fromhex, numbers))


#: Parts of 14 and 33 bits and a rest. The polynomials interpolate at the Chebyshev points of
#: |r| <= pi / 4, with an error of 0.2 units in the last place.
_EVALUATIONS: Mapping[Any, _Evaluation] = {
    np.dtype(np.float32): _Evaluation(
        1600.0,
        _hex("0x1.9218p0", "0x1.ed5p-14", "0x1.10bp-30", "0x1.184698p-44"),
        (-0.000195878412341699, 0.008332747966051102, -0.166666641831398),
        (2.454789137118496e-05, -0.001388830249197781, 0.0416666641831398),
    ),
    np.dtype(np.float64): _Evaluation(
        1.6e6,
        _hex("0x1.921fb544p0", "0x1.0b4611a6p-34", "0x1.3198a2ep-69", "0x1.b839a252049c1p-104"),
        (
            1.591810123027412e-10,
            -2.5051131455427946e-08,
            2.755731610068303e-06,
            -0.0001984126983675497,
            0.008333333333330946,
            -0.16666666666666666,
        ),
        (
            -1.1382614868556325e-11,
            2.0876146024689747e-09,
            -2.7557317270560326e-07,
            2.4801587298763433e-05,
            -0.0013888888888887395,
            0.041666666666666664,
        ),
    ),
}


@jax.custom_jvp
def sine_and_cosine(x: Array) -> Pair:
    """Sine and cosine of an array; of a large one in memory before anything reads them (on a CPU).

    Under `jax.vmap` the size of the whole batch decides.
    """
    return sine_and_cosine_from(SINES_SIZE)(x)


def _differentiated(primals: Any, tangents: Any) -> tuple[Pair, Any]:
    """The pair, evaluated together, and its tangents; those of further arguments play no part."""
    sine, cosine = sine_and_cosine(primals[0])
    tangent = tangents[0]
    if isinstance(tangent, SymbolicZero):
        return (sine, cosine), (tangent, tangent)
    return (sine, cosine), (lax.mul(cosine, tangent), lax.neg(lax.mul(sine, tangent)))


sine_and_cosine.defjvp(_differentiated)


@jax.custom_jvp
def sine_and_cosine_inside(x: Array, *inputs: Array) -> Pair:
    """The same, left to the loops of their readers where nothing is differentiated.

    Args:
        x: an array.
        inputs: what the program is differentiated with respect to. The derivative's kernels read
            both functions although x itself may not move.
    """
    del inputs
    x = samples_first(x)
    return lax.sin(x), lax.cos(x)


sine_and_cosine_inside.defjvp(_differentiated, symbolic_zeros=True)


@functools.lru_cache(maxsize=256)
def sine_and_cosine_from(least: int) -> Callable[[Array], Pair]:
    """The same for arrays of at least so many numbers, without a rule for derivatives."""

    @custom_vmap
    def both(x: Array) -> Pair:
        if known_size(x) < least or x.dtype not in _EVALUATIONS:
            return by_library(x)
        return lax.platform_dependent(x, cpu=_guarded, default=by_library)

    @both.def_vmap
    def _(size: int, batched: list[bool], x: Array) -> tuple[Pair, tuple[bool, bool]]:
        del size, batched
        return both(x), (True, True)

    result: Callable[[Array], Pair] = both
    return result


@functools.lru_cache(maxsize=256)
def sines_and_cosines_from(least: int) -> Callable[[Sequence[Array]], list[Pair]]:
    """The same for several numbers of one dtype, which a batch evaluates as one array.

    Each array is a condition and kernels in front of it and behind it.
    """
    both = sine_and_cosine_from(least)

    @custom_vmap
    def all_of(numbers: list[Array]) -> list[Pair]:
        return [both(x) for x in numbers]

    @all_of.def_vmap
    def _(size: int, batched: list[Any], numbers: list[Array]) -> tuple[list[Pair], Any]:
        del size
        (own,) = batched
        if len(numbers) == 1 or not all(own):
            return [both(x) for x in numbers], [(moves, moves) for moves in own]
        sines, cosines = (unpiled(pile, len(numbers)) for pile in both(piled(numbers)))
        return [*zip(sines, cosines, strict=True)], [(True, True)] * len(numbers)

    return lambda numbers: list(all_of(list(numbers)))


def by_library(x: Array) -> Pair:
    """JAX's functions."""
    return lax.sin(x), lax.cos(x)


def _guarded(x: Array) -> Pair:
    return lax.cond(_fits_polynomials(x), by_polynomials, by_library, x)


def _fits_polynomials(x: Array) -> Array:
    """Whether polynomials are made for all arguments."""
    # NaN is no reason to call the library, but it may hide a large argument.
    return jnp.max(lax.abs(x)) <= _EVALUATIONS[x.dtype].limit


def by_polynomials(x: Array) -> Pair:
    """Both by polynomials, for arguments that they are made for."""
    evaluation = _EVALUATIONS[x.dtype]
    n = _quarters(x)
    first, second, third, last = (n * x.dtype.type(part) for part in evaluation.half_pi)
    high = x - first  # exact, as are the first three products
    middle = high - second
    lost = (high - middle) - second  # zero where little of the argument is left
    low = third - lost
    r = middle - low
    rest = ((middle - r) - low) - last
    z = r * r
    sine = r + (r * (z * _polynomial(evaluation.sine, z)) + rest)
    cosine = 1 - (z * 0.5 - (z * (z * _polynomial(evaluation.cosine, z)) - r * rest))
    of_sine, of_cosine = _turned(sine, cosine, n)
    return lax.select(x == 0, x, of_sine), of_cosine


def by_polynomials_within_sums(x: Array) -> Pair:
    """Both in fewer operations, within 2.5 units in the last place."""
    evaluation = _EVALUATIONS[x.dtype]
    n, r = _quarters(x), x
    for part in evaluation.half_pi:
        r = r - n * x.dtype.type(part)  # rounded where the argument leaves much, and then once more
    z = r * r
    sine = r + r * (z * _polynomial(evaluation.sine, z))
    cosine = 1 - (z * 0.5 - z * (z * _polynomial(evaluation.cosine, z)))
    of_sine, of_cosine = _turned(sine, cosine, n)
    return lax.select(x == 0, x, of_sine), of_cosine


def where_polynomials_fit(x: Array, value: Array) -> Array:
    """The value, and NaN where the argument is none that polynomials are made for."""
    fits = lax.abs(x) <= _EVALUATIONS[x.dtype].limit
    return lax.select(fits, value, lax.full_like(value, np.nan))


def _quarters(x: Array) -> Array:
    """The nearest multiple of pi / 2."""
    return lax.round(x * x.dtype.type(2 / np.pi), lax.RoundingMethod.TO_NEAREST_EVEN)


def _turned(sine: Array, cosine: Array, n: Array) -> Pair:
    """Those of an argument that is larger by n times pi / 2."""
    quadrant = _last_bits(n)
    odd = (quadrant & 1) == 1
    of_sine, of_cosine = lax.select(odd, cosine, sine), lax.select(odd, sine, cosine)
    return _negated(of_sine, quadrant), _negated(of_cosine, quadrant + 1)


def _last_bits(n: Array) -> Array:
    """Integers of which the last bits are those of whole numbers, in two's complement.

    A conversion would be guarded against numbers that are too large for integers.
    """
    shift = n.dtype.type(1.5 * 2.0 ** jnp.finfo(n.dtype).nmant)
    return lax.bitcast_convert_type(n + shift, np.dtype(f"int{n.dtype.itemsize * 8}"))


def _negated(value: Array, quadrant: Array) -> Array:
    """The value with the opposite sign where the second bit is set."""
    sign = (quadrant & 2) << (value.dtype.itemsize * 8 - 2)
    bits = lax.bitcast_convert_type(value, quadrant.dtype) ^ sign
    return lax.bitcast_convert_type(bits, value.dtype)


def _polynomial(coefficients: tuple[float, ...], z: Array) -> Array:
    """Horner's rule, from the coefficient of the highest power on."""
    first, *rest = coefficients
    value: Any = z.dtype.type(first)
    for coefficient in rest:
        value = value * z + z.dtype.type(coefficient)
    result: Array = value
    return result
