"""First derivatives that random programs have shown to be wrong or refused, one small case each."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import jacve
from tests.checks import ORDERS, assert_same, check_orders

X = np.array([0.3, 1.2, -0.7])


def matrix(z: Any) -> Any:
    """A complex matrix of a complex vector."""
    return jnp.exp(z[:, None] * jnp.arange(3.0)) + 2.0 * jnp.eye(3).astype(complex)


def conjugating_loop(z: Any) -> Any:
    """Twelve steps that are not holomorphic."""
    return lax.fori_loop(0, 12, lambda _, c: jnp.tanh(c) * z + 0.3 * c.conj(), z)


OPAQUE: dict[str, Callable[[Any], Any]] = {
    "inv": lambda z: jnp.linalg.inv(matrix(z)),
    "solve": lambda z: jnp.linalg.solve(matrix(z), jnp.sin(z)),
    "qr": lambda z: jnp.linalg.qr(matrix(z))[1],
    "conjugating loop": conjugating_loop,
}


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("name", OPAQUE)
def test_opaque_maps_between_complex_arrays(name: str) -> None:
    """Both halves of `A dz + B conj(dz)`, pushed and pulled."""

    def fun(x: Any) -> Any:
        w = OPAQUE[name](lax.complex(x, jnp.cos(x)))
        return jnp.real(w), jnp.abs(w + 5.0)

    check_orders(fun, X, context=name)


@pytest.mark.usefixtures("standard_promotion")
def test_an_inverse_is_holomorphic() -> None:
    z = np.eye(3) + 0.1j * np.outer(X, X)
    assert_same(jacve(jnp.linalg.inv)(z), jax.jit(jax.jacfwd(jnp.linalg.inv, holomorphic=True))(z))


def test_compressed_evaluation_with_an_empty_argument() -> None:
    def fun(x: Any, empty: Any) -> Any:
        return jnp.sin(x) * x.sum(), jnp.sum(empty) + x[0]

    empty = np.zeros((0, 2))
    for order in ("compressed", "auto"):
        result = jacve(fun, order=order, argnums=(0, 1))(X, empty)
        assert_same(result, jax.jit(jax.jacfwd(fun, (0, 1)))(X, empty))


@jax.custom_jvp
def straight_through(x: Any) -> Any:
    return jnp.round(2.0 * x)


straight_through.defjvps(lambda t, _, x: t)


@jax.custom_vjp
def other_slope(x: Any) -> Any:
    return jnp.sin(x)


other_slope.defvjp(lambda x: (jnp.cos(x), x), lambda x, c: (c * x**2,))


@pytest.mark.slow
@pytest.mark.parametrize("order", [*ORDERS, "auto"])
@pytest.mark.parametrize("fun", [straight_through, other_slope], ids=["jvp", "vjp"])
def test_derivatives_of_a_jacobian_follow_the_users_rules(order: str, fun: Any) -> None:
    """The values in a Jacobian are computed by the rule, and move as its code does."""

    def whole(x: Any) -> Any:
        return jnp.tanh(fun(x)) * x

    expected = jax.jacfwd(jax.jacrev(whole))(X)
    ours = jacve(whole, order=order)
    assert_same(jax.jacfwd(ours)(X), expected)
    assert_same(jax.jit(jax.jacrev(ours))(X), expected)


def test_a_rule_of_an_argument_that_is_not_differentiated() -> None:
    """Training a parameter through a Jacobian with respect to something else."""

    def fun(x: Any, w: Any) -> Any:
        return jnp.sin(x * straight_through(w))

    def loss(jacobian: Callable[..., Any], w: Any) -> Any:
        return jnp.sum(jacobian(fun)(X, w) ** 2)

    result = jax.grad(lambda w: loss(jacve, w))(X)
    assert_same(result, jax.jit(jax.grad(lambda w: loss(jax.jacrev, w)))(X))


@pytest.mark.parametrize("batch", [0, 3, 300])
@pytest.mark.parametrize("order", [*ORDERS, "auto"])
def test_reshapes_that_take_dimensions_in_another_order(order: str, batch: int) -> None:
    """Alone and in programs of numbers."""

    def fun(x: Any) -> Any:
        y = lax.reshape(jnp.sin(x), (6,), (1, 0))
        return jnp.stack([y[0] * y[1], y[2] * y[3]]) * x[0, 0]

    ours, theirs = jacve(fun, order), jax.jit(jax.jacfwd(fun))
    if batch:
        ours, theirs = jax.vmap(ours), jax.vmap(theirs)
    x = np.random.default_rng(4).uniform(0.2, 1.3, (batch, 2, 3) if batch else (2, 3))
    assert_same(jax.jit(ours)(x), theirs(x))
