"""Sums of quotients with one denominator are divided once, and results stay what they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, make_plan
from graphax_lapl.program.quotients import divided_after_sums
from graphax_lapl.rules.elementwise import minus_quotient

KEYS = jax.random.split(jax.random.key(11), 3)
X = jax.random.normal(KEYS[0], (3, 4), jnp.float64)
W = jax.random.normal(KEYS[1], (4, 5), jnp.float64)


def layer_norm(x, w):
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    scale = jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-3)
    return jnp.sum(jnp.tanh(centred / scale @ w))


def attention(x, w):
    q = x @ w
    return jnp.sum(jax.nn.softmax(q @ q.T, axis=-1) @ jnp.sin(x))


def along_the_first_axis(x, w):
    return jnp.sum(jnp.tanh((x / jnp.sum(x * x, axis=0, keepdims=True)) @ w), axis=0)


def nested(x, w):
    lengths = jnp.sqrt(jnp.sum(x * x, axis=1, keepdims=True))
    once = jnp.cos(x) / lengths
    return jnp.sum((once / lengths) ** 2 @ w**2)


def by_one_number(x, w):
    return jnp.sum(jnp.sin(x / (1 + jnp.sum(x * x, keepdims=True)) @ w), axis=1)


FUNCTIONS = (layer_norm, attention, along_the_first_axis, nested, by_one_number)


@pytest.mark.parametrize("order", ["reverse", "forward"])
@pytest.mark.parametrize("fun", FUNCTIONS)
def test_jacobians_are_jax_s(fun, order):
    found = jacve(fun, order=order, argnums=(0, 1))(X, W)
    wanted = jax.jit(jax.jacrev(fun, argnums=(0, 1)))(X, W)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11), found, wanted
    )


def test_complex_quotients():
    z = jax.lax.complex(X, X[::-1])

    def fun(z):
        return jnp.sum(jnp.sin(z / jnp.sum(z * z, axis=1, keepdims=True)))

    found = jacve(fun, order="reverse")(z)
    wanted = jax.jit(jax.jacrev(fun, holomorphic=True))(z)
    np.testing.assert_allclose(found, wanted, rtol=1e-11)


def partials(program):
    return [i for i in program.instructions if getattr(i, "local", None) is not None]


@pytest.mark.parametrize("fun", [layer_norm, attention, nested])
def test_no_sum_reads_the_partial_of_a_quotient(fun):
    program = make_plan(fun, X, W, order="reverse", argnums=0).program
    before = [i for i in partials(program) if i.local.fun is minus_quotient]
    after = [i for i in partials(divided_after_sums(program)) if i.local.fun is minus_quotient]
    assert before
    assert not after


def test_what_has_no_common_denominator_stays():
    program = make_plan(lambda x, y: jnp.sum(x / y), X, X + 3.0, order="reverse").program
    assert divided_after_sums(program) is program
