"""What goes wrong in the user's own code is told as the user's: names, lines and exceptions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap

from graphax_lapl import NotDifferentiableError, hessve, jacve, laplacian_ve
from tests.checks import assert_same

X = np.array([0.3, 1.2, -0.7])
OPERATORS = [jacve, hessve, laplacian_ve, functools.partial(jacve, order="reverse")]


def decided(x: Any, parameters: Any = None) -> Any:
    """Asks for a value while it is traced."""
    moving = x if parameters is None else parameters["b"]
    return x if moving[0] > 0 else 2.0 * x


class Model:
    """Called like a function."""

    def __call__(self, x: Any) -> Any:
        """Asks for a value, too."""
        return decided(x)


FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "function": (decided, "decided"),
    "partial": (functools.partial(decided, parameters=None), "decided"),
    "jit": (jax.jit(decided), "decided"),
    "object": (Model(), "__call__"),
    "any arguments": (lambda *args: decided(*args), "<lambda>"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_message_names_the_users_function(name: str) -> None:
    fun, called = FUNCTIONS[name]
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        jacve(fun)(X)
    message = str(caught.value)
    assert f"function {called} at {__file__}" in message
    assert "flat_fun" not in message


@pytest.mark.parametrize(("argument", "names"), [("b", "parameters_1"), ("x", "argument x")])
def test_a_message_names_the_users_argument(argument: str, names: str) -> None:
    def fun(x: Any, parameters: Any) -> Any:
        if argument == "x":
            return float(x) * parameters["a"]
        return float(parameters["b"]) * x

    parameters = {"a": jnp.ones(()), "b": jnp.ones(())}
    with pytest.raises(jax.errors.ConcretizationTypeError, match=names):
        jacve(fun, argnums=(0, 1))(jnp.ones(()), parameters)


@pytest.mark.parametrize("keyword", ["class", "with-a-dash", "x"])
def test_keyword_arguments_of_any_name(keyword: str) -> None:
    def fun(x: Any, /, **rest: Any) -> Any:
        return x * rest[keyword]

    assert_same(jacve(fun)(X, **{keyword: 2.0}), np.diag([2.0, 2.0, 2.0]))


class OwnError(RuntimeError):
    """Raised by a rule below."""


def with_rule_that_raises(error: Exception) -> Callable[..., Any]:
    """A function whose derivative rule raises."""

    @jax.custom_jvp
    def fun(x: Any) -> Any:
        return jnp.sin(x)

    @fun.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        raise error

    return fun


PLACES: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "alone": lambda fun: fun,
    "loop": lambda fun: lambda x: lax.fori_loop(0, 20, lambda _, c: fun(c), x),
    "branch": lambda fun: lambda x: lax.cond(x[0] > 0, fun, jnp.cos, x),
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [OwnError("own"), ValueError("own"), TypeError("own")])
def test_what_a_users_rule_raises_passes(
    operator: Callable[..., Any], place: str, error: Exception
) -> None:
    with pytest.raises(type(error), match="own") as caught:
        operator(PLACES[place](with_rule_that_raises(error)))(X)
    assert not isinstance(caught.value, NotDifferentiableError)


@custom_vmap
def with_own_batches(x: Any) -> Any:
    """A function with a rule for `jax.vmap`."""
    return jnp.sin(x) * jnp.roll(x, 1)


@with_own_batches.def_vmap
def _(size: int, batched: list[bool], x: Any) -> Any:
    return jnp.sin(x) * jnp.roll(x, 1, axis=-1), batched[0]


@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
def test_a_function_with_a_rule_for_batches_is_seen_through(
    order: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the derivatives of its body, in both modes and with its sparsity."""

    def plain(x: Any) -> Any:
        return jnp.sin(x) * jnp.roll(x, 1)

    expected = jax.jit(jax.jacfwd(plain))(X)
    assert_same(jacve(with_own_batches, order=order, strict=True)(X), expected)
    assert_same(jax.vmap(jacve(with_own_batches, order=order))(X[None])[0], expected)
    assert_same(hessve(with_own_batches, order=order)(X), jax.jit(jax.hessian(plain))(X))
    sparse = jacve(with_own_batches, order=order, sparse_representation=True)(X)
    assert sparse.nse == 6
    assert "custom_vmap_call" not in caplog.text
