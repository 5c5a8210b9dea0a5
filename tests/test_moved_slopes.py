"""What only moves numbers moves infinite slopes and NaN to their places and nowhere else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import graphax_lapl as gl

ORDERS = ("auto", "forward", "reverse", "markowitz")


def crossed(x):
    y = jnp.sort(1 / x)
    return jnp.cross(y, jnp.flip(jnp.sin(y)))


def sorted_with_places(x):
    places = jnp.arange(float(x.size))
    y, order = lax.sort([1 / x, places], num_keys=1)
    return jnp.sin(y * order)


def filled(x):
    y = jnp.take_along_axis(x * x, jnp.floor(x).astype(int), axis=0)
    return jnp.einsum("bi,bi->ib", y, jnp.sin(y))


def chosen_row(x):
    return 1 / lax.dynamic_index_in_dim(x, jnp.argmin(jnp.abs(x)), keepdims=False)


def overwritten(x):
    return 1 / x.at[jnp.argmax(x)].set(0.5 * x[0])


def pooled(x):
    return jnp.log(lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), "SAME"))


def largest(x):
    return jnp.sqrt(lax.top_k(x, 2)[0]).cumsum()


POINTS = {
    "crossed": (crossed, [[0.0, 1.0, 2.0], [-1.0, 0.0, 2.0], [3.0, 0.5, 0.0], [1.0, 2.0, 3.0]]),
    "sorted with places": (sorted_with_places, [[0.0, 2.0], [3.0, 0.0], [1.0, 2.0]]),
    "filled": (filled, [[[0.5, 2.0, 0.3], [0.4, 1.0, 0.1]], [[0.5, 1.0, 7.0], [-0.4, 1.0, 0.1]]]),
    "chosen row": (chosen_row, [[0.0, 1.0, 2.0], [1.0, -0.5, 0.0], [1.0, 2.0, 3.0]]),
    "overwritten": (overwritten, [[0.0, 1.0, 2.0], [2.0, 0.0, 1.0], [1.0, 2.0, 3.0]]),
    "pooled": (pooled, [[0.0, -1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0, -1.0]]),
    "largest": (largest, [[0.0, -1.0, 2.0], [0.0, 0.0, -1.0]]),
}


def either(fun, x):
    """The Jacobian of one of JAX's modes where that of the other is no number."""
    both = jax.jit(lambda x: [mode(fun)(x) for mode in (jax.jacfwd, jax.jacrev)])
    forward, reverse = map(np.asarray, both(x))
    return np.where(np.isfinite(reverse), reverse, forward)


def assert_finite_where(wanted, found):
    """Equal wherever the wanted entries are numbers."""
    wanted, found = np.asarray(wanted), np.asarray(found)
    there = np.isfinite(wanted)
    assert there.any()
    np.testing.assert_allclose(found[there], wanted[there], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", POINTS)
def test_first_order(name, order):
    fun, points = POINTS[name]
    points = np.asarray(points, np.float64)
    wanted = np.stack([either(fun, x) for x in points])
    assert_finite_where(wanted, [gl.jacve(fun, order)(x) for x in points])
    assert_finite_where(wanted, jax.jit(jax.vmap(gl.jacve(fun, order)))(points))
    many = np.concatenate([points] * 50)
    assert_finite_where(np.concatenate([wanted] * 50), jax.vmap(gl.jacve(fun, order))(many))


@pytest.mark.parametrize("name", POINTS)
def test_sparse(name):
    fun, points = POINTS[name]
    for x in np.asarray(points, np.float64):
        sparse = gl.jacve(fun, sparse_representation=True)(x)
        assert_finite_where(either(fun, x), sparse.todense())


@pytest.mark.parametrize("name", ["crossed", "filled"])
def test_derivative_of_the_jacobian(name):
    fun, points = POINTS[name]

    def pulled(jacobian, points):
        values, back = jax.vjp(jax.vmap(jacobian), points)
        return back(jnp.cos(jnp.arange(values.size, dtype=float)).reshape(values.shape))[0]

    both = jax.jit(lambda points: [pulled(j, points) for j in (jax.jacrev(fun), gl.jacve(fun))])
    assert_finite_where(*both(np.asarray(points, np.float64)))


def rows_left_out(x):
    rows = jnp.log(x)[:, None] * jnp.arange(1.0, 4)
    return jnp.where((x > 0)[:, None], rows, 0.0).sum(0)


def directions(x):
    squares = (x * x).sum(1, keepdims=True)
    return jnp.where(squares > 0, x / jnp.sqrt(squares), 0.0)


def behind_a_sum(x):
    return 1 / jnp.where(x > 0, x, 0.0)[:2].sum()


TWICE = {
    "rows": (rows_left_out, [0.0, -1.0, 2.0, 0.5]),
    "directions": (directions, [[0.3, -0.2, 1.0], [0.0, 0.0, 0.0], [0.7, 0.1, -0.4]]),
    "behind a sum": (behind_a_sum, [0.0, -1.0, 2.0, 0.5]),
    "filled": (filled, [[0.5, 2.0, 0.3], [0.4, 1.0, 0.1]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TWICE)
def test_second_order(name):
    fun, x = TWICE[name]
    x = np.asarray(x, np.float64)
    weights = np.random.default_rng(3).normal(size=np.shape(fun(x)))

    def weighted(x):
        y = fun(x)
        return jnp.where(jnp.isnan(y), 0, weights * y).sum()

    @jax.jit
    def every_way(x):
        modes = [jax.jacfwd, jax.jacrev]
        return [first(second(weighted))(x) for first in modes for second in modes]

    hessians = map(np.asarray, every_way(x))
    finite = [hessian for hessian in hessians if np.isfinite(hessian).all()]
    assert finite
    np.testing.assert_allclose(gl.hessve(weighted)(x), finite[0], rtol=1e-9, atol=1e-12)
    trace = np.trace(finite[0].reshape(x.size, x.size))
    for order in ("auto", "forward", "reverse"):
        found = gl.laplacian_ve(weighted, order=order)
        np.testing.assert_allclose(found(x), trace, rtol=1e-9)
        np.testing.assert_allclose(jax.vmap(found)(jnp.stack([x] * 3)), trace, rtol=1e-9)


def test_zeros_of_numbers_are_not_left_out():
    """Zero times infinity is NaN where the zero is a number and no missing path."""

    def fun(x):
        return jnp.sqrt(jnp.sort(x * x).sum())

    assert np.isnan(np.asarray(gl.jacve(fun)(jnp.zeros(2)))).all()
