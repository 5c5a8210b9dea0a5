"""Matrices of numbers of many samples with zeros, made of layers of one entry for every column."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as stn
from jax import lax

from graphax_lapl import jacve
from graphax_lapl.emit.layers import by_layers, is_layered
from graphax_lapl.emit.small_programs import BATCH

OUTSIDE = 2**16


def draw(seed, samples, size):
    return jax.random.uniform(jax.random.key(seed), (samples, size), jnp.float64, 0.3, 1.2)


def filled(entries, first):
    """A matrix of numbers: multiples of a traced one, known ones, and zeros."""
    numbers = np.zeros(entries.shape, object)
    for k, (i, j) in enumerate(zip(*np.nonzero(entries), strict=True)):
        numbers[i, j] = first * (k + 1.0) if k % 3 else np.float64(k - 1.5)
    return numbers


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    stn.arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 8))),
    st.sampled_from([1.0, -2.5, np.inf, np.nan]),
)
def test_every_pattern(entries, first):
    if not entries.any():
        return
    x = jnp.asarray([first, 1.0])
    expected = np.stack([filled(entries, np.float64(each)) for each in x]).astype(np.float64)
    found = jax.vmap(lambda each: by_layers(filled(entries, each)))(x)
    np.testing.assert_array_equal(found, expected)


def test_axes_zeros_with_signs_and_dtypes():
    x = jnp.asarray([1.0, 2.0], jnp.float32)

    def joined(each):
        numbers = np.zeros((2, 2, 4), object)
        numbers[0, 1, 2], numbers[1, 1, 3] = each, lax.complex(jnp.zeros_like(each), each)
        numbers[1, 0, 0] = np.float32(-0.0)
        return by_layers(numbers)

    found = jax.vmap(joined)(x)
    assert found.shape == (2, 2, 2, 4)
    assert found.dtype == jnp.complex64
    np.testing.assert_array_equal(found[:, 0, 1, 2], x)
    np.testing.assert_array_equal(found[:, 1, 1, 3].imag, x)
    assert np.signbit(found[:, 1, 0, 0].real).all()
    assert np.count_nonzero(found) == 4


def band(rows, columns, width):
    return (np.arange(columns) - np.arange(rows)[:, None]) % columns < width


@pytest.mark.parametrize(
    ("entries", "operations", "inside", "outside"),
    [
        (band(4, 4, 2), 4, True, True),
        (band(4, 4, 2), 50, False, True),
        (band(4, 4, 4), 4, False, False),  # full
        (band(8, 8, 3), 16, True, True),
        (band(8, 8, 3), 136, False, False),  # more than is unrolled
        (band(8, 8, 6), 16, False, False),
        (band(4, 8, 2), 8, True, True),
        (band(8, 4, 1), 8, False, True),
        (band(16, 8, 1), 0, False, True),
        (band(5, 5, 2), 5, False, False),
        (band(8, 7, 2), 5, False, False),
        (np.zeros((4, 4), bool), 0, False, False),
        (np.ones(8, bool), 0, False, False),
    ],
)
def test_which_matrices_are_layered(entries, operations, inside, outside):
    numbers = np.where(entries, np.float64(2.0), np.float64(0.0)).astype(object)
    assert is_layered(numbers, operations, False) == inside
    assert is_layered(numbers, operations, True) == outside


def chain(x):
    """Ends that are no part of a diagonal."""
    return jnp.concatenate([x[:1] * x[1:2], x[1:-1] * x[2:] - x[:-2], x[-1:] ** 2])


def species(x):
    """Rates by mass action, which no diagonals hold."""
    a, b, c, d = x
    return jnp.stack([-a * b + d * d, c - a * b, a * b - c - d, c - 2.0 * d * d])


def periodic(x):
    return x * (1.0 - x - 0.5 * jnp.roll(x, 1)) + 0.1 * jnp.roll(x, -1)


@pytest.mark.parametrize("samples", [BATCH, OUTSIDE])
@pytest.mark.parametrize(
    ("fun", "size"),
    [(chain, 8), (species, 4), (periodic, 8), (periodic, 4)],
    ids=["chain", "species", "periodic8", "periodic4"],
)
def test_jacobians_of_many_samples(fun, size, samples):
    x = draw(1, samples, size)
    found, expected = jax.jit(lambda x: [jax.vmap(d(fun))(x) for d in (jacve, jax.jacrev)])(x)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_a_selection_for_every_layer():
    compiled = jax.jit(jax.vmap(jacve(chain))).lower(draw(2, BATCH, 8)).compile()
    assert compiled.as_text().count(" select(") == 3


def product(x):
    return x * jnp.roll(x, 1)


@pytest.mark.parametrize(
    ("size", "samples"),
    [(3, BATCH), (4, BATCH), (5, OUTSIDE), (8, BATCH), (8, OUTSIDE), (12, BATCH), (4, 3)],
)
def test_inputs_that_are_only_moved(size, samples):
    x = draw(3, samples, size)
    compiled = jax.jit(jax.vmap(jacve(product))).lower(x).compile()
    np.testing.assert_array_equal(compiled(x), jax.jit(jax.vmap(jax.jacfwd(product)))(x))
    if samples >= BATCH and size <= 8:
        # The shifted input may be written, the partials' layers may not.
        assert compiled.memory_analysis().temp_size_in_bytes <= 2 * x.nbytes


@pytest.mark.parametrize("fun", [lambda x: jnp.cumsum(x), lambda x: x[::-1]], ids=["sum", "order"])
def test_constant_jacobians_of_many_samples(fun):
    """They are known, and nothing is selected."""
    x = draw(4, OUTSIDE, 6)
    compiled = jax.jit(jax.vmap(jacve(fun))).lower(x).compile()
    np.testing.assert_array_equal(compiled(x), jax.jit(jax.vmap(jax.jacfwd(fun)))(x))
    assert " select(" not in compiled.as_text()


def test_derivatives_of_layered_jacobians():
    def loss(derivative):
        return lambda x: jnp.sum(jnp.sin(jax.vmap(derivative(chain))(x)))

    x = draw(5, BATCH, 8)
    found, expected = jax.jit(lambda x: [jax.grad(loss(d))(x) for d in (jacve, jax.jacfwd)])(x)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
