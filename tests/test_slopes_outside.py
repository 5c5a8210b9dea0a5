"""Jacobians of networks for batches: weights multiplied once, slopes of all samples with them."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from graphax_lapl import jacve, make_plan
from graphax_lapl.program.slopes_outside import slopes_outside

Layers = list[tuple[Array, Array]]
SAMPLES = 40
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "relu": jax.nn.relu,
    "softplus": jax.nn.softplus,
}


def layers_of(*sizes: int) -> Layers:
    """Matrices and biases of a network."""
    random = np.random.default_rng(0)
    return [
        (jnp.asarray(random.normal(size=(o, i)) / np.sqrt(i)), jnp.asarray(random.normal(size=o)))
        for i, o in itertools.pairwise(sizes)
    ]


def network(layers: Layers, x: Array, act: Callable[[Array], Array] = jnp.tanh) -> Array:
    """`W x + b` and an activation, layer by layer."""
    for number, (matrix, bias) in enumerate(layers):
        x = matrix @ x + bias
        x = act(x) if number + 1 < len(layers) else x
    return x


def samples(count: int, size: int) -> Array:
    return jnp.asarray(np.random.default_rng(5).normal(size=(count, size)))


def factors(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """Shapes of the right operands of all products of a jaxpr, nested ones included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.invars[1].aval.shape
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, tuple | list) else (parameter,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from factors(inner)


def assert_close(found: Any, wanted: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("sizes", [(9, 6, 4), (4, 6, 9), (6, 5, 7, 3), (3, 7, 7, 7, 3)])
def test_networks(sizes: tuple[int, ...], act: str, order: str) -> None:
    layers, xs = layers_of(*sizes), samples(SAMPLES, sizes[0])

    def fun(x: Array) -> Array:
        return network(layers, x, ACTIVATIONS[act])

    assert_close(jax.jit(jax.vmap(jacve(fun, order=order)))(xs), jax.vmap(jax.jacrev(fun))(xs))


def test_one_product_has_the_slopes_of_all_samples() -> None:
    layers = layers_of(9, 6, 4)
    ours = jax.vmap(jacve(network, argnums=1), (None, 0))

    def shapes(count: int) -> set[tuple[int, ...]]:
        return {*factors(jax.make_jaxpr(ours)(layers, samples(count, 9)).jaxpr)}

    assert (6, 4, 9) in shapes(SAMPLES)
    assert (6, 4, 9) not in shapes(4)


@pytest.mark.slow
def test_weights_of_every_sample_stay_where_they_are() -> None:
    """A product of weights for each sample would be as many multiplications again."""
    layers, xs = layers_of(9, 6, 4), samples(SAMPLES, 9)
    every = jax.tree.map(
        lambda w: w + jnp.sin(jnp.arange(SAMPLES)).reshape(-1, *[1] * w.ndim), layers
    )
    ours = jax.vmap(jacve(network, argnums=1))
    assert not any(
        np.prod(s[1:]) == 6 * 4 * 9 for s in factors(jax.make_jaxpr(ours)(every, xs).jaxpr)
    )
    assert_close(jax.jit(ours)(every, xs), jax.vmap(jax.jacrev(network, 1))(every, xs))
    only_biases = [(w, b) for (w, _), (_, b) in zip(layers, every, strict=True)]
    axes: Any = ([(None, 0)] * 2, 0)
    ours, reference = (
        jax.vmap(d, axes) for d in (jacve(network, argnums=1), jax.jacrev(network, 1))
    )
    assert (6, 4, 9) in {*factors(jax.make_jaxpr(ours)(only_biases, xs).jaxpr)}
    assert_close(jax.jit(ours)(only_biases, xs), reference(only_biases, xs))


def test_sums_of_scaled_weights() -> None:
    """Sines and cosines of the same numbers meet the two halves of a matrix."""
    first, second = (matrix for matrix, _ in layers_of(3, 8, 4))
    second = jnp.concatenate([second, second[::-1] ** 2], 1)

    def features(x: Array) -> Array:
        phases = first @ x
        return second @ jnp.concatenate([jnp.sin(phases), jnp.cos(phases)])

    plan = make_plan(features, jnp.ones(3), order="reverse")
    found = slopes_outside(plan.program, plan.moving)
    assert found is not None
    assert found.samples == 12  # four rows of three numbers, and two terms of these for each
    xs = samples(SAMPLES, 3)
    ours = jax.jit(jax.vmap(jacve(features, order="reverse")))
    assert_close(ours(xs), jax.vmap(jax.jacfwd(features))(xs))


def test_rows_of_several_tokens() -> None:
    """Slopes of every token meet one product of weights."""
    (first, _), (second, _) = layers_of(5, 7, 6)

    def tokens(x: Array) -> Array:
        return jnp.tanh(x.reshape(3, 5) @ first.T) @ second.T

    xs = samples(SAMPLES, 15)
    assert_close(jax.jit(jax.vmap(jacve(tokens)))(xs), jax.vmap(jax.jacfwd(tokens))(xs))


def test_derivatives_of_the_jacobian() -> None:
    layers, xs = layers_of(6, 5, 4), samples(SAMPLES, 6)

    def loss(derivative: Callable[..., Any], layers: Layers) -> Array:
        return jnp.sum(jnp.sin(jax.vmap(derivative(network, 1), (None, 0))(layers, xs)))

    found, wanted = (
        jax.jit(jax.grad(lambda p, d=d: loss(d, p)))(layers) for d in (jacve_of, jax.jacrev)
    )
    assert_close(found, wanted)
    by_samples = [
        jax.jit(jax.vmap(jax.jacfwd(d(network, 1), 1), (None, 0)))(layers, xs)
        for d in (jacve_of, jax.jacrev)
    ]
    assert_close(*by_samples)


def jacve_of(fun: Callable[..., Any], argnums: int) -> Callable[..., Any]:
    """`jacve` with the signature of `jax.jacrev`."""
    return jacve(fun, argnums=argnums)


@pytest.mark.slow
def test_batches_of_batches_and_outside_of_jit() -> None:
    layers, xs = layers_of(6, 5, 4), samples(SAMPLES, 6)
    reference = jax.vmap(jax.jacrev(network, 1), (None, 0))(layers, xs)
    batched = jax.vmap(jacve(network, argnums=1), (None, 0))
    assert_close(batched(layers, xs), reference)
    twice = jax.vmap(jax.vmap(jacve(network, argnums=1), (None, 0)), (None, 0))
    folded = xs.reshape(2, SAMPLES // 2, 6)
    assert_close(twice(layers, folded), reference.reshape(2, SAMPLES // 2, 4, 6))
    assert_close(jax.jit(twice)(layers, folded), reference.reshape(2, SAMPLES // 2, 4, 6))


def test_large_products_of_weights_are_not_made() -> None:
    layers = layers_of(80, 70, 60)
    plan = make_plan(network, layers, jnp.ones(80), argnums=1, order="reverse")
    assert slopes_outside(plan.program, plan.moving) is None
    plan = make_plan(network, layers_of(50, 70, 60), jnp.ones(50), argnums=1, order="reverse")
    found = slopes_outside(plan.program, plan.moving)
    assert found is not None
    assert found.samples == 100
    assert len(found.shared) == 2


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_slopes_that_are_left_out_may_be_infinite(order: str) -> None:
    """A mask meets the logarithm's slope before weights do, and nothing becomes NaN."""
    first, second = (matrix for matrix, _ in layers_of(5, 6, 4))

    def logarithms(x: Array) -> Array:
        y = first @ x
        return second @ jnp.where(y > 0, jnp.log(y), 0.0)

    xs = samples(SAMPLES, 5).at[0].set(0.0)
    found = jax.jit(jax.vmap(jacve(logarithms, order=order)))(xs)
    assert_close(found, jax.vmap(jax.jacfwd(logarithms))(xs))
    assert np.isfinite(np.asarray(found)).all()
