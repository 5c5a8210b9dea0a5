"""Sorts and selections of the largest: value and derivative are one evaluation."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import jacve, laplacian_ve, make_plan
from graphax_lapl.emit import sorting

RNG = np.random.default_rng(8)
WIDE: Any = RNG.normal(size=(6, 9))
FEW: Any = RNG.normal(size=(9, 4))


def with_keys(x: jax.Array) -> jax.Array:
    """Two arrays in the order of one of them."""
    key, value = lax.sort((jnp.sin(x), x**2), num_keys=1)
    return key * value


FUNCTIONS: dict[str, tuple[Callable[[jax.Array], jax.Array], tuple[int, ...]]] = {
    "squared gaps": (lambda x: jnp.diff(jnp.sort(x)) ** 2, (9,)),
    "rows behind": (lambda x: jnp.tanh(WIDE @ jnp.sort(jnp.sin(x))), (9,)),
    "columns before": (lambda x: jnp.sort(FEW @ x) ** 2, (4,)),
    "first axis": (lambda x: jnp.sort(x, axis=0) ** 2, (4, 3)),
    "last axis, a part of it": (lambda x: jnp.sort(x * x, axis=1)[:, :2], (4, 3)),
    "two operands": (with_keys, (7,)),
    "largest": (lambda x: lax.top_k(jnp.sin(x), 3)[0] ** 2, (9,)),
    "largest of rows": (lambda x: lax.top_k(x @ FEW.T, 3)[0] ** 2, (3, 4)),
    "rows behind the largest": (lambda x: WIDE[:, :3] @ lax.top_k(x, 3)[0], (9,)),
    "median": (lambda x: jnp.median(x) * x, (9,)),
    "ties": (lambda x: jnp.sort(jnp.round(x)) * x, (9,)),
    "complex numbers": (lambda x: jnp.real(jnp.sort(lax.complex(x, x**2))) * x, (9,)),
    "half precision": (lambda x: jnp.sort(x.astype(jnp.float16)).astype(float) ** 2, (9,)),
    "a number": (lambda x: jnp.sort(x) * x, (1,)),
}


@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobians(name: str, order: str) -> None:
    fun, shape = FUNCTIONS[name]
    x = jnp.asarray(RNG.normal(size=(2, 3, *shape)))
    ours, theirs = jacve(fun, order=order), jax.jit(jax.jacrev(fun))
    np.testing.assert_allclose(ours(x[0, 0]), theirs(x[0, 0]), atol=1e-12)
    batch = jax.jit(jax.vmap(jax.vmap(ours)))(x)
    np.testing.assert_allclose(batch, jax.jit(jax.vmap(jax.vmap(theirs)))(x), atol=1e-12)


@pytest.mark.parametrize("name", ["squared gaps", "rows behind", "largest", "two operands"])
def test_derivatives_of_jacobians(name: str) -> None:
    fun, shape = FUNCTIONS[name]
    x = jnp.asarray(RNG.normal(size=shape))

    def loss(jacobian: Callable[..., Any]) -> Callable[[jax.Array], jax.Array]:
        return lambda x: jnp.sum(jnp.sin(jacobian(fun)(x)))

    ours, theirs = jax.jit(lambda x: [jax.grad(loss(j))(x) for j in (jacve, jax.jacrev)])(x)
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("name", ["squared gaps", "rows behind", "largest", "first axis"])
def test_second_derivatives(name: str) -> None:
    fun, shape = FUNCTIONS[name]
    x = jnp.asarray(RNG.normal(size=shape))

    def squares(x: jax.Array) -> jax.Array:
        return jnp.sum(fun(x) ** 2)

    hessian = jax.jit(jax.hessian(squares))(x).reshape(x.size, x.size)
    np.testing.assert_allclose(laplacian_ve(squares)(x), jnp.trace(hessian), rtol=1e-10)


def test_numbers_that_are_none_are_last() -> None:
    x = jnp.asarray([2.0, np.nan, -1.0, np.inf, 0.0])
    np.testing.assert_array_equal(jacve(jnp.sort)(x), jax.jacfwd(jnp.sort)(x))


def test_positions_that_a_dtype_cannot_count_to() -> None:
    x = jnp.asarray(RNG.permutation(1500), jnp.bfloat16)
    chosen = jacve(lambda x: jnp.sort(x)[3:5])(x)
    np.testing.assert_array_equal(chosen, jax.jit(jax.jacrev(lambda x: jnp.sort(x)[3:5]))(x))


def test_one_sort_gives_value_and_jacobian() -> None:
    def fun(x: jax.Array) -> jax.Array:
        return jnp.diff(jnp.sort(x)) ** 2

    x = jnp.asarray(RNG.normal(size=(5, 9)))
    text = jax.jit(jax.vmap(jacve(fun))).lower(x).compile().as_text()
    assert text.count(" sort(") == 1
    assert sorting.selecting(make_plan(fun, x[0]).program)


@pytest.mark.parametrize("name", ["squared gaps", "rows behind", "largest", "columns before"])
def test_devices_sort_their_own(name: str) -> None:
    fun, shape = FUNCTIONS[name]
    x = jnp.asarray(RNG.normal(size=(2, *shape)))
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.PartitionSpec("i")
    for order in ("forward", "reverse"):
        own = jax.shard_map(
            jax.vmap(jacve(fun, order=order)), mesh=mesh, in_specs=split, out_specs=split
        )
        np.testing.assert_allclose(
            jax.jit(own)(x), jax.jit(jax.vmap(jax.jacrev(fun)))(x), atol=1e-12
        )
