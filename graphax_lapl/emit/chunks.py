"""A batch evaluated in chunks, one after the other: what is in memory is there for one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

__all__ = ["can_be_in_chunks", "chunked_where_large", "in_chunks"]

#: Of a list of arrays, returning a tree of arrays.
Run = Callable[[Sequence[Any]], Any]


def can_be_in_chunks() -> bool:
    """Whether a batch lies on one CPU: slices of one that lies on several devices are gathered."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def in_chunks(form: Run, types: Any, own: Sequence[bool], size: int, chunk: int) -> Run:
    """A function of one sample as one of a batch, a chunk after the other.

    Args:
        form: of a list of arrays, returning a tree of arrays.
        types: shapes and dtypes of these.
        own: for each of its arguments whether every sample has its own.
        size: number of samples.
        chunk: of these in a chunk, at most `size`. The last chunk begins early enough to be whole.
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
        def step(number: Any, results: Any) -> Any:
            start = lax.min(number * chunk, size - chunk)
            return jax.tree.map(
                lambda result, found: lax.dynamic_update_slice_in_dim(result, found, start, 0),
                results,
                part(inputs, start),
            )

        empty = jax.tree.map(lambda t: jnp.zeros((size, *t.shape), t.dtype), types)
        return lax.fori_loop(0, -(-size // chunk), step, empty)

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

    def zeros() -> Any:
        return jax.tree.map(lambda t: jnp.zeros(t.shape, t.dtype), types)

    def call(inputs: Sequence[Any]) -> Any:
        # A stand-in, because `run` itself would be traced once more. Its rule for batches runs
        # before the call returns, or, as under derivatives, its results are dropped.
        chunked: list[bool] = []

        @custom_vmap
        def batches(*inputs: Any) -> Any:
            del inputs
            return zeros()

        @batches.def_vmap
        def _(size: Any, own: list[bool], *inputs: Any) -> tuple[Any, Any]:
            chunk = 0
            if not chunked and isinstance(size, int):  # `jax.export` knows symbols too
                chunk = samples(own, size)
            if not 0 < chunk < size:
                return zeros(), jax.tree.map(lambda _: False, types)
            chunked.append(True)
            results = in_chunks(run, types, own, size, chunk)(inputs)
            return results, jax.tree.map(lambda _: True, types)

        stand_in = jax.custom_jvp(batches)

        def along(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
            if chunked != [True]:
                return zeros(), zeros()
            return _along(run, primals, tangents)

        stand_in.defjvp(along, symbolic_zeros=True)
        result = stand_in(*inputs)
        if chunked:
            return result
        chunked.append(False)
        return run(inputs)

    return call


def _along(run: Run, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Results and their tangents along what moves."""
    moving = [k for k, tangent in enumerate(tangents) if not isinstance(tangent, SymbolicZero)]

    def of(*values: Any) -> Any:
        inputs = list(primals)
        for k, value in zip(moving, values, strict=True):
            inputs[k] = value
        return run(inputs)

    return jax.jvp(of, [primals[k] for k in moving], [tangents[k] for k in moving])
