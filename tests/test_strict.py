"""`strict=True` refuses what has no rule, and the log tells of it once."""

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import (
    FallbackError,
    compare_orders,
    computational_graph,
    count_ops,
    divergence_ve,
    forward_laplacian,
    hessve,
    jacve,
    laplacian_ve,
    make_plan,
    value_and_jacve,
)
from tests.test_fallback_log import linear_primitive

POINT = np.array([0.5, 1.0, 1.5])
FIRST = (jacve, value_and_jacve, divergence_ve)
SECOND = (hessve, laplacian_ve, forward_laplacian)
unknown_p = linear_primitive("unknown_of_the_strict_test")


def with_unknown(x: jax.Array) -> jax.Array:
    return jnp.sin(unknown_p.bind(x)) * x


def with_loop(x: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: c @ c * c, x)


@pytest.mark.parametrize("derivative", [*FIRST, *SECOND])
@pytest.mark.parametrize(
    ("fun", "name"), [(with_unknown, "unknown_of_the_strict_test"), (with_loop, "while")]
)
def test_names_primitive_and_line(
    fun: Callable[..., Any], name: str, derivative: Callable[..., Any]
) -> None:
    with pytest.raises(FallbackError, match=rf"'{name}' \(.*test_strict.py:\d+"):
        derivative(fun, strict=True)(POINT)
    with pytest.raises(NotImplementedError, match="strict=False"):
        derivative(fun, strict=True)(POINT)  # the plan is remembered, and refused again


@pytest.mark.parametrize("look", [computational_graph, compare_orders, count_ops, make_plan])
def test_analysis_refuses_as_the_derivative_does(look: Callable[..., Any]) -> None:
    look(with_loop, POINT)
    with pytest.raises(FallbackError, match=r"'while' \(.*test_strict.py:\d+"):
        look(with_loop, POINT, strict=True)


@pytest.mark.parametrize("kind", ["laplacian", "hessian"])
def test_counts_of_second_order_refuse_too(kind: str) -> None:
    with pytest.raises(FallbackError, match=r"'while' \(.*test_strict.py:\d+"):
        count_ops(with_loop, POINT, kind=kind, strict=True)


@pytest.mark.parametrize("derivative", SECOND)
def test_second_derivative_without_closed_form(derivative: Callable[..., Any]) -> None:
    def fun(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.linalg.qr(jnp.outer(x, x) + jnp.eye(3))[1] ** 2)

    jacve(fun, strict=True)(POINT)
    with pytest.raises(FallbackError, match=r"'qr' \(.*test_strict.py.*differentiating"):
        derivative(fun, strict=True)(POINT)


@pytest.mark.parametrize("derivative", [*FIRST, *SECOND])
def test_accepts_what_has_rules(derivative: Callable[..., Any]) -> None:
    derivative(lambda x: jax.nn.softmax(x * x) * jnp.sin(x @ x), strict=True)(POINT)


def test_loops_are_logged_once_per_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="graphax_lapl"):
        for _ in range(2):
            jacve(lambda x: jax.lax.while_loop(lambda c: c[0] < 2, lambda c: c * c[1] + 1, x))(
                POINT
            )
    said = [r for r in caplog.records if "'while'" in r.getMessage()]
    assert [r.levelno for r in said] == [logging.INFO]
    assert "test_strict.py" in said[0].getMessage()
    assert "differentiated as a whole" in said[0].getMessage()
