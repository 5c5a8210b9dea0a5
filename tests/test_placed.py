"""Gathers and scatters at known positions, number by number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import jacve
from graphax_lapl.emit.numbers import PLACED, computed, run_numbers, split
from graphax_lapl.emit.placed import OutOfBounds
from graphax_lapl.emit.small_programs import BATCH

ROWS = np.array([2, 0, 2])
TWICE = np.array([1, 3, 1])


def draw(seed, *shape):
    return jax.random.uniform(jax.random.key(seed), shape, jnp.float64, 0.3, 1.2)


READ = {
    "rows": lambda x: x[ROWS],
    "columns": lambda x: x[:, ROWS],
    "entries": lambda x: x[ROWS, TWICE],
    "table": lambda x: x[ROWS[:, None], TWICE[None, :2]],
    "diagonal": lambda x: jnp.diagonal(x),
    "window": lambda x: lax.gather(
        x,
        jnp.array([[0, 1], [1, 0]]),
        lax.GatherDimensionNumbers((1, 2), (), (0, 1)),
        (2, 3),
        mode="clip",
    ),
}
WRITTEN = {
    "entry": lambda x: x.at[0, 1].set(x[1, 1] * 2.0),
    "column": lambda x: x.at[:, 2].set(x[:, 0] ** 2),
    "row": lambda x: x.at[-1].add(x[0]),
    "block": lambda x: x.at[1:, 1:3].set(x[:2, :2]),
    "entries twice": lambda x: x.at[ROWS[:2], TWICE[:2]].add(x[0, :2]),
    "columns twice": lambda x: x.at[:, TWICE].add(x[:, :3]),
    "factors": lambda x: x.at[1, 1:3].multiply(x[0, :2]),
    "factors twice": lambda x: x.at[:, TWICE].multiply(x[:, :3]),
}


@pytest.mark.parametrize("name", [*READ, *WRITTEN])
def test_positions(name):
    fun = {**READ, **WRITTEN}[name]
    x = draw(0, 3, 4)
    closed = jax.make_jaxpr(fun)(x)
    assert {*PLACED, "jit"} & {e.primitive.name for e in closed.eqns}
    assert computed(closed.jaxpr) >= 0
    (found,) = run_numbers(closed.jaxpr, closed.consts, [split(x)])
    np.testing.assert_allclose(np.array(found.tolist()), fun(x), rtol=1e-14)


# JAX has no derivative of factors at places that repeat.
@pytest.mark.parametrize("size", [None, 5, BATCH])
@pytest.mark.parametrize("name", [*READ, *(name for name in WRITTEN if name != "factors twice")])
def test_jacobians(name, size):
    def fun(x):
        return {**READ, **WRITTEN}[name](jnp.outer(jnp.sin(x[:3]), x)) * x[1]

    x = draw(1, *(() if size is None else (size,)), 4)
    over = (lambda derivative: derivative) if size is None else jax.vmap
    found = jax.jit(over(jacve(fun)))(x)
    np.testing.assert_allclose(found, jax.jit(over(jax.jacrev(fun)))(x), rtol=1e-10, atol=1e-12)


def test_a_batch_neither_gathers_nor_scatters():
    def fun(x):
        return jnp.outer(x, x).at[0, 1].set(x[2] ** 2)[jnp.array([0, 2])] @ jnp.sin(x)

    run = jax.jit(jax.vmap(jacve(fun)))
    text = run.lower(draw(2, BATCH, 3)).compile().as_text()
    assert " gather(" not in text
    assert " scatter(" not in text


def outside(x):
    """Writes are dropped and reads filled where a position is not in the array."""
    y = x.at[jnp.array([0, 7])].add(x[:2] ** 2, mode="drop")
    return y.at[jnp.array([1, 9])].get(mode="fill", fill_value=0.5) * jnp.sin(x[0])


def test_positions_that_are_not_there():
    x = draw(3, BATCH, 4)
    closed = jax.make_jaxpr(outside)(x[0])
    with pytest.raises(OutOfBounds):
        run_numbers(closed.jaxpr, closed.consts, [split(x[0])])
    found = jax.jit(jax.vmap(jacve(outside)))(x)
    np.testing.assert_allclose(found, jax.jit(jax.vmap(jax.jacrev(outside)))(x), rtol=1e-10)


def test_positions_that_are_not_there_in_a_loop():
    def fun(x):
        return lax.scan(lambda c, y: (c.at[:2].set(outside(c)) * y, c[0]), x, x)

    x = draw(4, BATCH, 4)
    found = jax.jit(jax.vmap(jacve(fun)))(x)
    expected = jax.jit(jax.vmap(jax.jacfwd(fun)))(x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [BATCH, 4096])
def test_the_first_condition_that_holds(size):
    def limited(x):
        a, b = x[1:] - x[:-1], 2.0 * x[:-1] - x[1:]
        cases = [a * b <= 0, jnp.abs(a) < jnp.abs(b)]
        return jnp.select(cases, [jnp.zeros_like(a), a], b) * x[:-1]

    x = draw(5, size, 5)
    run = jax.jit(jax.vmap(jacve(limited)))
    np.testing.assert_allclose(run(x), jax.jit(jax.vmap(jax.jacrev(limited)))(x), rtol=1e-10)
    assert computed(jax.make_jaxpr(limited)(x[0]).jaxpr) > 0


def test_positions_of_the_largest_of_many_numbers_stay_in_arrays():
    assert computed(jax.make_jaxpr(jnp.argmax)(draw(6, 4)).jaxpr) > 0
    assert computed(jax.make_jaxpr(jnp.argmax)(draw(6, 5)).jaxpr) < 0


@pytest.mark.parametrize("size", [None, BATCH])
def test_functions_of_entries_are_not_set(size):
    """`apply` is a scatter too, with a function of what is there."""

    def fun(x, y):
        return jnp.outer(x, y.at[1].apply(jnp.sin)) @ x

    args = [draw(7 + k, *(() if size is None else (size,)), 3) for k in range(2)]
    assert computed(jax.make_jaxpr(fun)(jnp.ones(3), jnp.ones(3)).jaxpr) < 0
    over = (lambda derivative: derivative) if size is None else jax.vmap
    found, expected = (jax.jit(over(derivative(fun)))(*args) for derivative in (jacve, jax.jacrev))
    np.testing.assert_allclose(found, expected, rtol=1e-10)
