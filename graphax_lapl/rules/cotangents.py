"""Backward functions that are not linear in the cotangent, as those that clip gradients.

What `jax.jacrev` returns of such a function depends on how large the cotangent is where it arrives.
Elimination applies the function to unit vectors and multiplies by the rest, which is another
number, so it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import dtypes
from jax.extend import core as jax_core

from ..errors import NO_RULE_ERRORS, NonlinearRuleError
from ..graph.calls import COTANGENT_CALLS, CUSTOM_CALLS, INLINED_CALLS
from ..graph.listing import Equation, scan_counts

__all__ = ["BILINEAR", "is_linear", "linear_backward", "refuse_nonlinear_rules"]

#: On a cotangent: None for what does not depend on it, else `LINEAR`, `SOLVED` or the name of the
#: first operation that is not linear in it.
Dependence = str | None
LINEAR = ""
#: What a loop of unknown length makes of it. Solvers choose their steps by the size of what they
#: solve for, and are linear up to their tolerance; how long the steps were scales the results.
SOLVED = "while"
#: Of arrays no solver's steps: a cotangent that is clipped before it is solved for stays refused.
CLIPPING = frozenset({"clamp", "min", "round", "sign"})
#: Largest relative error of sums and multiples of cotangents that are pulled back, which solvers
#: leave in single precision.
PROBED = 1e-3

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


class Backward(NamedTuple):
    """A function from cotangents to cotangents, of the values that it is evaluated at too.

    Attributes:
        traced: a closed jaxpr of cotangents, then values of all inputs.
        outs: the outputs of the equation that the cotangents are of.
        moving: the inputs whose cotangents result.
    """

    traced: Any
    outs: tuple[int, ...]
    moving: tuple[int, ...]


@lru_cache(maxsize=512)
def linear_backward(equation: Equation, *types: jax.ShapeDtypeStruct) -> Backward | None:
    """The backward function of an equation, of all outputs and to all inputs that move at once.

    None where it is not linear step by step, or JAX has none.
    """
    moving = tuple(i for i, moves in enumerate(equation.active) if moves)
    try:
        results = jax.eval_shape(lambda *values: equation.evaluate(*values), *types)
        outs = tuple(k for k, result in enumerate(results) if _moves(result))

        def pulled(cotangents: Any, *values: Any) -> Any:
            def along(*points: Any) -> Any:
                full = dict(enumerate(values)) | dict(zip(moving, points, strict=True))
                found = equation.evaluate(*full.values())
                return [found[k] for k in outs]

            return jax.vjp(along, *(values[i] for i in moving))[1](cotangents)

        traced = jax.make_jaxpr(pulled)([results[k] for k in outs], *types)
    except NO_RULE_ERRORS:
        return None  # evaluating it says what is missing
    return None if nonlinear_step(traced, len(outs)) else Backward(traced, outs, moving)


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
    if COTANGENT_CALLS.isdisjoint({str(equation.primitive.name), *equation.inside}):
        return
    values = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    if linear_backward(equation, *values) is not None:
        return

    def pulled(cotangent: Any, values: list[Any]) -> Any:
        def along(moved: Any) -> Any:
            return equation.evaluate(*values[:into], moved, *values[into + 1 :])[out]

        return jax.vjp(along, values[into])[1](cotangent)

    try:
        seed = jax.eval_shape(lambda *values: equation.evaluate(*values)[out], *values)
        traced = jax.make_jaxpr(pulled)(seed, values)
    except NO_RULE_ERRORS:
        return
    found = nonlinear_step(traced)
    if found and not _acts_linearly(traced):
        raise NonlinearRuleError(found, equation.source)


def nonlinear_step(traced: Any, cotangents: int = 1) -> str:
    """The first operation on a program's first arguments that is not linear, or nothing.

    Args:
        traced: the program, a closed jaxpr.
        cotangents: how many of its arguments, the first ones, it is to be linear in together.
    """
    jaxpr = traced.jaxpr
    seeds = [LINEAR if k < cotangents else None for k in range(len(jaxpr.invars))]
    return _refused(_dependences(jaxpr, seeds))


def _acts_linearly(traced: Any) -> bool:
    """Whether a program is linear in its first argument at numbers that are drawn.

    A kernel that is applied by its logarithms, `sign(s) * exp(log|s|)` of sums, is linear, though
    none of its operations is. What clips is not over twelve orders of magnitude.
    """
    types = [variable.aval for variable in traced.jaxpr.invars]
    if traced.jaxpr.effects or not _moves(types[0]) or any(_is_extended(t) for t in types):
        return False
    rng = np.random.default_rng(0)
    first, other = _drawn(rng, types[0]), _drawn(rng, types[0])
    # Positive numbers of one magnitude suit roots, logarithms and solvers.
    rest = [
        (1 + 0.1 * _drawn(rng, t)).astype(t.dtype) if _moves(t) else np.zeros(t.shape, t.dtype)
        for t in types[1:]
    ]
    # Compiled, it is evaluated whatever transformation is under way.
    program = jax.jit(jax_core.jaxpr_as_fun(traced)).lower(first, *rest).compile()

    def pulled(cotangent: np.ndarray) -> list[np.ndarray]:
        results = program(cotangent.astype(types[0].dtype), *rest)
        return [np.asarray(result).astype(complex) for result in results if _moves(result)]

    apart = list(zip(pulled(first), pulled(other), strict=True))
    for scale in (1e-6, 1.0, 1e6):
        for found, (one, two) in zip(pulled(scale * (first + 2.0 * other)), apart, strict=True):
            expected = scale * (one + 2.0 * two)
            size = np.linalg.norm(expected)
            if not (0.0 < size < np.inf and np.linalg.norm(found - expected) <= PROBED * size):
                return False
    return bool(apart)


def _moves(value: Any) -> bool:
    return bool(dtypes.issubdtype(value.dtype, np.inexact))


def _is_extended(value: Any) -> bool:
    """Whether a value is of keys of random numbers, or the like, of which none can be drawn."""
    return bool(dtypes.issubdtype(value.dtype, dtypes.extended))


def _drawn(rng: np.random.Generator, aval: Any) -> np.ndarray:
    numbers = rng.normal(size=aval.shape)
    if dtypes.issubdtype(aval.dtype, np.complexfloating):
        numbers = numbers + 1j * rng.normal(size=aval.shape)
    return np.asarray(numbers).astype(aval.dtype)


def is_linear(closed: Any) -> bool:
    """Whether a nested program is linear in all of its real and complex inputs together."""
    moves = [dtypes.issubdtype(v.aval.dtype, np.inexact) for v in closed.jaxpr.invars]
    seeds = [LINEAR if moved else None for moved in moves]
    return not _refused(_dependences(closed.jaxpr, seeds))


def _refused(results: Sequence[Dependence]) -> str:
    """The first operation that is not linear on the way to a result; nothing where all are."""
    return next((result for result in results if result not in (None, LINEAR, SOLVED)), "")


def _dependences(jaxpr: Any, depends: Sequence[Dependence]) -> list[Dependence]:
    """How the outputs of a program depend on its inputs, given how these depend on a cotangent."""
    held = dict(zip(jaxpr.invars, depends, strict=True))
    for equation in jaxpr.eqns:
        operands = [None if hasattr(a, "val") else held.get(a) for a in equation.invars]
        if all(operand is None for operand in operands):
            continue
        for variable, result in zip(equation.outvars, _results(equation, operands), strict=True):
            dtype = getattr(variable.aval, "dtype", np.bool_)
            if _refused([result]) or dtypes.issubdtype(dtype, np.inexact):
                held[variable] = result
    return [None if hasattr(a, "val") else held.get(a) for a in jaxpr.outvars]


def _results(equation: Any, operands: Sequence[Dependence]) -> list[Dependence]:
    """How the results of an equation depend on a cotangent, of which some operand does.

    What is not looked into is taken to be linear. A `while` is solved, whatever lengths of steps
    and slopes go into it; what is clipped stays so.
    """
    name, params = str(equation.primitive.name), equation.params
    if name == "while":
        clipped = next((operand for operand in operands if operand in CLIPPING), SOLVED)
        return [clipped] * len(equation.outvars)
    body = params.get({**INLINED_CALLS, **CUSTOM_CALLS}.get(name, ""))
    if body is not None:
        return _dependences(getattr(body, "jaxpr", body), operands)
    if name == "cond":
        branches = [_dependences(branch.jaxpr, operands[1:]) for branch in params["branches"]]
        chosen = _refused(operands[:1]) or None
        return [_worst((chosen, *results)) for results in zip(*branches, strict=True)]
    counts = scan_counts(params) if name == "scan" else None
    if counts is not None:
        return _repeated(params["jaxpr"].jaxpr, operands, *counts)
    result = _worst(operands)
    scaled = result == SOLVED and (name in BILINEAR or name == "div")
    if not scaled and _is_nonlinear(name, params, [operand is not None for operand in operands]):
        array = math.prod(equation.outvars[0].aval.shape) > 1
        result = name if array and name in CLIPPING else _refused(operands) or name
    return [result] * len(equation.outvars)


def _repeated(
    jaxpr: Any, operands: Sequence[Dependence], constants: int, carries: int
) -> list[Dependence]:
    """As `_results`, of a loop whose carries come back."""
    depends = list(operands)
    while True:
        results = _dependences(jaxpr, depends)
        before = list(depends)
        for k in range(constants, constants + carries):
            depends[k] = _worst((depends[k], results[k - constants]))
        if depends == before:
            return results


def _worst(dependences: Sequence[Dependence]) -> Dependence:
    """Not linear if any is, else solved if any is, else linear if any is."""
    moving = {d for d in dependences if d is not None}
    return _refused(dependences) or max(moving, default=None)


def _is_nonlinear(name: str, params: Any, operands: Sequence[bool]) -> bool:
    if name == "div":
        return operands[1]
    if name == "sort":
        return any(operands[: params["num_keys"]])
    return name in NONLINEAR or (name in BILINEAR and sum(operands) > 1)
