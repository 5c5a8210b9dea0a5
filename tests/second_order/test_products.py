"""Products along an axis: multiplications of halves, each factor with its own columns."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import (
    computational_graph,
    hessian_diagonal,
    hessve,
    laplacian_ve,
    make_plan,
)
from graphax_lapl.rules.products import MAX_FACTORS, MAX_FACTORS_OF_HESSIANS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3))
W = RNG.normal(size=(3, 4, 5))


def separable(x: Any, w: Any) -> Any:
    """A sum of products of functions of one number each."""
    return jnp.sum(jnp.prod(jnp.tanh(x[:, None] * w[:, 0]), axis=0))


def of_a_table(x: Any, w: Any) -> Any:
    """Over two axes at once, of which one has length one."""
    return jnp.sum(jnp.prod(jnp.sin(jnp.einsum("i,ijk->ijk", x, w[:, :1])), axis=(0, 1)))


def dense(x: Any, w: Any) -> Any:
    """Each factor depends on all numbers."""
    return jnp.prod(jnp.tanh(x @ w[:, 0]))


def with_zeros(x: Any, w: Any) -> Any:
    """Two factors that vanish, whose other derivatives do not."""
    return jnp.prod(jnp.concatenate([x - X[0], x[:1] * w[0, 0, 0]]))


def of_many(x: Any, w: Any) -> Any:
    """An odd number of factors over two axes, each of which depends on all numbers."""
    return jnp.prod(1 + jnp.sin(jnp.einsum("i,ijk->kj", x, w[:, 1:, :3])) / 3)


def of_very_many(x: Any, w: Any) -> Any:
    """More factors than are written out."""
    weights = jnp.resize(w, (3, MAX_FACTORS + 1))
    return jnp.prod(1 + jnp.sin(x @ weights) / 300)


def of_none(x: Any, w: Any) -> Any:
    """No factors at all."""
    return jnp.sum(jnp.prod(x[:0, None] * w[0, :1], axis=0)) + x[0] ** 3


FUNCTIONS = (separable, of_a_table, dense, with_zeros, of_many, of_very_many, of_none)


@pytest.mark.parametrize("fun", FUNCTIONS)
def test_values_and_gradients(fun: Callable[[Any, Any], Any]) -> None:
    def loss(laplacian: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
        return lambda w: jnp.sum(jax.vmap(laplacian, (0, None))(X, w) ** 2)

    def trace(x: Any, w: Any) -> Any:
        return jnp.trace(jax.jit(jax.hessian(fun))(x, w))

    found = jax.jit(jax.value_and_grad(loss(laplacian_ve(fun))))(W)
    wanted = jax.jit(jax.value_and_grad(loss(trace)))(W)
    for own, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("fun", [separable, with_zeros, of_many])
def test_hessians(fun: Callable[[Any, Any], Any]) -> None:
    hessian = hessve(fun)(X[0], W)
    np.testing.assert_allclose(hessian, jax.jit(jax.hessian(fun))(X[0], W), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("fun", "written"),
    [(separable, True), (dense, True), (of_many, True), (of_very_many, False)],
)
def test_factors_are_multiplied(fun: Callable[[Any, Any], Any], written: bool) -> None:
    program = str(jax.make_jaxpr(laplacian_ve(fun))(X[0], W))
    assert ("cumprod" not in program) == written


@pytest.mark.slow
def test_factors_of_numbers_have_no_second_derivatives_between_them() -> None:
    """Their columns are disjoint, so that a pass over all for each halving is left."""
    x = np.linspace(0.1, 0.9, 100)

    def fun(x: Any) -> Any:
        return jnp.prod(1 + jnp.sin(x) / 10)

    plan = make_plan(fun, x, kind="laplacian")
    assert plan.counts.muls < 4 * x.size * np.log2(x.size)
    expected = jnp.trace(jax.hessian(fun)(x))
    np.testing.assert_allclose(laplacian_ve(fun)(x), expected, rtol=1e-12)
    np.testing.assert_allclose(hessian_diagonal(fun)(x), jnp.diag(jax.hessian(fun)(x)), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("count", [MAX_FACTORS_OF_HESSIANS, MAX_FACTORS_OF_HESSIANS + 1])
def test_hessians_of_many_factors_are_not_put_together_from_halves(count: int) -> None:
    x = np.linspace(0.1, 0.9, count)
    vertices = computational_graph(jnp.prod, x, kind="hessian").vertices
    names = {vertex.primitive for vertex in vertices}
    assert ("reduce_prod" in names) == (count > MAX_FACTORS_OF_HESSIANS)
    np.testing.assert_allclose(hessve(jnp.prod)(x), jax.hessian(jnp.prod)(x), rtol=1e-12)
