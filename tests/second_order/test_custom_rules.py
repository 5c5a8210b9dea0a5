"""Functions with derivative rules of their own: second derivatives are those of the rule.

A rule need not be the derivative of the value, and its own derivative need not be symmetric;
`jax.hessian` says what is meant.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import jacve, laplacian_ve
from tests.second_order.checks import check_second_order

X = np.array([0.4, -0.3, 0.9])

Rule = Callable[[Any, Any], tuple[Any, Any]]


def with_rule(value: Callable[[Any], Any], rule: Rule) -> Callable[[Any], Any]:
    """A function of one array with a rule `(x, t) -> (value, tangent)`."""
    fun = jax.custom_jvp(value)
    fun.defjvp(lambda primals, tangents: rule(*primals, *tangents))
    return fun


def with_pullback(value: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Callable[..., Any]:
    """A function of one array with a rule for cotangents that multiplies by `slope`."""
    fun = jax.custom_vjp(value)
    fun.defvjp(lambda x: (value(x), x), lambda x, ct: (ct * slope(x),))
    return fun


consistent = with_rule(jnp.sin, lambda x, t: (jnp.sin(x), jnp.cos(x) * t))
straight_through = with_rule(lambda x: jnp.round(x), lambda x, t: (jnp.round(x), t))
straight_tanh = with_rule(jnp.sign, lambda x, t: (jnp.sign(x), (1 - jnp.tanh(x) ** 2) * t))
other_value = with_rule(jnp.sin, lambda x, t: (jnp.exp(x), jnp.cos(x) * t))
scaled = with_rule(jnp.sin, lambda x, t: (jnp.sin(x), 2.0 * t))
identity = with_rule(lambda x: x, lambda x, t: (x, 2.0 * t))
identity_by_value = with_rule(lambda x: x, lambda x, t: (x, x * t))
vanishing_slope = with_rule(lambda x: 0.0 * x, lambda x, t: (0.0 * x, other_value(x) * t))
slope_that_vanishes = with_rule(jnp.sin, lambda x, t: (jnp.sin(x), vanishing_slope(x) * t))
no_tangent = with_rule(jnp.sin, lambda x, t: (jnp.sin(x), jnp.zeros_like(t)))
through_result = with_rule(jnp.exp, lambda x, t: (lambda y: (y, y * t))(jnp.exp(x)))
through_itself = with_rule(jnp.exp, lambda x, t: (through_itself(x), through_itself(x) * t))
nested = with_rule(
    lambda x: consistent(x) * x,
    lambda x, t: (consistent(x) * x, (consistent(x) + straight_tanh(x)) * t),
)
clipped_slope = with_rule(lambda x: x**3, lambda x, t: (x**3, jnp.clip(3 * x**2, 0.3, 0.9) * t))
rotated = with_rule(lambda x: x**2, lambda x, t: (x**2, jnp.roll(t * x, 1)))
by_vjp = with_pullback(jnp.sin, jnp.cos)
other_vjp = with_pullback(jnp.sin, lambda x: x**3)
identity_vjp = with_pullback(lambda x: x, lambda x: x**2)


@jax.custom_jvp
def pair(x: Any, y: Any) -> tuple[Any, Any]:
    """Two results, a rule that is not their derivative."""
    return x * y, jnp.sin(x)


@pair.defjvp
def _pair_jvp(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    return (x * y, jnp.sin(x)), (dx * jnp.exp(y) + dy, dx * x * y)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def powered(n: int, x: Any) -> Any:
    return x**n


@powered.defjvp
def _powered_jvp(n: int, primals: Any, tangents: Any) -> Any:
    return powered(n, *primals), n * powered(n - 1, *primals) * tangents[0] * 1.5


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def bounded(x: Any, limit: float) -> Any:
    return x**2


bounded.defvjp(
    lambda x, limit: (x**2, x),
    lambda limit, x, ct: (jnp.clip(ct, -limit, limit) * 2.0 * x,),
)


def in_scan(fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function three times in a row, inside a scan."""
    return lambda x: lax.scan(lambda c, _: (fun(c) * 0.9, c.sum()), x, None, length=3)


RULES: dict[str, Callable[[Any], Any]] = {
    "consistent": consistent,
    "straight through": straight_through,
    "straight through, tanh slope": straight_tanh,
    "value of the rule differs": other_value,
    "scaled": scaled,
    "identity": identity,
    "identity times its value": identity_by_value,
    "no tangent": no_tangent,
    "slope that vanishes but moves": slope_that_vanishes,
    "through its result": through_result,
    "through itself": through_itself,
    "nested": nested,
    "clipped slope": clipped_slope,
    "rotated": rotated,
    "power": partial(powered, 3),
    "one of two results": lambda x: pair(x, x[::-1])[1],
    "both results": lambda x: jnp.stack(pair(x, x[::-1])),
    "two operands": lambda x: pair(jnp.cos(x), x * x[::-1])[0],
    "vmapped": lambda x: jax.vmap(nested)(x),
    "cotangents": by_vjp,
    "cotangents, another slope": other_vjp,
    "cotangents, identity": identity_vjp,
    "cotangents, clipped": lambda x: bounded(x, 0.5),
    "scan": lambda x: in_scan(consistent)(x)[0],
    "scan, straight through": lambda x: in_scan(straight_tanh)(x)[0],
    "scan, cotangents": lambda x: in_scan(by_vjp)(x)[0],
    "cond": lambda x: lax.cond(x[0] < 9.0, straight_tanh, consistent, x),
    "cond, known branch": lambda x: lax.cond(True, straight_tanh, consistent, x),
    "stop_gradient of a factor": lambda x: lax.stop_gradient(jnp.sin(x)) * x**2,
    "straight through by stop_gradient": lambda x: x + lax.stop_gradient(jnp.round(x) - x),
    "checkpoint": jax.checkpoint(lambda x: straight_tanh(jnp.sin(x)) * x),
    "nested jit": jax.jit(jax.jit(lambda x: identity_by_value(jnp.sin(x)) * x)),
    "of its gradient": lambda x: jax.grad(lambda y: jnp.sum(consistent(y) ** 2))(x),
}

WAYS: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "alone": lambda fun: fun,
    "before and after": lambda fun: lambda x: jnp.sin(fun(x * x[::-1]) * x),
    "scalar": lambda fun: lambda x: jnp.sum(fun(jnp.exp(x)) ** 2),
    "twice": lambda fun: lambda x: fun(jnp.cos(fun(x))) * fun(x),
    "by functions of their result": lambda fun: lambda x: jnp.tanh(fun(x)) * jnp.exp(2.0 * fun(x)),
    "shared": lambda fun: lambda x: (fun(x), jnp.exp(fun(x)) + x**2 * jnp.sum(fun(x))),
}


BESIDES = {
    (rule, "by functions of their result") for rule in ("scaled", "straight through, tanh slope")
}


def parameters() -> list[Any]:
    """All rules in two ways by default, in the others in the long suite."""
    quick = ("before and after", "twice")
    return [
        pytest.param(
            rule,
            way,
            marks=[] if way in quick or (rule, way) in BESIDES else [pytest.mark.conformance],
        )
        for rule in RULES
        for way in WAYS
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "way"), parameters())
def test_rule(rule: str, way: str) -> None:
    check_second_order(
        WAYS[way](RULES[rule]), X, orders=("forward", "reverse"), context=f"{rule}, {way}"
    )


@jax.custom_vjp
def cubed(x):
    """A cube whose derivative is known for cotangents only."""
    return x * x * x


cubed.defvjp(lambda x: (cubed(x), x), lambda x, cotangent: (3.0 * x * x * cotangent,))


def rows_in_turn(w, x):
    """Layers of rows, one after the other."""
    rows = jax.lax.map(lambda row: jnp.tanh(row @ w), cubed(x) + jnp.sin(x))
    return jnp.sum(jnp.sin(jnp.roll(rows, 1, 0)))


def rules_in_turn(w, x):
    """The same, with the rule in the layers."""
    first = jax.lax.map(lambda row: cubed(jnp.tanh(cubed(row) @ w)), jnp.sin(x))
    return jnp.sum(jnp.sin(jnp.roll(first, 1, 0)) * jax.lax.map(lambda row: jnp.tanh(row @ w), x))


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("outer", ["samples", "loss"])
@pytest.mark.parametrize("fun", [rows_in_turn, rules_in_turn])
@pytest.mark.parametrize("kind", ["inputs", "weights", "laplacian"])
def test_training_steps_of_batches_through_rules_for_cotangents(kind, fun, outer):
    moving = 0 if kind == "weights" else 1

    def ours(w, x):
        if kind == "laplacian":
            return laplacian_ve(fun, argnums=1)(w, x) ** 2
        return jnp.sum(jacve(fun, argnums=moving)(w, x) ** 2)

    def reference(w, x):
        gradient = jax.grad(fun, moving)
        if kind == "laplacian":
            hessian = jax.jacrev(gradient, 1)(w, x)
            return jnp.trace(hessian.reshape(x.size, x.size)) ** 2
        return jnp.sum(gradient(w, x) ** 2)

    def step(loss):
        if outer == "samples":
            return jax.vmap(jax.grad(loss), (None, 0))
        return jax.grad(lambda w, x: jnp.sum(jax.vmap(loss, (None, 0))(w, x)))

    x = jax.random.normal(jax.random.key(0), (3, 4, 3), jnp.float64)
    w = jax.random.normal(jax.random.key(1), (3, 5), jnp.float64)
    found = jax.jit(step(ours))(w, x)
    np.testing.assert_allclose(found, jax.jit(step(reference))(w, x), rtol=1e-9, atol=1e-9)
