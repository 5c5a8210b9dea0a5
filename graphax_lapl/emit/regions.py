"""Entrywise expressions under a sum, evaluated and differentiated as a whole.

A loop that evaluates both sines of an array by polynomials, and what is made of them, writes one
array; sines in memory are three passes more. Whether the arguments are small enough for polynomials
is seen in the sum: it is NaN where they are not, and then evaluated again. Asking before is one
more pass, for which all cores wait.

Reverse mode of an expression stores what each of its operations needs, and XLA writes most of that
to memory. With few moving arguments the partials of the whole are fewer arrays: they are forward
derivatives along ones, since entries do not mix.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from ..program.fusion import HOLDING, UNBOUNDED
from ..program.sines import SINES_SIZE
from ..program.summed import SINES_INSIDE
from ..program.timings import PRIMITIVES
from .holding import held, known_size
from .innermost import samples_first
from .sines import (
    Pair,
    by_library,
    by_polynomials_within_sums,
    sine_and_cosine,
    where_polynomials_fit,
)

__all__ = ["evaluated", "sum_of_products", "summed"]

#: The expression as a function of the pairs of sines and of its arguments.
Body = Callable[[Sequence[Pair], Sequence[Array]], Array]
#: Moving arguments up to which partials of the whole are taken.
FEW = 2
#: Elements from which on a sum takes an expression of sines from memory.
HELD = (math.ceil(HOLDING / PRIMITIVES["cos"]), UNBOUNDED)


def evaluated(body: Body, arguments: tuple[int, ...], inputs: Sequence[Array]) -> Array:
    """An expression, with sines of a library and a rule for `jax.jvp`.

    Args:
        body: the expression; it must not capture traced arrays.
        arguments: the inputs that sines are taken of.
        inputs: what it is made of.
    """

    @jax.custom_jvp
    def whole(*inputs: Array) -> Array:
        # As beside a tangent, where the sines have it so.
        return samples_first(body([by_library(inputs[k]) for k in arguments], inputs))

    whole.defjvp(functools.partial(_differentiated, body, arguments), symbolic_zeros=True)
    result: Array = whole(*inputs)
    return result


def summed(
    body: Body,
    arguments: tuple[int, ...],
    inputs: Sequence[Array],
    factors: Sequence[Array],
) -> Array:
    """The sum of an expression of sines, with rules for `jax.jvp` and `jax.vmap`.

    Args:
        body: the expression; it must not capture traced arrays.
        arguments: the inputs that sines are taken of.
        inputs: what it is made of.
        factors: an array that the expression is multiplied by, if any.
    """
    count = len(inputs)

    def library(*operands: Array) -> Array:
        own = operands[:count]
        expression = body([by_library(own[k]) for k in arguments], own)
        if SINES_INSIDE and len(operands) > count:
            return sum_of_products(expression, *operands[count:])
        if SINES_INSIDE:
            return _sum(expression)
        return _sum(held(expression, HELD), *operands[count:])

    def polynomials(*operands: Array) -> Array:
        own = operands[:count]
        expression = body([by_polynomials_within_sums(own[k]) for k in arguments], own)
        for k in arguments:
            expression = where_polynomials_fit(own[k], expression)
        # A product with ones: XLA's sums of rows are no vector instructions.
        return _sum(expression, *(operands[count:] or [jnp.ones_like(expression)]))

    def differentiated(primals: Any, tangents: Any) -> tuple[Array, Any]:
        own = _differentiated(body, arguments, primals[:count], tangents[:count])
        moving = [
            k for k, t in enumerate(tangents) if k >= count and not isinstance(t, SymbolicZero)
        ]

        def along(expression: Array, *chosen: Array) -> Array:
            factors = list(primals[count:])
            for k, value in zip(moving, chosen, strict=True):
                factors[k - count] = value
            return _sum(expression, *factors)

        return jax.jvp(
            along,
            (own[0], *(primals[k] for k in moving)),
            (own[1], *(tangents[k] for k in moving)),
        )

    whole = jax.custom_jvp(_guarded(polynomials, library, arguments))
    whole.defjvp(differentiated, symbolic_zeros=True)
    result: Array = whole(*inputs, *factors)
    return result


def _guarded(
    polynomials: Callable[..., Array], library: Callable[..., Array], arguments: tuple[int, ...]
) -> Callable[..., Array]:
    """With polynomials for large batches of arguments that they are made for."""

    def guarded(*operands: Array) -> Array:
        found = polynomials(*operands)
        again = jnp.any(lax.ne(found, found))
        return lax.cond(again, library, lambda *operands: found, *operands)

    @custom_vmap
    def run(*operands: Array) -> Array:
        if any(known_size(operands[k]) < SINES_SIZE for k in arguments):
            return library(*operands)
        return lax.platform_dependent(*operands, cpu=guarded, default=library)

    @run.def_vmap
    def _(size: int, batched: list[bool], *operands: Array) -> tuple[Array, bool]:
        del size
        axes = tuple(0 if own else None for own in batched)
        first, second = (jax.vmap(form, in_axes=axes) for form in (polynomials, library))
        return _guarded(first, second, arguments)(*operands), True

    return run


def _differentiated(
    body: Body, arguments: tuple[int, ...], primals: Any, tangents: Any
) -> tuple[Array, Any]:
    """Value and tangent, the latter by partials of the whole where few arguments move."""
    moving = [k for k, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]

    def along(*chosen: Array) -> Array:
        inputs = list(primals)
        for k, value in zip(moving, chosen, strict=True):
            inputs[k] = value
        return body([sine_and_cosine(inputs[k]) for k in arguments], inputs)

    if len(moving) > FEW:
        return jax.jvp(along, [primals[k] for k in moving], [tangents[k] for k in moving])
    pairs = [sine_and_cosine(primals[k]) for k in arguments]
    value = body(pairs, primals)
    tangent = jnp.zeros_like(value)
    # Evaluated again for the partials: what both read would be written to memory, operation by
    # operation.
    again = list(primals)
    for k in moving:
        again[k] = held(primals[k], (2, UNBOUNDED))
    for number, k in enumerate(moving):
        own = [n for n, argument in enumerate(arguments) if argument == k]

        def partial(x: Array, *mine: Array, k: int = k, own: list[int] = own) -> Array:
            inputs, sines = list(again), list(pairs)
            inputs[k] = x
            for n, place in enumerate(own):
                sines[place] = (mine[2 * n], mine[2 * n + 1])
            return body(sines, inputs)

        values, seeds = [again[k]], [jnp.ones_like(again[k])]
        for place in own:
            sine, cosine = pairs[place]
            values += [sine, cosine]
            seeds += [cosine, lax.neg(sine)]
        # A library that sums takes what it can of the expression into its loop, and the rest would
        # be in memory piece by piece.
        slope = held(jax.jvp(partial, values, seeds)[1], (2, UNBOUNDED))
        part = lax.convert_element_type(slope * tangents[k], value.dtype)
        tangent = part if number == 0 else lax.add(tangent, part)
    return value, tangent


def _sum(expression: Array, *factors: Array) -> Array:
    """All entries, or all products with those of another array, summed."""
    axes = tuple(range(expression.ndim))
    if not factors:
        return lax.reduce_sum(expression, axes)
    (factor,) = factors
    numbers = ((axes, axes), ((), ()))
    return lax.dot_general(expression, factor, numbers, precision=lax.Precision.HIGHEST)


@jax.custom_jvp
def sum_of_products(expression: Array, factor: Array) -> Array:
    """The dot product of two arrays of one shape, for XLA's library a sum with all that is inside.

    Differentiated it is a dot product, whose operands are in memory. The library takes a sum of
    products for one as well; a sum of sums of the two halves it does not.
    """
    half = lax.mul(expression, lax.mul(factor, lax.full_like(factor, 0.5)))
    return lax.reduce_sum(lax.add(half, half), range(half.ndim))


@sum_of_products.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return jax.jvp(_sum, primals, tangents)
