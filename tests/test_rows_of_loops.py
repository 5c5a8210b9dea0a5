"""Loops: whether rows are pulled back through them, or columns are pushed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import jacve
from graphax_lapl.rules.rows_of_loops import MOVES_IN_MEMORY

WEIGHTS = np.random.default_rng(0).standard_normal((12, 12)) / 4


def loop(step: Any, steps: int) -> Any:
    return lambda x: lax.scan(lambda c, k: (step(c, k), None), x, jnp.arange(1.0, 1.0 + steps))[0]


def moved(c: Any, k: Any) -> Any:
    return jnp.tanh(c + 0.1 * k * jnp.roll(c, 1))


def often_moved(c: Any, k: Any) -> Any:
    for shift in range(1, 6):
        c = jnp.sin(c) + 0.1 * k * jnp.roll(c, shift)
    return c


def layer(c: Any, k: Any) -> Any:
    return jnp.tanh(WEIGHTS @ c + 0.1 * k)


def coupled(c: Any, k: Any) -> Any:
    """All pairs of entries are in memory for every step."""
    return c + 0.05 * k * jnp.sum(jnp.sin(c[None] - c[:, None]), 1)


def reversed_loops(jaxpr: Any) -> int:
    """How many loops run backwards, those of nested programs included."""
    found = 0
    for equation in jaxpr.eqns:
        found += equation.primitive.name == "scan" and equation.params["reverse"]
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda v: hasattr(v, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            found += reversed_loops(inner) if hasattr(inner, "eqns") else 0
    return found


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("step", "steps", "rows"),
    [
        (moved, 10, MOVES_IN_MEMORY),
        (moved, 60, False),
        (often_moved, 10, False),
        (layer, 10, True),
        (layer, 60, False),
        (coupled, 10, False),
    ],
)
def test_as_many_rows_as_columns(step, steps, rows):
    fun = loop(step, steps)
    x = jnp.linspace(0.1, 0.9, 12)
    program = jax.make_jaxpr(jacve(fun))(x)
    assert reversed_loops(program.jaxpr) == rows
    np.testing.assert_allclose(jacve(fun)(x), jax.jacfwd(fun)(x), rtol=1e-10, atol=1e-12)


def rotated(c: Any, k: Any) -> Any:
    """Plain arithmetic."""
    return c + 0.05 * k * c * jnp.roll(c, 1)


def squared(step: Any) -> Any:
    return lambda x: jnp.sum(loop(step, 12)(x) ** 2)


def by_rates(p: Any) -> Any:
    """Every step reads single rates: what goes back to them is summed in every step."""

    def step(c, _):
        return c + 0.05 * (p[0] * jnp.roll(c, 1) - p[1] * c * c + p[2])

    return jnp.sum(loop(step, 12)(jnp.ones(3)) ** 2)


def by_one_array(p: Any) -> Any:
    """Every step multiplies by all rates, entry by entry."""

    def step(c, _):
        return c + 0.05 * (p * jnp.roll(c, 1) - c * c)

    return jnp.sum(loop(step, 12)(jnp.ones(4)) ** 2)


def of_numbers(p: Any) -> Any:
    """Two numbers are carried; both are read behind the loop, and add up in the gradient."""
    rate, damping, place, speed = p

    def step(c, _):
        return c[0] + 0.1 * c[1], jnp.tanh(c[1] - 0.1 * (rate * c[0] + damping * c[1]))

    place, speed = loop(step, 12)((place, speed))
    return place * speed + jnp.sin(place)


def with_factors(step: Any) -> Any:
    """Every step calls a library for its factor, for a column several times."""

    def likelihood(p: Any) -> Any:
        def next_(covariance: Any, k: Any) -> tuple[Any, Any]:
            factor = jnp.linalg.cholesky(covariance + p[0] * jnp.eye(2))
            covariance = step(k, 0.9 * covariance + p[1] * jnp.outer(factor[1], factor[1]) + p[2])
            return covariance, jnp.log(factor[1, 1])

        return jnp.sum(lax.scan(next_, jnp.eye(2), jnp.arange(5.0))[1])

    return likelihood


def branching(k: Any, covariance: Any) -> Any:
    return lax.cond(k > 2, lambda c: c + c.T, lambda c: 1.5 * c, covariance)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("fun", "size", "rows"),
    [
        (with_factors(lambda k, c: c), 3, False),
        (with_factors(branching), 3, True),
        (squared(rotated), 3, False),
        (squared(moved), 2, False),
        (squared(moved), 3, True),
        (squared(rotated), 5, True),
        (squared(lambda c, k: jnp.tanh(WEIGHTS[:6, :6] @ c + k)), 6, True),
        (lambda x: WEIGHTS[:4, :6] @ loop(moved, 12)(x), 6, False),
        (lambda x: WEIGHTS[:3, :8] @ loop(moved, 12)(x), 8, True),
        (by_rates, 3, False),
        (by_one_array, 4, True),
        (of_numbers, 4, False),
    ],
)
def test_few_rows_and_columns_of_small_loops(fun, size, rows):
    x = jnp.linspace(0.2, 0.9, size)
    assert bool(reversed_loops(jax.make_jaxpr(jacve(fun))(x).jaxpr)) == rows
    expected = jax.jacfwd(fun)(x)
    np.testing.assert_allclose(jacve(fun)(x), expected, rtol=1e-10, atol=1e-12)
    samples = x + jnp.linspace(0, 0.3, 5)[:, None]
    np.testing.assert_allclose(
        jax.vmap(jacve(fun))(samples), jax.vmap(jax.jacfwd(fun))(samples), rtol=1e-10, atol=1e-12
    )


def test_rows_of_samples():
    fun = loop(layer, 10)
    xs = jax.random.normal(jax.random.key(0), (5, 12), jnp.float64)
    expected = jax.vmap(jax.jacfwd(fun))(xs)
    np.testing.assert_allclose(jax.vmap(jacve(fun))(xs), expected, rtol=1e-10, atol=1e-12)
