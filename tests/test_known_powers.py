"""Powers with known exponents: of products and roots, with zeros where the exponent is zero."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import hessve, jacve, laplacian_ve, make_plan, value_and_jacve
from graphax_lapl.program.instructions import CurvatureInstruction

X = np.array([0.5, 1.3, 0.9, 2.0, 0.8])
#: Zeros of both signs, negative numbers and what is not finite.
SPECIAL = np.array([0.0, -0.0, 1e-20, 0.5, 2.0, -1.0, -3.0, np.inf, -np.inf, np.nan])
TABLES = {
    "mixed": np.array([0.0, 1, 2, -1, 0.5]),
    "integers": np.array([0, 1, 2, 3, 2]),
    "mask": np.array([0.0, 1, 1, 0, 1]),
    "halves": np.array([1.5, -1.5, 2.5, -0.5, 3]),
    "stoichiometry": np.array([[0.0, 1, 2, 0, 0], [1, 0, 0, 2, 1]]),
    "no halves": np.array([0.7, 1, 2, 3, 4]),
    "one": np.full(5, 1.5),
    "nothing": np.zeros(5),
    "large": np.arange(9.0, 14.0),
    "slopes that are large": np.array([[-8.0, 8, 1, 0, 2], [1, -8, 0, 2, 1]]),
}


def raised(x: jax.Array, table: Any) -> jax.Array:
    """A power as users write it, with integers too."""
    with jax.numpy_dtype_promotion("standard"):
        return x**table


def has_powers(fun: Callable[..., Any], *args: Any) -> bool:
    """Whether a compiled function evaluates a general power."""
    return " power(" in jax.jit(fun).lower(*args).compile().as_text()


@pytest.mark.parametrize(
    "exponent", [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 2.0, 4.0, -2.0, 7.0, 0.7, 9.0]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_as_jax_at_special_numbers(exponent, dtype):
    x, tolerance = SPECIAL.astype(dtype), 1e-6 if dtype is np.float32 else 1e-14

    def fun(x):
        return x ** dtype(exponent)

    value, slope = jax.vmap(value_and_jacve(fun))(x)
    second = jax.vmap(jax.grad(jacve(fun)))(x)
    truth = (jax.vmap(fun)(x), jax.vmap(jax.grad(fun))(x), jax.vmap(jax.grad(jax.grad(fun)))(x))
    for found, expected in zip((value, slope, second), truth, strict=True):
        np.testing.assert_allclose(found, expected, tolerance)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(expected)[numbers])


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("samples", [None, 4, 300])
@pytest.mark.parametrize("order", ["forward", "reverse", "auto"])
def test_tables_of_exponents(name, samples, order):
    table = TABLES[name]

    def fun(x):
        return jnp.prod(raised(x, table), axis=-1)

    x = X if samples is None else X * np.linspace(0.5, 1.5, samples)[:, None]
    over = (lambda g: g) if samples is None else jax.vmap
    found = jax.jit(over(jacve(fun, order=order)))(x)
    np.testing.assert_allclose(found, over(jax.jacrev(fun))(x), 1e-12, 1e-14)


@pytest.mark.parametrize("name", ["mixed", "halves", "stoichiometry", "mask"])
def test_second_derivatives(name):
    table = TABLES[name]

    def fun(x):
        return jnp.sum(jnp.sin(raised(x, table)))

    hessian = jax.hessian(fun)(X)
    np.testing.assert_allclose(hessve(fun)(X), hessian, 1e-12, 1e-14)
    np.testing.assert_allclose(laplacian_ve(fun)(X), jnp.trace(hessian), 1e-12)
    for mode in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(mode(jacve(fun))(X), hessian, 1e-12, 1e-14)


@pytest.mark.parametrize("name", ["mixed", "integers", "stoichiometry"])
@pytest.mark.parametrize(
    "make", [np.asarray, jnp.asarray, lambda table: jnp.asarray(table)[..., ::-1]]
)
def test_no_entry_where_the_exponent_is_zero(name, make):
    table = make(TABLES[name])
    entries = jacve(lambda x: raised(x, table), sparse_representation=True)(X).to_bcoo()
    assert entries.nse == np.count_nonzero(np.asarray(table))


def test_exponents_that_are_computed_of_constants():
    table, weights = jnp.asarray(TABLES["mixed"]), jnp.asarray(X)

    def fun(x):
        return x ** (2.0 - jnp.reshape(table, (1, 5))[0]) + 2.5 * weights * x

    assert not has_powers(jacve(fun), X)
    np.testing.assert_allclose(jacve(fun)(X), jax.jacfwd(fun)(X), 1e-14)


def test_a_zero_base_has_slopes_where_the_power_has():
    x = np.zeros(4)
    found = jacve(lambda x: x ** np.array([0.0, 1.0, 2.0, 1.5]))(x)
    np.testing.assert_array_equal(found, np.diag([0.0, 1.0, 0.0, 0.0]))


@pytest.mark.parametrize("exponent", [-3.0, 1.5, 0.7])
def test_second_derivatives_are_pointwise(exponent):
    plan = make_plan(lambda x: jnp.sum((x[1:] - x[:-1]) ** exponent), X, kind="laplacian")
    assert not any(isinstance(i, CurvatureInstruction) for i in plan.program.instructions)


def test_no_general_power_is_left():
    table = TABLES["stoichiometry"]
    assert has_powers(lambda x: x**1.5, X)
    assert has_powers(jax.vmap(lambda x: raised(x, table)), X[None])
    for samples in (1, 512):
        x = np.ones((samples, 5))
        assert not has_powers(jax.vmap(value_and_jacve(lambda x: x**1.5)), x)
        assert not has_powers(jax.vmap(value_and_jacve(lambda x: raised(x, table))), x)


def test_each_table_has_its_own_plan():
    def rates(table):
        return jacve(lambda x: jnp.prod(raised(x, table), axis=-1))(X)

    for power in (1.0, 2.0, 1.0, 3.0):
        table = power * TABLES["mask"]
        expected = jax.jacrev(lambda x, table=table: jnp.prod(raised(x, table), axis=-1))(X)
        np.testing.assert_allclose(rates(table), expected, 1e-13)


def test_exponents_that_are_arguments():
    def fun(x, table):
        return jnp.prod(raised(x, table), axis=-1)

    for argnums in (0, 1):
        found = jax.jit(jacve(fun, argnums=argnums))(X, TABLES["mixed"])
        expected = jax.jit(jax.jacrev(fun, argnums))(X, TABLES["mixed"])
        np.testing.assert_allclose(found, expected, 1e-13, 1e-15)


def test_complex_and_half_precision_powers_stay():
    z = X[:3] + 1j
    found = jacve(lambda z: z**1.5, holomorphic=True)(z)
    np.testing.assert_allclose(found, jax.jacfwd(lambda z: z**1.5, holomorphic=True)(z), 1e-13)
    x = jnp.asarray(X, jnp.bfloat16)
    np.testing.assert_array_equal(
        np.asarray(jax.jit(jacve(lambda x: jnp.sum(x**1.5)))(x), np.float32),
        np.asarray(jax.jit(jax.grad(lambda x: jnp.sum(x**1.5)))(x), np.float32),
    )
