"""Negative powers beside the reciprocals that derivatives of quotients are made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import jacve
from graphax_lapl.emit.tape import Tape

X = np.array([0.7, -1.3, 2.1])


def quotient(x, y):
    return jnp.sin(x) / y


def powers(fun, *args):
    """Exponents of the integer powers in a program."""
    jaxpr = jax.make_jaxpr(fun)(*args).jaxpr
    found, stack = [], [jaxpr]
    while stack:
        for equation in stack.pop().eqns:
            if equation.primitive.name == "integer_pow":
                found.append(equation.params["y"])
            values = jax.tree.leaves([*equation.params.values()])
            stack += [value.jaxpr for value in values if hasattr(value, "jaxpr")]
    return sorted(found)


@pytest.mark.parametrize("order", ["forward", "reverse", "markowitz"])
def test_derivatives_of_the_gradient_of_a_quotient(order):
    gradient = jax.grad(lambda x, y: jnp.sum(quotient(x, y)), (0, 1))
    derivative = jacve(gradient, order=order, argnums=(0, 1))
    found, expected = derivative(X, X + 3.0), jax.jacfwd(gradient, (0, 1))(X, X + 3.0)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15)
    assert min(powers(gradient, X, X)) < 0
    assert min(powers(derivative, X, X)) > 0


def test_powers_without_a_reciprocal_stay():
    assert min(powers(jacve(lambda x: x**-3), X)) == -4


@pytest.mark.parametrize("exponent", [-4, -3, -2, -1, 0, 1, 2, 3, 5])
def test_numbers(exponent):
    tape = Tape()
    closed = jax.make_jaxpr(lambda x: lax.integer_pow(x, exponent))(0.5)
    (x,) = tape.input((1,), np.dtype(float), True)
    (result,) = tape.apply(closed.jaxpr.eqns[0], [x])
    numbers = np.array([result], object)
    (found,) = tape.program([numbers], 1, 1)([jnp.array([0.7])])
    np.testing.assert_allclose(float(found[0]), 0.7**exponent, rtol=1e-14)


def test_numbers_divide_once():
    tape = Tape()
    (x,) = tape.input((1,), np.dtype(float), True)
    for exponent in (-1, -2, -3):
        closed = jax.make_jaxpr(lambda x, y=exponent: lax.integer_pow(x, y))(0.5)
        tape.apply(closed.jaxpr.eqns[0], [x])
    assert [o.name for o in tape._operations] == ["div", "mul", "integer_pow"]


@pytest.mark.parametrize("value", [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-200, 1e200])
def test_ends(value):
    """Zeros, infinities, and powers beyond the largest number are JAX's."""

    def fun(x):
        return x**-2 + 1.0 / x

    found, expected = jacve(fun)(np.array([value])), jax.jacfwd(fun)(np.array([value]))
    np.testing.assert_array_equal(found, expected)
