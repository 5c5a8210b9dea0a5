"""Tracing a program again, equation by equation, each where the user's code wrote it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr

__all__ = ["RULE", "Rule", "closed_as", "evaluated"]

#: The parameter that holds a rule for tangents, traced when it is asked for.
RULE = "jvp_jaxpr_fun"

#: From an equation and the values of its operands to a list of its results.
Compute = Callable[[Any, list[Any]], Sequence[Any]]


def evaluated(
    jaxpr: Any,
    values: Sequence[Any],
    compute: Compute,
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> list[Any]:
    """The outputs of an open jaxpr.

    Args:
        jaxpr: the program.
        values: of its constants, then its inputs.
        compute: what stands for an equation.
        around: a context for each of them, within the equation's own.
    """
    scope = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else scope[atom]

    for equation in jaxpr.eqns:
        info = equation.source_info
        with (
            source_info_util.user_context(info.traceback, name_stack=info.name_stack),
            equation.ctx.manager,
            around(),
        ):
            results = compute(equation, [read(atom) for atom in equation.invars])
        scope.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def closed_as(closed: Any, traced: Any) -> Any:
    """A program that was traced again, constants being its first inputs, closed as it was before.

    Args:
        closed: the program before.
        traced: the new one, whose own constants follow those of `closed`, and whose inputs may be
            more.
    """
    jaxpr, inputs = closed.jaxpr, traced.jaxpr.invars
    count = len(jaxpr.constvars)
    made = traced.jaxpr.replace(
        constvars=[*inputs[:count], *traced.jaxpr.constvars], invars=inputs[count:]
    )
    if len(made.invars) == len(jaxpr.invars):
        made = made.replace(debug_info=jaxpr.debug_info)
    return ClosedJaxpr(made, [*closed.consts, *traced.consts])


class Rule:
    """What a rule for tangents is traced to, traced again."""

    def __init__(
        self, rule: Any, context: Any, retraced: Callable[[Any, Sequence[Any], Sequence[Any]], Any]
    ):
        """Begin with the rule.

        Args:
            rule: the parameter `RULE` of an equation.
            context: the equation's.
            retraced: from a jaxpr, its variables that are inputs, and constants for those before
                them to a closed jaxpr.
        """
        self.rule, self.context, self.retraced = rule, context, retraced
        self.debug_info = rule.debug_info

    def call_wrapped(self, *zeros: Any) -> tuple[Any, ...]:
        """What JAX asks for: a jaxpr, its constants, and more."""
        with self.context.manager:
            jaxpr, constants, *rest = self.rule.call_wrapped(*zeros)
        variables = [*jaxpr.constvars, *jaxpr.invars][len(constants) :]
        traced = self.retraced(jaxpr, variables, constants)
        return traced.jaxpr, traced.consts, *rest
