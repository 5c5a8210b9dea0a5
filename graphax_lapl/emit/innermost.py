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

__all__ = ["batched_first", "samples_of", "with_rule"]

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
            return results, jax.tree.map(lambda _: True, types)

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
    found: list[Any] = []

    @custom_vmap
    def probe(*inputs: Any) -> Any:
        del inputs
        return jnp.zeros(())

    @probe.def_vmap
    def _(size: Any, own: list[bool], *inputs: Any) -> tuple[Any, Any]:
        del own, inputs
        found.append(size)
        return jnp.zeros(()), False

    probe(*(lax.stop_gradient(x) for x in inputs))
    return found[0] if len(found) == 1 and isinstance(found[0], int) else None


def with_rule(one: Run, rule: Rule, run: Run) -> Run:
    """`one`, for a batch the results of `rule`; derivatives are those of `run`."""
    batches = custom_vmap(one)

    @batches.def_vmap
    def _(size: Any, own: list[Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
        results = rule(size, own[0], inputs)
        return results, jax.tree.map(lambda _: True, results)

    differentiable = jax.custom_jvp(batches)
    differentiable.defjvp(lambda primals, tangents: jax.jvp(run, primals, tangents))
    return differentiable


def _along(run: Run, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Results and their tangents along what moves."""
    moving = [k for k, tangent in enumerate(tangents) if not isinstance(tangent, SymbolicZero)]

    def of(*values: Any) -> Any:
        inputs = list(primals)
        for k, value in zip(moving, values, strict=True):
            inputs[k] = value
        return run(inputs)

    return jax.jvp(of, [primals[k] for k in moving], [tangents[k] for k in moving])
