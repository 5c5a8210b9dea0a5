"""Loops whose value is read and which are differentiated: one evaluation for both."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import hessve, jacve, laplacian_ve, make_plan
from graphax_lapl.edges.operations import ApplyOpaque
from graphax_lapl.emit.holding import BARRIERS_STAND
from graphax_lapl.program.instructions import EdgeInstruction, OpaqueInstruction, PrimalInstruction
from graphax_lapl.program.seeds_first import seeds_first

N = 6
ORDERS = ["auto", "forward", "reverse", "markowitz"]
#: Of one input, few samples, and so many that small loops carry numbers.
SAMPLES = [None, 3, 300]


def draw(*shape):
    return np.random.default_rng(0).uniform(-1, 1, shape)


WEIGHTS = draw(4 * N, N)


def mixed(carry, k):
    """A step whose map has all entries."""
    return carry + 0.1 * jnp.tanh(WEIGHTS[:N] @ carry + k), None


def swinging(carry, k):
    """A step of position and velocity, entry by entry."""
    place, speed = carry
    speed = speed - 0.1 * jnp.sin(place) * k
    return (place + 0.1 * speed, speed), place * speed


def arm(carry, k):
    """A step of joints that hang on each other."""
    place, speed = carry
    speed = speed - 0.1 * jnp.sin(jnp.cumsum(place)) * k
    return (place + 0.1 * speed, speed), None


def mixture(outputs):
    def fun(x):
        last, _ = lax.scan(mixed, x, jnp.linspace(0, 1, 12))
        return jnp.tanh(WEIGHTS[:outputs] @ last**2)

    return fun


def swing(x):
    (place, speed), along = lax.scan(swinging, (x, 0.5 * x), jnp.linspace(0, 1, 12))
    return place * speed + along.sum(0)


def arm_of(outputs):
    def fun(x):
        (place, _), _ = lax.scan(arm, (x, x[::-1]), jnp.linspace(0, 1, 12))
        return jnp.cos(WEIGHTS[:outputs] @ (place * place))

    return fun


def both(x):
    (place, speed), _ = lax.scan(arm, (x, x[::-1]), jnp.linspace(0, 1, 12))
    return WEIGHTS @ (place * speed)


def inside(x):
    """The inputs are layers of what a loop begins with and of what its steps read."""
    wide, scales = jnp.tanh(WEIGHTS[: 2 * N] @ x), WEIGHTS[N : 3 * N] @ jnp.sin(x)

    def step(carry, k):
        carry = jnp.sin(carry * scales + jnp.roll(carry, 1) * k)
        return carry, carry[:N].sum()

    last, along = lax.scan(step, wide, jnp.linspace(0, 1, 12))
    return jnp.concatenate([jnp.exp(along), last * last, last[:N]])


def one_after_another(x):
    first, _ = lax.scan(mixed, jnp.cos(WEIGHTS[:N] @ x), jnp.linspace(0, 1, 12))
    last, _ = lax.scan(mixed, first * first, jnp.linspace(0, 1, 12))
    return WEIGHTS @ (last * last)


def counted(x):
    """A loop whose number of steps is known while it runs, and which counts them."""
    steps, last = lax.while_loop(
        lambda c: c[0] < 4, lambda c: (c[0] + 1, jnp.sin(WEIGHTS[:N] @ c[1])), (0, x)
    )
    return last * last * steps


#: Functions, and how many loops their Jacobians by `auto` are.
FUNCTIONS = {
    "columns": (mixture(2 * N), 1),
    "columns of both, entry by entry": (swing, 1),
    "few rows": (mixture(2), 2),
    "rows of both": (arm_of(2), 2),
    "more rows of both": (arm_of(2 * N), 2),
    "columns of both": (both, 1),
    "columns that are there before": (inside, 1),
    "columns through two loops": (one_after_another, 2),
    "unknown number of steps": (counted, 1),
}


def loops(compiled):
    return compiled.as_text().count(" while(")


@pytest.mark.slow
@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobians(name, order, samples):
    fun, count = FUNCTIONS[name]
    x = draw(N) if samples is None else draw(samples, N)
    reference, found = jax.jacfwd(fun), jacve(fun, order=order)
    if samples is not None:
        reference, found = jax.vmap(reference), jax.vmap(found)
    compiled = jax.jit(found).lower(x).compile()
    np.testing.assert_allclose(compiled(x), reference(x), rtol=1e-10, atol=1e-12)
    if order == "auto" and (samples != 300 or BARRIERS_STAND):
        assert loops(compiled) == count


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_of_jacobians(name):
    fun, _ = FUNCTIONS[name]
    x, weights = draw(N), draw(len(fun(draw(N))), N)

    def loss(jacobian):
        return lambda x: jnp.sum(jnp.sin(jacobian(x)) * weights)

    mode = jax.jacfwd if fun is counted else jax.grad
    for order in ("auto", "forward"):
        found = mode(loss(jacve(fun, order=order)))(x)
        np.testing.assert_allclose(found, mode(loss(jax.jacfwd(fun)))(x), rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_second_order():
    x = draw(N)
    for fun in (swing, both, arm_of(3), mixture(3), inside):

        def total(x, fun=fun):
            return jnp.sum(fun(x) ** 2)

        expected = jax.hessian(total)(x)
        np.testing.assert_allclose(hessve(total)(x), expected, rtol=1e-9, atol=1e-11)
        for order in ("auto", "forward", "reverse"):
            found = laplacian_ve(total, order=order)(x)
            np.testing.assert_allclose(found, jnp.trace(expected), rtol=1e-9)


@pytest.mark.slow
def test_values_come_with_the_jacobian():
    x = draw(N)
    for fun in (mixture(2 * N), swing, both, arm_of(2), inside, one_after_another):
        jacobian, value = jacve(lambda x, fun=fun: (fun(x), fun(x)), has_aux=True)(x)
        np.testing.assert_allclose(jacobian, jax.jacfwd(fun)(x), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(value, fun(x), rtol=1e-12)


def test_what_is_printed_keeps_its_order(capfd):
    def fun(x):
        def step(carry, k):
            jax.debug.print("step {}", k, ordered=True)
            return jnp.sin(WEIGHTS[:N] @ carry), None

        last, _ = lax.scan(step, jnp.tanh(WEIGHTS[:N] @ x), jnp.arange(10))
        jax.debug.print("last", ordered=True)
        return WEIGHTS @ last**2

    x = draw(N)
    jacobian = jax.block_until_ready(jax.jit(jacve(fun, order="forward"))(x))
    jax.effects_barrier()
    assert capfd.readouterr().out.split("\n")[-3:-1] == ["step 9", "last"]
    np.testing.assert_allclose(jacobian, jax.jacfwd(fun)(x), rtol=1e-10, atol=1e-12)


def test_loops_that_would_wait_for_each_other():
    """The columns for either of two loops depend on what the other one computes."""

    def fun(x):
        first, _ = lax.scan(mixed, x, jnp.linspace(0, 1, 12))
        last, _ = lax.scan(mixed, -x, jnp.linspace(0, 1, 12))
        return first * last

    traced = make_plan(fun, draw(N), order="forward").program
    loops, others = [], []
    for instruction in traced.instructions:
        is_loop = isinstance(instruction, PrimalInstruction) and instruction.equation.name == "scan"
        (loops if is_loop else others).append(instruction)
    one, two = loops
    program = dataclasses.replace(traced, slots=[*traced.slots], instructions=[*loops, *others])

    def pushed(loop, columns):
        maker = next(
            i
            for i in others
            if isinstance(i, OpaqueInstruction) and i.reference.equation is loop.equation
        )
        operation = ApplyOpaque(maker.reference.opaque, (N, N), (), False)
        slot = len(program.slots)
        program.slots.append(program.slots[columns])
        program.instructions.append(
            EdgeInstruction(operation, (maker.outputs[0], columns), (slot,), np.dtype(float))
        )

    pushed(one, two.outputs[0])
    pushed(two, one.outputs[0])
    order = seeds_first(program).instructions
    assert len(order) == len(program.instructions)
    assert order.index(two) < order.index(one)
