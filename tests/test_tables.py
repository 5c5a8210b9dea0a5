"""Entries that stand where a table says: windows are read by their places, not scattered."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, laplacian_ve

NODES, FEATURES = 6, 4
RNG = np.random.default_rng(0)
FROM = np.repeat(np.arange(NODES), 2)
TO = (FROM + np.tile([1, 3], NODES)) % NODES
X = RNG.normal(size=(NODES, 3))
W = RNG.normal(size=(3, FEATURES))


def graph(x: Any, w: Any) -> Any:
    """A round of messages, weighed by the nodes at both ends."""
    h = jnp.tanh(x @ w)
    weight = jnp.exp(jnp.sum(h, axis=1)[FROM] * jnp.cos(x[TO, 0]))
    return jnp.tanh(jnp.zeros_like(h).at[TO].add(h[FROM] * weight[:, None]))


def layers(x: Any, w: Any) -> Any:
    """Edges that occur several times; some nodes have none."""
    h = jnp.tanh(x @ w)
    first, last = np.array([0, 0, 0, 4, 1, 4]), np.array([2, 2, 2, 3, 5, 3])
    return jnp.tanh(jnp.zeros_like(h).at[last].add(h[first] * x[:, :1]))


def apart(x: Any, w: Any) -> Any:
    """Many more places than there are entries: they are scattered."""
    h = jnp.tile(x, (40, 1)) @ w
    return jnp.zeros_like(h).at[np.array([7, 50])].add(jnp.sin(h)[np.array([200, 3])])


@pytest.mark.parametrize("fun", [graph, layers, apart])
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_jacobians(fun: Callable[[Any, Any], Any], order: str) -> None:
    found = jacve(fun, order=order)(X, W)
    np.testing.assert_allclose(found, jax.jit(jax.jacfwd(fun))(X, W), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fun", [graph, layers])
@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
def test_derivatives_of_laplacians(fun: Callable[[Any, Any], Any], mode: Any) -> None:
    def number(x: Any, w: Any) -> Any:
        return jnp.sum(jnp.sin(fun(x, w)))

    def trace(w: Any) -> Any:
        hessian = jax.hessian(number)(X, w).reshape(X.size, X.size)
        return jnp.trace(hessian)

    laplacian = laplacian_ve(number)
    batch = np.stack([X, 2 * X])

    def of_the_first(w: Any) -> Any:
        return jax.vmap(laplacian, (0, None))(batch, w)[0]

    wanted, slope = jax.jit(jax.value_and_grad(trace))(W)
    np.testing.assert_allclose(laplacian(X, W), wanted, rtol=1e-11)
    value, found = jax.jit(lambda w: (of_the_first(w), mode(of_the_first)(w)))(W)
    np.testing.assert_allclose(value, wanted, rtol=1e-11)
    np.testing.assert_allclose(found, slope, rtol=1e-10, atol=1e-12)


def test_infinite_entries_stay_where_they_are() -> None:
    def fun(x: Any) -> Any:
        h = jnp.sqrt(x)
        return jnp.zeros_like(h).at[TO].add(h[FROM] * x[TO])

    x = np.abs(X)
    x[0, 0] = 0
    wanted = np.asarray(jax.jit(jax.jacfwd(fun))(x))
    found = np.asarray(jacve(fun)(x))
    assert np.isfinite(wanted).sum() <= np.isfinite(found).sum()
    both = np.isfinite(wanted)
    np.testing.assert_allclose(found[both], wanted[both], rtol=1e-12)
    assert np.isfinite(found[1:, :, 1:]).all()


def test_windows_are_gathered() -> None:
    text = str(jax.make_jaxpr(jacve(graph))(X, W))
    assert f"[{X.size * NODES * FEATURES}] = scatter" not in text
