"""Diagonals of Hessians and products with them against `jax.hessian`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import (
    InvalidArgumentError,
    InvalidTypeError,
    hessian_diagonal,
    hessian_vector_product,
)

KEYS = jax.random.split(jax.random.key(3), 4)
WEIGHTS = jax.random.normal(KEYS[0], (7, 6))
POINT, VECTOR = jax.random.normal(KEYS[1], (6,)), jax.random.normal(KEYS[2], (6,))


def network(x):
    return jnp.sum(jnp.tanh(WEIGHTS @ jnp.sin(x)) ** 2)


def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def softmax(x):
    return jax.nn.softmax(x) * jnp.roll(x, 2)


def grid(x):
    y = x.reshape(2, 3)
    return jnp.stack([y * y[::-1], jnp.cumsum(jnp.exp(y), axis=1)])


def distances(x):
    difference = x[:, None] - x[None, :] + 3 * jnp.eye(6)
    return jnp.sum(1 / jnp.sqrt(1 + difference**2))


def determinant(x):
    return jnp.linalg.slogdet(jnp.outer(x[:2], x[2:4]) + jnp.eye(2))[1]


def looping(x):
    return jax.lax.fori_loop(0, 3, lambda k, y: jnp.sin(y) * jnp.sum(y), x)


def with_own_rule(x):
    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))
    return jnp.sum(square(x) * jnp.roll(x, 1))


FUNCTIONS = [
    network,
    rosenbrock,
    softmax,
    grid,
    distances,
    determinant,
    looping,
    with_own_rule,
    jnp.sum,
]


def close(found, expected):
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@partial(jax.jit, static_argnums=0)
def hessian(fun, x):
    return jax.jit(jax.jacrev(jax.jacrev(fun)))(x)


@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda fun: fun.__name__)
def test_diagonal(fun):
    expected = jnp.diagonal(hessian(fun, POINT), axis1=-2, axis2=-1)
    for order in ("auto", "forward", "reverse") if fun in (network, softmax) else ("auto",):
        close(hessian_diagonal(fun, order)(POINT), expected)


@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda fun: fun.__name__)
def test_product(fun):
    found = jax.jit(hessian_vector_product(fun))(POINT, VECTOR)
    close(found, hessian(fun, POINT) @ VECTOR)


def two(x, tree, scale):
    return {"value": scale * jnp.sum(x * tree["a"]) ** 2, "rows": jnp.sin(x)[:2] * tree["b"]}


TREE = {"a": VECTOR, "b": jnp.array(0.4)}


def test_diagonal_of_trees():
    found, aux = hessian_diagonal(
        lambda x, tree, scale: (two(x, tree, scale), scale), argnums=(1, 0), has_aux=True
    )(POINT, TREE, 2.0)
    second = jax.jit(jax.jacrev(jax.jacrev(two, (1, 0)), (1, 0)))(POINT, TREE, 2.0)
    assert aux == 2.0
    for name, rank in (("value", 0), ("rows", 1)):
        letters = "z" * rank
        own = second[name]
        close(found[name][1], jnp.einsum(f"{letters}ii->{letters}i", own[1][1]))
        close(found[name][0]["a"], jnp.einsum(f"{letters}ii->{letters}i", own[0]["a"][0]["a"]))
        close(found[name][0]["b"], own[0]["b"][0]["b"])


def test_product_of_trees():
    vector = ({"a": POINT, "b": 2.0}, VECTOR)
    found = jax.jit(hessian_vector_product(two, argnums=(1, 0)))(POINT, TREE, 2.0, vector)

    def along(t):
        moved = jax.tree.map(lambda a, b: a + t * b, (TREE, POINT), vector)
        return jax.jacrev(two, (1, 0))(moved[1], moved[0], 2.0)

    jax.tree.map(close, found, jax.jit(jax.jacfwd(along))(0.0))


@pytest.mark.slow
def test_transformations():
    points = jnp.stack([POINT, 2 * POINT])
    found = jax.jit(jax.vmap(hessian_diagonal(network)))(points)
    close(found, jnp.stack([jnp.diagonal(jax.jit(jax.hessian(network))(p)) for p in points]))
    found = jax.jit(jax.jacrev(hessian_diagonal(rosenbrock)))(POINT)
    close(found, jax.jit(jax.jacrev(lambda x: jnp.diagonal(hessian(rosenbrock, x))))(POINT))
    product = jax.vmap(hessian_vector_product(network), (None, 0))
    close(product(POINT, jnp.eye(6)), jax.jit(jax.hessian(network))(POINT))


def test_errors():
    with pytest.raises(InvalidTypeError):
        hessian_diagonal(jnp.sum)(POINT.astype(complex))
    for vector in (VECTOR[:2], {"x": VECTOR}, (VECTOR, VECTOR)):
        with pytest.raises(InvalidArgumentError, match="vector like the differentiated"):
            hessian_vector_product(network)(POINT, vector)
