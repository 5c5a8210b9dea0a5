"""Jacobians in batches that stay arrays: an equation on these is many operations on numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, laplacian_ve
from graphax_lapl.emit.holding import BARRIERS_STAND
from graphax_lapl.emit.small_programs import BATCH
from graphax_lapl.program.sines import SINES_SIZE


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


def network(sizes, function):
    """A small network, whose weights all samples share."""
    random = np.random.default_rng(17)
    shapes = zip(sizes[1:], sizes[:-1], strict=True)
    weights = [random.normal(size=shape) / np.sqrt(shape[1]) for shape in shapes]

    def fun(x):
        for w in weights:
            x = function(w @ x)
        return jnp.sum(x)

    return fun


@pytest.mark.parametrize("samples", [16, BATCH, 4 * BATCH])
@pytest.mark.parametrize("function", [jnp.tanh, jax.nn.silu, jnp.sin])
def test_laplacians_of_small_networks_are_numbers(function, samples):
    """One number for each sample: no array of results is put together."""
    fun = network((3, 8, 8), function)
    x = draw(18, samples, 3)
    lowered = jax.jit(jax.vmap(laplacian_ve(fun))).lower(x)
    expected = jax.jit(jax.vmap(lambda x: jnp.trace(jax.hessian(fun)(x))))(x)
    np.testing.assert_allclose(lowered.compile()(x), expected, rtol=1e-9, atol=1e-11)
    assert "stablehlo.dot_general" not in lowered.as_text()


@pytest.mark.parametrize(
    ("sizes", "function"),
    [((3, 64), jnp.sin), ((3, 40, 40), jnp.tanh)],
    ids=["many sines", "long products"],
)
def test_laplacians_of_wide_networks_stay_arrays(sizes, function):
    fun, x = network(sizes, function), draw(19, SINES_SIZE, 3)
    lowered = jax.jit(jax.vmap(laplacian_ve(fun))).lower(x)
    expected = jax.jit(jax.vmap(lambda x: jnp.trace(jax.hessian(fun)(x))))(x)
    np.testing.assert_allclose(lowered.compile()(x), expected, rtol=1e-9, atol=1e-11)
    assert "stablehlo.dot_general" in lowered.as_text()


def test_laplacians_of_deep_networks_have_nothing_to_hold():
    """Where everything that is evaluated again is in memory already."""
    fun, x = network((3, 16, 16), jnp.tanh), draw(20, BATCH, 3)
    found = jax.jit(jax.vmap(laplacian_ve(fun)))(x)
    expected = jax.jit(jax.vmap(lambda x: jnp.trace(jax.hessian(fun)(x))))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_gradients_of_small_networks_stay_arrays():
    fun, x = network((3, 12, 12), jax.nn.silu), draw(21, BATCH, 3)
    lowered = jax.jit(jax.vmap(jacve(fun))).lower(x)
    np.testing.assert_allclose(lowered.compile()(x), jax.vmap(jax.grad(fun))(x), rtol=1e-10)
    assert "stablehlo.dot_general" in lowered.as_text()


def test_powers_with_known_exponents_are_worth_more_than_what_is_dear():
    """Each is a few products as a number, and none is vectorised in an array."""
    powers, random = np.arange(8.0), np.random.default_rng(22)
    scales = random.normal(size=8)

    def series(x):
        return jnp.sum(scales * x[0] ** powers * x[1] ** powers[::-1] * jnp.exp(x[0] * scales))

    x = draw(23, BATCH, 2)
    lowered = jax.jit(jax.vmap(jacve(series))).lower(x)
    np.testing.assert_allclose(lowered.compile()(x), jax.vmap(jax.grad(series))(x), rtol=1e-10)
    assert f"tensor<{BATCH}x8xf64>" not in lowered.as_text()


def test_numbers_that_arrays_compute_again_and_again_are_numbers():
    """Discounts, whose running sums are triangles of products as an array's derivative."""

    def swaps(rates):
        discounts = jnp.exp(-jnp.cumsum(rates) / 2)
        return (1 - discounts) / jnp.cumsum(discounts)

    x = draw(24, BATCH, 8)
    lowered = jax.jit(jax.vmap(jacve(swaps))).lower(x)
    expected = jax.jit(jax.vmap(jax.jacrev(swaps)))(x)
    np.testing.assert_allclose(lowered.compile()(x), expected, rtol=1e-10, atol=1e-13)
    assert "stablehlo.reduce_window" not in lowered.as_text()


def test_what_few_kernels_share_is_held_where_they_run_in_turn():
    """Ten branches of one kernel would each evaluate the square that all of them read."""

    def quartic(x):
        return jnp.sum(x**4) + 0.1 * jnp.sum(x[:-1] * x[1:]) ** 2

    x = draw(25, BATCH, 10)
    compiled = jax.jit(jax.vmap(jacve(quartic))).lower(x).compile()
    np.testing.assert_allclose(compiled(x), jax.vmap(jax.grad(quartic))(x), rtol=1e-10)
    kernels = compiled.as_text().split("ENTRY")[1].count(" fusion(")
    assert kernels == (2 if BARRIERS_STAND else 1)  # before, what is held is more than one
