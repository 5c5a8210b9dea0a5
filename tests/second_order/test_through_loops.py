"""Laplacians through loops over layers, which are taken from Hessians where these are full."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import forward_laplacian, laplacian_ve, local_kinetic_energy, make_plan
from graphax_lapl.api import laplacian, operators, through_loops

WEIGHTS = np.random.default_rng(0).standard_normal((4, 4)) / 2
X = np.array([0.3, -0.4, 0.8, 0.1])
METRIC = np.array(
    [[2.0, 0.3, 0.0, 0.1], [0.3, 1.0, -0.4, 0.0], [0.0, -0.4, 1.5, 0.2], [0.1, 0.0, 0.2, 0.7]]
)


def layers(x: Any) -> Any:
    """More layers than are written out."""
    steps = jnp.arange(1.0, 13.0)
    return lax.scan(lambda h, k: (jnp.tanh(WEIGHTS @ h + 0.1 * k), None), x, steps)[0]


def network(x: Any) -> Any:
    return jnp.sum(jnp.sin(layers(x)) * x)


def pair(x: Any) -> Any:
    return jnp.stack([network(x), jnp.sum(x**3)])


def of_particles(x: Any) -> Any:
    """The same layers for every particle: columns stay apart behind them."""
    return jnp.sum(jax.vmap(layers)(jnp.outer(x, jnp.ones(4))))


def mostly_outside(x: Any) -> Any:
    """Products of larger matrices before the loop."""
    wide = np.random.default_rng(1).standard_normal((4, 200)) / 10
    return network(jnp.tanh(wide @ jnp.tanh(wide.T @ x)))


def elementwise(x: Any) -> Any:
    return jnp.sum(lax.scan(lambda h, k: (jnp.sin(h) * k * x[0], None), x, jnp.arange(12.0))[0])


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Which answers were given."""
    answers: list[bool] = []

    def asked(*args: Any) -> bool:
        answers.append(through_loops.hessian_takes_less(*args))
        return answers[-1]

    monkeypatch.setattr(laplacian, "hessian_takes_less", asked)
    monkeypatch.setattr(operators, "hessian_takes_less", asked)
    return answers


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("fun", "sooner"),
    [
        (network, True),
        (pair, False),
        (of_particles, False),
        (mostly_outside, False),
        (elementwise, False),
    ],
)
def test_where_hessians_take_less(fun: Any, sooner: bool, taken: list[bool]) -> None:
    expected = jnp.trace(jax.hessian(fun)(X), axis1=-2, axis2=-1)
    np.testing.assert_allclose(laplacian_ve(fun)(X), expected, rtol=1e-9)
    assert taken == [sooner]


def test_narrow_loops_pass_few_columns(taken: list[bool]) -> None:
    weights = np.random.default_rng(2).standard_normal((4, 9)) / 3

    def fun(x: Any) -> Any:
        return network(jnp.tanh(weights @ x))

    x = np.linspace(-0.5, 0.7, 9)
    np.testing.assert_allclose(laplacian_ve(fun)(x), jnp.trace(jax.hessian(fun)(x)), rtol=1e-9)
    assert taken == [False]


def test_steps_that_store_too_much_are_not_stored(
    taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(through_loops, "STORED", 12 * 4 * 4 - 1)
    laplacian_ve(network)(X)
    monkeypatch.setattr(through_loops, "STORED", 12 * 4 * 4)
    laplacian_ve(network)(X)
    assert taken == [False, True]


def test_nothing_is_asked_of_no_result(taken: list[bool]) -> None:
    assert laplacian_ve(lambda x: ())(X) == ()
    assert taken == [False]


def test_orders_that_are_asked_for_are_followed(taken: list[bool]) -> None:
    expected = jnp.trace(jax.hessian(network)(X))
    plan = make_plan(network, X, kind="laplacian")
    for order in ("forward", "reverse", "markowitz", plan):
        np.testing.assert_allclose(laplacian_ve(network, order=order)(X), expected, rtol=1e-9)
    assert taken == [False] * 4


def test_metrics(taken: list[bool]) -> None:
    hessian = jax.hessian(network)(X)
    for weights in (METRIC, np.diag(METRIC)):
        full = weights if weights.ndim > 1 else np.diag(weights)
        found = laplacian_ve(network, weights=weights)(X)
        np.testing.assert_allclose(found, jnp.sum(full * hessian), rtol=1e-9)
    seeds = METRIC[:2]
    found = laplacian_ve(network, seeds=seeds)(X)
    np.testing.assert_allclose(found, jnp.sum((seeds.T @ seeds) * hessian), rtol=1e-9)
    assert taken == [True, True, False]


def test_value_and_gradient_beside(taken: list[bool]) -> None:
    gradient, trace = jax.grad(network)(X), jnp.trace(jax.hessian(network)(X))
    found = forward_laplacian(network)(X)
    np.testing.assert_allclose(found.x, network(X), rtol=1e-12)
    np.testing.assert_allclose(found.jacobian.dense_array, gradient, rtol=1e-10)
    np.testing.assert_allclose(found.laplacian, trace, rtol=1e-9)
    energy = local_kinetic_energy(network)(X)
    np.testing.assert_allclose(energy, -0.5 * (trace + jnp.sum(gradient**2)), rtol=1e-9)
    assert taken == [True, True]


@pytest.mark.slow
def test_samples_and_parameters() -> None:
    xs = jax.random.normal(jax.random.key(0), (3, 4), jnp.float64)

    def scaled(w: Any, x: Any) -> Any:
        return network(w * x)

    def reference(w: Any) -> Any:
        each = jax.vmap(lambda x: jnp.trace(jax.hessian(scaled, 1)(w, x)))
        return jnp.sum(each(xs) ** 2)

    def loss(w: Any) -> Any:
        return jnp.sum(jax.vmap(laplacian_ve(scaled, argnums=1), (None, 0))(w, xs) ** 2)

    w = jnp.asarray(1.0 + X)
    np.testing.assert_allclose(jax.grad(loss)(w), jax.grad(reference)(w), rtol=1e-8)
