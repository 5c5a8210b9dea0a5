"""Loops, branches, solves and constant weights keep the entries of their parts, and no others.

Reference: JAX's dense Jacobian. An entry that a pattern leaves out is a wrong number, so every
pattern is held against the Jacobians at several points; those listed are exact.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import hessve, jacve, laplacian_ve
from tests.checks import assert_same

MATRIX = np.random.default_rng(0).standard_normal((4, 4))
READ = np.array([0, 0, 0, 5])


def branches(x: Any) -> Any:
    """A diagonal, or a shifted one."""
    return lax.cond(x[0] > 0, jnp.sin, lambda x: jnp.roll(x, 1) ** 2, x)


def three_branches(x: Any) -> Any:
    """A diagonal, two bands, or a block."""
    blocks = [
        jnp.sin,
        lambda x: jnp.concatenate([x[1:] * x[:-1], x[:1]]),
        lambda x: jnp.zeros_like(x).at[:4].set(MATRIX @ x[:4]),
    ]
    return lax.switch(jnp.clip((2 * x[0] + 1).astype(int), 0, 2), blocks, x)


def branch_after_branch(x: Any) -> Any:
    return lax.cond(x[1] > 0, jnp.cos, lambda x: jnp.roll(x, -1) ** 2, branches(x))


def reading_tables(x: Any) -> Any:
    """Other positions in each branch."""
    return lax.cond(x[0] > 0, lambda x: x[READ] ** 2, lambda x: 2 * x[READ + 1], x)


def reading_itself(x: Any) -> Any:
    """A table that the body closes over, any number of times."""
    return lax.while_loop(lambda c: c.sum() < 1, lambda c: c.at[:4].set(c[READ] + 1), x)


def written_one_by_one(x: Any) -> Any:
    return lax.fori_loop(0, 12, lambda i, y: y.at[i].set(jnp.sin(x[i])), jnp.zeros(12))


def neighbours(x: Any) -> Any:
    return lax.fori_loop(1, 12, lambda i, y: y.at[i].add(y[i] * x[i - 1]), x)


def backwards(x: Any) -> Any:
    """Each step adds to the entry before it."""
    steps = np.arange(11)
    return lax.scan(lambda c, i: (c.at[i].add(c[i + 1] ** 2), c[i]), x, steps, reverse=True)


def handed_on(x: Any) -> Any:
    """A carry that is turned, and what leaves it at each step."""
    return lax.scan(lambda c, t: (jnp.roll(c, 1) * t, c[0] + t), x, x[:11])


def solves(x: Any) -> Any:
    rows = x.reshape(3, 4)
    return jax.vmap(lambda b: jnp.linalg.solve(MATRIX + jnp.diag(b), b * b))(rows)


def resized(x: Any) -> Any:
    return jax.image.resize(x.reshape(3, 4), (6, 8), "bilinear")


def triangular_weights(x: Any) -> Any:
    return jnp.tanh(jnp.tril(np.ones((12, 12))) @ x)


FUNCTIONS = [
    branches,
    three_branches,
    branch_after_branch,
    reading_tables,
    reading_itself,
    written_one_by_one,
    neighbours,
    backwards,
    handed_on,
    solves,
    resized,
    triangular_weights,
]
POINTS = [np.random.default_rng(seed).standard_normal(12) for seed in range(16)]


def flat(fun: Callable[..., Any]) -> Callable[..., Any]:
    def raveled(x: Any) -> Any:
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(fun(x))])

    return raveled


def check_pattern(fun: Callable[..., Any], order: str) -> tuple[int, int]:
    """Check values and positions; the number of entries, and of those that are ever there."""
    expected = jax.jit(jax.vmap(jax.jacfwd(fun)))(np.stack(POINTS))
    sparse = jax.jit(jacve(fun, order, sparse_representation=True))
    ever = np.asarray(expected != 0).any(0)
    for x, dense in zip(POINTS[:4], expected[:4], strict=True):
        found = sparse(x)
        assert_same(found.todense(), dense)
        inside = np.zeros(dense.shape, bool)
        inside[tuple(np.asarray(found.indices).T)] = True
        assert not (ever & ~inside).any()
    return int(inside.sum()), int(ever.sum())


@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda fun: fun.__name__)
def test_entries_are_those_that_there_are(fun: Callable[..., Any]) -> None:
    order = "forward" if fun is reading_itself else "auto"
    entries, ever = check_pattern(flat(fun), order)
    assert entries == ever


@pytest.mark.parametrize("fun", [branches, neighbours, solves, resized], ids=lambda f: f.__name__)
def test_second_derivatives(fun: Callable[..., Any]) -> None:
    weights = np.random.default_rng(1).standard_normal(jax.eval_shape(flat(fun), POINTS[0]).shape)

    def energy(x: Any) -> Any:
        return jnp.sum(weights * jnp.sin(flat(fun)(x)))

    for x in POINTS[:2]:
        expected = jax.jit(jax.jacfwd(jax.grad(energy)))(x)
        assert_same(hessve(energy, sparse_representation=True)(x).todense(), expected)
        assert_same(laplacian_ve(energy)(x), jnp.trace(expected))


def drawn_step(rng: np.random.Generator) -> Callable[..., Any]:
    """A random bounded function of a vector of 12 and a counter, with random reads and writes."""
    table, place = rng.integers(0, 12, 12), int(rng.integers(0, 12))
    kind, shift, factor = rng.integers(0, 6), int(rng.integers(1, 12)), int(rng.integers(1, 5))

    def step(x: Any, i: Any) -> Any:
        if kind == 0:
            return jnp.sin(x[table])
        if kind == 1:
            return x.at[(factor * i + place) % 12].add(0.5 * jnp.sin(x[i % 12]))
        if kind == 2:
            return x.at[jnp.asarray(table)[i % 12]].set(jnp.cos(x[place]))
        if kind == 3:
            return lax.cond(x[place] > 0, jnp.cos, lambda x: jnp.roll(x, shift), x)
        if kind == 4:
            size = 1 + shift % 4
            block = lax.dynamic_slice(x, (i % 9,), (size,))
            return lax.dynamic_update_slice(x, jnp.sin(block.sum()) * jnp.cos(block), (place % 9,))
        return x.reshape(3, 4)[::-1].T.reshape(-1) + x[place]

    return step


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_loops(seed: int) -> None:
    """Loops over random steps: never an entry too few, with the counter and without it."""
    rng = np.random.default_rng(700 + seed)
    steps = [drawn_step(rng) for _ in range(3)]
    length, reverse = int(rng.integers(9, 12)), bool(seed % 2)

    def fun(x: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            n, y = carry
            i, number = row
            for step in steps:
                y = step(y, i if seed % 4 < 2 else n)
            return (n + 1, y), y[:2] * number

        rows = (np.arange(length), x[:length])
        (_, y), found = lax.scan(body, (0, x), rows, reverse=reverse)
        return jnp.concatenate([y, found.ravel()])

    for order in ("forward", "reverse"):
        check_pattern(fun, order)


def doubling(x: Any) -> Any:
    """Positions that do not grow steadily: 1, 2, 4, 8."""

    def step(carry: Any, _: Any) -> Any:
        i, y = carry
        return (2 * i, y.at[i].set(jnp.sin(x[i]))), None

    return lax.scan(step, (1, jnp.zeros(12)), None, length=4)[0][1]


def by_fives(x: Any) -> Any:
    """Downwards, and over the end of the array, where nothing is written."""

    def step(carry: Any, k: Any) -> Any:
        i, y = carry
        return (i - 5, y.at[i + k].set(x[k] ** 2)), x[i]

    (_, y), read = lax.scan(step, (16, jnp.zeros(12)), jnp.arange(4), reverse=True)
    return y, read


@pytest.mark.parametrize("fun", [doubling, by_fives])
def test_integers_of_all_steps(fun: Callable[..., Any]) -> None:
    x = jnp.linspace(0.1, 1.0, 12)
    found = jax.tree.leaves(jacve(fun, order="reverse")(x))
    for one, other in zip(found, jax.tree.leaves(jax.jit(jax.jacfwd(fun))(x)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.slow
def test_the_last_of_several_updates_stays() -> None:
    """Slices are written in the order of their indices, wherever their dimensions stand."""
    rows = np.array([[0], [2], [0]])
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(0,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )

    def write(x: Any, u: Any) -> Any:
        return lax.scatter(x, rows, u, numbers)

    x, u = jnp.ones((3, 2)), jnp.arange(6.0).reshape(2, 3)
    for i in range(2):
        found = jacve(write, argnums=i, order="forward")(x, u)
        np.testing.assert_array_equal(found, jax.jacfwd(write, argnums=i)(x, u))
