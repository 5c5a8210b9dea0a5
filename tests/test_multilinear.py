"""Multilinear functions: derivatives by environments, on overlaps of matrix product states."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import (
    InvalidArgumentError,
    count_ops,
    hessve,
    jacve,
    laplacian_ve,
    multilinear,
)
from tests.checks import assert_same, check_orders

SITES, PHYSICAL, BOND = 8, 2, 3
random = np.random.default_rng(0)
SHAPES = [(1 if n == 0 else BOND, PHYSICAL, 1 if n == SITES - 1 else BOND) for n in range(SITES)]
TENSORS = [random.normal(size=shape) / 2 for shape in SHAPES]
OTHERS = [random.normal(size=shape) / 2 for shape in SHAPES]


def step(left: Any, tensor: Any, other: Any) -> Any:
    return jnp.einsum("ab,asc,bsd->cd", left, tensor, other)


def overlap(*tensors: Any) -> Any:
    """The inner product with a fixed state."""
    left = jnp.ones((1, 1))
    for tensor, other in zip(tensors, OTHERS, strict=True):
        left = step(left, tensor, other)
    return left[0, 0]


def overlap_environments(*tensors: Any) -> list[Any]:
    """All open slots, from the partial contractions of both sides."""
    lefts, rights = [jnp.ones((1, 1))], [jnp.ones((1, 1))]
    for tensor, other in zip(tensors, OTHERS, strict=True):
        lefts.append(step(lefts[-1], tensor, other))
    for tensor, other in zip(tensors[::-1], OTHERS[::-1], strict=True):
        rights.append(jnp.einsum("cd,asc,bsd->ab", rights[-1], tensor, other))
    return [
        jnp.einsum("ab,bsd,cd->asc", left, other, right)
        for left, other, right in zip(lefts[:-1], OTHERS, rights[-2::-1], strict=True)
    ]


by_sweep = multilinear(overlap)


@multilinear(environments=overlap_environments)
def by_rule(*tensors: Any) -> Any:
    return overlap(*tensors)


ALL = tuple(range(SITES))
MARKED = pytest.mark.parametrize("marked", [by_sweep, by_rule], ids=["sweep", "rule"])


@pytest.mark.slow
@MARKED
def test_gradient(marked: Callable[..., Any]) -> None:
    expected = jax.grad(overlap, ALL)(*TENSORS)
    for order in ("forward", "reverse"):
        assert_same(jacve(marked, order=order, argnums=ALL)(*TENSORS), expected)


@pytest.mark.slow
def test_hessian_and_laplacian() -> None:
    """Of the logarithm, with tensors that share a parameter."""

    def energy(call: Callable[..., Any]) -> Callable[..., Any]:
        def fun(first: Any, third: Any, t: Any) -> Any:
            tensors = [first, TENSORS[1] * t[0], third, *TENSORS[3:6], TENSORS[6] + t[1], OTHERS[7]]
            return jnp.log(call(*tensors) ** 2)

        return fun

    point = (TENSORS[0], TENSORS[2], np.array([0.7, 0.2]))
    expected = jax.jit(jax.hessian(energy(overlap), (0, 1, 2)))(*point)
    assert_same(hessve(energy(by_rule), argnums=(0, 1, 2))(*point), expected, tolerance=1e-9)
    trace = sum(
        np.trace(np.reshape(expected[k][k], (np.size(x), np.size(x)))) for k, x in enumerate(point)
    )
    for marked in (by_rule, by_sweep):
        found = laplacian_ve(energy(marked), argnums=(0, 1, 2))(*point)
        np.testing.assert_allclose(found, trace, rtol=1e-10)


def test_environments_are_computed_once() -> None:
    """The gradient with respect to all tensors costs little more than that with respect to one."""
    one = count_ops(by_rule, *TENSORS, argnums=0, convention="flops").muls
    every = count_ops(by_rule, *TENSORS, argnums=ALL, convention="flops").muls
    assert every <= 1.1 * one


@multilinear
def product(x: Any, a: Any) -> Any:
    return a @ x


def test_array_valued() -> None:
    a, x = random.normal(size=(3, 4)), random.normal(size=(4, 2))
    check_orders(lambda x, a: jnp.sin(product(jnp.exp(x), a * a)), x, a, argnums=(0, 1))
    fun = lambda x: product(x * x, jnp.sin(a))  # noqa: E731
    assert_same(hessve(fun)(x), jax.jit(jax.hessian(lambda x: jnp.sin(a) @ (x * x)))(x))


def test_arguments_outside_of_argnums() -> None:
    @multilinear(argnums=(0,))
    def scaled(x: Any, y: Any) -> Any:
        return jnp.sum(x * jnp.sin(y))

    x = np.linspace(0, 1, 3)
    assert_same(jacve(scaled)(x, x), np.sin(x))
    with pytest.raises(InvalidArgumentError, match="derivative along argument 1"):
        jacve(scaled, argnums=1)(x, x)


def test_wrong_environments_are_named() -> None:
    wrong = multilinear(lambda x, y: x @ y, environments=lambda x, y: [y])
    with pytest.raises(InvalidArgumentError, match=r"environments of .* expected"):
        jacve(wrong)(np.ones(3), np.ones(3))


def test_bad_argnums() -> None:
    with pytest.raises(InvalidArgumentError, match="different positions"):
        multilinear(argnums=(0, 0))(overlap)
