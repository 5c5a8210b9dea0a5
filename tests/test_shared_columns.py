"""Columns of a first layer, repeated for a batch where something is differentiated."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array, export

import graphax_lapl.emit.shared_columns as emitted
from graphax_lapl import jacve, laplacian_ve

Params = list[Array]
Operator = Callable[[Params, Array], Array]


def network(params: Params, x: Array) -> Array:
    """Two layers of a vector."""
    first, second, last = params
    return jnp.sum(jnp.sin(jnp.tanh(x @ first) @ second) * last)


def branches(params: Params, x: Array) -> Array:
    """Two functions of one first layer, so that its columns are scaled twice."""
    first, second, last = params
    hidden = x @ first
    return jnp.sum(jnp.sin((jnp.tanh(hidden) * jnp.exp(-jnp.cos(hidden))) @ second) * last)


def products(params: Params, x: Array) -> Array:
    """Weights on the left, and a first layer that is read in another place too."""
    first, second, last = params
    hidden = jnp.tanh(first.T @ x)
    return jnp.sum(jnp.tanh(second.T @ hidden) * last) * jnp.sum(hidden**2)


def _arguments(d: int = 3, width: int = 24) -> tuple[Params, Array]:
    keys = jax.random.split(jax.random.key(5), 4)
    shapes = ((d, width), (width, 5), (5,), (4, d))
    first, second, last, xs = (
        jax.random.normal(k, s, jnp.float64) for k, s in zip(keys, shapes, strict=True)
    )
    return [first, second, last], xs


def _truth(fun: Operator) -> Operator:
    return lambda params, x: jnp.trace(jax.hessian(fun, argnums=1)(params, x))


def _loss(operator: Operator, params: Params, xs: Array) -> Array:
    return jnp.mean(jax.vmap(operator, (None, 0))(params, xs) ** 2)


WAYS: dict[str, Callable[[Operator], Callable[[Params, Array], Any]]] = {
    "values": lambda f: jax.vmap(f, (None, 0)),
    "value and gradient": lambda f: jax.value_and_grad(lambda p, xs: _loss(f, p, xs)),
    "gradient of a jitted operator": lambda f: jax.grad(lambda p, xs: _loss(jax.jit(f), p, xs)),
    "gradient of a jitted batch": lambda f: jax.grad(
        lambda p, xs: jnp.mean(jax.jit(jax.vmap(f, (None, 0)))(p, xs) ** 2)
    ),
    "batch of gradients": lambda f: jax.vmap(jax.grad(f), (None, 0)),
    "batch of weights": lambda f: (
        lambda p, xs: jax.grad(
            lambda p: jnp.sum(jax.vmap(f, (0, None))([w[None] * 2 for w in p], xs[0]))
        )(p)
    ),
    "one gradient": lambda f: lambda p, xs: jax.grad(f)(p, xs[0]),
    "first weights stand": lambda f: (
        lambda p, xs: jax.grad(lambda q: _loss(f, [p[0], *q], xs))(p[1:])
    ),
    "forward mode": lambda f: lambda p, xs: jax.jvp(lambda p: _loss(f, p, xs), (p,), (p,)),
    "forward over reverse": lambda f: (
        lambda p, xs: jax.jvp(jax.grad(lambda p: _loss(f, p, xs)), (p,), (p,))
    ),
    "with respect to x": lambda f: jax.grad(lambda p, xs: _loss(f, p, xs), 1),
    "batch of a batch": lambda f: jax.grad(
        lambda p, xs: jnp.sum(jax.vmap(lambda s: _loss(f, p, s * xs))(jnp.arange(1.0, 3.0)))
    ),
    "rematerialised": lambda f: jax.grad(jax.checkpoint(lambda p, xs: _loss(f, p, xs))),
}


def _products_with_identities(text: str) -> list[str]:
    """Types of the stacked identities that multiply weights in a lowered program."""
    found = re.findall(r"dot_general %cst\w*, .*?precision.*?\(tensor<(\w+)xf64>", text)
    return [str(shape) for shape in found]


CASES = [(way, network) for way in WAYS] + [("value and gradient", f) for f in (branches, products)]


@pytest.mark.parametrize(("way", "fun"), CASES, ids=[f"{w}, {f.__name__}" for w, f in CASES])
def test_derivatives(way: str, fun: Operator) -> None:
    params, xs = _arguments()
    found = jax.jit(WAYS[way](laplacian_ve(fun, argnums=1)))(params, xs)
    expected = jax.jit(WAYS[way](_truth(fun)))(params, xs)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.allclose(one, other, rtol=1e-9, atol=1e-9)


def test_repeated_by_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the weights are differentiated, and nowhere else."""
    params, xs = _arguments()
    operator = laplacian_ve(network, argnums=1)
    step = WAYS["value and gradient"](operator)
    text = jax.jit(step).lower(params, xs).as_text()
    assert _products_with_identities(text) == ["12x3"]
    assert "(tensor<3x24xf64>) -> tensor<4x3x24xf64>" not in text  # nothing is repeated beside it
    values = jax.jit(WAYS["values"](operator)).lower(params, xs).as_text()
    stands = jax.jit(WAYS["first weights stand"](operator)).lower(params, xs).as_text()
    monkeypatch.setattr(emitted, "MAX_IDENTITIES", 35)
    many = jax.jit(lambda p, xs: step(p, xs)).lower(params, xs).as_text()
    for other in (values, stands, many):
        assert not _products_with_identities(other)
    found = jax.jit(lambda p, xs: step(p, xs))(params, xs)
    expected = WAYS["value and gradient"](_truth(network))(params, xs)
    for one, true in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.allclose(one, true, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("d", "width"), [(1, 24), (3, 23), (5, 24)])
def test_columns_that_are_left(d: int, width: int) -> None:
    """One row, and rows that are not eight times as long as they are many."""
    params, xs = _arguments(d, width)
    step = jax.jit(WAYS["value and gradient"](laplacian_ve(network, argnums=1)))
    assert not _products_with_identities(step.lower(params, xs).as_text())
    expected = WAYS["value and gradient"](_truth(network))(params, xs)
    for one, other in zip(
        jax.tree.leaves(step(params, xs)), jax.tree.leaves(expected), strict=True
    ):
        assert jnp.allclose(one, other, rtol=1e-9, atol=1e-9)


def test_batches_of_unknown_size() -> None:
    params, xs = _arguments()
    step = jax.jit(WAYS["value and gradient"](laplacian_ve(network, argnums=1)))
    (size,) = export.symbolic_shape("b")
    types = [jax.ShapeDtypeStruct(p.shape, p.dtype) for p in params]
    exported = export.export(step)(types, jax.ShapeDtypeStruct((size, 3), xs.dtype))
    found = exported.call(params, xs)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(step(params, xs)), strict=True):
        assert jnp.allclose(one, other, rtol=1e-12, atol=1e-12)


def test_jacobians_are_left() -> None:
    """They are not expected to be differentiated."""
    params, xs = _arguments()
    derivative = jax.vmap(jacve(lambda p, x: jnp.tanh(x @ p[0]) @ p[1], argnums=1), (None, 0))
    loss = jax.grad(lambda p, xs: jnp.mean(derivative(p, xs) ** 2))
    assert not _products_with_identities(jax.jit(loss).lower(params, xs).as_text())
