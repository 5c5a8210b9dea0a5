"""Rows that come back from several outputs of one loop or branch."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, laplacian_ve
from tests.checks import assert_same

POINT = (np.linspace(0.1, 0.9, 4), np.linspace(-0.3, 0.4, 4), np.linspace(1.0, 2.0, 4))


def leapfrog(mixing: float) -> Callable[..., Any]:
    """A loop that carries position and velocity; elementwise without mixing."""

    def run(x: Any, v: Any, k: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            x, v = carry
            v = v - 0.01 * k * jnp.sin(x) + mixing * jnp.roll(x, 1)
            return (x + 0.01 * v, v), None

        return jax.lax.scan(step, (x, v), None, length=12)[0]

    return run


def energy(mixing: float) -> Callable[..., Any]:
    """Each output of the loop is read with a weight of its own."""

    def loss(x: Any, v: Any, k: Any) -> Any:
        x, v = leapfrog(mixing)(x, v, k)
        return 0.5 * jnp.sum(v * v) - jnp.sum(k * jnp.cos(x))

    return loss


def difference(x: Any, v: Any, k: Any) -> Any:
    """Dense rows of both outputs, with opposite signs."""
    x, v = leapfrog(0.1)(x, v, k)
    return jnp.tanh(jnp.sin(x) - 2 * v)


def branch(x: Any, v: Any, k: Any) -> Any:
    """Two outputs of a branch, one of them read in two places."""
    first, second = jax.lax.cond(
        x[0] > 0, lambda: (jnp.cumsum(x * v), x @ v * k), lambda: (x * k, v * k)
    )
    return jnp.sum(first * k) + 3 * jnp.sum(second), second


@pytest.mark.parametrize("order", ["auto", "reverse"])
@pytest.mark.parametrize("fun", [energy(0.0), energy(0.1), difference, branch])
def test_their_sum_is_that_of_one_pull(fun: Callable[..., Any], order: str) -> None:
    argnums = (0, 1, 2)
    expected = jax.jit(jax.jacrev(fun, argnums))(*POINT)
    assert_same(jacve(fun, argnums=argnums, order=order)(*POINT), expected)


@pytest.mark.parametrize("mixing", [0.0, 0.1])
def test_a_loop_runs_once_each_way(mixing: float) -> None:
    derivative = jax.jit(jacve(energy(mixing), argnums=(0, 1, 2), order="reverse"))
    text = derivative.lower(*POINT).as_text()
    assert len(re.findall(r"stablehlo\.while", text)) == 2


def test_real_and_complex_outputs() -> None:
    """A gradient keeps complex numbers of every step beside real ones; their rows are added."""

    def fun(x: Any) -> Any:
        def step(h: Any, _: Any) -> Any:
            z = jax.lax.complex(h, h + 3.0) * jax.lax.complex(h, h + 2.0)
            return -0.5 / (0.06 * jnp.imag(z) + 3.0), None

        return jnp.sum(jnp.sin(jax.lax.scan(step, x, None, length=9)[0]))

    x = POINT[0]
    assert_same(jax.jit(jacve(jax.grad(fun)))(x), jax.jit(jax.hessian(fun))(x))


@pytest.mark.slow
def test_derivatives_and_batches() -> None:
    batch = [np.stack([x, 1.1 * x]) for x in POINT]
    got = jax.vmap(jacve(energy(0.1), argnums=(0, 1), order="reverse"))(*batch)
    assert_same(got, jax.vmap(jax.jacrev(energy(0.1), (0, 1)))(*batch))
    got = jax.jacfwd(jacve(energy(0.1), order="reverse"))(*POINT)
    assert_same(got, jax.hessian(energy(0.1))(*POINT))


def solver(x: Any, v: Any, k: Any) -> Any:
    """A loop without a way back, whose outputs have different shapes."""

    def step(carry: Any) -> Any:
        x, total = carry
        return x + 0.4 * (v - x * jnp.roll(x, 1)), total + x @ k

    return jax.lax.while_loop(lambda carry: carry[1] < 9.0, step, (x, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("fun", [leapfrog(0.1), solver])
def test_maps_of_all_outputs_are_written_out_at_once(fun: Callable[..., Any]) -> None:
    mode = jax.jacfwd if fun is solver else jax.jacrev
    program = jax.jit(jacve(fun, argnums=(0, 1)))
    assert_same(program(*POINT), mode(fun, (0, 1))(*POINT))
    assert len(re.findall(r"stablehlo\.while", program.lower(*POINT).as_text())) == 1
    # Many samples carry the numbers of a small loop one by one, and pull rows back.
    batch = [np.outer(np.linspace(0.9, 1.1, 256), x) for x in POINT]
    expected = jax.vmap(mode(fun, (0, 1)))(*batch)
    assert_same(jax.vmap(jacve(fun, argnums=(0, 1)))(*batch), expected)
    twice = jax.jacfwd(lambda x: jacve(fun, argnums=(0, 1))(x, *POINT[1:]))(POINT[0])
    assert_same(twice, jax.jit(jax.jacfwd(lambda x: mode(fun, (0, 1))(x, *POINT[1:])))(POINT[0]))


def euler(y: Any, k: Any) -> Any:
    """The end of a trajectory, of a few parameters and its start."""

    def step(y: Any, _: Any) -> Any:
        f = jnp.stack([k[0] * y[0] - k[1] * y[0] * y[1], k[2] * y[0] * y[1] - k[3] * y[1]])
        return y + 0.02 * f, None

    return jax.lax.scan(step, y, None, length=30)[0]


def priced(a: Any, b: Any, c: Any) -> Any:
    """A loop over many numbers, of three."""

    def step(y: Any, _: Any) -> Any:
        return jnp.maximum(a * jnp.roll(y, -1) + b * y, c * jnp.sin(y)), None

    return jax.lax.scan(step, jnp.linspace(0.1, 2.0, 40), None, length=30)[0]


def recurrent(w: Any) -> Any:
    """A loop whose columns are many."""
    return jax.lax.scan(lambda y, _: (jnp.tanh(w @ y), None), jnp.ones(8), None, length=30)[0]


START, PARAMETERS = np.array([1.0, 0.5]), np.array([1.1, 0.4, 0.1, 0.3])
EACH = {
    "parameters": (lambda k: euler(jnp.asarray(START), k), (PARAMETERS,), 1),
    "start": (euler, (START, PARAMETERS), 1),
    "one leaf": (lambda x: euler(x[:2], jnp.exp(x[2:])), (np.r_[START, PARAMETERS],), 1),
    "loss": (lambda y, k: jnp.sum((euler(y, k) - 0.8) ** 2), (START, PARAMETERS), 1),
    "numbers": (priced, (0.5, 0.45, 0.9), 1),
    "rows": (recurrent, (np.linspace(-0.5, 0.5, 64).reshape(8, 8),), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parameters", "start", "one leaf", "loss", "numbers", "rows"])
def test_columns_of_few_numbers_are_pushed_at_once(name: str) -> None:
    fun, point, loops = EACH[name]
    argnums = tuple(range(len(point)))
    program = jax.jit(jacve(fun, argnums=argnums))
    expected = jax.jit(jax.jacrev(fun, argnums))
    assert_same(program(*point), expected(*point))
    assert len(re.findall(r"stablehlo\.while", program.lower(*point).as_text())) == loops
    batch = [np.multiply.outer(np.linspace(0.9, 1.1, 256), x) for x in point]
    assert_same(jax.vmap(program)(*batch), jax.vmap(expected)(*batch))
    assert_same(jax.jacrev(program)(*point), jax.jit(jax.jacfwd(expected))(*point))


def with_own_way_back(told: bool) -> Callable[..., Any]:
    """A root of y^3 + a y = b by Newton's method, whose derivative is a rule of its own."""

    def solve(a: Any, b: Any) -> Any:
        def step(y: Any) -> Any:
            return y - (y**3 + a * y - b) / (3 * y**2 + a)

        return jax.lax.while_loop(lambda y: jnp.sum(jnp.abs(y**3 + a * y - b)) > 1e-12, step, b)

    def forward(a: Any, b: Any) -> Any:
        a, b = (a.value, b.value) if told else (a, b)
        y = solve(a, b)
        return y, (a, y)

    def backward(kept: Any, row: Any) -> Any:
        a, y = kept
        arrived = jax.lax.fori_loop(0, 40, lambda _, s: 0.5 * (s + row / (3 * y**2 + a)), row)
        return -y * arrived, arrived

    rule = jax.custom_vjp(solve)
    rule.defvjp(forward, backward, symbolic_zeros=told)
    return rule


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_a_rule_gives_the_rows_of_all_inputs_at_once(told: bool, dtype: Any) -> None:
    rule = with_own_way_back(told)

    def loss(a: Any, b: Any) -> Any:
        turn = np.asarray(1.0 if dtype == np.float64 else 0.6 + 0.8j, dtype)
        y = rule(jnp.exp(a).astype(dtype) * turn, b.astype(dtype) * turn)
        return jnp.sum(jnp.real(y * jnp.conj(y)) * b), jnp.real(y)[0]

    argnums, point = (0, 1), (POINT[0], POINT[2])
    for order in ("auto", "reverse", "markowitz"):
        program = jax.jit(jacve(loss, argnums=argnums, order=order))
        assert_same(program(*point), jax.jit(jax.jacrev(loss, argnums))(*point))
    # Forth, kept for the way back, and back: once for all rows, or for those of each output.
    text = jax.jit(jacve(loss, argnums=argnums)).lower(*point).as_text()
    assert len(re.findall(r"stablehlo\.while", text)) <= 3
    batch = [np.multiply.outer(np.linspace(0.9, 1.1, 5), x) for x in point]
    found = jax.vmap(jacve(loss, argnums=argnums))(*batch)
    assert_same(found, jax.vmap(jax.jacrev(loss, argnums))(*batch))


@pytest.mark.slow
def test_a_few_layers_are_written_out_for_second_derivatives() -> None:
    """The loop over transformer blocks is one for the Jacobian, and none for the Laplacian."""
    draw = np.random.default_rng(5)
    weights = [0.3 * draw.normal(size=(6, 8, n)) for n in (24, 8, 8)]

    def block(h: Any, own: Any) -> Any:
        queries, keys, values = jnp.split(h @ own[0], 3, -1)
        h = h + jax.nn.softmax(queries @ keys.T / 3.0) @ values @ own[1]
        centred = h - jnp.mean(h, -1, keepdims=True)
        normed = centred / jnp.sqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)
        return h + jax.nn.gelu(normed @ own[2]), None

    def fun(x: Any) -> Any:
        return jnp.sum(jnp.sin(jax.lax.scan(block, x.reshape(3, 8), weights)[0]))

    x = np.linspace(-1.0, 1.0, 24)
    laplacian, gradient = jax.jit(laplacian_ve(fun)), jax.jit(jacve(fun))
    expected = jax.jit(lambda x: jnp.trace(jax.hessian(fun)(x)))(x)
    np.testing.assert_allclose(laplacian(x), expected, rtol=1e-9)
    np.testing.assert_allclose(gradient(x), jax.jit(jax.grad(fun))(x), rtol=1e-9)
    assert "stablehlo.while" not in laplacian.lower(x).as_text()
    assert "stablehlo.while" in gradient.lower(x).as_text()
