"""Signs of results are taken into differences, and results stay what they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, make_plan
from graphax_lapl.program.signs import signs_inside


def cross_entropy(w, b, x, y):
    logits = jnp.tanh(w @ x) + b
    return -jnp.sum(y * (logits - jax.nn.logsumexp(logits)))


def shared_difference(x, y):
    d = x - y
    return -d * x, -jnp.sin(d) * y + d, d


def squared_difference(x, y):
    d = jnp.tanh(x) - y
    return -jnp.sum(d * d * x), -d


def sums_of_both(x, y):
    d = x * y - jnp.cos(x)
    return -(d * x - y * d), -(d + 3.0 * x) * y


def arguments(fun, seed=3):
    keys = jax.random.split(jax.random.key(seed), 4)
    if fun is cross_entropy:
        shapes = [(5, 3), (5,), (3,), (5,)]
        return [jax.random.normal(k, s, jnp.float64) for k, s in zip(keys, shapes, strict=True)]
    return [jax.random.normal(k, (4,), jnp.float64) for k in keys[:2]]


@pytest.mark.parametrize("order", ["forward", "reverse", "auto"])
@pytest.mark.parametrize(
    "fun", [cross_entropy, shared_difference, squared_difference, sums_of_both]
)
def test_jacobians_are_jax_s(fun, order):
    args = arguments(fun)
    found = jacve(fun, order=order, argnums=(0, 1))(*args)
    wanted = jax.jit(jax.jacrev(fun, argnums=(0, 1)))(*args)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), found, wanted
    )


def test_the_gradient_of_a_cross_entropy_is_not_negated():
    args = [x.astype(jnp.float32) for x in arguments(cross_entropy)]
    program = make_plan(cross_entropy, *args, order="reverse", argnums=(0, 1)).program

    def signs(found):
        blocks = [block for row in found.blocks for block in row]
        return [term.coefficient < 0 for block in blocks for term in block.structure.terms]

    assert any(signs(program))
    assert not any(signs(signs_inside(program)))


def test_a_program_without_signs_stays_as_it_is():
    program = make_plan(lambda x: jnp.sin(x) * x, jnp.ones(3), order="reverse").program
    assert signs_inside(program) is program
