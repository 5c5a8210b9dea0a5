"""Laplacians of convolutions: window by window or as a whole, and sums of boxes in memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import jacve, laplacian_ve, make_plan
from graphax_lapl.edges.operations import Overlay
from graphax_lapl.program.window_work import BOXES, reads_small_parts, sums_of_boxes
from tests.checks import assert_same
from tests.test_holding import BARRIERS_STAND, barriers


def taps(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) / 4)


PLANE = (taps(1, 3, 3, 1, 8), taps(2, 3, 3, 8, 8))
NUMBERS = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}


def network(padding="VALID", strides=(1, 1)):
    def fun(kernels, x):
        h = x[None, :, :, None]
        for kernel in kernels:
            h = jnp.tanh(lax.conv_general_dilated(h, kernel, strides, padding, **NUMBERS))
        return jnp.sum(jnp.sin(h))

    return fun


def plan_of(fun, size):
    return make_plan(lambda x: fun(PLANE, x), jnp.ones((size, size)), kind="laplacian")


def laplacian(fun, of=laplacian_ve):
    return lambda kernels, xs: jax.vmap(lambda x: of(lambda x: fun(kernels, x))(x))(xs)


def traced(fun):
    def of(x):
        return jnp.trace(jax.hessian(fun)(x).reshape(x.size, x.size))

    return of


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_windows_are_multiplied_one_by_one(padding):
    plan = plan_of(network(padding), 8)
    assert not plan.graph.listing.whole_windows
    assert not reads_small_parts(plan.program)


def test_windows_with_strides_are_read_in_small_parts():
    fun = network(strides=(2, 2))
    assert plan_of(fun, 9).graph.listing.whole_windows
    windows = make_plan(jax.grad(lambda x: fun(PLANE, x)), jnp.ones((9, 9)), kind="divergence")
    assert reads_small_parts(windows.program)


def test_sums_of_boxes_are_in_memory():
    fun, xs = network(), taps(3, 4, 8, 8)
    plan = plan_of(fun, 8)
    found = sums_of_boxes(plan.program, plan.moving)
    steps = {i.outputs[0]: getattr(i, "operation", None) for i in plan.program.instructions}
    assert found
    assert all(isinstance(steps[slot], Overlay) for slot in found)
    assert all(len(steps[slot].patches) >= BOXES for slot in found)
    if BARRIERS_STAND:
        assert barriers(laplacian(fun), PLANE, xs) >= len(found)


def test_sums_of_boxes_that_samples_share_are_left_to_the_compiler():
    plan = plan_of(network(), 8)
    assert sums_of_boxes(plan.program, plan.moving)
    assert not sums_of_boxes(plan.program, ())


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_values_and_training_steps(padding):
    fun, xs = network(padding), taps(4, 3, 8, 8)
    expected = jax.jit(laplacian(fun, traced))
    assert_same(jax.jit(laplacian(fun))(PLANE, xs), expected(PLANE, xs))
    losses = (lambda k, xs, of=of: jnp.sum(of(k, xs) ** 2) for of in (laplacian(fun), expected))
    own, theirs = (jax.jit(jax.grad(loss, (0, 1)))(PLANE, xs) for loss in losses)
    assert_same(own, theirs)


def test_jacobians_with_sums_of_boxes():
    def fun(x):
        h = x[None, :, :, None]
        for kernel in PLANE:
            h = jnp.tanh(lax.conv_general_dilated(h, kernel, (1, 1), "SAME", **NUMBERS))
        return jnp.sum(h, 3)

    xs = taps(5, 2, 5, 5)
    assert_same(jax.jit(jax.vmap(jacve(fun)))(xs), jax.jit(jax.vmap(jax.jacrev(fun)))(xs))
