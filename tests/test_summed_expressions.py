"""Which expressions only sums read, and that what is held there changes no number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import laplacian_ve, make_plan
from graphax_lapl.program.instructions import PrimalInstruction
from graphax_lapl.program.summed import held_sums, within_sums

X = jnp.linspace(0.3, 1.4, 1000)
W = jnp.cos(jnp.arange(1000.0))


def separable(x):
    return jnp.sum(W * jnp.tanh(2.0 * jnp.sin(x)) * jnp.exp(-0.5 * x**2))


def through_a_matrix(x):
    return jnp.sum(jnp.tanh(jnp.outer(W, W) @ jnp.sin(x)))


def program_of(fun):
    return make_plan(fun, X, kind="laplacian").pruned(False)


def slots_of(program, name):
    return {
        slot
        for instruction in program.instructions
        if isinstance(instruction, PrimalInstruction) and instruction.equation.name == name
        for slot in instruction.outputs
    }


def test_an_elementwise_expression_under_one_sum():
    program = program_of(separable)
    made = {slot for step in program.instructions[:-1] for slot in step.outputs}
    assert within_sums(program) >= slots_of(program, "sin") | slots_of(program, "tanh")
    ((summed, region),) = held_sums(program).items()
    assert program.instructions[-1].inputs == (summed,)
    assert region == within_sums(program) <= made


def test_what_a_matrix_product_reads_is_not_within_a_sum():
    program = program_of(through_a_matrix)
    assert slots_of(program, "sin")
    assert within_sums(program).isdisjoint(slots_of(program, "sin"))
    assert not held_sums(program)


def test_a_result_is_not_within_a_sum():
    program = make_plan(lambda x: (jnp.sin(x), jnp.sum(jnp.sin(x))), X, kind="laplacian").program
    assert within_sums(program).isdisjoint(program.values)


@pytest.mark.parametrize("samples", [1, 64])
def test_laplacian(samples):
    xs = X + jnp.arange(samples)[:, None] / 100
    expected = jax.vmap(lambda x: jnp.sum(jax.vmap(jax.grad(jax.grad(term)))(x, W)))(xs)
    found = jax.jit(jax.vmap(laplacian_ve(separable)))(xs)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def term(x, w):
    return w * jnp.tanh(2.0 * jnp.sin(x)) * jnp.exp(-0.5 * x**2)
