"""A second program for single inputs and small batches.

Many operations on small arrays take as long as their kernels take to start, whatever they compute.
A program with fewer of them is faster there although it multiplies more; with a batch what is
computed decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.custom_batching import custom_vmap

__all__ = ["for_few_samples"]

#: Of a list of arrays, returning a tree of arrays.
Run = Callable[[Sequence[Any]], Any]


def for_few_samples(few: Run, run: Run, limit: int, samples: int = 1) -> Run:
    """`few` for less than `limit` samples of `jax.vmap`, nested ones multiplied, otherwise `run`.

    Derivatives are those of `run`.

    Args:
        few: a program. It closes over no tracers.
        run: another one with the same results.
        limit: how many samples `run` is for, at least.
        samples: how many one evaluation of `few` and `run` stands for.
    """

    @custom_vmap
    def chosen(inputs: Sequence[Any]) -> Any:
        return few(inputs)

    @chosen.def_vmap
    def _(size: Any, batched: list[Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
        axes = ([0 if moves else None for moves in batched[0]],)
        call = jax.vmap(run, axes)
        if isinstance(size, int) and samples * size < limit:  # `jax.export` knows symbols too
            call = for_few_samples(jax.vmap(few, axes), call, limit, samples * size)
        results = call(inputs)
        return results, jax.tree.map(lambda _: True, results)

    differentiable = jax.custom_jvp(chosen)
    differentiable.defjvp(lambda primals, tangents: jax.jvp(run, primals, tangents))
    return differentiable
