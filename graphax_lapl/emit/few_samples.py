"""A second program for single inputs and small batches.

Many operations on small arrays take as long as their kernels take to start, whatever they compute.
A program with fewer of them is faster there although it multiplies more; with a batch what is
computed decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

from .innermost import batch_of, batched_first, with_rule

__all__ = ["for_few_samples", "for_many_samples"]

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


def for_many_samples(run: Run, many: Run, limit: int, shared: Collection[int]) -> Run:
    """`many` for at least `limit` samples of `jax.vmap` that have some inputs in common.

    Derivatives of a batch are those of the program that evaluates it.

    Args:
        run: a program. It closes over no tracers.
        many: another one with the same results.
        limit: how many samples `many` is for, at least.
        shared: positions of the inputs that are the same for all samples there.
    """

    def suits(size: Any, own: Sequence[bool]) -> bool:
        return isinstance(size, int) and size >= limit and not any(own[k] for k in shared)

    def rule(size: Any, own: Any, inputs: Sequence[Any]) -> Any:
        axes = ([0 if moves else None for moves in own],)
        return jax.vmap(many if suits(size, own) else run, axes)(list(inputs))

    def call(inputs: Sequence[Any]) -> Any:
        batch = batch_of(inputs)
        if batch is not None:
            return (many if suits(*batch) else run)(inputs)
        return with_rule(run, rule, run)(inputs)

    return call
