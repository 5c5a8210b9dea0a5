"""What a gather and a scatter along the same edges leave at one position is added at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, laplacian_ve, make_plan
from tests.checks import assert_same

#: Targets of the edges that leave each node of a ring twice or more, equal and unequal groups.
EDGES = {
    "equal": (np.arange(6).repeat(3), (np.arange(6).repeat(3) + np.tile([1, 2, 4], 6)) % 6),
    "unequal": (np.array([0, 0, 0, 0, 2, 2, 2, 4, 4, 4]), np.array([1, 2, 3, 5, 0, 4, 1, 3, 3, 3])),
    "descending": (np.array([5, 5, 4, 4, 1, 1, 0, 0]), np.array([4, 4, 0, 0, 5, 5, 1, 1])),
}


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape)


def degree_weighted(sources, targets, weights):
    """Each node's value, weighted by its edges: as many entries as edges, on as many positions."""
    del targets

    def fun(x):
        along = jnp.tanh(x[sources]) * weights[:, None]
        return jnp.zeros_like(x).at[sources].add(along)

    return fun


def energy(sources, targets, weights):
    """A number made of rounds of messages, with features mixed by a dense layer in each."""

    def fun(x):
        h = x
        for layer in weights:
            messages = jnp.tanh((h[sources] - h[targets]) @ layer)
            h = h + jnp.zeros_like(h).at[sources].add(messages)
        return jnp.sum(jnp.sin(h))

    return fun


def entries(fun, x, order) -> int:
    """The positions that the terms of the Jacobian list, repeated ones as often as they are."""
    return sum(term.entries for term in make_plan(fun, x, order=order).structure().terms)


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_one_entry_per_position(name, order):
    sources, targets = EDGES[name]
    fun, x = degree_weighted(sources, targets, numbers(len(sources))), jnp.asarray(numbers(6, 2))
    expected = jax.jit(jax.jacfwd(fun))(x)
    assert_same(jacve(fun, order=order)(x), expected)
    assert entries(fun, x, order) == np.count_nonzero(expected)


def parallel_edges(count: int):
    """A ring in which each edge has parallel ones, with features of the distance of their own."""
    sources = np.arange(6).repeat(count)
    targets, weights = (sources + 1) % 6, numbers(6 * count, 8)

    def fun(x):
        squares = jnp.sum((x[sources] - x[targets]) ** 2, -1)
        return jnp.zeros((6, 8)).at[targets].add(jnp.sin(squares[:, None] * weights))

    return fun


@pytest.mark.slow
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_outer_products_are_added_by_position(order):
    """Two factors hold the edges; their product, summed, is less than what they hold."""
    x = jnp.asarray(numbers(6, 3))
    for count, together in ((6, True), (2, False)):
        fun = parallel_edges(count)
        expected = jax.jit(jax.jacfwd(fun))(x)
        assert_same(jacve(fun, order=order)(x), expected)
        assert_same(jacve(fun, order=order, sparse_representation=True)(x).todense(), expected)
        assert (entries(fun, x, order) == np.count_nonzero(expected)) == together
    energy = lambda x: jnp.sum(jnp.cos(parallel_edges(6)(x)) ** 2)  # noqa: E731
    hessian = jax.jit(jax.hessian(energy))(x).reshape(x.size, x.size)
    assert_same(laplacian_ve(energy, order=order)(x), jnp.trace(hessian))


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("order", ["forward", "reverse", "auto"])
def test_laplacian_of_messages(name, order):
    fun, x = energy(*EDGES[name], numbers(2, 3, 3)), jnp.asarray(numbers(6, 3))
    hessian = jax.jit(jax.hessian(fun))(x).reshape(x.size, x.size)
    assert_same(laplacian_ve(fun, order=order)(x), jnp.trace(hessian))


@pytest.mark.slow
@pytest.mark.parametrize("name", EDGES)
def test_derivative_of_the_laplacian(name):
    x = jnp.asarray(numbers(6, 3))

    def by(laplacian):
        return jax.grad(lambda w: laplacian(energy(*EDGES[name], w))(x))

    def trace(fun):
        return lambda x: jnp.trace(jax.jit(jax.hessian(fun))(x).reshape(x.size, x.size))

    both = jax.jit(lambda w: [by(laplacian)(w) for laplacian in (laplacian_ve, trace)])
    assert_same(*both(numbers(2, 3, 3)))


def test_pairs_of_a_square_array_are_read_one_by_one():
    """Entries above a masked diagonal are gathered at once, not as a product of two selections."""
    n, x = 32, jnp.asarray(3 * numbers(32, 3))
    mask = np.triu(np.ones((n, n)), 1)

    def fun(x):
        square = jnp.sum((x[:, None] - x[None]) ** 2, axis=-1) + np.eye(n)
        return jnp.sum(mask * (square**-6 - square**-3))

    hessian = jax.jit(jax.hessian(fun))(x).reshape(x.size, x.size)
    assert_same(laplacian_ve(fun)(x), jnp.trace(hessian))
    made = jax.make_jaxpr(laplacian_ve(fun))(x)
    pairs = n * (n - 1) // 2
    assert f"[{pairs},{pairs}]" not in str(made)
