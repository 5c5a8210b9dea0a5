"""Jacobians in batches that stay arrays: an equation on these is many operations on numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve
from graphax_lapl.emit.small_programs import BATCH


def draw(seed, *shape):
    return jax.random.uniform(jax.random.key(seed), shape, jnp.float64, 0.3, 1.2)


def normalized(x):
    y = x - jnp.mean(x)
    return y / jnp.sqrt(jnp.mean(y * y) + 1e-5)


def attracted(x):
    d = x[:, None] - x[None]
    squares = jnp.sum(d * d, -1) + 0.1
    return -jnp.sum(d / squares[..., None] ** 1.5, 1)


@pytest.mark.parametrize(
    ("fun", "shape", "arrays"),
    [(normalized, (16,), True), (attracted, (4, 3), True), (attracted, (3, 2), False)],
    ids=["normalized", "four bodies", "three bodies"],
)
def test_wide_arrays_stay_arrays(fun, shape, arrays):
    """Many operations on numbers for each equation on arrays, and many results."""
    x = draw(13, BATCH, *shape)
    lowered = jax.jit(jax.vmap(jacve(fun))).lower(x)
    expected = jax.jit(jax.vmap(jax.jacfwd(fun)))(x)
    np.testing.assert_allclose(lowered.compile()(x), expected, rtol=1e-10, atol=1e-12)
    products = lowered.as_text().count("stablehlo.multiply")
    assert (products < 50) == arrays


def test_many_results_of_few_operations_stay_arrays():
    """Entries would select among all rows of 36 pairs."""
    pairs = np.triu_indices(8)

    def products_of_pairs(x):
        return jnp.cumsum(x)[pairs[0]] * x[pairs[1]]

    x = draw(14, BATCH, 8)
    lowered = jax.jit(jax.vmap(jacve(products_of_pairs))).lower(x)
    expected = jax.jit(jax.vmap(jax.jacfwd(products_of_pairs)))(x)
    np.testing.assert_allclose(lowered.compile()(x), expected, rtol=1e-10, atol=1e-12)
    assert lowered.as_text().count("stablehlo.compare") < 10


@pytest.mark.parametrize(("samples", "arrays"), [(16, True), (BATCH, False)])
def test_few_samples_of_what_takes_long_to_compile_stay_arrays(samples, arrays):
    """Each of a hundred results repeats what it shares with the others."""
    means = np.random.default_rng(15).uniform(-1.0, 1.0, (6, 10))

    def mixture(x):
        return jnp.log(jnp.sum(jnp.exp(-0.5 * jnp.sum((x - means) ** 2, -1))))

    x = draw(16, samples, 10)
    lowered = jax.jit(jax.vmap(jacve(jax.grad(mixture)))).lower(x)
    expected = jax.jit(jax.vmap(jax.hessian(mixture)))(x)
    np.testing.assert_allclose(lowered.compile()(x), expected, rtol=1e-9, atol=1e-11)
    assert (lowered.as_text().count("stablehlo.multiply") < 100) == arrays
