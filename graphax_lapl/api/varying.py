"""Operators on arrays that differ between the devices of a mesh, inside of `jax.shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import dtypes, tree_util

from ..emit.innermost import batched_first, in_batch
from ..graph.tracing import is_traced
from ..graph.varying import evaluated_varying, without_axes

__all__ = ["run_varying"]


def run_varying(fun: Callable[[Any], Any], values: Any) -> Any:
    """`fun(values)` for a function that is traced for arrays that vary along no axis.

    Under `jax.vmap` it is traced for the whole batch, as it is outside of a mesh.

    Args:
        fun: of a pytree.
        values: the pytree; leaves that are not traced are passed as they are.
    """
    leaves, tree = tree_util.tree_flatten(values)
    moving = [k for k, leaf in enumerate(leaves) if is_traced(leaf)]
    shape: list[Any] = []

    def of_moving(*inputs: Any) -> list[Any]:
        own = list(leaves)
        for k, value in zip(moving, inputs, strict=True):
            own[k] = value
        results, structure = tree_util.tree_flatten(fun(tree_util.tree_unflatten(tree, own)))
        shape[:] = [structure]
        return results

    results = _evaluated(of_moving, [leaves[k] for k in moving])
    return tree_util.tree_unflatten(shape[0], results)


def _evaluated(fun: Callable[..., list[Any]], inputs: Sequence[Any]) -> list[Any]:
    """`fun` of some arrays, each of them an argument (see `run_varying`)."""
    types = [without_axes(jax.typeof(value)) for value in inputs]

    def direct(inputs: Sequence[Any]) -> list[Any]:
        closed = jax.make_jaxpr(fun)(*types)
        return evaluated_varying(closed.jaxpr, [*closed.consts, *inputs])

    def batch(size: Any, own: Sequence[bool], inputs: Sequence[Any]) -> list[Any]:
        del size
        return _evaluated(jax.vmap(fun, [0 if moves else None for moves in own]), inputs)

    # The types of the results are those of what comes out for the batch.
    found = in_batch(inputs, batch)
    if len(found) != 1 or not all(dtypes.issubdtype(x.dtype, jnp.inexact) for x in found[0]):
        return direct(inputs)
    results = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in found[0]]
    run = batched_first(lambda *_: found[0], direct, direct, results)
    evaluated: list[Any] = run(inputs)
    return evaluated
