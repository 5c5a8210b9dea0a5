"""A batch evaluated in chunks, one after the other: what is in memory is there for one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .innermost import batched_first

__all__ = ["can_be_in_chunks", "chunked_where_large", "in_chunks"]

#: Of a list of arrays, returning a tree of arrays.
Run = Callable[[Sequence[Any]], Any]


def can_be_in_chunks() -> bool:
    """Whether a batch lies on one CPU: slices of one that lies on several devices are gathered."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def in_chunks(form: Run, types: Any, own: Sequence[bool], size: int, chunk: int) -> Run:
    """A function of a chunk as one of a batch, a chunk after the other.

    Args:
        form: of a list of arrays, returning a tree of arrays, with an axis of samples in front.
        types: shapes and dtypes of the results of one sample.
        own: for each of its arguments whether every sample has its own.
        size: number of samples.
        chunk: of these in a chunk, at most `size`. The last chunk begins early enough to be whole.
    """

    def part(inputs: Sequence[Any], start: Any) -> Any:
        return form(
            [
                lax.dynamic_slice_in_dim(x, start, chunk) if moves else x
                for x, moves in zip(inputs, own, strict=True)
            ]
        )

    def run(inputs: Sequence[Any]) -> Any:
        def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
            begin, results = state
            # Slices would move it to the last place by themselves; kernels that see it are quicker.
            start = lax.min(begin, np.uint32(size - chunk))
            results = jax.tree.map(
                lambda result, found: lax.dynamic_update_slice_in_dim(result, found, start, 0),
                results,
                part(inputs, start),
            )
            return begin + chunk, results

        # Unsigned: of a signed start slices ask whether it counts from the end, which is a kernel.
        empty = jax.tree.map(lambda t: jnp.zeros((size, *t.shape), t.dtype), types)
        return lax.while_loop(lambda state: state[0] < size, step, (np.uint32(0), empty))[1]

    return run


def chunked_where_large(run: Run, types: Any, samples: Callable[[Sequence[bool], int], int]) -> Run:
    """`run`, under `jax.vmap` in chunks where so many samples at once are not worth it.

    Where something is differentiated the batch is evaluated at once: the way back reads all of it.
    Without `jax.vmap`, or where it is not the innermost transformation, everything is as it was.

    Args:
        run: of one sample. It closes over no tracers.
        types: shapes and dtypes of its results, inexact ones.
        samples: of which arguments every sample has its own, and of the batch's size: how many
            samples are evaluated at once.
    """

    def rule(size: Any, own: Sequence[bool], inputs: Sequence[Any]) -> Any:
        # `jax.export` knows symbols too.
        chunk = samples(own, size) if isinstance(size, int) else 0
        if not 0 < chunk < size:
            return None
        batched = jax.vmap(run, ([0 if moves else None for moves in own],))
        return in_chunks(batched, types, own, size, chunk)(inputs)

    return batched_first(rule, run, run, types)
