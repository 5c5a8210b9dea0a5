"""A second program for single inputs and small batches.

Many operations on small arrays take as long as their kernels take to start, whatever they compute.
A program with fewer of them is faster there although it multiplies more; with a batch what is
computed decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from .innermost import batched_first, with_rule

__all__ = ["for_few_samples"]

#: Of a list of arrays, returning a tree of arrays.
Run = Callable[[Sequence[Any]], Any]


def for_few_samples(few: Run, run: Run, limit: int, samples: int = 1, types: Any = None) -> Run:
    """`few` for less than `limit` samples of `jax.vmap`, nested ones multiplied, otherwise `run`.

    Derivatives are those of `run`.

    Args:
        few: a program. It closes over no tracers.
        run: another one with the same results.
        limit: how many samples `run` is for, at least.
        samples: how many one evaluation of `few` and `run` stands for.
        types: shapes and dtypes of the results, inexact ones; without them `few` is traced for
            every batch.
    """

    def rule(size: Any, own: Any, inputs: Sequence[Any]) -> Any:
        axes = ([0 if moves else None for moves in own],)
        call = jax.vmap(run, axes)
        if isinstance(size, int) and samples * size < limit:  # `jax.export` knows symbols too
            call = for_few_samples(jax.vmap(few, axes), call, limit, samples * size)
        return call(list(inputs))

    chosen = with_rule(few, rule, run)
    return chosen if types is None else batched_first(rule, chosen, run, types)
