"""Products along an axis: of a few factors they are multiplications, each with its own columns."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import hessve, laplacian_ve
from graphax_lapl.rules.reduction import MAX_FACTORS

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
    """More factors than are written out."""
    return jnp.prod(1 + jnp.sin(x @ w.reshape(3, -1)[:, : MAX_FACTORS + 1]) / 3)


def of_none(x: Any, w: Any) -> Any:
    """No factors at all."""
    return jnp.sum(jnp.prod(x[:0, None] * w[0, :1], axis=0)) + x[0] ** 3


FUNCTIONS = (separable, of_a_table, dense, with_zeros, of_many, of_none)


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


@pytest.mark.parametrize("fun", [separable, with_zeros])
def test_hessians(fun: Callable[[Any, Any], Any]) -> None:
    hessian = hessve(fun)(X[0], W)
    np.testing.assert_allclose(hessian, jax.jit(jax.hessian(fun))(X[0], W), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("fun", "written"), [(separable, True), (dense, True), (of_many, False)])
def test_few_factors_are_multiplied(fun: Callable[[Any, Any], Any], written: bool) -> None:
    program = str(jax.make_jaxpr(laplacian_ve(fun))(X[0], W))
    assert ("cumprod" not in program) == written
