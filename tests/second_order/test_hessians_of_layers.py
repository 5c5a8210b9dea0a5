"""Hessians of convolutions: window by window or as a whole, and another program for one input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxprs_in_params

from graphax_lapl import hessve, make_plan, value_and_hessve
from tests.checks import assert_same

_random = np.random.default_rng(41)
PLANE = [jnp.asarray(_random.normal(size=(3, 3, a, b)) / 5) for a, b in ((1, 8), (8, 8))]
RING = [jnp.asarray(_random.normal(size=(3, a, b)) / 3) for a, b in ((1, 8), (8, 8))]
MIXED = jnp.asarray(_random.normal(size=(6, 8)) / 3)


def convolved(h, taps, padding="VALID"):
    axes = "HW"[: taps.ndim - 2]
    numbers = (f"N{axes}C", f"{axes}IO", f"N{axes}C")
    ones = (1,) * len(axes)
    return jnp.tanh(lax.conv_general_dilated(h, taps, ones, padding, dimension_numbers=numbers))


def within(x, padding="VALID"):
    h = x[None, ..., None]
    for taps in PLANE:
        h = convolved(h, taps, padding)
    return jnp.sum(h)


def padded(x):
    return within(x, "SAME")


def around(x):
    h = x[None, :, None]
    for taps in RING:
        h = convolved(jnp.pad(h, ((0, 0), (1, 1), (0, 0)), mode="wrap"), taps)
    return jnp.sum(h)


def dense(x):
    return jnp.sum(jnp.tanh(jnp.tanh(x @ MIXED) @ RING[1][0]))


def is_whole(plan):
    return plan.graph.listing.whole_windows


def test_windows_within_the_array_are_multiplied_one_by_one():
    plan = make_plan(within, jnp.ones((7, 7)), kind="hessian")
    assert not is_whole(plan)
    assert plan.single is None


def test_windows_over_padding_leave_sums_of_many_boxes():
    assert is_whole(make_plan(padded, jnp.ones((7, 7)), kind="hessian"))


def test_a_single_input_has_the_program_with_fewer_instructions():
    plan = make_plan(around, jnp.ones(12), kind="hessian")
    assert not is_whole(plan)
    assert is_whole(plan.single)
    assert len(plan.single.program.instructions) < len(plan.program.instructions) / 2
    assert plan.single.order.vertices == plan.order.vertices


def test_networks_without_convolutions_have_one_program():
    assert make_plan(dense, jnp.ones(6), kind="hessian").single is None


def convolutions(fun, *args):
    """Convolutions of a program, in functions that it calls too."""

    def of(jaxpr):
        inner = (of(j) for e in jaxpr.eqns for j in jaxprs_in_params(e.params))
        return sum(e.primitive.name == "conv_general_dilated" for e in jaxpr.eqns) + sum(inner)

    return of(jax.make_jaxpr(fun)(*args).jaxpr)


def test_which_program_runs_is_told_by_the_samples():
    one = convolutions(hessve(around), jnp.ones(12))
    several = convolutions(jax.vmap(hessve(around)), jnp.ones((3, 12)))
    assert one > several > 0  # as a whole the columns pass through each convolution, too


@pytest.mark.slow
@pytest.mark.parametrize(("fun", "shape"), [(within, (6, 6)), (padded, (5, 5)), (around, (8,))])
def test_both_are_the_hessian(fun, shape):
    for samples in ((), (1,), (3,), (2, 2)):
        x = jnp.asarray(np.random.default_rng(len(samples)).normal(size=(*samples, *shape)))
        own, theirs = hessve(fun), jax.hessian(fun)
        for _ in samples:
            own, theirs = jax.vmap(own), jax.vmap(theirs)
        assert_same(jax.jit(own)(x), jax.jit(theirs)(x))


@pytest.mark.slow
def test_values_and_derivatives_of_a_single_input():
    x = jnp.asarray(np.random.default_rng(5).normal(size=8))
    value, hessian = jax.jit(value_and_hessve(around))(x)
    assert_same(value, around(x))
    assert_same(hessian, jax.hessian(around)(x))
    loss = lambda h: lambda x: jnp.sum(jnp.sin(h(x)))  # noqa: E731
    expected = jax.jit(jax.grad(loss(jax.hessian(around))))(x)
    assert_same(jax.jit(jax.grad(loss(hessve(around))))(x), expected)
    batch = jnp.stack([x, 2 * x])
    summed = lambda h: lambda x: jnp.sum(jax.vmap(loss(h))(x))  # noqa: E731
    expected = jax.jit(jax.grad(summed(jax.hessian(around))))(batch)
    assert_same(jax.jit(jax.grad(summed(hessve(around))))(batch), expected)
