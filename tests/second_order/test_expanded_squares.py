"""Sums of squares of sums with weights, by products of the weights with one another."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import laplacian_ve, local_kinetic_energy, make_plan
from tests.checks import assert_same
from tests.second_order.checks import ORDERS, value_and_gradient

RNG = np.random.default_rng(5)
D, N = 7, 24
Z, U, V = (RNG.normal(size=shape) for shape in ((N, D), (D, 3), (D, 3)))
A, B = RNG.normal(size=N), RNG.normal(size=(3, 5))
XS = jnp.asarray(RNG.normal(size=(3, D)))


def of_distances(shape: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """A sum of functions of squared distances, written as three products."""

    def fun(params: Any, x: Any) -> Any:
        z, a = params
        return a @ shape(jnp.sum(x**2) - 2.0 * z @ x + jnp.sum(z**2, -1))

    return fun


def bilinear(params: Any, x: Any) -> Any:
    """A narrow product of two layers, then a wide one."""
    u, v, b = params
    return jnp.sum(jnp.tanh(((x @ u) * (x @ v)) @ b))


def three_layers(params: Any, x: Any) -> Any:
    """A narrow product of three layers."""
    u, v, b = params
    return jnp.sum(jnp.sin((x @ u) * (x @ v) * (x @ (u - 2.0 * v))) @ b)


def rows_and_columns(params: Any, x: Any) -> Any:
    """Weights that stand on either side, and a summand of its own axis."""
    z, _ = params
    return jnp.sum(jnp.exp(0.1 * (jnp.sum(jnp.sin(x)) + x @ z.T)) ** 1.5)


CASES: dict[str, tuple[Callable[[Any, Any], Any], tuple[Any, ...]]] = {
    "Gauss": (of_distances(lambda s: jnp.exp(-0.1 * s)), (Z, A)),
    "quadratic": (of_distances(lambda s: (1.0 + s) ** -1.5), (Z, A)),
    "roots": (of_distances(lambda s: jnp.sqrt(0.3 + s)), (Z, A)),
    "one centre": (of_distances(lambda s: jnp.log(1.0 + s)), (Z[:1], A[:1])),
    "bilinear": (bilinear, (U, V, B)),
    "three layers": (three_layers, (U, V, B)),
    "rows and columns": (rows_and_columns, (Z, A)),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name):
    fun, params = CASES[name]
    expected = value_and_gradient(
        lambda p, x: jnp.trace(jax.jit(jax.hessian(fun, 1))(p, x)),
        jax.tree.map(jnp.asarray, params),
        XS,
    )
    for order in ORDERS[:3]:
        operator = laplacian_ve(fun, order=order, argnums=1)
        found = value_and_gradient(operator, jax.tree.map(jnp.asarray, params), XS)
        assert_same(found, expected, tolerance=1e-9, context=order)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Gauss", "bilinear"])
def test_other_operators(name):
    fun, params = CASES[name]

    def energy(p: Any, x: Any) -> Any:
        gradient = jax.grad(fun, 1)(p, x)
        return -0.5 * (jnp.trace(jax.jit(jax.hessian(fun, 1))(p, x)) + gradient @ gradient)

    found = local_kinetic_energy(fun, argnums=1)(params, XS[0])
    assert_same(found, energy(params, XS[0]), tolerance=1e-9)
    weights = RNG.normal(size=D)
    found = laplacian_ve(fun, argnums=1, weights=weights)(params, XS[0])
    expected = weights @ jnp.diagonal(jax.jit(jax.hessian(fun, 1))(params, XS[0]))
    assert_same(found, expected, tolerance=1e-9)
    # With respect to the weights too, nothing is the same for all samples.
    found = laplacian_ve(lambda z, x: fun((z, *params[1:]), x), argnums=(0, 1))(params[0], XS[0])
    expected = sum(
        jnp.trace(jax.hessian(f)(x).reshape(x.size, x.size))
        for f, x in (
            (lambda z: fun((z, *params[1:]), XS[0]), jnp.asarray(params[0])),
            (lambda x: fun(params, x), XS[0]),
        )
    )
    assert_same(found, expected, tolerance=1e-9)


def moving_sizes(fun: Callable[[Any, Any], Any], params: Any) -> list[int]:
    """Numbers of what a program makes that depends on the point."""
    program = make_plan(fun, params, XS[0], argnums=1, order="forward", kind="laplacian").pruned(
        False
    )
    reached = {program.inputs[-1]}
    for instruction in program.instructions:
        if reached.intersection(instruction.inputs):
            reached.update(instruction.outputs)
    made = {slot for i in program.instructions for slot in i.outputs}
    return [int(np.prod(program.slots[slot].shape)) for slot in reached & made]


@pytest.mark.parametrize("name", ["Gauss", "quadratic", "roots"])
def test_no_column_is_made(name):
    assert max(moving_sizes(*CASES[name])) <= N


def test_narrow_products_have_no_columns():
    wide = tuple(RNG.normal(size=shape) for shape in ((40, 4), (40, 4), (4, 6)))
    xs = jnp.asarray(RNG.normal(size=(2, 40)))
    program = make_plan(bilinear, wide, xs[0], argnums=1, order="forward", kind="laplacian").pruned(
        False
    )
    reached = {program.inputs[-1]}
    for instruction in program.instructions:
        if reached.intersection(instruction.inputs):
            reached.update(instruction.outputs)
            assert not any(
                program.slots[s].shape in ((4, 40), (40, 4)) for s in instruction.outputs
            )


def test_differences_are_squared_as_they_are():
    """What the function subtracts itself is not taken apart, which would lose digits."""

    def fun(params: Any, x: Any) -> Any:
        z, a = params
        return a @ jnp.exp(-0.5 * jnp.sum((x - z) ** 2, -1))

    params = tuple(jnp.asarray(p, jnp.float32) for p in (100.0 + 0.1 * Z, A))
    x = jnp.asarray(100.0 + 0.1 * XS[0], jnp.float32)
    exact = tuple(p.astype(np.float64) for p in params)
    expected = jnp.trace(jax.jit(jax.hessian(fun, 1))(exact, x.astype(np.float64)))
    found = laplacian_ve(fun, argnums=1)(params, x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_differences_of_layers_are_squared_as_they_are():
    """Two networks that are nearly the same: the parts of their squares are not small."""

    def fun(params: Any, x: Any) -> Any:
        u, v = params
        return jnp.sum((jnp.tanh(x @ u) - jnp.tanh(x @ v)) ** 2)

    near = RNG.normal(size=(30, 4)) / 6
    params = tuple(
        jnp.asarray(p, jnp.float32) for p in (near, near + 1e-4 * RNG.normal(size=(30, 4)))
    )
    x = jnp.asarray(0.2 * RNG.normal(size=30), jnp.float32)
    exact = tuple(p.astype(np.float64) for p in params)
    expected = jnp.trace(jax.jit(jax.hessian(fun, 1))(exact, x.astype(np.float64)))
    for order in ORDERS[:3]:
        found = laplacian_ve(fun, order=order, argnums=1)(params, x)
        np.testing.assert_allclose(found, expected, rtol=1e-2)


def test_expanded_squares_are_as_exact_as_the_function():
    """Far from the origin `|x|^2 - 2 x.z + |z|^2` has lost digits, and so may have its columns."""
    fun, _ = CASES["Gauss"]
    params = tuple(jnp.asarray(p, jnp.float32) for p in (10.0 + Z, jnp.abs(A)))
    x = jnp.asarray(10.0 + XS[0], jnp.float32)
    exact = tuple(p.astype(np.float64) for p in params)
    whole = float(fun(exact, x.astype(np.float64)))
    lost = abs(float(fun(params, x)) - whole) / whole
    expected = float(jnp.trace(jax.jit(jax.hessian(fun, 1))(exact, x.astype(np.float64))))
    found = float(laplacian_ve(fun, argnums=1)(params, x))
    assert abs(found - expected) <= (20.0 * lost + 1e-4) * abs(expected)
