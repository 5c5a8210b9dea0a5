"""The tangent program of one equation, as JAX derives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import dtypes
from jax.extend import source_info_util

from ..errors import NO_MODE_ERRORS, no_rule_refused
from .calls import INLINED_CALLS
from .users_rules import runs_rules

__all__ = ["differentiable_outputs", "rule_program", "tangent_program"]


def differentiable_outputs(equation: Any) -> list[bool]:
    """For each output of a jaxpr's equation whether its dtype is real or complex."""
    return [dtypes.issubdtype(v.aval.dtype, np.inexact) for v in equation.outvars]


def tangent_program(
    equation: Any,
    avals: Sequence[Any],
    chosen: Sequence[int],
    source_info: Any,
    rule: Callable[..., Any] | None = None,
) -> Any | None:
    """A closed jaxpr from all inputs, then the tangents of some, to the outputs and theirs.

    Args:
        equation: of a jaxpr.
        avals: types of its inputs.
        chosen: positions of the inputs that have tangents.
        source_info: where the equation stands in the user's code.
        rule: of an equation with one output what is taken in the place of JAX's own derivative,
            from the values of all inputs and then their tangents, None for those without.

    Returns:
        The jaxpr, its results the values and then the tangents of the differentiable ones; None
        where values and tangents are computed in one equation.

    Raises:
        NotDifferentiableError: where JAX has no derivative of the primitive.
    """
    bind_params = equation.primitive.get_bind_params(equation.params)
    kept = differentiable_outputs(equation)

    def pushforward(values: list[Any], tangents: list[Any]) -> tuple[list[Any], list[Any]]:
        def call(*moving: Any) -> list[Any]:
            full = list(values)
            for position, value in zip(chosen, moving, strict=True):
                full[position] = value
            result = equation.primitive.bind(*full, **bind_params)
            return list(result) if equation.primitive.multiple_results else [result]

        if rule is not None:
            moving = dict(zip(chosen, tangents, strict=True))
            every = (moving.get(k) for k in range(len(values)))
            return call(*(values[k] for k in chosen)), [rule(*values, *every)]
        results, moved = jax.jvp(call, [values[k] for k in chosen], tangents)
        return results, [t for t, keep in zip(moved, kept, strict=True) if keep]

    what = f"'{equation.primitive.name}' has no derivative"
    where = source_info_util.summarize(source_info)
    own = runs_rules(equation.primitive.name, equation.params)
    with no_rule_refused(what, where, NO_MODE_ERRORS, own), equation.ctx.manager:
        traced = jax.make_jaxpr(pushforward)(avals, [avals[k] for k in chosen])
    moves = _moving(traced.jaxpr, [k >= len(avals) for k in range(len(traced.jaxpr.invars))])
    return None if any(moves[: len(kept)]) else traced


def rule_program(
    primitive: Any, params: dict[str, Any], context: Any, avals: Sequence[Any]
) -> Any | None:
    """What the derivative rule of a call computes, as a closed jaxpr of inputs and all tangents.

    It is the one program of the rule: JAX traces the rule once for every set of inputs whose
    tangents it is told to be zero, which it tells rules with `symbolic_zeros` only, and remembers
    what it traced. None where the rule has several, or cannot be traced from types alone.
    """
    chosen = [k for k, aval in enumerate(avals) if dtypes.issubdtype(aval.dtype, np.inexact)]
    if not chosen or (params["symbolic_zeros"] and len(chosen) > 1):
        return None
    bind_params = primitive.get_bind_params(params)

    def pushforward(values: list[Any], tangents: list[Any]) -> tuple[list[Any], list[Any]]:
        def call(*moving: Any) -> list[Any]:
            full = list(values)
            for position, value in zip(chosen, moving, strict=True):
                full[position] = value
            return list(primitive.bind(*full, **bind_params))

        results, moved = jax.jvp(call, [values[k] for k in chosen], tangents)
        return results, [t for t in moved if t.dtype != dtypes.float0]

    try:
        with context.manager:
            return jax.make_jaxpr(pushforward)(list(avals), [avals[k] for k in chosen])
    except Exception:  # the user's: it is raised again where the derivative is taken
        return None


def _moving(jaxpr: Any, inputs: Sequence[bool]) -> list[bool]:
    """Which outputs depend on some of the inputs.

    The derivative of a `pallas_call` is one kernel for value and tangent. Such a program cannot be
    taken apart into a function and a map that is linear in the tangents. A call is seen through.
    """
    moving = {variable for variable, moves in zip(jaxpr.invars, inputs, strict=True) if moves}

    def reads(atoms: Sequence[Any]) -> list[bool]:
        return [not hasattr(atom, "val") and atom in moving for atom in atoms]

    for equation in jaxpr.eqns:
        moves = reads(equation.invars)
        if not any(moves):
            continue
        results, called = equation.outvars, INLINED_CALLS.get(equation.primitive.name)
        if called is None:
            moving.update(results)
            continue
        body = equation.params[called]
        through = _moving(getattr(body, "jaxpr", body), moves)
        moving.update(result for result, passes in zip(results, through, strict=True) if passes)
    return reads(jaxpr.outvars)
