"""Traces of a few layers: weights are multiplied with one another before the slopes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import divergence_ve, make_plan
from graphax_lapl.program.instructions import EdgeInstruction
from tests.second_order.checks import value_and_gradient

D, H = 6, 8
SHAPES = {
    "w": (D, H),
    "m": (H, H),
    "v": (H, D),
    "w2": (D, H),
    "v2": (H, D),
    "t": (D + 2, H),
    "b": (H,),
    "square": (D, D),
}


def layers(p, x):
    return jnp.tanh(jnp.sin(x @ p["w"] + p["b"]) @ p["m"]) @ p["v"]


def residual(p, x):
    for w, v in (("w", "v"), ("w2", "v2")):
        x = x + 0.5 * jnp.tanh(x @ p[w]) @ p[v]
    return x


def hidden_residual(p, x):
    h = jax.nn.silu(x @ p["w"])
    return (h - jnp.tanh(h @ p["m"])) @ p["v"]


def behind_time(p, x):
    inner = jnp.tanh(jnp.concatenate([p["b"][:1], x, p["b"][1:2]]) @ p["t"])
    return jnp.sin(inner @ p["m"]) @ p["v"]


def four_layers(p, x):
    h = jnp.tanh(jnp.tanh(x @ p["w"]) @ p["m"])
    return jnp.sin(h @ p["m"].T) @ p["v"]


def weights_that_move(p, x):
    return jnp.tanh(jnp.tanh(x @ p["w"]) @ (p["m"] * jnp.sum(x**2))) @ p["v"]


def part_of_the_output(p, x):
    y = jnp.tanh(jnp.tanh(x @ p["w"]) @ p["m"]) @ p["m"]
    return y[1 : 1 + D] - 2.0 * x


def same_weights(p, x):
    return jnp.tanh(jnp.tanh(x @ p["square"]) @ p["square"]) @ p["square"]


def sum_of_networks(p, x):
    return layers(p, x) + jnp.sum(p["b"]) * hidden_residual(p, x) + 3.0 * x


FIELDS = [
    layers,
    residual,
    hidden_residual,
    behind_time,
    four_layers,
    weights_that_move,
    part_of_the_output,
    same_weights,
    sum_of_networks,
]


@pytest.fixture(scope="module")
def point():
    keys = jax.random.split(jax.random.key(3), len(SHAPES) + 1)
    params = {n: jax.random.normal(k, s) for k, (n, s) in zip(keys, SHAPES.items(), strict=False)}
    return params, jax.random.normal(keys[-1], (3, D))


@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("field", FIELDS, ids=lambda f: f.__name__)
def test_values_and_gradients(field, order, point):
    params, xs = point
    found = value_and_gradient(divergence_ve(field, order, argnums=1), params, xs)
    expected = value_and_gradient(
        lambda params, x: jnp.trace(jax.jit(jax.jacfwd(field, 1))(params, x)), params, xs
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), found, expected
    )


@pytest.mark.every_case
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("act", [jnp.sin, jnp.tanh, jax.nn.silu], ids=["sin", "tanh", "silu"])
@pytest.mark.parametrize("sizes", [(2, 16), (2, 64), (3, 8), (6, 4)], ids=str)
def test_gradients_have_the_same_weights_twice(sizes, act, order):
    """One product of weights is two factors, read in two orders of its axes."""
    d, width = sizes
    random = np.random.default_rng(0)
    shapes = {"w": (width, d), "b": (width,), "m": (width, width), "v": (width,)}
    params = {n: jnp.asarray(random.normal(size=s) / np.sqrt(s[-1])) for n, s in shapes.items()}

    def energy(p, x):
        return p["v"] @ act(p["m"] @ act(p["w"] @ x + p["b"]))

    def field(p, x):
        return jax.grad(energy, 1)(p, x) * x

    xs = jnp.asarray(random.uniform(0.3, 1.2, size=(3, d)))
    found = jax.jit(jax.vmap(divergence_ve(field, order, argnums=1), (None, 0)))(params, xs)
    expected = jax.vmap(lambda x: jnp.trace(jax.jacfwd(field, 1)(params, x)))(xs)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_an_ensemble_and_several_arguments(point):
    params, xs = point
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), params)

    def pair(p, x, y):
        return residual(p, x) * jnp.sum(y), layers(p, y + x)

    def traces(p, x, y):
        ((a, _), (_, d)) = jax.jit(jax.jacfwd(pair, (1, 2)))(p, x, y)
        return jnp.trace(a) + jnp.trace(d)

    mapped = [
        jax.vmap(jax.vmap(f, (None, 0, 0)), (0, None, None))(stacked, xs, xs[::-1])
        for f in (divergence_ve(pair, argnums=(1, 2)), traces)
    ]
    np.testing.assert_allclose(*mapped, rtol=1e-10)


@pytest.mark.parametrize("field", [layers, residual, hidden_residual, behind_time])
def test_samples_multiply_no_matrices(field, point):
    """Neither with weights that are constants nor with weights that are arguments."""
    params, xs = point
    constants = jax.vmap(divergence_ve(functools.partial(field, params)))
    arguments = jax.vmap(divergence_ve(field, argnums=1), (None, 0))
    for jaxpr in (jax.make_jaxpr(constants)(xs), jax.make_jaxpr(arguments)(params, xs)):
        for matrix in (f"[3,{H},{H}]", f"[3,{D},{H}]", f"[3,{H},{D}]"):
            assert matrix not in str(jaxpr)


def test_the_last_product_of_a_trace_reads_memory(point):
    """XLA's library takes a sum, and the products behind it, for one expression."""
    params, xs = point

    def energy(x):
        h = x @ params["w"]
        for _ in range(2):
            h = h + jax.nn.silu(h @ params["m"])
        return jnp.sum(jnp.sin(h))

    program = make_plan(jax.grad(energy), xs[0], kind="divergence").program
    contracted = [i for i in program.instructions if isinstance(i, EdgeInstruction)][-1]
    found = jax.make_jaxpr(jax.vmap(divergence_ve(jax.grad(energy))))(xs)
    assert program.sums.intersection(contracted.inputs)
    held = jax.make_jaxpr(jax.vmap(divergence_ve(jax.grad(energy))))(jnp.tile(xs, (200, 1)))
    assert str(held).count("optimization_barrier") > str(found).count("optimization_barrier")
