"""Places along mapped axes (`jax.lax.axis_index`) inside of loops, branches and calls.

They do not depend on what a function is given, so parts of a loop's derivative may hold them beside
operands that are the same for all samples: `jax.vmap` does not see into such a loop, and nothing
binds the axis. Inside of `jax.shard_map` what they are added to varies with them, other than it did
before a loop. So a function that has some inside takes them as inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import jaxprs_in_params

from .calls import INLINED_CALLS
from .listing import scan_counts
from .retracing import closed_as, evaluated

__all__ = ["with_places_given"]

PLACE = "axis_index"
#: Equations that bind axes of their own.
BINDING = frozenset({"shard_map", "pmap", "xla_pmap"})


def with_places_given(closed: Any) -> tuple[Any, list[Any]]:
    """A closed jaxpr that takes places inside of its calls as further inputs, and these."""
    if not any(hasattr(effect, "name") for effect in closed.jaxpr.effects):
        return closed, []
    jaxpr = closed.jaxpr
    names = sorted({name for e in jaxpr.eqns for name in _names_inside(e)})
    if not names:
        return closed, []
    places = [lax.axis_index(name) for name in names]
    variables = [*jaxpr.constvars, *jaxpr.invars]

    def outputs(*values: Any) -> list[Any]:
        given = dict(zip(names, values[len(variables) :], strict=True))
        return _evaluated(jaxpr, values[: len(variables)], given)

    types = [*(variable.aval for variable in variables), *map(jax.typeof, places)]
    return closed_as(closed, jax.make_jaxpr(outputs)(*types)), places


def _names_inside(equation: Any) -> set[Any]:
    """Axes along which programs that an equation evaluates ask for places."""
    if str(equation.primitive.name) not in ("scan", "while", "cond", *INLINED_CALLS):
        return set()
    found: set[Any] = set()
    for body in jaxprs_in_params(equation.params):
        for inner in body.eqns:
            if inner.primitive.name == PLACE:
                found.add(inner.params["axis_name"])
            found |= _names_inside(inner)
    return found


def _evaluated(jaxpr: Any, values: Sequence[Any], given: Mapping[Any, Any]) -> list[Any]:
    """The outputs of an open jaxpr whose constants and inputs are `values`."""
    return evaluated(jaxpr, values, lambda equation, own: _results(equation, own, given))


def _results(equation: Any, values: Sequence[Any], given: Mapping[Any, Any]) -> Sequence[Any]:
    """What an equation computes."""
    primitive, params = equation.primitive, equation.params
    name = str(primitive.name)
    if name == PLACE and params["axis_name"] in given:
        return [given[params["axis_name"]]]
    if _names_inside(equation):
        if name in INLINED_CALLS:
            return _body(params[INLINED_CALLS[name]], given)(*values)
        if name == "scan" and (counts := scan_counts(params)) is not None:
            return _scanned(params, counts, values, given)
        if name == "while":
            return _repeated(params, values, given)
        if name == "cond" and params.get("branches_platforms") is None:
            branches = [_body(branch, given) for branch in params["branches"]]
            return list(lax.switch(values[0], branches, *values[1:]))
    result = primitive.bind(*values, **primitive.get_bind_params(params))
    return list(result) if primitive.multiple_results else [result]


def _body(body: Any, given: Mapping[Any, Any]) -> Callable[..., list[Any]]:
    """A jaxpr parameter, closed or open, as a function."""
    jaxpr, constants = getattr(body, "jaxpr", body), getattr(body, "consts", ())
    return lambda *values: _evaluated(jaxpr, [*constants, *values], given)


def _scanned(
    params: Mapping[str, Any],
    counts: tuple[int, int],
    values: Sequence[Any],
    given: Mapping[Any, Any],
) -> list[Any]:
    body, (first, carried) = _body(params["jaxpr"], given), counts

    def step(carry: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        results = body(*values[:first], *carry, *rows)
        return results[:carried], results[carried:]

    begun, rows = list(values[first : first + carried]), list(values[first + carried :])
    options = {key: params[key] for key in ("length", "reverse", "unroll")}
    carry, stacked = lax.scan(step, begun, rows, **options)
    return [*carry, *stacked]


def _repeated(
    params: Mapping[str, Any], values: Sequence[Any], given: Mapping[Any, Any]
) -> list[Any]:
    goes_on, body = _body(params["cond_jaxpr"], given), _body(params["body_jaxpr"], given)
    first = params["cond_nconsts"]
    second = first + params["body_nconsts"]

    def again(carry: Any) -> Any:
        return goes_on(*values[:first], *carry)[0]

    def step(carry: Any) -> Any:
        return body(*values[first:second], *carry)

    return list(lax.while_loop(again, step, list(values[second:])))
