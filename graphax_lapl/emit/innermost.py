"""Rules for batches that run before what a single input needs is traced.

`jax.custom_batching.custom_vmap` traces the function of one sample when it is called, whether or
not a batch comes. Where `jax.vmap` is the innermost transformation its rule runs before the call
returns, so a function of zeros can stand in for the other one, which is traced only if it did not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

__all__ = [
    "batch_of",
    "batched_first",
    "in_batch",
    "of_every_sample",
    "samples_first",
    "samples_of",
    "with_derivatives_of",
    "with_rule",
]

#: Of a list of arrays, returning a tree of arrays.
Run = Callable[[Sequence[Any]], Any]
#: Of the batch's size, of which arguments every sample has its own, and of these.
Rule = Callable[[Any, Sequence[bool], Sequence[Any]], Any]


def batched_first(rule: Rule, otherwise: Run, run: Run, types: Any) -> Run:
    """`rule` under `jax.vmap` as the innermost transformation, `otherwise` without.

    Args:
        rule: results with an axis of samples in front, or None where `otherwise` is to be batched.
        otherwise: of one sample.
        run: the same; derivatives of what `rule` returned are those of this. It closes over no
            tracers.
        types: shapes and dtypes of the results of one sample, inexact ones.
    """

    def zeros() -> Any:
        return jax.tree.map(lambda t: jnp.zeros(t.shape, t.dtype), types)

    def call(inputs: Sequence[Any]) -> Any:
        # The rule runs before the call returns, or what it returns is dropped (under derivatives).
        ran: list[bool] = []

        @custom_vmap
        def batches(*inputs: Any) -> Any:
            del inputs
            return zeros()

        @batches.def_vmap
        def _(size: Any, own: list[bool], *inputs: Any) -> tuple[Any, Any]:
            results = None if ran else rule(size, own, inputs)
            if results is None:
                return zeros(), jax.tree.map(lambda _: False, types)
            ran.append(True)
            return of_every_sample(results, inputs), jax.tree.map(lambda _: True, types)

        stand_in = jax.custom_jvp(batches)

        def along(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
            if ran != [True]:
                return zeros(), zeros()
            return _along(run, primals, tangents)

        stand_in.defjvp(along, symbolic_zeros=True)
        result = stand_in(*inputs)
        if ran:
            return result
        del result
        ran.append(False)
        return otherwise(inputs)

    return call


def samples_of(inputs: Sequence[Any]) -> int | None:
    """How many samples `jax.vmap`, the innermost transformation, evaluates with these inputs.

    None where it is not, or where their number is a symbol.
    """
    found = batch_of(inputs)
    return None if found is None else found[0]


def batch_of(inputs: Sequence[Any]) -> tuple[int, list[bool]] | None:
    """How many samples there are, as `samples_of` has it, and which inputs each has of its own."""
    found = in_batch(inputs, lambda size, own, inputs: (size, list(own)))
    return found[0] if len(found) == 1 and isinstance(found[0][0], int) else None


def in_batch(inputs: Sequence[Any], rule: Rule) -> list[Any]:
    """What `rule` says of a batch where `jax.vmap` is the innermost transformation, one entry.

    It is given the values without their derivatives, and what it returns stays in the batch.
    """
    found: list[Any] = []

    @custom_vmap
    def probe(*inputs: Any) -> Any:
        del inputs
        return jnp.zeros(())

    @probe.def_vmap
    def _(size: Any, own: list[bool], *inputs: Any) -> tuple[Any, Any]:
        found.append(rule(size, own, inputs))
        return jnp.zeros(()), False

    probe(*(lax.stop_gradient(x) for x in inputs))
    return found


def with_rule(one: Run, rule: Rule, run: Run) -> Run:
    """`one`, for a batch the results of `rule`; derivatives are those of `run`."""
    batches = custom_vmap(one)

    @batches.def_vmap
    def _(size: Any, own: list[Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
        results = of_every_sample(rule(size, own[0], inputs), inputs)
        return results, jax.tree.map(lambda _: True, results)

    return with_derivatives_of(run, batches)


def with_derivatives_of(run: Callable[..., Any], batches: Callable[..., Any]) -> Any:
    """A function whose rule for `jax.vmap` is its own and whose derivatives are those of `run`.

    Args:
        run: the same function.
        batches: results that have, under `jax.vmap`, an axis of samples each.
    """

    def along(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        values, structure = jax.tree.flatten(primals)
        moved = jax.tree.leaves(tangents, is_leaf=lambda t: isinstance(t, SymbolicZero))

        def of(inputs: Sequence[Any]) -> Any:
            return run(*jax.tree.unflatten(structure, inputs))

        return _along(of, values, moved)

    differentiable = jax.custom_jvp(batches)
    differentiable.defjvp(along, symbolic_zeros=True)
    return differentiable


@jax.custom_jvp
def of_every_sample(results: Any, inputs: Any) -> Any:
    """The same results, with an axis of samples each where any of the inputs has one.

    `jax.custom_jvp` takes the axes of what is evaluated without a derivative for those of the
    values beside one. A result that is the same for all samples has none by itself.
    """
    return _of_every_sample(results, inputs)


of_every_sample.defjvp(lambda primals, tangents: (of_every_sample(*primals), tangents[0]))


@custom_vmap
def _of_every_sample(results: Any, inputs: Any) -> Any:
    del inputs
    return results


@_of_every_sample.def_vmap
def _(size: Any, own: list[Any], results: Any, inputs: Any) -> tuple[Any, Any]:
    def repeated(result: Any, moves: bool) -> Any:
        return result if moves else jnp.broadcast_to(result, (size, *jnp.shape(result)))

    everywhere = jax.tree.map(lambda _: True, own[0])
    return _of_every_sample(jax.tree.map(repeated, results, own[0]), inputs), everywhere


@jax.custom_jvp
def samples_first(value: Any) -> Any:
    """The same array, whose axis of samples, if any, is the first one.

    A program that was traced for `jax.vmap` takes the place of the axis from what is evaluated
    without a derivative, also where `jax.custom_jvp` evaluates the value in another way beside one.
    Both have to agree on it: with as many samples as rows nothing else would tell one from another.
    """
    return _samples_first(value)


samples_first.defjvp(lambda primals, tangents: (samples_first(*primals), tangents[0]))


@custom_vmap
def _samples_first(value: Any) -> Any:
    return value


@_samples_first.def_vmap
def _(size: Any, own: list[bool], value: Any) -> tuple[Any, bool]:
    del size
    return _samples_first(value), own[0]


def _along(run: Run, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Results and their tangents along what moves."""
    moving = [k for k, tangent in enumerate(tangents) if not isinstance(tangent, SymbolicZero)]

    def of(*values: Any) -> Any:
        inputs = list(primals)
        for k, value in zip(moving, values, strict=True):
            inputs[k] = value
        return run(inputs)

    along = jax.jvp(of, [primals[k] for k in moving], [tangents[k] for k in moving])
    return of_every_sample(along[0], primals), along[1]
