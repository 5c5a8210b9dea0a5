"""A batch evaluated in chunks, one after the other: what is held is held for one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["can_be_in_chunks", "in_chunks"]


def can_be_in_chunks() -> bool:
    """Whether a batch lies on one CPU: slices of one that lies on several devices are gathered."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def in_chunks(
    form: Callable[[Sequence[Any]], Any], own: Sequence[bool], size: int, chunk: int, found: Any
) -> Callable[[Sequence[Any]], Any]:
    """A function of one sample as one of a batch, a chunk after the other.

    Args:
        form: of a list of arrays, returning a tree of arrays.
        own: for each of its arguments whether every sample has its own.
        size: number of samples.
        chunk: of these in a chunk, at most `size`. The last chunk begins early enough to be whole.
        found: shapes and dtypes of what it returns, a tree.
    """
    batched = jax.vmap(form, ([0 if moves else None for moves in own],))

    def part(inputs: Sequence[Any], start: Any) -> Any:
        return batched(
            [
                lax.dynamic_slice_in_dim(x, start, chunk) if moves else x
                for x, moves in zip(inputs, own, strict=True)
            ]
        )

    def run(inputs: Sequence[Any]) -> Any:
        # All of it is written; JAX makes zeros of `lax.empty` too.
        empty = jax.tree.map(lambda t: jnp.zeros((size, *t.shape), t.dtype), found)

        def step(number: Any, results: Any) -> Any:
            start = lax.min(number * chunk, size - chunk)
            return jax.tree.map(
                lambda result, rows: lax.dynamic_update_slice_in_dim(result, rows, start, 0),
                results,
                part(inputs, start),
            )

        return lax.fori_loop(0, -(-size // chunk), step, empty)

    return run
