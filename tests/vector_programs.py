"""Random programs over one vector: padded, cut, permuted, placed, summed over windows and in turn.

What comes out is described by tables and masks, and one number stands in several entries. The sizes
are those from which on results are arrays under masks, and below. A seed names a program: whatever
a step draws comes from ``numpy.random.default_rng`` of a seed of its own, which that one gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["VectorProgram", "vector_program"]

MAX_ELEMENTS = 500
"""A value of more elements is cut, to `CUT`."""
CUT = 60


class Draw(NamedTuple):
    """What a step is given beside its operand: a generator, another value, and an axis."""

    rng: np.random.Generator
    other: Any
    axis: int

    def number(self, low: int, high: int) -> int:
        """From low to high - 1."""
        return int(self.rng.integers(low, high))

    def along(self, shape: tuple[int, ...], value: Any, elsewhere: Any) -> list[Any]:
        """`value` for the axis, `elsewhere` for all others."""
        return [value if d == self.axis else elsewhere for d in range(len(shape))]


def _padded(a: Any, draw: Draw) -> Any:
    return jnp.pad(a, draw.along(a.shape, (draw.number(0, 3), draw.number(0, 3)), (0, 0)))


def _cut(a: Any, draw: Draw) -> Any:
    length = a.shape[draw.axis]
    start = draw.number(0, length)
    return lax.slice_in_dim(a, start, min(length, start + draw.number(1, 12)), axis=draw.axis)


def _taken(a: Any, draw: Draw) -> Any:
    places = draw.rng.integers(0, a.shape[draw.axis], draw.number(1, 9))
    return jnp.take(a, places, axis=draw.axis)


def _set(a: Any, draw: Draw) -> Any:
    place = draw.number(0, a.shape[draw.axis])
    first = jnp.moveaxis(a, draw.axis, 0).at[place].set(jnp.ravel(draw.other)[0])
    return jnp.moveaxis(first, 0, draw.axis)


def _added(a: Any, draw: Draw) -> Any:
    places = draw.rng.integers(0, a.shape[draw.axis], 3)
    first = jnp.moveaxis(a, draw.axis, 0).at[places].add(jnp.ravel(draw.other)[0])
    return jnp.moveaxis(first, 0, draw.axis)


def _placed(a: Any, draw: Draw) -> Any:
    rows = draw.number(3, 7)
    return jnp.zeros((rows, *a.shape), a.dtype).at[draw.number(0, 3)].set(a)


def _window_sums(a: Any, draw: Draw) -> Any:
    sizes = draw.along(a.shape, draw.number(2, 4), 1)
    return lax.reduce_window(
        a, 0.0, lax.add, sizes, draw.along(a.shape, draw.number(1, 3), 1), "SAME"
    )


def _window_maxima(a: Any, draw: Draw) -> Any:
    sizes = draw.along(a.shape, draw.number(2, 4), 1)
    return lax.reduce_window(a, -jnp.inf, lax.max, sizes, (1,) * a.ndim, "SAME")


def _convolved(a: Any, draw: Draw) -> Any:
    modes = ["full", "same", "valid"]
    return jnp.convolve(a.ravel(), draw.rng.normal(size=3), mode=modes[draw.number(0, 3)])


def _halves(a: Any, draw: Draw) -> Any:
    del draw
    return a.reshape(-1)[: a.size // 2 * 2].reshape(2, -1) if a.size > 1 else a


def _weighted(a: Any, draw: Draw) -> Any:
    return a @ draw.rng.normal(size=(a.shape[-1], draw.number(1, 6)))


def _moved_slice(a: Any, draw: Draw) -> Any:
    start = lax.stop_gradient(jnp.abs(jnp.ravel(a)[0]) * 3).astype(jnp.int32)
    return lax.dynamic_slice_in_dim(a, start, max(1, a.shape[draw.axis] - 1), axis=draw.axis)


def _recurrence(a: Any, draw: Draw) -> Any:
    del draw

    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        carry = jnp.sin(carry + row)
        return carry, carry * row

    return lax.scan(step, jnp.zeros(a.shape[1:], a.dtype), a)[1]


def _solved(a: Any, draw: Draw) -> Any:
    del draw
    vector = jnp.ravel(a)[:6]
    return jnp.linalg.solve(jnp.outer(vector, vector) + 2 * jnp.eye(vector.size), vector)


STEPS: tuple[Callable[[Any, Draw], Any], ...] = (
    lambda a, draw: jnp.sin(a),
    lambda a, draw: jnp.tanh(a) * a,
    lambda a, draw: jnp.exp(-a * a),
    lambda a, draw: jnp.where(a > 0.3, a * a, jnp.sin(a)),
    lambda a, draw: a * jnp.sum(draw.other) + 0.5,
    lambda a, draw: jnp.outer(jnp.ravel(a)[:20], jnp.ravel(draw.other)[:20]),
    lambda a, draw: lax.cumsum(a, axis=draw.axis),
    lambda a, draw: lax.cumsum(a, axis=draw.axis, reverse=True),
    lambda a, draw: lax.cumprod(jnp.cos(a), axis=draw.axis),
    lambda a, draw: lax.cummax(a, axis=draw.axis),
    lambda a, draw: lax.cumlogsumexp(a, axis=draw.axis, reverse=True),
    lambda a, draw: jnp.sum(a, axis=draw.axis),
    lambda a, draw: jnp.sum(a, axis=draw.axis, keepdims=True),
    lambda a, draw: jnp.max(a, axis=draw.axis, keepdims=True),
    lambda a, draw: jax.nn.softmax(a, axis=draw.axis),
    lambda a, draw: jax.nn.logsumexp(a, axis=draw.axis, keepdims=True),
    lambda a, draw: jnp.sort(a, axis=draw.axis),
    lambda a, draw: a[..., ::2],
    lambda a, draw: jnp.flip(a, draw.axis),
    lambda a, draw: jnp.roll(a, draw.number(1, 4), draw.axis),
    lambda a, draw: jnp.concatenate([a, jnp.cos(a)], draw.axis),
    lambda a, draw: jnp.swapaxes(a, 0, -1),
    *(_padded, _cut, _taken, _set, _added, _placed, _window_sums, _window_maxima, _convolved),
    *(_halves, _weighted, _moved_slice, _recurrence, _solved),
)


class VectorProgram(NamedTuple):
    """A function of one float64 vector.

    Attributes:
        fun: the function; its result is a vector.
        samples: points to differentiate at, one in each row.
        order: an elimination order, by name.
    """

    fun: Callable[[Any], Any]
    samples: np.ndarray
    order: str


def vector_program(seed: int) -> VectorProgram:
    """The program that a seed names, of 2 to 24 numbers."""
    rng = np.random.default_rng(seed)
    length = int(rng.integers(2, 8) if seed % 2 else rng.integers(16, 25))
    results = 6 if seed % 2 else 20
    chosen = rng.integers(0, len(STEPS), int(rng.integers(3, 9)))
    steps = [
        (STEPS[k], int(own))
        for k, own in zip(chosen, rng.integers(0, 1 << 30, len(chosen)), strict=True)
    ]
    samples = rng.uniform(-1.2, 1.2, (int(rng.choice([2, 3, 300])), length))
    order = ("auto", "forward", "reverse", "markowitz")[int(rng.integers(4))]
    return VectorProgram(partial(_carried_out, steps, results), samples, order)


def _carried_out(steps: list[tuple[Callable[[Any, Draw], Any], int]], results: int, x: Any) -> Any:
    """The steps one after the other, each of the last value or an earlier one."""
    values = [x * 1.0]
    for step, own in steps:
        rng = np.random.default_rng(own)
        a, other = (
            values[-1] if rng.random() < 0.6 else values[int(rng.integers(len(values)))]
            for _ in range(2)
        )
        a = a if a.ndim else a[None]
        value = step(a, Draw(rng, other, int(rng.integers(a.ndim))))
        if value.size > MAX_ELEMENTS:
            value = jnp.ravel(value)[:CUT]
        values.append(value if value.ndim <= 3 else jnp.ravel(value))
    return jnp.ravel(values[-1])[:results] * (1 + 0.1 * jnp.sum(x))
