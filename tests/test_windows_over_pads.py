"""Windows over one column in the middle of zeros, which XLA (JAX 0.10 to 0.12) takes for full rows.

`jax.jit` of such a function, or of JAX's derivative of it in batches, gives another number than the
function itself: what is expected here is evaluated without it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import forward_laplacian, jacve, laplacian_ve

COUNT, MIDDLE = 5, 2
X = np.random.default_rng(0).uniform(0.5, 1.5, (3, COUNT))

# Kind -> the function, and what it starts from.
CUMULATIVE = {
    "sum": (lax.cumsum, 0.0),
    "product": (lax.cumprod, 1.0),
    "maximum": (lax.cummax, -jnp.inf),
    "logsumexp": (lax.cumlogsumexp, -jnp.inf),
}


def padded(kind, reverse):
    """Cumulated from a number in the middle of what changes nothing."""
    cumulated, nothing = CUMULATIVE[kind]

    def fun(x):
        middle = jnp.full(COUNT, nothing, x.dtype).at[MIDDLE].set(jnp.sin(x[0] * x[1]))
        return jnp.sum(jnp.exp(cumulated(middle, reverse=reverse)) * x)

    return fun


def read(kind, reverse):
    """The middle of what is cumulated, whose cotangent is a column between zeros."""
    cumulated, _ = CUMULATIVE[kind]

    def fun(x):
        return jnp.sin(cumulated(jnp.sin(x) * x, reverse=reverse)[MIDDLE]) * x[0]

    return fun


def rows(x):
    """The middle of every row of a table that is added up."""
    return jnp.sin(lax.cumsum(jnp.outer(x, jnp.sin(x)), axis=1)[:, MIDDLE]).sum()


def weighted(x):
    """Sums of which one has a weight, which is what is added up in reverse."""
    weights = jnp.zeros(COUNT, x.dtype).at[MIDDLE].set(lax.stop_gradient(jnp.sin(x[0])))
    return jnp.cumsum(x * x) @ weights


def pooled(x):
    """The middle of sums over three neighbours."""
    sums = lax.reduce_window(jnp.sin(x) * x, 0.0, lax.add, (3,), (1,), "SAME")
    return jnp.sin(sums[MIDDLE]) * x[0]


FUNCTIONS = {
    f"{make.__name__} {kind} {'down' if reverse else 'up'}": make(kind, reverse)
    for make in (padded, read)
    for kind in CUMULATIVE
    for reverse in (False, True)
    if (make, kind) != (padded, "logsumexp")  # not a number in forward mode, here and in JAX
} | {"rows": rows, "weighted": weighted, "pooled": pooled}


def assert_as_one_by_one(fun, reference):
    """A batch under `jax.jit` against its samples without."""
    with jax.disable_jit():
        expected = np.stack([reference(row) for row in X])
    np.testing.assert_allclose(jax.jit(jax.vmap(fun))(X), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.smoke
@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobians(name):
    # JAX's derivative of a maximum of -inf is a number in reverse mode only.
    fun = FUNCTIONS[name]
    for order in ("auto", "forward", "reverse"):
        assert_as_one_by_one(jacve(fun, order=order), jax.jacrev(fun))


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_losses(name):
    fun = FUNCTIONS[name]

    def loss(jacobian):
        return lambda x: jnp.sum(jacobian(x) ** 2)

    assert_as_one_by_one(jax.grad(loss(jacve(fun))), jax.grad(loss(jax.jacrev(fun))))


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_laplacians(name):
    fun = FUNCTIONS[name]
    assert_as_one_by_one(lambda x: forward_laplacian(fun)(x).x, fun)
    assert_as_one_by_one(laplacian_ve(fun), lambda x: jnp.trace(jax.jacrev(jax.jacrev(fun))(x)))
