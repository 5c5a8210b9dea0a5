"""Matrices of numbers of many samples of which every column is a multiple of one number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax import lax

from graphax_lapl import jacve
from graphax_lapl.emit.numbers import BATCH
from graphax_lapl.emit.scaled_columns import scaled_columns
from graphax_lapl.emit.tape import Tape
from tests.checks import primitives

SAMPLES = BATCH + 5


def rates(c):
    """Two reactions of four species."""
    first, second = 2.0 * c[0] * c[1], 0.7 * c[2] * c[3]
    return jnp.stack([-first, second - first, first - second, first])


def powell(x):
    """Residuals with slopes that are known and slopes that are not."""
    return jnp.stack(
        [
            x[0] + 10.0 * x[1],
            jnp.sqrt(5.0) * (x[2] - x[3]),
            (x[1] - 2.0 * x[2]) ** 2,
            jnp.sqrt(10.0) * (x[0] - x[3]) ** 2,
        ]
    )


def roots(x):
    """Slopes that are infinite where a number is zero."""
    y = jnp.sqrt(x)
    return jnp.stack([y[0] + y[1], y[2] - y[3], 2.0 * y[0] - y[2], 3.0 * y[1] + y[3]])


@pytest.mark.parametrize("fun", [rates, powell, roots])
@pytest.mark.parametrize("size", [3, SAMPLES])
def test_against_jax(fun, size):
    x = jax.random.uniform(jax.random.key(0), (size, 4), jnp.float64, 0.3, 1.2)
    found = jax.jit(jax.vmap(jacve(fun)))(x)
    np.testing.assert_allclose(found, jax.vmap(jax.jacfwd(fun))(x), rtol=1e-12, atol=1e-14)


def test_infinite_slopes_stay_in_their_columns():
    x = jnp.ones((SAMPLES, 4)).at[3, 2].set(0.0)
    found = jax.jit(jax.vmap(jacve(roots)))(x)
    expected = jax.vmap(jax.jacrev(roots))(x)
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
    assert np.isinf(found[3, 1, 2])
    assert np.isfinite(found[3][:, [0, 1, 3]]).all()


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from([(4, 4), (8, 4), (2, 4, 4), (4, 8), (16, 8)]),
    st.integers(0, 2**16),
    st.sampled_from([1.0, np.inf, np.nan]),
)
def test_every_table(shape, seed, value):
    generator = np.random.default_rng(seed)
    columns = shape[-1]
    tape = Tape()
    given_numbers = tape.input((columns,), np.dtype(np.float64), True)
    kinds = generator.integers(0, 4, shape)
    numbers = np.zeros(shape, object)
    for place in np.ndindex(shape):
        base, factor = given_numbers[place[-1]], np.float64(generator.normal())
        product = tape.record("mul", jnp.multiply, (factor, base), np.dtype(np.float64))
        negative = tape.record("neg", jnp.negative, (product,), np.dtype(np.float64))
        numbers[place] = [np.float64(0), factor, product, negative][kinds[place]]
    found = scaled_columns({o.place: o for o in tape.needed([numbers])[0]}, numbers)
    if np.count_nonzero(kinds) <= columns or not (kinds > 1).any():
        assert found is None
        return
    x = generator.normal(size=columns)
    x[0] = value
    given_values = np.zeros(columns, object)
    for column, number in enumerate(found.numbers):
        given_values[column] = jnp.asarray(number if np.isscalar(number) else x[column])
    (expected,) = tape.program([numbers], 1, 1)([jnp.asarray(x)])
    np.testing.assert_array_equal(
        found.array(given_values), np.array(expected.tolist(), np.float64).reshape(shape)
    )


@pytest.mark.parametrize("size", [3, SAMPLES])
def test_known_matrices_beside_scaled_columns(size):
    matrix = np.random.default_rng(0).normal(size=(4, 4))

    def fun(c):
        return matrix @ c, rates(c), lax.complex(rates(c), c)

    x = jax.random.uniform(jax.random.key(0), (size, 4), jnp.float64, 0.3, 1.2)
    found = jax.jit(jax.vmap(jacve(fun)))(x)
    expected = jax.vmap(jax.jacfwd(fun))(x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)


def test_columns_of_different_numbers_are_none():
    tape = Tape()
    known = np.full((4, 4), np.float64(2.0), object)
    assert scaled_columns({}, known) is None
    known[0, 0] = np.complex128(1.0j)
    assert scaled_columns({}, known) is None
    numbers = tape.input((4, 4), np.dtype(np.float32), True)
    assert scaled_columns({}, numbers) is None
    numbers = np.tile(numbers[0], (5, 1))
    assert scaled_columns({}, numbers) is None  # five rows are not unrolled


@pytest.mark.parametrize("fun", [rates, powell])
def test_batches_are_multiplied_with_a_table(fun):
    x = jnp.ones((SAMPLES, 4), jnp.float32)
    jaxpr = jax.make_jaxpr(jax.vmap(jacve(fun)))(x).jaxpr
    assert primitives(jaxpr, ("mul",))[SAMPLES, 4, 4] == 1
