"""What has no rule of its own goes through the opaque map, and the log says so once."""

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from graphax_lapl import NotDifferentiableError, jacve
from tests.checks import ORDERS, assert_same, check_orders

POINT = np.array([[2.0, 0.3, 0.1], [0.3, 1.5, 0.2], [0.1, 0.2, 1.0]])


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the package has logged at warning level or above."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("graphax_lapl") and record.levelno >= logging.WARNING
    ]


def linear_primitive(name: str) -> Primitive:
    """A user's own linear primitive, doubling its operand, unknown to the rules."""
    double_p = Primitive(name)
    double_p.def_impl(lambda x: 2.0 * x)
    double_p.def_abstract_eval(lambda x: x)
    mlir.register_lowering(double_p, mlir.lower_fun(lambda x: 2.0 * x, multiple_results=False))
    ad.deflinear2(double_p, lambda cotangent, _: [double_p.bind(cotangent)])
    batching.defvectorized(double_p)
    return double_p


def test_unknown_primitive_is_right_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Other orders and repeated calls do not repeat the message, which names source and line."""
    double_p = linear_primitive("double_of_the_test")

    def fun(x: jax.Array) -> jax.Array:
        return jnp.sin(double_p.bind(jnp.exp(x))) @ x

    expected = jax.jit(jax.jacfwd(fun))(POINT)
    with caplog.at_level(logging.WARNING, logger="graphax_lapl"):
        for order in ORDERS:
            for _ in range(2):
                assert_same(jacve(fun, order=order)(POINT), expected)
    said = [message for message in messages(caplog) if "double_of_the_test" in message]
    assert len(said) == 1
    assert "test_fallback_log.py" in said[0]


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jnp.sin(x) * x,
        lambda x: jax.nn.softmax(x @ x.T),
        lambda x: jnp.concatenate([x[::-1], x.reshape(3, 3).T])[1:, ::2],
        lambda x: jnp.where(x > 0.2, x.sum(0), x.max(1)),
        lambda x: x.at[np.array([0, 2])].add(x[1]),
    ],
    ids=["elementwise", "contraction", "shaping", "selection", "indexing"],
)
def test_silent_where_there_is_a_rule(
    fun: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="graphax_lapl"):
        jacve(fun)(POINT)
    assert messages(caplog) == []


def test_rules_may_apply_what_has_no_derivative_to_their_tangents() -> None:
    """A rule is linear in its tangents: what it applies to them is, also without a derivative."""

    def weighted(tangent: jax.Array, weight: jax.Array) -> jax.Array:
        return tangent * jnp.sin(weight)

    weighted_p = Primitive("weighted_tangent")
    weighted_p.def_impl(weighted)
    weighted_p.def_abstract_eval(lambda tangent, _: tangent)
    mlir.register_lowering(weighted_p, mlir.lower_fun(weighted, multiple_results=False))
    batching.defbroadcasting(weighted_p)

    @jax.custom_jvp
    def fun(x: jax.Array) -> jax.Array:
        return -jnp.cos(x)

    @fun.defjvp
    def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
        (x,), (dx,) = primals, tangents
        return fun(x), 2.0 * weighted_p.bind(3.0 * dx, x)

    check_orders(lambda x: fun(x**2) * x[0], POINT, orders=("auto", "forward", "markowitz"))
    with pytest.raises(NotDifferentiableError, match="weighted_tangent"):
        jacve(lambda x: weighted_p.bind(x, POINT))(POINT)
