"""Derivatives of batches: results that are the same for all samples, branches that are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import forward_laplacian, jacve

pytestmark = pytest.mark.every_case

WEIGHTS = np.sin(np.arange(12.0)).reshape(3, 4)
TURN = np.sin(np.arange(9.0)).reshape(3, 3)


def layer_and_itself(x):
    return jnp.tanh(x @ WEIGHTS) * x[0], x, x[::-1] * 2


def numbers(x):
    a, b, c = x
    return jnp.sin(a) * b, c, 3 * a


def selected(x):
    return jnp.where(x > 0, x, 2 * x), jnp.cumsum(x), x * x


def looped(x):
    return lax.fori_loop(0, 3, lambda _, carry: carry * 0.5 + 1, x), jnp.exp(x[0])


def linear(x):
    return jnp.stack([x[1], x[0] * 2, x[2]])


def branching(x):
    """Samples take different branches of a loop's steps."""

    def step(x, _):
        moved = lax.cond(x[0] > 0, lambda x: jnp.sin(x @ TURN), lambda x: x / 2 + jnp.cos(x), x)
        return moved, x[0]

    return lax.scan(step, x, None, length=5)


def laplacian(fun):
    def all_of_it(x):
        found = forward_laplacian(fun)(x)
        return [(one.x, one.jacobian.dense_array, one.laplacian) for one in found]

    return all_of_it


def reference_laplacian(fun):
    def all_of_it(x):
        traces = (jnp.trace(hessian) for hessian in jax.hessian(fun)(x))
        return list(zip(fun(x), jax.jacfwd(fun)(x), traces, strict=True))

    return all_of_it


def quadratic(x):
    return jnp.sum(x * x), jnp.sum(jnp.tanh(x @ WEIGHTS)), x[0]


#: Under which `jax.vmap` and `jax.jit` derivatives are taken.
BATCHED = {
    "vmap": lambda fun: jax.vmap(fun),
    "jit, vmap": lambda fun: jax.jit(jax.vmap(fun)),
    "vmap, jit": lambda fun: jax.vmap(jax.jit(fun)),
    "two axes": lambda fun: (
        lambda x: jax.jit(jax.vmap(jax.jit(jax.vmap(fun))))(jnp.stack([x, x + 0.1]))
    ),
    "another axis": lambda fun: lambda x: jax.vmap(fun, in_axes=1, out_axes=-1)(x.T),
}


def loss(derivative, batched):
    """A number that every entry plays its part in, those that no sample has of its own too."""

    def of(x):
        blocks = jax.tree.leaves(batched(derivative)(x))
        weights = [jax.random.normal(jax.random.key(k), b.shape) for k, b in enumerate(blocks)]
        sums = [jnp.sum(b * w) for b, w in zip(blocks, weights, strict=True)]
        squares = [jnp.sum(b**2 * w) for b, w in zip(blocks, weights, strict=True)]
        return sum(sums) * sum(squares)

    return of


DERIVATIVES = [
    *(
        (jacve(fun), jax.jacfwd(fun))
        for fun in (layer_and_itself, selected, looped, linear, numbers, branching)
    ),
    (laplacian(quadratic), reference_laplacian(quadratic)),
]
NAMES = ["layer_and_itself", "selected", "looped", "linear", "numbers", "branching", "laplacian"]


@pytest.mark.slow
@pytest.mark.parametrize("batched", BATCHED.values(), ids=BATCHED.keys())
@pytest.mark.parametrize(("ours", "reference"), DERIVATIVES, ids=NAMES)
def test_values_and_two_derivatives_of_a_batch(ours, reference, batched):
    x = jax.random.normal(jax.random.key(3), (3, 3))

    def all_of_it(derivative):
        value = loss(derivative, batched)
        return lambda x: (value(x), *jax.jvp(jax.grad(value), (x,), (jnp.cos(x),)))

    for found, expected in zip(all_of_it(ours)(x), jax.jit(all_of_it(reference))(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [2, 300])
@pytest.mark.parametrize(("ours", "reference"), DERIVATIVES, ids=NAMES)
def test_gradients_of_compiled_batches(ours, reference, samples):
    x = jax.random.normal(jax.random.key(4), (samples, 3))
    found, expected = (
        jax.value_and_grad(loss(derivative, BATCHED["jit, vmap"]))(x)
        for derivative in (ours, reference)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
