"""Laplacians and divergences of functions of a few numbers, evaluated number by number."""

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import divergence_ve, forward_laplacian, laplacian_ve
from graphax_lapl.emit.small_programs import BATCH


def helium(x: jax.Array) -> jax.Array:
    """A logarithm of two electrons' amplitude."""
    electrons = x.reshape(2, 3)
    apart = jnp.linalg.norm(electrons[0] - electrons[1])
    return -1.7 * jnp.sum(jnp.linalg.norm(electrons, axis=-1)) + apart / (2 + 0.6 * apart)


def determinant(x: jax.Array) -> jax.Array:
    """Three electrons in three orbitals."""
    electrons = x.reshape(3, 3)
    r = jnp.linalg.norm(electrons, axis=-1)
    orbitals = [jnp.exp(-r), r * jnp.exp(-0.5 * r), electrons[:, 0] * jnp.exp(-0.7 * r)]
    return jnp.linalg.slogdet(jnp.stack(orbitals))[1]


def matrix_power(x: jax.Array) -> jax.Array:
    matrix = x.reshape(3, 3)
    return jnp.sum((matrix @ matrix @ matrix) ** 2)


def solution(x: jax.Array) -> jax.Array:
    matrix = x[:4].reshape(2, 2) @ x[:4].reshape(2, 2).T + jnp.eye(2)
    return jnp.sum(jnp.linalg.solve(matrix, x[4:6]) ** 2)


def likelihood(x: jax.Array) -> jax.Array:
    """A normal density, with the second derivative of a Cholesky factor as a whole."""
    root = x[:4].reshape(2, 2)
    covariance = root @ root.T + jnp.eye(2)
    return jax.scipy.stats.multivariate_normal.logpdf(x[4:6], x[6:8], covariance)


FUNCTIONS = {helium: 6, determinant: 9, matrix_power: 9, solution: 6, likelihood: 8}


def populations(y: jax.Array) -> jax.Array:
    """A step of Runge and Kutta for three species."""
    eaten = np.array([[0.0, -0.5, -0.2], [0.3, 0.0, -0.4], [0.4, 0.2, 0.0]])

    def rate(y: jax.Array) -> jax.Array:
        return y * (np.array([1.0, 0.7, -1.2]) + eaten @ y)

    first = rate(y)
    second = rate(y + 0.05 * first)
    return y + 0.1 * second + 0.01 * first


def draw(fun: Callable[..., Any], *samples: int) -> np.ndarray:
    size = FUNCTIONS.get(fun, 3)
    return np.random.default_rng(size).uniform(0.2, 1.0, (*samples, size))


@pytest.mark.parametrize("samples", [(), (8,), (BATCH,)], ids=["one", "few", "many"])
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda fun: fun.__name__)
def test_laplacians(fun: Callable[..., Any], order: str, samples: tuple[int, ...]) -> None:
    x = draw(fun, *samples)
    over = jax.vmap if samples else lambda f: f
    found = jax.jit(over(laplacian_ve(fun, order=order)))(x)
    expected = over(lambda x: jnp.trace(jax.hessian(fun)(x)))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda fun: fun.__name__)
def test_they_are_evaluated_number_by_number(fun: Callable[..., Any]) -> None:
    """No sum of an array and no product of matrices is left for any of the samples."""
    lowered = jax.jit(jax.vmap(laplacian_ve(fun))).lower(draw(fun, BATCH)).compile()
    text = lowered.as_text()
    assert " dot(" not in text
    assert " reduce(" not in text
    assert "custom-call" not in text


@pytest.mark.parametrize("samples", [(), (8,), (BATCH,)], ids=["one", "few", "many"])
def test_divergences(samples: tuple[int, ...]) -> None:
    x = draw(populations, *samples)
    over = jax.vmap if samples else lambda f: f
    found = jax.jit(over(divergence_ve(populations)))(x)
    expected = over(lambda x: jnp.trace(jax.jacrev(populations)(x)))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("fun", [helium, matrix_power], ids=lambda fun: fun.__name__)
def test_values_and_jacobians_beside_them(fun: Callable[..., Any]) -> None:
    x = draw(fun, BATCH)
    found = jax.jit(jax.vmap(forward_laplacian(fun)))(x)
    expected = (
        jax.vmap(fun)(x),
        jax.vmap(jax.grad(fun))(x),
        jax.vmap(lambda x: jnp.trace(jax.hessian(fun)(x)))(x),
    )
    parts = (found.x, found.jacobian.dense_array, found.laplacian)
    for ours, theirs in zip(parts, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("fun", [helium, solution], ids=lambda fun: fun.__name__)
def test_training_steps(fun: Callable[..., Any]) -> None:
    """Derivatives are those of arrays, with respect to what samples share and have of their own."""
    x, scales = draw(fun, BATCH), np.array([0.9, 1.2])

    def loss(scales: Any, x: Any, laplacian: Callable[..., Any]) -> jax.Array:
        scaled = laplacian(lambda y: scales[0] * fun(scales[1] * y))
        return jnp.mean(jax.vmap(scaled)(x) ** 2)

    def of_hessian(fun: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: jnp.trace(jax.hessian(fun)(x))

    found = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)(scales, x, laplacian_ve)
    expected = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)(scales, x, of_hessian)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("samples", [(), (BATCH,)], ids=["one", "many"])
def test_what_is_the_same_for_all_samples_reads_none(samples: tuple[int, ...]) -> None:
    def quadratic(x: jax.Array) -> jax.Array:
        return x @ np.diag([1.0, 2.0, 4.0]) @ x

    over = jax.vmap if samples else lambda f: f
    x = np.random.default_rng(1).normal(size=(*samples, 3))
    compiled = jax.jit(over(laplacian_ve(quadratic))).lower(x).compile()
    np.testing.assert_allclose(compiled(x), np.full(samples, 14.0), rtol=1e-14)
    assert compiled.memory_analysis().argument_size_in_bytes == 0


@pytest.mark.parametrize("fun", [helium, determinant], ids=lambda fun: fun.__name__)
def test_they_lower_for_other_devices(fun: Callable[..., Any]) -> None:
    own = jax.jit(jax.vmap(laplacian_ve(fun)))
    exported = jax.export.export(own, platforms=("cpu", "cuda"))(draw(fun, BATCH))
    assert exported.platforms == ("cpu", "cuda")
