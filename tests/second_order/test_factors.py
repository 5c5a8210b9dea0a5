"""Inverses, signs and logarithms of determinants that are read off the factors of a matrix."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl.rules.factors import MAX_SWAPS, inverse_of, sign_and_logarithm

SIZES = (0, 1, 2, 5, MAX_SWAPS, MAX_SWAPS + 1)
#: Entries of singular and infinite matrices: mostly zeros and small numbers.
VALUES = (0.0, 1.0, -1.0, 2.0, -0.0, np.nan, np.inf, -np.inf)
SHARES = (0.5, 0.14, 0.14, 0.13, 0.02, 0.03, 0.02, 0.02)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_inverse(size: int, dtype: Any) -> None:
    rng = np.random.default_rng(size)
    matrices = rng.normal(size=(3, 4, size, size)).astype(dtype)
    if dtype == np.complex128:
        matrices = matrices + 1j * rng.normal(size=matrices.shape)
    expected = np.linalg.inv(matrices)
    np.testing.assert_allclose(inverse_of(jnp.asarray(matrices)), expected, 1e-9, 1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_sign_and_logarithm(size: int) -> None:
    matrices = np.random.default_rng(size).normal(size=(3, 4, size, size))
    sign, logarithm = sign_and_logarithm(jnp.asarray(matrices))
    expected = np.linalg.slogdet(matrices)
    np.testing.assert_array_equal(sign, expected.sign)
    np.testing.assert_allclose(logarithm, expected.logabsdet, 1e-12, 1e-12)


def test_every_order_of_rows() -> None:
    diagonal = np.diag([2.0, 3.0, 5.0, 7.0])
    matrices = np.stack([diagonal[list(rows)] for rows in itertools.permutations(range(4))])
    np.testing.assert_allclose(inverse_of(jnp.asarray(matrices)), np.linalg.inv(matrices), 1e-15)
    sign, _ = sign_and_logarithm(jnp.asarray(matrices))
    np.testing.assert_array_equal(sign, np.linalg.slogdet(matrices).sign)


def test_singular_and_infinite_matrices_are_as_in_jax() -> None:
    matrices = jnp.asarray(np.random.default_rng(0).choice(VALUES, (2000, 4, 4), p=SHARES))
    sign, logarithm = jax.vmap(sign_and_logarithm)(matrices)
    expected = jax.vmap(jnp.linalg.slogdet)(matrices)
    assert int(jnp.sum(expected[0] == 0)) > 100
    assert not np.any(np.signbit(sign[sign == 0]))
    np.testing.assert_array_equal(sign, expected[0])
    np.testing.assert_allclose(logarithm, expected[1], 1e-12, 1e-12)
    np.testing.assert_allclose(
        jax.vmap(inverse_of)(matrices), jax.vmap(jnp.linalg.inv)(matrices), 1e-12, 1e-12
    )
