"""Plans are remembered between calls; functions that differ in something hidden are not mixed up.

Every case is a family of functions with the same shapes, names and (nearly) the same program. They
are differentiated in turn, each one twice, and each must get its own derivative.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import jacve
from tests.checks import assert_same

X = np.array([0.4, -0.3, 0.9, 0.2])
M = np.array([[0.2, 0.5], [0.7, -0.3]])

Maker = Callable[[Any], Callable[[jax.Array], Any]]


def with_slope(slope: float) -> Callable[[jax.Array], jax.Array]:
    """A custom_jvp function whose rule, not whose body, depends on ``slope``."""

    @jax.custom_jvp
    def fun(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    fun.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), slope * tangents[0]))
    return lambda x: fun(x) * x


def with_backward(slope: float) -> Callable[[jax.Array], jax.Array]:
    """A custom_vjp function whose backward pass depends on ``slope``."""

    @jax.custom_vjp
    def fun(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    fun.defvjp(lambda x: (jnp.sin(x), None), lambda _, cotangent: (slope * cotangent,))
    return lambda x: fun(x) * x


def convolved(kernel: list[float]) -> Callable[[jax.Array], jax.Array]:
    weights = np.array(kernel)[None, None]
    return lambda x: lax.conv_general_dilated(x[None, None], weights, (1,), [(1, 1)])[0, 0]


def triangular(lower: bool) -> Callable[[jax.Array], jax.Array]:
    return lambda x: jax.scipy.linalg.solve_triangular(M + 2.0 * jnp.eye(2), x[:2], lower=lower)


FAMILIES: dict[str, tuple[Maker, list[Any]]] = {
    "indices of a gather": (
        lambda i: lambda x: jnp.sin(x)[np.array(i)],
        [[0, 1], [1, 0], [3, 3]],
    ),
    "indices of a scatter": (
        lambda i: lambda x: jnp.zeros(4).at[np.array(i)].add(x),
        [[0, 1, 2, 3], [0, 0, 0, 0], [3, 2, 1, 0]],
    ),
    "places that are set": (
        lambda i: lambda x: x.at[np.array(i)].set(x[:2]),
        [[0, 1], [2, 3], [3, 1]],
    ),
    "constant mask": (
        lambda mask: lambda x: jnp.where(np.array(mask), x, x * x),
        [[True, False, True, False], [False] * 4, [True] * 4],
    ),
    "constant cases of select_n": (
        lambda cases: lambda x: lax.select_n(np.array(cases, np.int32), x, x * x, jnp.sin(x)),
        [[0, 1, 2, 0], [2, 2, 1, 1]],
    ),
    "constant factor": (
        lambda c: lambda x: x * np.array(c),
        [[1.0] * 4, [2.0, 3.0, 4.0, 5.0], [0.0] * 4, [-1.0] * 4],
    ),
    "scalar factor": (lambda c: lambda x: jnp.sin(c * x), [1.0, -1.0, 2.0, 0.0]),
    "captured jax array": (
        lambda c: lambda x: jnp.sin(x) * jnp.asarray(c),
        [[1.0] * 4, [2.0, 3.0, 4.0, 5.0]],
    ),
    "constant matrix": (
        lambda c: lambda x: np.array(c) @ x[:2],
        [np.eye(2), np.zeros((2, 2)), np.ones((2, 2)), [[0.0, 1.0], [1.0, 0.0]]],
    ),
    "taps of a convolution": (convolved, [[1.0, -2.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
    "start of a slice": (lambda k: lambda x: jnp.exp(x)[k : k + 2], [0, 1, 2]),
    "start of a dynamic slice": (
        lambda k: lambda x: lax.dynamic_slice(jnp.exp(x), (np.int32(k),), (2,)),
        [0, 1, 2, 9],
    ),
    "start of a dynamic update": (
        lambda k: lambda x: lax.dynamic_update_slice(x, x[:2] ** 2, (np.int32(k),)),
        [0, 1, 2],
    ),
    "shift of a roll": (lambda k: lambda x: jnp.roll(x, k) * x, [0, 1, 3]),
    "padding": (
        lambda low: lambda x: lax.pad(x, 0.0, [(low, 2 - low, 0)]) * 2.0,
        [0, 1, 2],
    ),
    "exponent": (lambda n: lambda x: x**n, [0, 1, 2, 3]),
    "axis of a sum": (lambda a: lambda x: jnp.sum(jnp.outer(x, x[::-1] ** 2), a), [0, 1]),
    "permutation": (
        lambda p: lambda x: jnp.transpose(x.reshape(2, 2, 1), p) * 2.0,
        [(0, 1, 2), (1, 0, 2)],
    ),
    "contracted dimension": (
        lambda d: lambda x: lax.dot_general(x.reshape(2, 2), M, (((d,), (0,)), ((), ()))),
        [0, 1],
    ),
    "direction of a cumulative sum": (
        lambda r: lambda x: lax.cumsum(jnp.sin(x), reverse=r),
        [False, True],
    ),
    "ends of a clamp": (lambda c: lambda x: lax.clamp(-c, x, c), [0.1, 0.35, 5.0]),
    "comparison": (lambda c: lambda x: jnp.where(x > c, x, -x), [0.0, 0.3, -5.0]),
    "rule of a custom_jvp": (with_slope, [1.0, 5.0, 0.0]),
    "body of a scan": (
        lambda c: lambda x: lax.scan(lambda s, r: (s * c + r, s), 0.0, x)[0],
        [1.0, 2.0, 0.5],
    ),
    "branches of a cond": (
        lambda fun: lambda x: lax.cond(x[0] > 0, fun, jnp.exp, x),
        [jnp.sin, jnp.cos],
    ),
    "body of a jitted helper": (
        lambda c: lambda x: jax.jit(lambda a: a * c)(jnp.sin(x)),
        [1.0, 3.0],
    ),
    "parameter of a solve": (triangular, [True, False]),
    "side of a gradient stop": (
        lambda left: lambda x: lax.stop_gradient(x) * x if left else x * lax.stop_gradient(2 * x),
        [True, False],
    ),
    "dtype in between": (
        lambda dtype: lambda x: jnp.sin(x.astype(dtype)).astype(np.float64),
        [np.float32, np.float64],
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_hidden_difference(name: str) -> None:
    make, settings = FAMILIES[name]
    for setting in [*settings, *settings]:
        fun = make(setting)
        expected = jax.jit(jax.jacfwd(fun))(X)
        for order in ("forward", "reverse"):
            result = jacve(fun, order=order)(X)
            # The float32 in one case is as exact as float32 is.
            tolerance = 1e-6 if "dtype" in name else 1e-12
            assert_same(result, expected, tolerance=tolerance, context=f"{name}: {setting}")


def test_backward_pass_of_a_custom_vjp() -> None:
    for slope in (1.0, 5.0, 1.0):
        fun = with_backward(slope)
        assert_same(jacve(fun)(X), jax.jit(jax.jacrev(fun))(X), context=str(slope))


def test_side_input_is_no_constant() -> None:
    """An argument outside argnums is 1 in the first call: nothing may be folded because of it."""
    jacobian = jacve(lambda x, c: jnp.sin(x) * c)
    for c in (np.ones(4), np.full(4, 3.0), np.zeros(4)):
        assert_same(jacobian(X, c), np.diag(np.cos(X) * c))


def test_integer_side_input_is_no_constant() -> None:
    jacobian = jacve(lambda x, i: x[i] ** 2)
    for i in (0, 2, 3):
        assert_same(jacobian(X, np.int64(i)), jax.jit(jax.jacfwd(lambda x, i: x[i] ** 2))(X, i))


def test_sign_of_a_zero() -> None:
    """Beside a Python number a literal is one too, and zeros of both signs are equal."""
    for zero in (0.0, -0.0):
        found = jacve(lambda x, zero=zero: x / zero)(1.5)
        assert_same(found, jnp.copysign(jnp.inf, zero))


def test_closure_that_changes_between_calls() -> None:
    """The function is looked at again in every call, as jax.jacfwd does."""
    scale = {"value": 2.0}
    jacobian = jacve(lambda x: jnp.sin(x) * scale["value"])
    for value in (2.0, 3.0, 1.0):
        scale["value"] = value
        assert_same(jacobian(X), np.diag(np.cos(X) * value))


def test_one_function_with_several_shapes_and_dtypes() -> None:
    def fun(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * x.sum()

    jacobian = jacve(fun)
    for x in (X, X[:2], M, X.astype(np.float32), X[:0], X[0], M[:1]):
        assert_same(jacobian(x), jax.jit(jax.jacfwd(fun))(x), tolerance=1e-6)


@pytest.mark.slow
def test_one_function_with_several_argnums_and_orders() -> None:
    def fun(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sin(x) * y + jnp.cos(x * y)

    for argnums in (0, 1, (0,), (0, 1), (1, 0), -1):
        for order in ("forward", "reverse", "markowitz"):
            result = jacve(fun, order=order, argnums=argnums)(X, X[::-1])
            assert_same(
                result, jax.jit(jax.jacfwd(fun, argnums))(X, X[::-1]), context=f"{argnums} {order}"
            )


def test_same_arrays_as_two_arguments() -> None:
    """Two arguments that are one array object remain two arguments."""

    def fun(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sin(x) * y**2

    x = jnp.asarray(X)
    assert_same(jacve(fun, argnums=(0, 1))(x, x), jax.jit(jax.jacfwd(fun, (0, 1)))(x, x))


@pytest.mark.slow
def test_more_functions_than_the_cache_holds() -> None:
    """Forgetting a plan costs time, not correctness."""
    for k in range(600):
        make_plan_only = jacve(lambda x, k=k: x * float(k + 2), order="reverse")
        shape = jax.eval_shape(make_plan_only, jax.ShapeDtypeStruct((2,), np.float64))
        assert shape.shape == (2, 2)
    assert_same(jacve(lambda x: x * 2.0, order="reverse")(X[:2]), np.diag([2.0, 2.0]))
