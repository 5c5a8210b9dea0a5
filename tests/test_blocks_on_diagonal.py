"""Functions of each row of a matrix: their blocks along the diagonal, spread at once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, make_plan
from graphax_lapl.emit.blocks_on_diagonal import are_blocks_on_diagonal
from graphax_lapl.emit.regular_reads import read_regularly

WEIGHTS = np.random.default_rng(0).standard_normal((4, 3))


def predator_and_prey(r: Any) -> Any:
    return jnp.stack([r[0] * (1 - r[1]), r[1] * (r[0] - 1)])


def spherical(r: Any) -> Any:
    d = jnp.sqrt(jnp.sum(r * r))
    return jnp.stack([d, jnp.arccos(r[2] / d), jnp.arctan2(r[1], r[0])])


def unit(r: Any) -> Any:
    return r / jnp.sqrt(jnp.sum(r * r))


def known(r: Any) -> Any:
    """Some entries of the blocks are known, and some rows of them empty."""
    return jnp.stack([r[0] * r[1] - r[2], 2 * r[2], jnp.ones(()), r[0] ** 2 - 0.5 * r[0]])


def layer(r: Any) -> Any:
    return jnp.tanh(WEIGHTS @ r)


def of_rows(fun: Any, rows: int, columns: int, raveled: bool) -> Any:
    if not raveled:
        return jax.vmap(fun)
    return lambda x: jax.vmap(fun)(x.reshape(rows, columns)).ravel()


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize(
    ("fun", "columns"),
    [(predator_and_prey, 2), (spherical, 3), (unit, 3), (known, 3), (layer, 3)],
)
@pytest.mark.parametrize("rows", [3, 12, 40])
@pytest.mark.parametrize("raveled", [True, False])
def test_jacobians_are_jaxs(fun, columns, rows, raveled):
    whole = of_rows(fun, rows, columns, raveled)
    shape = (rows * columns,) if raveled else (rows, columns)
    x = jnp.linspace(0.4, 1.3, rows * columns).reshape(shape)
    block = make_plan(whole, x).program.blocks[0][0]
    assert block.structure is not None
    assert are_blocks_on_diagonal(block.structure)
    expected = jax.jacfwd(whole)(x)
    np.testing.assert_allclose(jacve(whole)(x), expected, rtol=1e-12, atol=1e-12)
    for samples in (2, 300):
        several = x + jnp.linspace(0, 0.2, samples).reshape(-1, *(1,) * x.ndim)
        found = jax.jit(jax.vmap(jacve(whole)))(several)
        expected = jax.vmap(jax.jacfwd(whole))(several)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize(
    ("fun", "shape"),
    [
        (lambda x: jax.vmap(spherical, 1, 1)(x), (3, 8)),
        (lambda x: jax.vmap(predator_and_prey, 1, 2)(x[:, :, None] * jnp.ones(2)), (2, 8)),
        (lambda x: jnp.stack([jax.vmap(unit)(x), jax.vmap(spherical)(x)]), (8, 3)),
        (lambda x: jnp.stack([jax.vmap(unit)(x), jax.vmap(spherical)(x)], 2), (8, 3)),
        (lambda x: jnp.stack([jnp.sin(x) * x[::-1], x * x]), (7,)),
        (lambda x: jax.vmap(jax.vmap(unit))(x.reshape(4, 2, 3)).reshape(4, 6), (8, 3)),
    ],
)
def test_blocks_along_other_dimensions(fun, shape):
    x = jnp.linspace(0.4, 1.3, int(np.prod(shape))).reshape(shape)
    np.testing.assert_allclose(jacve(fun)(x), jax.jacfwd(fun)(x), rtol=1e-12, atol=1e-12)
    for samples in (3, 300):
        several = x + jnp.linspace(0, 0.2, samples).reshape(-1, *(1,) * x.ndim)
        found = jax.jit(jax.vmap(jacve(fun)))(several)
        expected = jax.vmap(jax.jacfwd(fun))(several)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.every_case
def test_other_terms_stand_beside_the_blocks():
    def fun(x):
        rows = x.reshape(12, 3)
        return (jax.vmap(spherical)(rows) + 0.1 * jnp.roll(rows, 1, 0) * x[0]).ravel()

    x = jnp.linspace(0.4, 1.3, 36)
    block = make_plan(fun, x).program.blocks[0][0]
    assert block.structure is not None
    assert not are_blocks_on_diagonal(block.structure)
    np.testing.assert_allclose(jacve(fun)(x), jax.jacfwd(fun)(x), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_infinite_entries_stay_in_their_blocks():
    def fun(x):
        return jax.vmap(lambda r: jnp.stack([jnp.sqrt(r[0]) * r[1], r[1]]))(x.reshape(5, 2)).ravel()

    x = jnp.linspace(0.4, 1.3, 10).at[2].set(0.0)
    found, expected = jacve(fun)(x), jax.jacfwd(fun)(x)
    assert np.isinf(found[2, 2])
    assert np.isfinite(found).sum() == found.size - 1
    there = np.isfinite(expected)  # JAX multiplies the infinite slope by zeros, too
    np.testing.assert_allclose(found[there], expected[there], rtol=1e-12)


@pytest.mark.parametrize(
    "places",
    [
        [3, 4, 5, 6],
        [0, 2, 4, 6],
        [6, 5, 4, 3],
        [5, 5, 5, 5],
        [-1, 0, -1, 1, -1, 2],
        [0, -1, 1, -1, 2, -1],
        [1, 2, 3, 1, 2, 3],
        [0, 0, 2, 2, 4, 4, -1, -1],
        [-1, -1, 4, 5, 6, -1],
        [0, 1, 2, 7, 6, 5, 3, 3],
        [4],
    ],
)
def test_regular_places(places):
    value = jnp.arange(10.0, 18.0)
    places = np.asarray(places)
    read = read_regularly(value, places)
    assert read is not None
    assert read.shape == places.shape
    used = places >= 0
    np.testing.assert_array_equal(np.asarray(read)[used], np.asarray(value)[places[used]])
    program = jax.make_jaxpr(lambda v: read_regularly(v, places))(value)
    assert "gather" not in str(program)


def test_irregular_places_are_left_to_a_gather():
    places = np.random.default_rng(0).permutation(64)
    assert read_regularly(jnp.arange(64.0), places) is None
