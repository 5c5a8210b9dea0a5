"""Programs on numbers for a batch on a GPU.

A thread of a GPU evaluates what is elementwise along the batch once for all of its results. Where
the same kernel puts an array together, a thread has one entry of one sample: its neighbours have
other entries, and each waits for the branches of all of them. So all numbers are written first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .numbers import Numbers, is_known

__all__ = ["PLATFORMS", "REPEATED", "is_gpu", "on_gpu"]

#: What JAX calls GPUs where programs are lowered, and the backend that they belong to.
PLATFORMS, BACKEND = ("cuda", "rocm"), "gpu"
#: Operations that would be repeated for every entry from which on numbers are written first. On an
#: H100 that takes 0.2 to 0.9 of the time from 40 on, and up to 4 times as long below 6.
REPEATED = 16


def is_gpu() -> bool:
    """Whether programs run on a GPU unless they are placed elsewhere."""
    return jax.default_backend() == BACKEND


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
