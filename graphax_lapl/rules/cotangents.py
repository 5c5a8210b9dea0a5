"""Backward functions that are not linear in the cotangent, as those that clip gradients.

What `jax.jacrev` returns of such a function depends on how large the cotangent is where it arrives.
Elimination applies the function to unit vectors and multiplies by the rest, which is another
number, so it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import dtypes

from ..errors import NonlinearRuleError
from ..graph.calls import COTANGENT_CALLS, CUSTOM_CALLS, INLINED_CALLS
from ..graph.listing import Equation, nested_primitives, scan_counts

__all__ = ["BILINEAR", "is_linear", "refuse_nonlinear_rules"]

#: Linear in each operand, not in several at once.
BILINEAR = frozenset({"mul", "dot_general", "conv_general_dilated"})
#: Not linear in any operand. Comparisons with an order are among them, tests for zero or NaN not:
#: those guard against what has no derivative either.
NONLINEAR = frozenset(
    {
        *("abs", "sign", "max", "min", "clamp", "round", "floor", "ceil", "rem"),
        *("gt", "ge", "lt", "le", "argmax", "argmin", "reduce_max", "reduce_min"),
        *("pow", "square", "sqrt", "rsqrt", "cbrt", "integer_pow", "reduce_prod", "cumprod"),
        *("exp", "exp2", "expm1", "log", "log1p", "logistic", "erf", "sin", "cos", "tan"),
        *("sinh", "cosh", "tanh", "asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh"),
    }
)


@lru_cache(maxsize=512)
def refuse_nonlinear_rules(equation: Equation, into: int, out: int, *types: Any) -> None:
    """Let no cotangents be pulled through an equation that does not treat them linearly.

    Args:
        equation: a `custom_vjp`, or what holds one.
        into: the input that moves.
        out: the output whose cotangent is pulled back.
        types: of its inputs.

    Raises:
        NonlinearRuleError: naming the equation and its line.
    """
    inside = {str(equation.primitive.name), *nested_primitives(equation.params)}
    if inside.isdisjoint(COTANGENT_CALLS):
        return
    values = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]

    def pulled(cotangent: Any, values: list[Any]) -> Any:
        def along(moved: Any) -> Any:
            return equation.evaluate(*values[:into], moved, *values[into + 1 :])[out]

        return jax.vjp(along, values[into])[1](cotangent)

    try:
        seed = jax.eval_shape(lambda *values: equation.evaluate(*values)[out], *values)
        traced = jax.make_jaxpr(pulled)(seed, values)
    except (NotImplementedError, TypeError, ValueError):
        return  # evaluating it says what is missing
    jaxpr = traced.jaxpr
    found = _first_nonlinear(jaxpr, [variable is jaxpr.invars[0] for variable in jaxpr.invars])[1]
    if found is not None:
        raise NonlinearRuleError(found, equation.source)


def is_linear(closed: Any) -> bool:
    """Whether a nested program is linear in all of its real and complex inputs together."""
    depends = [dtypes.issubdtype(v.aval.dtype, np.inexact) for v in closed.jaxpr.invars]
    return _first_nonlinear(closed.jaxpr, depends)[1] is None


def _first_nonlinear(jaxpr: Any, depends: Sequence[bool]) -> tuple[list[bool], str | None]:
    """Which outputs depend on inputs, and the first operation that is not linear in what does."""
    held = {v for v, moves in zip(jaxpr.invars, depends, strict=True) if moves}

    def moves(atom: Any) -> bool:
        return not hasattr(atom, "val") and atom in held

    for equation in jaxpr.eqns:
        operands = [moves(atom) for atom in equation.invars]
        if not any(operands):
            continue
        if _is_nonlinear(equation, operands):
            return [], str(equation.primitive.name)
        results, found = _nested(equation, operands)
        if found is not None:
            return [], found
        held.update(
            v
            for v, moved in zip(equation.outvars, results, strict=True)
            if moved and dtypes.issubdtype(getattr(v.aval, "dtype", np.bool_), np.inexact)
        )
    return [moves(atom) for atom in jaxpr.outvars], None


def _is_nonlinear(equation: Any, operands: Sequence[bool]) -> bool:
    name = str(equation.primitive.name)
    if name == "div":
        return operands[1]
    if name == "sort":
        return any(operands[: equation.params["num_keys"]])
    return name in NONLINEAR or (name in BILINEAR and sum(operands) > 1)


def _nested(equation: Any, operands: Sequence[bool]) -> tuple[list[bool], str | None]:
    """Dependence through calls, branches and loops of known length.

    What is not looked into is taken to be linear. A `while` is not: solvers choose their steps by
    the size of what they solve for, and are linear up to their tolerance.
    """
    name, params = str(equation.primitive.name), equation.params
    body = params.get({**INLINED_CALLS, **CUSTOM_CALLS}.get(name, ""))
    if body is not None:
        return _first_nonlinear(getattr(body, "jaxpr", body), operands)
    results = [True] * len(equation.outvars)
    if name == "cond":
        joined = [False] * len(results)
        for branch in params["branches"]:
            moved, found = _first_nonlinear(branch.jaxpr, operands[1:])
            if found is not None:
                return [], found
            joined = [a or b for a, b in zip(joined, moved, strict=True)]
        return joined, None
    counts = scan_counts(params) if name == "scan" else None
    if counts is None:
        return results, None
    depends, (constants, carries) = list(operands), counts
    while True:
        results, found = _first_nonlinear(params["jaxpr"].jaxpr, depends)
        if found is not None:
            return [], found
        before = list(depends)
        for k in range(carries):
            depends[constants + k] |= results[k]
        if depends == before:
            return results, None
