"""Scans whose steps hand on nothing that moves, evaluated for all steps at once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import jacve, laplacian_ve, make_plan

WEIGHTS = np.random.default_rng(0).standard_normal((3, 4)) / 2
SERIES = np.random.default_rng(1).standard_normal(11)


def network(row: Any) -> Any:
    return jnp.sum(jnp.tanh(row @ WEIGHTS) ** 2)


def mapped(x: Any) -> Any:
    return lax.map(network, x.reshape(4, 3))


def in_chunks(x: Any) -> Any:
    return lax.map(network, x.reshape(4, 3), batch_size=3)


def of_times(p: Any) -> Any:
    return lax.map(lambda t: p[0] * jnp.exp(-p[1] * t) * jnp.cos(p[2] * t), jnp.linspace(0, 1, 9))


def of_observations(p: Any, reverse: bool = False) -> Any:
    """The step hands on the observation, a count and what it was given."""

    def step(carry, y):
        before, count, start = carry
        return (y, count - 2, start), (y - p[0] * before - p[1] * start) * count + p[2] ** 2

    carry, residuals = lax.scan(step, (0.5, 3, 0.25), SERIES, reverse=reverse)
    return jnp.concatenate([residuals, p[:1] * carry[0] + carry[1] + carry[2]])


def of_observations_backwards(p: Any) -> Any:
    return of_observations(p, reverse=True)


def with_columns_of_two(x: Any) -> Any:
    rows, more = lax.scan(lambda c, r: (c, (r * r[::-1], jnp.sum(r))), 0.0, x.reshape(4, 3))[1]
    return jnp.concatenate([rows.ravel(), more])


CASES = [
    (mapped, 12),
    (in_chunks, 12),
    (of_times, 3),
    (of_observations, 3),
    (of_observations_backwards, 3),
    (with_columns_of_two, 12),
]


def loops(fun: Any, x: Any) -> int:
    """Loops that something differentiated passes through."""
    equations = make_plan(fun, x).graph.listing.equations
    return sum(e.name == "scan" and any(e.active) for e in equations)


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize(("fun", "size"), CASES)
def test_derivatives_are_jaxs(fun, size):
    x = jnp.linspace(0.3, 1.2, size)
    assert loops(fun, x) == 0
    np.testing.assert_allclose(jacve(fun)(x), jax.jacfwd(fun)(x), rtol=1e-11, atol=1e-12)
    samples = x + jnp.linspace(0, 0.2, 4)[:, None]
    found = jax.jit(jax.vmap(jacve(fun, order="forward")))(samples)
    np.testing.assert_allclose(found, jax.vmap(jax.jacrev(fun))(samples), rtol=1e-11, atol=1e-12)
    total = lambda x: jnp.sum(jnp.sin(fun(x)))  # noqa: E731
    hessian = jax.hessian(total)(x)
    np.testing.assert_allclose(laplacian_ve(total)(x), jnp.trace(hessian), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: lax.map(lambda r: lax.cond(r > 0.5, jnp.sin, jnp.cos, r), x),
        lambda x: lax.scan(lambda c, r: (c * r, c + r), 1.0, x)[1],
        lambda x: lax.scan(lambda c, r: (0.5 * c + 1, c * r), 1.0, x)[1],
        lambda x: lax.map(lambda r: jnp.sum(jnp.outer(jnp.full(60, r), jnp.ones(60))), x),
    ],
    ids=["branches", "handed on", "takes a loop", "large"],
)
def test_other_loops_stay(fun):
    x = jnp.linspace(0.1, 0.9, 12)
    assert loops(fun, x) == 1
    np.testing.assert_allclose(jacve(fun)(x), jax.jacfwd(fun)(x), rtol=1e-11, atol=1e-12)
