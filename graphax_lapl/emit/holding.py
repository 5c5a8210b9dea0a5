"""Keeping XLA from computing an array again for each of its readers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.experimental.xla_metadata import set_xla_metadata

from ..program.regions import Region
from ..program.scaled_rows import ScaledRows
from ..program.sines import Sine
from .innermost import samples_first

__all__ = ["HELD_SIZES", "Holding", "held", "known_size", "linear_barrier", "tangents_held"]

#: Since then `optimization_barrier` stands until XLA's CPU compiler has fused.
BARRIERS_STAND = jax.__version_info__ >= (0, 12)
#: Smaller arrays are not worth the pass through memory, unless something better is known. The calls
#: that stand in the place of barriers are taken for work that is worth another thread.
HELD_SIZES = (512 if BARRIERS_STAND else 2048, 1 << 62)


@dataclass(frozen=True)
class Holding:
    """What is written to memory before it is read; `sizes` as in `held`.

    Attributes:
        values: slots that are, and for which sizes.
        differentiated: slots that are where the program is differentiated.
        tangents: slots whose tangents and cotangents are.
        sines: slots of sines and cosines, which are evaluated together.
        regions: expressions that are evaluated as a whole, by the slots that they end in.
        rows: slots of products that have another form where nothing is differentiated.
        repeated: slots of products whose operands are both repeated for a batch.
        numbers: slots of dot products that are sums of products.
        vectors: slots of products that have what a sample has of its own on the left.
        apart: slots of sums whose summands are in memory before, where nothing is differentiated.
        again: whether results will probably be differentiated.
    """

    values: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    differentiated: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    tangents: Collection[int] = ()
    sines: Mapping[int, Sine] = field(default_factory=dict)
    regions: Mapping[int, Region] = field(default_factory=dict)
    rows: Mapping[int, ScaledRows] = field(default_factory=dict)
    repeated: frozenset[int] = frozenset()
    numbers: frozenset[int] = frozenset()
    vectors: frozenset[int] = frozenset()
    apart: frozenset[int] = frozenset()
    again: bool = False

    def apply(self, slot: int, value: Any, inputs: Sequence[Array]) -> Any:
        """What stands for the value of a slot in a program with these (inexact) inputs."""
        if slot in self.values:
            value = held(value, self.values[slot])
        elif slot in self.differentiated:
            value = _derivative_holder(self.differentiated[slot])(value, *inputs)
        return tangents_held(value) if slot in self.tangents else value


def held(value: Array, sizes: tuple[int, int] = HELD_SIZES) -> Array:
    """The same values, in memory before anything reads them (on a CPU; elsewhere as they are).

    XLA fuses producers into their consumers. Under `jax.vmap` the whole batch is held, or not: what
    counts is its size. Tangents pass as they are.

    Args:
        value: an array.
        sizes: numbers of elements, those of a batch together, from which on it is held, and from
            which on it is not.
    """
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):  # keys of random numbers
        return value
    result: Array = _holder(sizes)(value)
    return result


def known_size(value: Array) -> int:
    """The number of elements; none where it is a symbol of `jax.export`."""
    size = math.prod(value.shape)
    return size if isinstance(size, int) else 0  # type: ignore[redundant-expr]


@functools.lru_cache(maxsize=256)
def _holder(sizes: tuple[int, int]) -> Callable[[Array], Array]:
    """`held` for some sizes, as a function with rules for `jax.jvp` and `jax.vmap`."""

    @custom_vmap
    def hold(value: Array) -> Array:
        if not max(2, sizes[0]) <= known_size(value) < sizes[1]:
            return value
        return _on_cpu(value)

    @hold.def_vmap
    def _(size: int, batched: list[bool], value: Array) -> tuple[Any, bool]:
        del size
        return hold(value), batched[0]

    differentiable = jax.custom_jvp(hold)
    differentiable.defjvp(lambda primals, tangents: (differentiable(*primals), tangents[0]))
    return differentiable


@functools.lru_cache(maxsize=256)
def _derivative_holder(sizes: tuple[int, int]) -> Callable[..., Array]:
    """An identity that holds its first argument where something is differentiated.

    What the derivative's kernels read need not have a tangent itself: in `sum(w * sin(x))` the sine
    has none with respect to w. Therefore the inputs of the program are further arguments.
    """

    @jax.custom_jvp
    def stay(value: Array, *inputs: Array) -> Array:
        del inputs
        return samples_first(value)

    def differentiated(primals: Any, tangents: Any) -> tuple[Array, Any]:
        return held(primals[0], sizes), tangents[0]

    stay.defjvp(differentiated, symbolic_zeros=True)
    return stay


@jax.custom_jvp
def tangents_held(value: Array) -> Array:
    """The same values; tangents and cotangents are in memory before anything reads them (on a CPU).

    The cotangent of a product is read by the products with both operands, in two orders of its
    axes. XLA evaluates what it is made of for each, and the one that it transposes slowly.
    """
    return value


@tangents_held.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (value,), (tangent,) = primals, tangents
    return tangents_held(value), linear_barrier(tangent)


def linear_barrier(value: Array) -> Array:
    """The same values, in memory before anything reads them (on a CPU), as a linear function."""
    if not known_size(value):
        return value
    return _on_cpu(value)


def _on_cpu(value: Array) -> Array:
    """The value, written to memory on a CPU and as it is elsewhere.

    Where no other device is there nothing is left open: to trace both sides, their derivatives and
    batches takes as long as twenty equations. A program that is exported from there to another
    platform keeps what is right everywhere.
    """
    if jax.default_backend() == "cpu":
        return _written(value)
    result: Array = lax.platform_dependent(value, cpu=_written, default=lambda x: x)
    return result


def _written(value: Array) -> Array:
    """A linear identity that no loop is fused across, nor across its transpose.

    Older compilers drop barriers before they fuse, but not a call of a function that is not to be
    inlined. What is called is a barrier, whose derivative and transpose are calls of the same kind,
    and dropped: nothing is compiled or copied for it.
    """
    if BARRIERS_STAND:
        result: Array = lax.optimization_barrier(value)
        return result
    with set_xla_metadata(inlineable="false"):
        called: Array = _call(value)
    return called


@jax.jit
def _call(value: Array) -> Array:
    result: Array = lax.optimization_barrier(value)
    return result
