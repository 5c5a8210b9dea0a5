"""Flax modules and a diffrax solver, against JAX's own derivatives."""

import diffrax
import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

from graphax_lapl import jacve, laplacian_ve
from tests.checks import assert_same

pytestmark = pytest.mark.usefixtures("standard_promotion")

TOKENS = jax.random.normal(jax.random.key(1), (4, 8))
ORDERS = ["auto", "forward", "reverse"]


class Transformer(linen.Module):
    """Dense, norm, attention with a residual, dense."""

    @linen.compact
    def __call__(self, x):
        x = linen.LayerNorm()(linen.tanh(linen.Dense(8)(x)))
        x = x + linen.MultiHeadDotProductAttention(2)(x, x)
        return linen.Dense(2)(linen.gelu(x))


class Network(nnx.Module):
    """Linear, batch norm with stored statistics, linear."""

    def __init__(self, rngs):
        self.first = nnx.Linear(8, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, use_running_average=True, rngs=rngs)
        self.last = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.silu(self.norm(self.first(x))))


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_linen(order):
    module = Transformer()
    parameters = jax.jit(module.init)(jax.random.key(0), TOKENS)
    ours = jacve(module.apply, order, argnums=(0, 1))(parameters, TOKENS)
    expected = jax.jit(jax.jacrev(module.apply, argnums=(0, 1)))(parameters, TOKENS)
    assert_same(ours, expected, tolerance=1e-9)


@pytest.mark.slow
def test_laplacian_of_linen():
    module = Transformer()
    parameters = jax.jit(module.init)(jax.random.key(0), TOKENS)
    hessian = jax.jit(jax.hessian(module.apply, argnums=1))(parameters, TOKENS)
    ours = jax.jit(laplacian_ve(module.apply, argnums=1))(parameters, TOKENS)
    assert_same(ours, jnp.einsum("abijij->ab", hessian), tolerance=1e-9)


@pytest.mark.parametrize("order", ORDERS)
def test_nnx(order):
    graph, state = nnx.split(Network(nnx.Rngs(0)))

    def outputs(found, x):
        return nnx.merge(graph, found)(x)

    ours = jacve(outputs, order, argnums=(0, 1))(state, TOKENS)
    assert_same(ours, jax.jit(jax.jacrev(outputs, argnums=(0, 1)))(state, TOKENS), tolerance=1e-9)


@pytest.mark.slow
def test_adaptive_solver():
    """The end point of a pendulum's trajectory with step size control."""

    def rate(t, y, args):
        del t, args
        return jnp.stack([y[1], -jnp.sin(y[0])])

    def end(y):
        control = diffrax.PIDController(rtol=1e-6, atol=1e-6)
        term = diffrax.ODETerm(rate)
        solution = diffrax.diffeqsolve(
            term, diffrax.Tsit5(), 0.0, 1.0, 0.1, y, stepsize_controller=control, max_steps=64
        )
        return solution.ys

    y = jnp.array([0.3, 0.7])
    assert_same(jacve(end)(y), jax.jacrev(end)(y), tolerance=1e-9)
