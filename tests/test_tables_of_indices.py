"""Gathers and scatters by tables of several dimensions, in programs of small arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, value_and_jacve
from graphax_lapl.emit.small_programs import BATCH

ENDS = np.array([[i, i + 1] for i in range(5)])
CORNERS = np.array([[[0, 1], [1, 5]], [[2, 2], [4, 0]], [[3, 1], [0, 3]]])


def strains(u):
    """An element's two nodes, gathered at once and multiplied entry by entry."""
    return jnp.sin(u[ENDS]) * jnp.exp(u[ENDS]).sum(1, keepdims=True)


def assembled(u):
    return jnp.zeros(6).at[ENDS].add(jnp.sin(u[ENDS]))


def squares(u):
    v = jnp.tanh(u)
    return jnp.sin(v[CORNERS]) * v[CORNERS[:, ::-1]]


def springs(u, stiffness):
    """Forces of nonlinear springs, assembled by two scatters."""
    ends = u[ENDS]
    strain = ends[:, 1] - ends[:, 0]
    force = stiffness * strain * (1 + strain**2)
    return jnp.zeros(6).at[ENDS[:, 0]].add(-force).at[ENDS[:, 1]].add(force)


def collected(u):
    return jnp.zeros(6).at[CORNERS].add(u[CORNERS] ** 2 * u[0])


def columns(u):
    """A column of a table, which keeps an axis of length one."""
    return jnp.cos(u[ENDS[:, :1]]) * u[ENDS]


CASES = {
    f.__name__: (f, 2 if f is springs else 1)
    for f in (strains, assembled, squares, springs, collected, columns)
}


def drawn(count, *batch):
    random = np.random.default_rng(3)
    sizes = (6, 5)
    return tuple(jnp.asarray(random.uniform(0.2, 1.3, (*batch, n))) for n in sizes[:count])


@pytest.mark.slow
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("name", CASES)
def test_tables_of_several_dimensions(name, order):
    fun, count = CASES[name]
    argnums = tuple(range(count))
    ours, theirs = jacve(fun, order, argnums), jax.jit(jax.jacfwd(fun, argnums))
    for batch in ((), (3,), (BATCH,)):
        args = drawn(count, *batch)
        found, expected = (jax.vmap(f) if batch else f for f in (ours, theirs))
        for one in (found, jax.jit(found)):
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13),
                one(*args),
                expected(*args),
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_of_jacobians(name):
    fun, count = CASES[name]
    args = drawn(count)
    value, _ = value_and_jacve(fun)(*args)
    np.testing.assert_allclose(value, fun(*args), rtol=1e-12)

    def norm(jacobian):
        return lambda *args: jnp.sum(jnp.sin(jacobian(fun)(*args)))

    found, expected = jax.grad(norm(jacve))(*args), jax.grad(norm(jax.jacfwd))(*args)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
