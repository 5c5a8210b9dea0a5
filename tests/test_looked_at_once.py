"""What is nested in a program is inlined and traced once, whatever is asked of it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import NonlinearRuleError, jacve
from graphax_lapl.rules import bodies


def branched(x, i, depth):
    """Loops of branches of loops, whose integers differ from step to step."""
    if depth == 0:
        return x.at[i % 3].multiply(jnp.sin(x[i % 2]))

    def step(x, j):
        inner = partial(branched, i=i + j, depth=depth - 1)
        return lax.cond(jnp.sum(x) > 0, inner, lambda x: x * x[0], x), None

    return lax.scan(step, x, jnp.arange(13))[0]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_bodies_are_inlined_once(depth, monkeypatch):
    seen = []
    inline = bodies.flatten_jaxpr
    monkeypatch.setattr(bodies, "flatten_jaxpr", lambda *args: seen.append(1) or inline(*args))
    x = jnp.array([0.3, 0.7, 1.1])
    jacobian = jacve(lambda x: branched(x, 0, depth))(x)
    expected = jax.jacfwd(lambda x: branched(x, 0, depth))(x)
    np.testing.assert_allclose(jacobian, expected, rtol=1e-10)
    assert len(seen) == 3 * depth  # a loop and its two branches


def with_rule(backward):
    """Two outputs of three inputs, with a counted backward function."""
    seen = []

    @jax.custom_vjp
    def fun(x, y, z):
        return x * y, jnp.sin(z) * x

    def forward(x, y, z):
        return fun(x, y, z), (x, y, z)

    def pull(kept, cotangents):
        seen.append(1)
        return backward(*kept, *cotangents)

    fun.defvjp(forward, pull)
    return fun, seen


def exact(x, y, z, a, b):
    return y * a + jnp.sin(z) * b, x * a, jnp.cos(z) * x * b


def of_all(fun):
    return lambda x: jnp.stack(fun(x[:2], x[2:4], x[4:]))


@pytest.mark.slow
def test_a_backward_function_is_looked_at_once():
    """For all that is known of it; then it is evaluated, for each of two outputs."""
    fun, seen = with_rule(exact)
    x = jnp.array([0.3, 0.7, 1.1, -0.4, 0.2, 0.9])
    expected = jax.jacrev(of_all(fun))(x)
    seen.clear()
    np.testing.assert_allclose(jacve(of_all(fun))(x), expected, rtol=1e-12)
    assert len(seen) == 1 + 2


@pytest.mark.slow
def test_one_that_is_not_linear_is_refused_where_it_is_needed():
    """Cotangents of one output are clipped; the other may be asked for alone."""
    fun, _ = with_rule(lambda x, y, z, a, b: exact(x, y, z, a, jnp.clip(b, -1.0, 1.0)))
    x = jnp.array([0.3, 0.7, 1.1, -0.4, 0.2, 0.9])
    with pytest.raises(NonlinearRuleError, match="test_looked_at_once"):
        jacve(of_all(fun))(x)

    def first(x):
        return fun(x[:2], x[2:4], x[4:])[0]

    np.testing.assert_allclose(jacve(first)(x), jax.jacrev(first)(x), rtol=1e-12)
