"""Programs on numbers on a GPU.

A thread of a GPU evaluates what is elementwise along the batch once for all of its results. Where
the same kernel puts an array together, a thread has one entry of one sample: its neighbours have
other entries, and each waits for the branches of all of them. So all numbers are written first.

One kernel writes several results where they read a common array, but for numbers: each result of
numbers alone is a kernel, unless these are read from one array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .numbers import BATCH, Numbers, is_known

__all__ = ["PLATFORMS", "is_gpu", "of_one", "on_gpu", "side_by_side", "suits_gpus"]

#: What JAX calls GPUs where programs are lowered, and the backend that they belong to.
PLATFORMS, BACKEND = ("cuda", "rocm"), "gpu"
#: Operations that would be repeated for every entry from which on numbers are written first. On an
#: H100 that takes 0.2 to 0.9 of the time from 40 on, and up to 4 times as long below 6.
REPEATED = 16
#: The same of few samples, and how many arrays there are at most: each is put together by a kernel
#: of its own, and dispatching kernels of many numbers takes up to 20 microseconds more.
FEW_REPEATED, FEW_ARRAYS = 80, 4
#: Of a list of arrays, returning a tree of arrays.
Run = Callable[[Sequence[Any]], Any]


def is_gpu() -> bool:
    """Whether programs run on a GPU unless they are placed elsewhere."""
    return jax.default_backend() == BACKEND


def suits_gpus(results: Sequence[Numbers], operations: int, samples: int) -> bool:
    """Whether all numbers are written before they are put together on a GPU.

    Args:
        results: of a program on numbers.
        operations: that would be written into all kernels, repeated for every reader.
        samples: of the batch.
    """
    entries = sum(numbers.size for numbers in results)
    if samples >= BATCH:
        return operations >= REPEATED * entries
    arrays = sum(numbers.size > 1 for numbers in results)
    return arrays <= FEW_ARRAYS and operations >= FEW_REPEATED * entries


def on_gpu(
    program: Callable[[Sequence[Any]], Sequence[Numbers]],
    results: Sequence[Numbers],
    dtypes: Sequence[Any],
    own: Sequence[bool],
    size: int,
) -> Callable[..., list[Any]]:
    """A program of one sample for a batch: all numbers are written, and then moved to their places.

    Args:
        program: of one sample.
        results: what a tape knows of its results.
        dtypes: theirs.
        own: for each of its inputs whether every sample has its own.
        size: number of samples.

    Returns:
        A function of the inputs, returning arrays with an axis of samples in front.
    """
    axes = ([0 if moves else None for moves in own],)

    def distinct(inputs: Sequence[Any]) -> dict[int, Any]:
        return {
            number.place: value
            for numbers, values in zip(results, program(inputs), strict=True)
            for number, value in zip(numbers.ravel(), values.ravel(), strict=True)
            if not is_known(number)
        }

    def run(*inputs: Any) -> list[Any]:
        values = lax.optimization_barrier(jax.vmap(distinct, axes)(list(inputs)))

        def along_batch(number: Any, dtype: Any) -> Any:
            if is_known(number):
                return jnp.full(size, number, dtype)
            return lax.convert_element_type(values[number.place], dtype)

        arrays = []
        for numbers, dtype in zip(results, dtypes, strict=True):
            entries = [along_batch(number, dtype) for number in numbers.ravel()]
            whole = jnp.stack(entries, 1) if len(entries) > 1 else entries[0]
            arrays.append(lax.reshape(whole, (size, *numbers.shape)))
        return arrays

    return run


def of_one(form: Run) -> Run:
    """The form of a batch for a single input."""

    def run(inputs: Sequence[Any]) -> Any:
        return jax.tree.map(lambda leaf: leaf[0], form([jnp.asarray(x)[None] for x in inputs]))

    return run


def side_by_side(inputs: Sequence[Any]) -> list[Any]:
    """The same numbers of one type, read from an array on a GPU."""

    def joined(*numbers: Any) -> list[Any]:
        return [*lax.optimization_barrier(jnp.stack(numbers))]

    apart = {platform: joined for platform in PLATFORMS}
    result: list[Any] = lax.platform_dependent(*inputs, default=lambda *x: [*x], **apart)
    return result
