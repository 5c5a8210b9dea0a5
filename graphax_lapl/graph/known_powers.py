"""Powers whose exponents are known integers or halves of some, as products and roots.

XLA's CPU compiler evaluates a general power one number at a time, in tens of nanoseconds; of known
exponents it rewrites 1/2, 1, 2 and 3.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .known_values import MAX_KNOWN_FLOAT, concrete_floats
from .listing import Atom
from .numpy_values import numpy_result

__all__ = ["Exponents", "lowered", "power", "product_form"]

#: Largest absolute exponent that is written as products: each of them rounds.
MOST = 8.0
#: Most exponents of an array that are looked at.
MOST_EXPONENTS = 1 << 12
#: Most different exponents of an array: each of its entries is raised to all of them.
MOST_DIFFERENT = 8
#: Floating-point numbers that are not rounded more coarsely than a power is.
DTYPES = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


class Exponents:
    """Floating-point constants that may be exponents, and what is computed of these."""

    def __init__(self, held: Callable[[Atom], np.ndarray | None]) -> None:
        """Begin without constants; `held` finds the values that are known in any case."""
        self._held = held
        self._halves: dict[Atom, np.ndarray] = {}

    def note_constant(self, variable: int, value: Any) -> None:
        """Note a constant of the trace."""
        found = concrete_floats(value)
        if found is not None and _are_halves(found):
            self._halves[variable] = found

    def note_result(
        self, equation: Any, operands: Sequence[Atom], output: int, shape: Sequence[int]
    ) -> None:
        """Note what an equation computes of noted constants and of known values alone."""
        if math.prod(shape) > MAX_KNOWN_FLOAT or self._halves.keys().isdisjoint(operands):
            return
        values = []
        for atom in operands:
            value = self.value(atom)
            if value is None:
                return
            values.append(value)
        found = numpy_result(equation.primitive.name, equation.params, values, shape)
        if found is not None and _are_halves(found):
            self._halves[output] = found

    def of(self, atom: Atom, dtype: Any) -> np.ndarray | None:
        """Exponents by which a power is made of products and roots; None where it is not.

        Args:
            atom: the second operand of the power.
            dtype: of the power.

        Returns:
            One for each entry, or a single one, in that dtype.
        """
        known = self.value(atom)
        if known is None or known.dtype.kind not in "iuf" or not known.size:
            return None
        first = known.ravel()[:1].reshape(())
        found = np.asarray(first if (known == first).all() else known, dtype)
        return found if _are_halves(found) else None

    def value(self, atom: Atom) -> np.ndarray | None:
        """What is known of an atom."""
        held = self._held(atom)
        return self._halves.get(atom) if held is None else held


def _are_halves(exponents: np.ndarray) -> bool:
    """Whether these are few different integers and halves of integers, none of them large."""
    if exponents.dtype not in DTYPES or not 0 < exponents.size <= MOST_EXPONENTS:
        return False
    halves = (np.abs(exponents) <= MOST) & (2 * exponents == np.floor(2 * exponents))
    return bool(halves.all()) and len(np.unique(exponents)) <= MOST_DIFFERENT


def product_form(exponents: np.ndarray) -> Callable[..., Any]:
    """What computes a power with known exponents, from its base and these."""
    return functools.partial(_of_base, exponents)


def power(x: jax.Array, exponents: float | np.ndarray) -> jax.Array:
    """x**exponents, by products and roots where these do."""
    known = np.asarray(exponents, x.dtype)
    if _are_halves(known):
        return _product(x, known)
    return lax.pow(x, known if known.ndim else known[()])


def lowered(exponents: np.ndarray) -> np.ndarray:
    """The exponents n - 1 of derivatives n x**(n - 1), which is 0 x**0 for n = 0."""
    return np.where(exponents == 0, 0, exponents - 1).astype(exponents.dtype)


def _of_base(exponents: np.ndarray, x: jax.Array, given: Any) -> jax.Array:
    del given
    return _product(x, exponents)


def _product(x: jax.Array, exponents: np.ndarray) -> jax.Array:
    different = np.unique(exponents).tolist()
    if len(different) == 1 and different[0].is_integer():
        return _integer_power(x, int(different[0]))
    shape = np.broadcast_shapes(x.shape, exponents.shape)

    @jax.custom_jvp
    def value(x: jax.Array) -> jax.Array:
        powers = [_single_power(x, exponent) for exponent in different]
        found = powers[0]
        for exponent, other in zip(different[1:], powers[1:], strict=True):
            chosen = np.broadcast_to(exponents == exponent, shape)
            found = lax.select(chosen, *(jnp.broadcast_to(own, shape) for own in (other, found)))
        return found

    def along(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        # By this rule the derivative is finite where n > 1 and x is zero; a root has none there.
        (x,), (tangent,) = primals, tangents
        return value(x), tangent * (exponents * power(x, lowered(exponents)))

    value.defjvp(along)
    return value(x)


def _single_power(x: jax.Array, exponent: float) -> jax.Array:
    if exponent.is_integer():
        return _integer_power(x, int(exponent))
    return _half_power(x, exponent)


def _integer_power(x: jax.Array, exponent: int) -> jax.Array:
    if exponent == 0:
        return lax.full_like(x, 1)
    return x if exponent == 1 else lax.integer_pow(x, exponent)


def _half_power(x: jax.Array, exponent: float) -> jax.Array:
    """A power with half an odd exponent; of infinities and zeros of both signs as `lax.pow`."""
    # The root of minus infinity is none, but its powers are those of infinity.
    infinity = x.dtype.type(np.inf)
    base = lax.select(lax.eq(x, -infinity), lax.full_like(x, infinity), x)
    whole = math.floor(abs(exponent))
    found = lax.sqrt(base)
    if whole:
        found = lax.mul(base if whole == 1 else lax.integer_pow(base, whole), found)
    if whole % 2 == 0:
        found = lax.abs(found)  # of a negative zero too
    return found if exponent > 0 else lax.div(x.dtype.type(1), found)
