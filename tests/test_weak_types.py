"""Derivatives of Python numbers promote as Python numbers do, as those of JAX."""

import jax
import jax.numpy as jnp
import pytest

from graphax_lapl import jacve, laplacian_ve


@pytest.mark.parametrize("fun", [jnp.log, jnp.tanh, jnp.sqrt, jnp.expm1, jax.scipy.special.erf])
@pytest.mark.parametrize("derivative", [jacve, laplacian_ve])
def test_slopes_of_weakly_typed_numbers_are_weakly_typed(fun, derivative):
    found = derivative(fun)(0.4)
    assert found.weak_type
    assert (found + jnp.ones((), jnp.bfloat16)).dtype == jnp.bfloat16
