"""Entrywise expressions under a sum, evaluated and differentiated as a whole.

A loop that evaluates both sines of an array by polynomials, and what is made of them, writes one
array; sines in memory are three passes more. Whether the arguments are small enough for polynomials
is decided for all of them before.

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
from .sines import Pair, by_library, by_polynomials, fits_polynomials, sine_and_cosine

__all__ = ["evaluated", "sum_of_products"]

#: The expression as a function of the pairs of sines and of its arguments.
Body = Callable[[Sequence[Pair], Sequence[Array]], Array]
#: Moving arguments up to which partials of the whole are taken.
FEW = 2
#: Elements from which on a sum takes an expression of sines from memory.
HELD = (math.ceil(HOLDING / PRIMITIVES["cos"]), UNBOUNDED)


def evaluated(body: Body, arguments: tuple[int, ...], inputs: Sequence[Array]) -> Array:
    """The expression, with rules for `jax.jvp` and `jax.vmap`.

    Args:
        body: the expression; it must not capture traced arrays.
        arguments: the inputs that sines are taken of.
        inputs: what it is made of.
    """

    @jax.custom_jvp
    def whole(*inputs: Array) -> Array:
        if not arguments:
            return body((), inputs)
        if SINES_INSIDE:
            return body([by_library(inputs[k]) for k in arguments], inputs)
        return _guarded(body, arguments)(*inputs)

    whole.defjvp(functools.partial(_differentiated, body, arguments), symbolic_zeros=True)
    result: Array = whole(*inputs)
    return result


def _guarded(body: Body, arguments: tuple[int, ...]) -> Callable[..., Array]:
    """With polynomials for large batches of arguments that they are made for."""

    def library(*inputs: Array) -> Array:
        return held(body([by_library(inputs[k]) for k in arguments], inputs), HELD)

    def polynomials(*inputs: Array) -> Array:
        return body([by_polynomials(inputs[k]) for k in arguments], inputs)

    def guarded(*inputs: Array) -> Array:
        small = functools.reduce(lax.bitwise_and, [fits_polynomials(inputs[k]) for k in arguments])
        return lax.cond(small, polynomials, library, *inputs)

    @custom_vmap
    def run(*inputs: Array) -> Array:
        if any(known_size(inputs[k]) < SINES_SIZE for k in arguments):
            return library(*inputs)
        return lax.platform_dependent(*inputs, cpu=guarded, default=library)

    @run.def_vmap
    def _(size: int, batched: list[bool], *inputs: Array) -> tuple[Array, bool]:
        del size
        axes = tuple(0 if own else None for own in batched)

        def along(pairs: Sequence[Pair], inputs: Sequence[Array]) -> Array:
            of_pairs = [axes[k] for k in arguments]
            result: Array = jax.vmap(body, in_axes=([(a, a) for a in of_pairs], axes))(
                list(pairs), tuple(inputs)
            )
            return result

        return _guarded(along, arguments)(*inputs), True

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
    axes = tuple(range(primals[0].ndim))

    def dot(first: Array, second: Array) -> Array:
        numbers = ((axes, axes), ((), ()))
        return lax.dot_general(first, second, numbers, precision=lax.Precision.HIGHEST)

    return jax.jvp(dot, primals, tangents)
