"""Estimates of traces: exact where they must be, unbiased elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import hadamard

from graphax_lapl import (
    Hutchinson,
    HutchPlusPlus,
    InvalidArgumentError,
    divergence_ve,
    laplacian_ve,
)

N = 4
MATRIX = jax.random.normal(jax.random.key(1), (N, N))
POINT = jax.random.normal(jax.random.key(2), (N,))
KEY = jax.random.key(5)


def field(x):
    return jnp.tanh(MATRIX @ x) * x[0]


def scalar(x):
    return jnp.sum(jnp.exp(jnp.sin(MATRIX @ x)))


def vectors(x):
    return jnp.stack([scalar(x), jnp.prod(x)])


def rows_of_hadamard(key, shape, dtype):
    del key
    assert shape == (N, N)
    return jnp.asarray(hadamard(N), dtype)


FULL = Hutchinson(N, rows_of_hadamard)
EXACT = [FULL, HutchPlusPlus(3 * N + 1)]


def close(found, expected):
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("stochastic", EXACT)
def test_exact_for_enough_vectors(stochastic):
    found = jax.jit(divergence_ve(field, stochastic=stochastic))(POINT, key=KEY)
    close(found, jnp.trace(jax.jit(jax.jacfwd(field))(POINT)))
    found = jax.jit(laplacian_ve(scalar, stochastic=stochastic))(POINT, key=KEY)
    close(found, jnp.trace(jax.jit(jax.hessian(scalar))(POINT)))


def test_one_set_of_vectors_serves_all_outputs():
    found = laplacian_ve(vectors, stochastic=FULL)(POINT, key=KEY)
    close(found, jnp.trace(jax.jit(jax.hessian(vectors))(POINT), axis1=1, axis2=2))


def test_rademacher_is_exact_for_a_diagonal_and_hutch_for_low_rank():
    found = laplacian_ve(lambda x: jnp.sum(x**4), stochastic=Hutchinson(1))(POINT, key=KEY)
    close(found, jnp.sum(12 * POINT**2))
    columns = MATRIX[:, :2]
    found = divergence_ve(
        lambda x: columns @ (columns.T @ x), stochastic=HutchPlusPlus(6, "gaussian")
    )(POINT, key=KEY)
    close(found, jnp.sum(columns**2))


@pytest.mark.parametrize(
    "stochastic",
    [Hutchinson(2), HutchPlusPlus(6, "gaussian")],
)
def test_unbiased(stochastic):
    keys = jax.random.split(KEY, 1000)
    for operator, fun in ((divergence_ve, field), (laplacian_ve, scalar)):
        estimate = operator(fun, stochastic=stochastic)
        found = jax.jit(jax.vmap(lambda key, e=estimate: e(POINT, key=key)))(keys)
        error = jnp.abs(found.mean() - operator(fun)(POINT))
        assert found.std() > 1e-3
        assert error < 4.5 * found.std() / np.sqrt(len(keys))


def test_same_key_same_estimate():
    estimate = divergence_ve(field, stochastic=Hutchinson())
    assert estimate(POINT, key=KEY) == estimate(POINT, key=KEY)
    assert estimate(POINT, key=KEY) != estimate(POINT, key=jax.random.key(8))


@pytest.mark.slow
def test_trees_aux_and_other_arguments():
    def moved(state, scale):
        new = {"a": scale * field(state["a"]), "b": state["b"] ** 2 * state["a"][0]}
        return new, scale

    state = {"a": POINT, "b": jnp.array([[2.0]])}
    estimate = divergence_ve(moved, has_aux=True, stochastic=HutchPlusPlus(15))
    found, aux = estimate(state, 3.0, key=KEY)
    expected = 3.0 * jnp.trace(jax.jit(jax.jacfwd(field))(POINT)) + 4.0 * POINT[0]
    close(found, expected)
    assert aux == 3.0

    def observed(state, scale):
        return scale * scalar(state["a"]) * state["b"] ** 3, scale

    for stochastic in (HutchPlusPlus(15), Hutchinson(1, lambda key, shape, dtype: jnp.eye(1, 5))):
        found, aux = laplacian_ve(observed, has_aux=True, stochastic=stochastic)(
            state, 3.0, key=KEY
        )
        assert found.shape == (1, 1)
        assert aux == 3.0


def test_function_with_a_rule_for_cotangents_only():
    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))
    for stochastic in EXACT:
        close(divergence_ve(square, stochastic=stochastic)(POINT, key=KEY), 2 * POINT.sum())


@pytest.mark.parametrize("stochastic", [FULL, HutchPlusPlus(12)])
def test_derivatives_of_exact_estimates(stochastic):
    estimate = divergence_ve(field, stochastic=stochastic)
    found = jax.grad(lambda x: estimate(x, key=KEY))(POINT)
    close(found, jax.grad(lambda x: jnp.trace(jax.jit(jax.jacfwd(field))(x)))(POINT))


def test_derivative_of_hutch_is_unbiased():
    estimate = divergence_ve(field, stochastic=HutchPlusPlus(6))
    slope = jax.jit(jax.vmap(lambda key: jax.grad(lambda x: estimate(x, key=key))(POINT)))
    found = slope(jax.random.split(KEY, 1000))
    expected = jax.grad(lambda x: jnp.trace(jax.jit(jax.jacfwd(field))(x)))(POINT)
    assert jnp.all(jnp.abs(found.mean(0) - expected) < 4.5 * found.std(0) / np.sqrt(1000))


def test_complex_map():
    def analytic(z):
        return jnp.sin(MATRIX.astype(complex) @ z)

    point = jax.lax.complex(POINT, POINT[::-1])
    for stochastic in EXACT:
        found = divergence_ve(analytic, stochastic=stochastic)(point, key=KEY)
        close(found, jnp.trace(jax.jacfwd(analytic, holomorphic=True)(point)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Hutchinson(0),
        lambda: HutchPlusPlus(2),
        lambda: Hutchinson(2.0),
        lambda: Hutchinson(2, "uniform"),
        lambda: divergence_ve(field, stochastic=4),
        lambda: divergence_ve(field, stochastic=Hutchinson())(POINT),
        lambda: laplacian_ve(scalar, stochastic=Hutchinson(), weights=POINT),
        lambda: laplacian_ve(vectors, stochastic=HutchPlusPlus())(POINT, key=KEY),
        lambda: laplacian_ve(scalar, stochastic=Hutchinson(1, rows_of_one))(POINT, key=KEY),
    ],
)
def test_errors(make):
    with pytest.raises(InvalidArgumentError):
        make()


def rows_of_one(key, shape, dtype):
    del key, shape
    return jnp.ones(3, dtype)
