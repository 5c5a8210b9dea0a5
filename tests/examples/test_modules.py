"""Networks, solvers and time steps written with equinox, haiku and lineax, against JAX's own."""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import lineax as lx
import pytest

from graphax_lapl import hessve, jacve, laplacian_ve
from tests.checks import assert_same

pytestmark = pytest.mark.usefixtures("standard_promotion")

KEY = jax.random.key(0)
POINT = jnp.array([0.1, -0.2, 0.5])
TOKENS = jax.random.normal(jax.random.key(1), (4, 8))


def perceptron() -> eqx.nn.MLP:
    return eqx.nn.MLP(3, 2, 16, 2, activation=jax.nn.gelu, key=KEY)


class AttentionBlock(eqx.Module):
    """Masked attention with a residual, then a convolution along the sequence."""

    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    conv: eqx.nn.Conv1d

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(2, 8, key=first)
        self.norm = eqx.nn.LayerNorm(8)
        self.conv = eqx.nn.Conv1d(8, 2, 3, padding=1, key=second)

    def __call__(self, tokens):
        normed = jax.vmap(self.norm)(tokens)
        mask = jnp.tril(jnp.ones((4, 4), bool))
        tokens = tokens + self.attention(normed, normed, normed, mask=mask)
        return self.conv(tokens.T).T


def recurrent(inputs):
    """The states of a gated unit along a sequence."""
    cell = eqx.nn.GRUCell(8, 3, key=KEY)

    def step(state, x):
        new = cell(x, state)
        return new, new

    return jax.lax.scan(step, jnp.zeros(3), inputs)[1]


def trajectory(state):
    """A pendulum by twelve steps of the classical Runge-Kutta method, every step kept."""

    def rate(y):
        return jnp.stack([y[1], -jnp.sin(y[0])])

    def step(y, _):
        k1 = rate(y)
        k2 = rate(y + 0.05 * k1)
        k3 = rate(y + 0.05 * k2)
        k4 = rate(y + 0.1 * k3)
        new = y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return new, new

    return jax.lax.scan(step, state, length=12)[1]


def linear_system(x):
    """The solution of a linear system of equations whose matrix depends on x, by lineax."""
    matrix = 4 * jnp.eye(3) + jnp.outer(jnp.cos(x), x)
    return lx.linear_solve(lx.MatrixLinearOperator(matrix), jnp.sin(x)).value


def haiku_perceptron(x):
    return hk.nets.MLP([8, 2], activation=jax.nn.silu)(x)


def haiku_sequence(tokens):
    """Attention, a layer norm and a recurrent layer."""
    mixed = hk.MultiHeadAttention(2, 4, w_init=hk.initializers.VarianceScaling())(
        tokens, tokens, tokens
    )
    mixed = hk.LayerNorm(-1, create_scale=True, create_offset=True)(mixed)
    cell = hk.LSTM(3)
    return hk.dynamic_unroll(cell, mixed, cell.initial_state(None))[0]


def bound(network, point):
    """A haiku network with its initial parameters."""
    transformed = hk.without_apply_rng(hk.transform(network))
    parameters = transformed.init(KEY, point)
    return lambda x: transformed.apply(parameters, x)


FUNCTIONS = {
    "equinox MLP": (perceptron(), POINT),
    "equinox MLP, jitted by equinox": (lambda x: eqx.filter_jit(perceptron())(x), POINT),
    "equinox MLP, checkpointed": (lambda x: eqx.filter_checkpoint(perceptron())(x), POINT),
    "equinox attention": (AttentionBlock(KEY), TOKENS),
    "equinox GRU": (recurrent, TOKENS),
    "haiku MLP": (bound(haiku_perceptron, POINT), POINT),
    "haiku attention and LSTM": (bound(haiku_sequence, TOKENS), TOKENS),
    "Runge-Kutta scan": (trajectory, POINT[:2]),
    "lineax solve": (linear_system, POINT),
}


@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobian(name, order):
    function, point = FUNCTIONS[name]
    ours = jax.jit(jacve(function, order=order))(point)
    assert_same(ours, jax.jit(jax.jacrev(function))(point))


@pytest.mark.parametrize("name", ["equinox MLP", "haiku MLP", "Runge-Kutta scan", "lineax solve"])
def test_second_order(name):
    function, point = FUNCTIONS[name]
    hessian = jax.jit(jax.hessian(function))(point)
    assert_same(jax.jit(hessve(function))(point), hessian)
    laplacian = jnp.trace(hessian, axis1=-2, axis2=-1)
    assert_same(jax.jit(laplacian_ve(function))(point), laplacian)


@pytest.mark.slow
def test_laplacian_of_attention():
    block = AttentionBlock(KEY)
    expected = jnp.einsum("abijij->ab", jax.jit(jax.hessian(block))(TOKENS))
    assert_same(jax.jit(laplacian_ve(block))(TOKENS), expected)


def test_parameters_of_a_module():
    parameters, static = eqx.partition(perceptron(), eqx.is_inexact_array)

    def outputs(found):
        return eqx.combine(found, static)(POINT)

    assert_same(jacve(outputs)(parameters), jax.jit(jax.jacrev(outputs))(parameters))


@pytest.mark.slow
def test_parameters_of_haiku():
    transformed = hk.without_apply_rng(hk.transform(haiku_perceptron))
    parameters = transformed.init(KEY, POINT)
    ours = jacve(transformed.apply, argnums=(0, 1))(parameters, POINT)
    assert_same(ours, jax.jacrev(transformed.apply, argnums=(0, 1))(parameters, POINT))


def test_newton_with_lineax():
    """A sparse Jacobian as the operator of an iterative solver of lineax."""
    grid = 24

    def residual(u):
        padded = jnp.pad(u, 1)
        return padded[2:] + padded[:-2] - 2.0 * u + jnp.exp(u) / (grid + 1) ** 2

    @jax.jit
    def step(u):
        jacobian = jacve(residual, sparse_representation=True)(u)
        operator = lx.FunctionLinearOperator(
            lambda v: -(jacobian @ v),
            jax.eval_shape(lambda: u),
            lx.positive_semidefinite_tag,
        )
        solution = lx.linear_solve(operator, residual(u), lx.CG(rtol=1e-10, atol=1e-12))
        return u + solution.value

    u = jnp.zeros(grid)
    for _ in range(5):
        u = step(u)
    assert float(jnp.max(jnp.abs(residual(u)))) < 1e-10
