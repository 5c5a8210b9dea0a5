"""Entries that stand where a table says: windows are read by their places, not scattered."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, laplacian_ve
from graphax_lapl.emit.tables import _added_where_equal, _Windows

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


SPECIES, REACTIONS = 10, 16
CHANGES = np.zeros((SPECIES, REACTIONS))
CHANGES[np.arange(2 * REACTIONS) * 3 % SPECIES, np.repeat(np.arange(REACTIONS), 2)] = 1
ONE, OTHER = np.random.default_rng(3).integers(0, SPECIES, (2, REACTIONS))


def reactions(x: Any, rates: Any) -> Any:
    """What reactions change, most of them nothing, and the heat of all."""
    c, t = x[:-1], x[-1]
    k = rates * jnp.exp(-1 / (jnp.abs(t) + 0.5))
    speed = k * c[ONE] * c[OTHER] - 0.1 * k * c[ONE]
    return jnp.concatenate([CHANGES @ speed, (jnp.sum(speed) / (1 + t * t))[None]])


@pytest.mark.slow
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
def test_known_zeros_of_windows(order: str) -> None:
    random = np.random.default_rng(1)
    x, rates = random.normal(size=(5, SPECIES + 1)), random.random(REACTIONS)

    def jacobian(x: Any, rates: Any) -> Any:
        return jax.vmap(jacve(reactions, order=order), (0, None))(x, rates)

    def expected(x: Any, rates: Any) -> Any:
        return jax.vmap(jax.jacfwd(reactions), (0, None))(x, rates)

    found = jacobian(x, rates)
    np.testing.assert_allclose(found, expected(x, rates), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        jacve(reactions, order=order)(x[0], rates), found[0], rtol=1e-12, atol=1e-12
    )
    pulled = jax.grad(lambda *a: jnp.sum(jnp.sin(jacobian(*a))), (0, 1))(x, rates)
    wanted = jax.grad(lambda *a: jnp.sum(jnp.sin(expected(*a))), (0, 1))(x, rates)
    for own, other in zip(pulled, wanted, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-11, atol=1e-11)


def windows(there: np.ndarray | None, target: list[int], places: int) -> _Windows:
    """Windows of three numbers each."""
    rows = jnp.asarray(np.random.default_rng(2).normal(size=(len(target), 3)))
    if there is not None:
        rows = jnp.where(there, rows, 0)
    return _Windows(rows, np.arange(len(target)), np.array(target), (places,), there)


def test_numbers_are_read_where_zeros_are_known() -> None:
    """Windows at one place that have no number in common are one layer."""
    there = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], bool)
    found = windows(there, [1, 1, 1, 0], 2)
    assert found.reads is None
    assert found.number_reads is not None
    assert found.number_reads.shape == (1, 6)
    np.testing.assert_allclose(found.added_up(), found.scattered(found.rows))


def test_windows_outside_of_the_matrix_are_not_read() -> None:
    there = np.array([[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], bool)
    rows = jnp.where(there, windows(None, [0] * 5, 2).rows, 0)
    found = _Windows(rows, np.arange(1, 5), np.array([1, 1, 1, 0]), (2,), there)
    assert found.number_reads is not None
    np.testing.assert_allclose(found.added_up(), [rows[4], rows[1:4].sum(0)])


def test_numbers_are_scattered_without_known_zeros() -> None:
    assert windows(None, [1, 1, 1, 0], 2).number_reads is None
    assert windows(np.ones((4, 3), bool), [1, 1, 1, 0], 2).number_reads is None


def test_programs_read_numbers_where_zeros_are_known() -> None:
    """What is left are the slopes of all with respect to the temperature, single numbers."""
    of_batch = jax.jit(jax.vmap(jacve(reactions), (0, None)))
    text = of_batch.lower(np.ones((5, SPECIES + 1)), np.ones(REACTIONS)).as_text()
    assert text.count('"stablehlo.scatter"') == 1


def test_known_zeros_of_several_terms() -> None:
    """A number that may not be zero in one of two equal windows is read."""
    first, other = np.zeros((2, 4, 3), bool)
    first[:3, 0] = other[:, 1] = True
    both = [windows(there, [1, 1, 0, 0], 2) for there in (first, other)]
    (found,) = _added_where_equal(both)
    np.testing.assert_array_equal(found.there, first | other)
    assert _added_where_equal([both[0], windows(None, [1, 1, 0, 0], 2)])[0].there is None
    together = _Windows.together([both[0], windows(None, [0, 1], 2)])
    assert together.there is not None
    assert together.there[:4].sum() == first.sum()
    assert together.there[4:].all()
