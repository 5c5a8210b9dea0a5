"""Functions with derivative rules, called with constants only, also within `jax.vmap`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphax_lapl as gl


@jax.custom_jvp
def doubled(x):
    return 2 * x


doubled.defjvps(lambda tangent, ans, x: 2 * tangent)


@jax.custom_vjp
def tripled(x):
    return 3 * x


tripled.defvjp(lambda x: (3 * x, None), lambda _, cotangent: (3 * cotangent,))

CALLS = {
    "custom_jvp": doubled,
    "custom_vjp": tripled,
    "jitted": jax.jit(doubled),
    "remat": jax.checkpoint(doubled),
    "relu": jax.nn.relu,
    "scan": lambda w: jax.lax.scan(lambda c, v: (tripled(c) + v, c), 0.0, w)[1],
}


@pytest.mark.parametrize("name", CALLS)
def test_under_vmap(name):
    def fun(x):
        return jnp.sin(x) * CALLS[name](jnp.linspace(0.5, -1.0, 2))

    points = jnp.asarray([[0.3, 0.1], [1.0, -2.0], [0.0, 0.7]])
    wanted = jax.jit(jax.vmap(jax.jacrev(fun)))(points)
    for jacobian in (gl.jacve(fun), jax.jit(gl.jacve(fun))):
        np.testing.assert_allclose(jax.vmap(jacobian)(points), wanted, rtol=1e-12)
    hessians = jax.jit(jax.vmap(jax.hessian(lambda x: fun(x).sum())))(points)
    found = jax.vmap(gl.laplacian_ve(lambda x: fun(x).sum()))(points)
    np.testing.assert_allclose(found, jnp.trace(hessians, axis1=1, axis2=2), rtol=1e-12)
    moved = jax.vmap(jax.grad(lambda x: gl.jacve(fun)(x).sum()))(points)
    np.testing.assert_allclose(
        moved, jax.vmap(jax.grad(lambda x: jax.jit(jax.jacrev(fun))(x).sum()))(points), rtol=1e-12
    )


def refused(_):
    raise ValueError("the other branch was run")


@jax.custom_jvp
def checked(positions, wrong):
    """As libraries check values at run time: one of two branches calls back, and raises."""

    def raising(positions):
        return jax.pure_callback(refused, positions, 0, vmap_method="sequential")

    return jax.lax.cond(wrong, raising, lambda positions: positions, positions)


checked.defjvp(lambda primals, tangents: (checked(*primals), tangents[0]))


@pytest.mark.smoke
def test_only_one_branch_of_a_known_condition_runs():
    def fun(x):
        positions = jnp.array([1, 0])
        return jnp.sin(x)[checked(positions, jnp.any(positions > 1))] * x[0]

    points = jnp.asarray([[0.3, 0.1], [1.0, -2.0], [0.0, 0.7]])
    wanted = jax.jit(jax.vmap(jax.jacfwd(fun)))(points)
    np.testing.assert_allclose(jax.vmap(gl.jacve(fun))(points), wanted, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(jax.vmap(gl.jacve(fun)))(points), wanted, rtol=1e-12)
