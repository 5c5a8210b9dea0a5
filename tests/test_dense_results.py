"""Dense results that are mostly zero: made of their entries, not written term by term."""

import jax
import jax.numpy as jnp
import numpy as np

from graphax_lapl import jacve
from graphax_lapl.emit.coordinates import MAX_GATHERED

N = 160


def stencil(x):
    return jnp.roll(x, 1) * jnp.roll(x, -2) * jnp.sin(x) + x[::-1] ** 2


def test_entries_of_a_large_sparse_matrix_are_set():
    assert N * N > MAX_GATHERED
    x = np.random.default_rng(0).normal(size=(2, N))
    found = jax.vmap(jacve(stencil))(x)
    wanted = jax.vmap(jax.jacfwd(stencil))(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    assert " = scatter[" in str(jax.make_jaxpr(jacve(stencil))(x[0]))


def test_their_derivatives_are_exact():
    x, v = np.random.default_rng(1).normal(size=(2, N))

    def squares(jacobian):
        return jax.grad(lambda x: jnp.sum(jacobian(stencil)(x) ** 2 * v))(x)

    np.testing.assert_allclose(squares(jacve), squares(jax.jacfwd), rtol=1e-11, atol=1e-11)
