"""Padded arrays under sliding windows: gathers where they are pieces of one array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import computational_graph, jacve, laplacian_ve
from graphax_lapl.rules.stretches import read_stretches, stretches

KERNEL = jnp.asarray(np.random.default_rng(3).normal(size=(3, 3, 1, 2)))
X = jnp.asarray(np.random.default_rng(4).normal(size=(5, 6)))


def convolved(padded, kernel=KERNEL):
    numbers = ("NHWC", "HWIO", "NHWC")
    image = padded[None, ..., None]
    return jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID", dimension_numbers=numbers)


def averaged(padded):
    return jax.lax.reduce_window(padded, 0.0, jax.lax.add, (3, 2), (1, 2), "VALID")


def mirrored(x):
    return jnp.concatenate([x[::-2], x, x[1:3][::-1]])


def primitives(fun):
    found = (v.equation for v in computational_graph(fun, X).vertices if v.equation is not None)
    return {equation.name for equation in found}


@pytest.mark.every_case
@pytest.mark.parametrize("windows", [convolved, averaged])
@pytest.mark.parametrize("mode", ["wrap", "edge", "reflect", "symmetric"])
def test_padded_by_their_own_entries(mode, windows):
    def fun(x):
        return jnp.sin(windows(jnp.pad(x, ((1, 1), (2, 1)), mode=mode)))

    assert "gather" in primitives(fun)
    assert "concatenate" not in primitives(fun)
    expected = jax.jacfwd(fun)(X)
    sparse = jax.jit(jacve(fun, sparse_representation=True))(X)
    np.testing.assert_allclose(sparse.todense(), expected, atol=1e-12)
    assert sparse.nse == jnp.count_nonzero(expected)
    np.testing.assert_allclose(jacve(fun)(X), expected, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
def test_laplacians_of_periodic_layers(order):
    def fun(x):
        hidden = jnp.tanh(convolved(jnp.pad(x, 1, mode="wrap"))[0].sum(-1))
        return jnp.sum(jnp.cos(convolved(jnp.pad(hidden, 1, mode="wrap"))))

    trace = jnp.trace(jax.hessian(fun)(X).reshape(X.size, X.size))
    batch = jnp.stack([X, 2.0 * X])
    found = jax.jit(jax.vmap(laplacian_ve(fun, order=order)))(batch)
    np.testing.assert_allclose(found[0], trace, rtol=1e-10)


@pytest.mark.slow
def test_pieces_that_are_turned_round_and_strided():
    def fun(x):
        return convolved(mirrored(jnp.exp(x)))

    assert "concatenate" not in primitives(fun)
    np.testing.assert_allclose(jacve(fun)(X), jax.jacfwd(fun)(X), atol=1e-12)


def test_what_prints_stays_where_it_is(capfd):
    def fun(x):
        jax.debug.print("sum {}", x.sum())
        return convolved(jnp.pad(x * x, 1, mode="wrap"))

    np.testing.assert_allclose(jacve(fun)(X), jax.jacfwd(fun)(X), atol=1e-12)
    jax.effects_barrier()
    assert capfd.readouterr().out.count("sum") == 2


def test_a_loop_of_periodic_steps():
    kernel = KERNEL[:, :, :, :1] / 9

    def fun(x):
        def step(u, _):
            return u + jnp.tanh(convolved(jnp.pad(u, 1, mode="wrap"), kernel)[0, ..., 0]), None

        return jax.lax.scan(step, x, None, length=12)[0]

    np.testing.assert_allclose(jacve(fun)(X), jax.jacfwd(fun)(X), atol=1e-10)


@pytest.mark.slow
def test_kernels_move_too():
    def fun(x, kernel):
        return convolved(jnp.pad(x * x, 1, mode="wrap"), jnp.sin(kernel))

    found = jacve(fun, argnums=(0, 1))(X, KERNEL)
    for one, other in zip(found, jax.jacrev(fun, argnums=(0, 1))(X, KERNEL), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: convolved(jnp.concatenate([x[:2], jnp.sin(x)])),
        lambda x: convolved(jnp.concatenate([x, jnp.ones((2, 6))])),
        lambda x: convolved(jnp.concatenate([x[:, :3], x[:, 1:4]])),
        lambda x: jnp.sin(jnp.pad(x, 1, mode="wrap")),
    ],
)
def test_others_stay_concatenations(fun):
    assert "concatenate" in primitives(fun)
    np.testing.assert_allclose(jacve(fun)(X), jax.jacfwd(fun)(X), atol=1e-12)


@pytest.mark.parametrize(
    "places", [[0], [3, 4], [4, 2, 0], [4, 0, 1, 2, 3, 4, 0], [2, 2, 2], [1, 3, 4, 4, 0]]
)
@pytest.mark.parametrize("axis", [0, 1])
def test_reading_stretches(places, axis):
    places = np.asarray(places)
    parts = stretches(places)
    assert np.concatenate(parts).tolist() == places.tolist()
    assert all(len(set(np.diff(part))) <= 1 for part in parts)
    np.testing.assert_array_equal(
        read_stretches(X, axis, parts), np.take(np.asarray(X), places, axis)
    )


def test_programs_read_them_without_gathers_and_scatters():
    def fun(x):
        return jnp.sum(jnp.tanh(convolved(jnp.pad(jnp.sin(x), 1, mode="wrap"))))

    program = str(jax.make_jaxpr(jax.grad(laplacian_ve(fun)))(X))
    assert "gather" not in program
    assert "scatter" not in program
