"""Pointwise functions of one array: columns pass through them once, whatever they are made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import hessve, jacve, laplacian_ve, make_plan
from graphax_lapl.edges.operations import ApplyOpaque, Einsum, Overlay


@jax.custom_jvp
def smooth(x):
    """A function of a user whose slope is a function of its argument and its value."""
    return jnp.log1p(jnp.exp(x))


@smooth.defjvp
def _(primals, tangents):
    value = smooth(*primals)
    return value, jnp.exp(primals[0] - value) * tangents[0]


ACTIVATIONS = {
    "tanh": jnp.tanh,
    "softplus": jax.nn.softplus,
    "user's": smooth,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "snake": lambda x: x + jnp.sin(x) ** 2,
    "mish": jax.nn.mish,
    "logaddexp": lambda x: jnp.logaddexp(x, 0.3),
}
KERNEL = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, 4)))
SECOND = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4, 4)))
FIRST = jnp.asarray(np.random.default_rng(2).normal(size=(5, 8)))
SQUARE = jnp.asarray(np.random.default_rng(3).normal(size=(8, 8)) / 3)


def convolved(activation):
    def fun(x):
        y = x[None, :, None]
        for kernel in (KERNEL, SECOND):
            y = activation(
                lax.conv_general_dilated(
                    y, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
                )
            )
        return jnp.sum(y)

    return fun


def layered(activation):
    def fun(x):
        return jnp.sum(activation(activation(x @ FIRST) @ SQUARE))

    return fun


def ring(x):
    """Two convolutions on a circle, whose ends meet with the other sign."""
    y = x[:, None]
    for kernel in (KERNEL, SECOND):
        around = jnp.concatenate([-y[-1:], y, -y[:1]])
        y = jnp.tanh(
            lax.conv_general_dilated(
                around[None], kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
            )[0]
        )
    return jnp.sum(y)


def operations(fun, size):
    plan = make_plan(fun, jnp.ones(size), kind="laplacian")
    found = plan.pruned(False)
    return found, [getattr(i, "operation", None) for i in found.instructions], plan


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_columns_pass_through_a_convolution_once(name):
    _, found, _ = operations(convolved(ACTIVATIONS[name]), 6)
    # The columns and the column of second order.
    assert sum(isinstance(o, ApplyOpaque) for o in found) == 2


@pytest.mark.parametrize("name", ["silu", "gelu", "snake", "mish", "softplus", "user's"])
def test_squares_of_columns_are_read_once(name):
    program, found, _ = operations(layered(ACTIVATIONS[name]), 5)
    readers = program.readers()
    squares = [
        i.outputs[0]
        for i, o in zip(program.instructions, found, strict=True)
        if isinstance(o, Einsum) and o.summed and len(set(i.inputs)) == 1 and len(i.inputs) == 2
    ]
    assert squares
    assert all(readers[slot] == 1 for slot in squares)


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("made", [convolved, layered], ids=["convolved", "layered"])
@pytest.mark.parametrize("order", ["forward", "reverse", "markowitz"])
def test_laplacians_and_hessians(name, made, order):
    fun = made(ACTIVATIONS[name])
    x = jnp.asarray(np.random.default_rng(4).normal(size=5))
    expected = jax.hessian(fun)(x)
    np.testing.assert_allclose(
        laplacian_ve(fun, order=order)(x), jnp.trace(expected), rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(hessve(fun)(x), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_value_that_is_an_output_keeps_its_vertex(name):
    activation = ACTIVATIONS[name]

    def fun(x):
        y = activation(x @ FIRST)
        return jnp.sum(activation(y @ SQUARE)), y, jnp.sum(y * jnp.exp(y - x @ FIRST))

    x = jnp.asarray(np.random.default_rng(5).normal(size=5))
    expected = jax.tree.map(lambda h: jnp.trace(h, axis1=-2, axis2=-1), jax.hessian(fun)(x))
    for one, other in zip(laplacian_ve(fun)(x), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("whole_convolutions")
def test_columns_of_weights_are_put_together_once():
    program, found, plan = operations(ring, 6)
    fixed = program.unreached(plan.moving)
    (overlay,) = [
        i.outputs[0]
        for i, o in zip(program.instructions, found, strict=True)
        if isinstance(o, Overlay)
    ]
    assert overlay in fixed
    xs = jnp.asarray(np.random.default_rng(6).normal(size=(150, 6)))
    expected = jax.vmap(lambda x: jnp.trace(jax.hessian(ring)(x)))(xs)
    np.testing.assert_allclose(jax.vmap(laplacian_ve(ring))(xs), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["tanh", "silu", "softplus"])
def test_products_with_weights_turn_no_array_round(name):
    activation, random = ACTIVATIONS[name], np.random.default_rng(4)
    first, second = random.normal(size=(5, 40)), random.normal(size=(40, 40))

    def fun(x):
        return jnp.sum(activation(activation(x @ first) @ second))

    xs = jnp.ones((64, 5))
    assert "transpose[" not in str(jax.make_jaxpr(jax.vmap(laplacian_ve(fun)))(xs))


#: Infinities, large numbers of both signs, the middle.
ENDS = jnp.asarray([-jnp.inf, -800.0, -40.0, -1.0, 0.0, 0.5, 36.0, 800.0, jnp.inf, jnp.nan])


@pytest.mark.parametrize(
    "fun",
    [
        jax.nn.softplus,
        jax.nn.log_sigmoid,
        lambda x: jnp.logaddexp(x, 2.0),
        lambda x: jnp.logaddexp(-1.0, x),
        lambda x: jnp.logaddexp(x, 2 * x + 1),
    ],
    ids=["softplus", "log_sigmoid", "number", "number first", "both"],
)
def test_three_derivatives_at_the_ends(fun):
    mine, reference = fun, fun
    for _ in range(3):
        mine, reference = jacve(mine), jax.grad(reference)
        np.testing.assert_allclose(
            jax.vmap(mine)(ENDS), jax.vmap(reference)(ENDS), rtol=1e-9, atol=1e-14
        )


@pytest.mark.slow
def test_a_number_that_moves():
    def fun(x, c):
        return jnp.sum(jnp.logaddexp(x, c) ** 2)

    x = jnp.asarray([-1.0, 0.3, 2.0])
    for argnums in (0, 1, (0, 1)):
        np.testing.assert_allclose(
            jnp.hstack(jax.tree.leaves(jacve(fun, argnums=argnums)(x, jnp.asarray(0.4)))),
            jnp.hstack(jax.tree.leaves(jax.grad(fun, argnums)(x, jnp.asarray(0.4)))),
            rtol=1e-12,
        )
        ours = laplacian_ve(fun, argnums=argnums)(x, jnp.asarray(0.4))
        blocks = jax.hessian(fun, argnums)(x, jnp.asarray(0.4))
        if argnums == (0, 1):
            blocks = [blocks[0][0], blocks[1][1]]
        expected = sum(jnp.trace(jnp.atleast_2d(b)) for b in jax.tree.leaves(blocks))
        np.testing.assert_allclose(ours, expected, rtol=1e-10)
