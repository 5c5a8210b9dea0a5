"""Parameters are multiplied with one another before they meet what depends on the point."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import divergence_ve, laplacian_ve
from tests.second_order.checks import value_and_gradient

FUNCTIONS = {
    "one factor": lambda p, x: jnp.sum(p["w"] * jnp.tanh(x)),
    "chain rule": lambda p, x: jnp.sum(p["w"] * jnp.tanh(p["a"] * x)),
    "sum of products": lambda p, x: jnp.sum(p["w"] * jnp.sin(p["a"] * x) * (p["a"] * x) ** 2),
    "in one summand only": lambda p, x: jnp.sum(p["w"] * jnp.exp(x) + jnp.sin(x) * x),
    "number": lambda p, x: -3.0 * jnp.sum(p["a"] * jnp.exp(-(x**2)) * 0.5),
    "known array": lambda p, x: jnp.sum(np.arange(1.0, 5.0) * x**3 * p["a"]),
    "repeated along an axis": lambda p, x: jnp.sum(p["m"] * jnp.sin(x) * p["a"]),
    "of an axis that is lost": lambda p, x: jnp.sum(p["a"][:3, None] * jnp.cos(p["w"] * x)),
    "scalar": lambda p, x: p["s"] * jnp.sum(jnp.tanh(p["s"] * x)),
    "product of sums": lambda p, x: jnp.sum(p["w"] * x**2) * jnp.sum(p["a"] * jnp.sin(x)),
    "nested sums": lambda p, x: jnp.sum(p["w"] * (p["a"] * x**4 + p["w"] * (x**2 + p["a"] * x**3))),
}


@pytest.fixture(scope="module")
def point():
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = {"w": (4,), "a": (4,), "m": (3, 4), "s": ()}
    params = {n: jax.random.normal(k, s) for k, (n, s) in zip(keys, shapes.items(), strict=False)}
    return params, jax.random.normal(keys[4], (2, 4))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name, point):
    fun = FUNCTIONS[name]
    params, xs = point
    found = value_and_gradient(laplacian_ve(fun, argnums=1), params, xs)
    expected = value_and_gradient(
        lambda params, x: jnp.trace(jax.jit(jax.hessian(fun, 1))(params, x)), params, xs
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), found, expected
    )


def test_a_divergence(point):
    params, xs = point

    def field(params, x):
        return params["w"] * jnp.tanh(params["a"] * x) * x

    found = divergence_ve(field, argnums=1)(params, xs[0])
    expected = jnp.trace(jax.jit(jax.jacfwd(field, 1))(params, xs[0]))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def emitted(name, point):
    params, xs = point
    return str(jax.make_jaxpr(laplacian_ve(FUNCTIONS[name], argnums=1))(params, xs[0]))


@pytest.mark.parametrize("name", ["one factor", "chain rule"])
def test_parameters_meet_the_point_in_one_product(name, point):
    text = emitted(name, point)
    assert text.count("dot_general[") == 1
    assert "reduce_sum[" not in text


def test_what_has_no_common_factor_is_left(point):
    assert "dot_general[" not in emitted("in one summand only", point)
