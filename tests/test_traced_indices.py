"""Where a gather reads and a scatter writes at indices that are known at run time only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import hessve, jacve
from graphax_lapl.graph.inline import flatten_jaxpr
from graphax_lapl.rules.opaque import treatment
from graphax_lapl.rules.possible_values import PossibleValues

LINE, GRID = (12,), (4, 9)


def first(x, count):
    """A traced index below `count`."""
    return jnp.argmax(x[:count])


#: Function, shape of its input, entries of its Jacobian: all that any index reaches, and no more.
CASES = {
    "slice at one of two": (lambda x: lax.dynamic_slice(x**2, (first(x, 2),), (3,)), LINE, 6),
    "slice at one of eight": (lambda x: lax.dynamic_slice(x**2, (first(x, 8),), (3,)), LINE, 24),
    "half of an index": (lambda x: lax.dynamic_slice(x, (first(x, 4) // 2,), (3,)), LINE, 6),
    "with gaps": (lambda x: lax.dynamic_slice(x**2, (3 * first(x, 3),), (2,)), LINE, 6),
    "with gaps, wide": (lambda x: x[2 * first(x, 6)] ** 2, LINE, 6),
    "small numbers": (
        lambda x: lax.dynamic_slice(jnp.tile(x, 20), (first(x, 2).astype(np.int8),), (3,)) ** 2,
        LINE,
        6,
    ),
    "remainder": (lambda x: x[first(x, 7) % 3] ** 2, LINE, 3),
    "counted from the end": (lambda x: x[first(x, 4) - 2] ** 2, LINE, 4),
    "counted from the end, wide": (lambda x: x[first(x, 8) - 2] ** 2, LINE, 8),
    "always the same": (lambda x: x[lax.integer_pow(first(x, 3), 0)] ** 2, LINE, 1),
    "from a table": (lambda x: x[jnp.array([3, 1, 7])[first(x, 3)]] ** 2, LINE, 3),
    "shifted and wrapped": (lambda x: x[(jnp.arange(12) + first(x, 3)) % 12] ** 2, LINE, 36),
    "neighbours": (
        lambda x: x[jnp.clip(jnp.arange(12) + (x > 0).astype(int), 0, 11)] ** 2,
        LINE,
        23,
    ),
    "clipped": (lambda x: x.at[first(x, 3) + 10].get(mode="clip") ** 2, LINE, 2),
    "filled": (
        lambda x: x.at[first(x, 3) + 10].get(mode="fill", fill_value=0.0) ** 2,
        LINE,
        2,
    ),
    "filled, wide": (
        lambda x: x.at[first(x, 9) + 5].get(mode="fill", fill_value=0.0) ** 2,
        LINE,
        7,
    ),
    "of every row": (
        lambda x: jnp.take_along_axis(x, jnp.argmax(x[:, :3], 1, keepdims=True), 1) ** 2,
        GRID,
        12,
    ),
    "of every row, wide": (
        lambda x: jnp.take_along_axis(x, jnp.argmax(x[:, :8], 1, keepdims=True), 1) ** 2,
        GRID,
        32,
    ),
    "two indices": (lambda x: x[first(x[:2, 0], 2), first(x[0], 3)] ** 2, GRID, 6),
    "slice of every row": (
        lambda x: jax.vmap(lambda r: lax.dynamic_slice(r, (first(r, 6),), (2,)) ** 2)(x),
        GRID,
        48,
    ),
    "update at one of two": (
        lambda x: lax.dynamic_update_slice(x**2, x[:3] * 3, (first(x, 2),)),
        LINE,
        10 + 6 - 1,
    ),
    "update at one of eight": (
        lambda x: lax.dynamic_update_slice(x**2, x[:3] * 3, (first(x, 8),)),
        LINE,
        12 + 24 - 3,
    ),
    "update of every row": (
        lambda x: jax.vmap(lambda r: lax.dynamic_update_slice(r**2, r[:2], (first(r, 3),)))(x),
        GRID,
        4 * (9 + 4),
    ),
    "set anywhere": (lambda x: (x**2).at[first(x, 12)].set(x[0]), LINE, 23),
    "set at one of two": (lambda x: x[:3].at[jnp.argmax(x[3:5])].set(x[3] ** 2), LINE, 5),
    "set twice": (
        lambda x: (x**2).at[jnp.stack([first(x, 2), 1 + first(x[1:], 2)])].set(x[:2] * 3),
        LINE,
        14,
    ),
    "dropped": (lambda x: (x**2).at[first(x, 3) + 10].set(x[0], mode="drop"), LINE, 14),
    "added": (lambda x: (x**2).at[jnp.array([0, 3]) + first(x, 2)].add(x[:2] * 3), LINE, 15),
    "added, wide": (
        lambda x: (x**2).at[jnp.array([0, 3]) + first(x, 8)].add(x[:2] * 3),
        LINE,
        12 + 16 - 1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_entries_are_those_that_an_index_reaches(name):
    function, shape, count = CASES[name]
    entries = np.zeros(0)
    compiled = {
        (order, sparse): jax.jit(jacve(function, order, sparse_representation=sparse))
        for order, sparse in (("reverse", True), ("forward", False))
    }
    # Not `jacrev`: with int8 starts in an array of 240 its transpose writes somewhere else.
    expected = jax.jit(jax.jacfwd(function))
    for seed in range(4):
        x = jnp.asarray(np.random.default_rng(seed).standard_normal(shape))
        wanted = np.asarray(expected(x))
        sparse = compiled["reverse", True](x)
        np.testing.assert_allclose(sparse.todense(), wanted, rtol=1e-12)
        np.testing.assert_allclose(compiled["forward", False](x), wanted, rtol=1e-12)
        entries = sparse.nse
    assert entries == count


@pytest.mark.parametrize("name", ["slice at one of two", "set twice", "added, wide"])
def test_second_derivatives(name):
    function, shape, _ = CASES[name]
    x = jnp.asarray(np.random.default_rng(3).standard_normal(shape))
    expected = jax.jit(jax.hessian(function))(x)
    np.testing.assert_allclose(hessve(function)(x), expected, rtol=1e-12)
    sparse = hessve(function, sparse_representation=True)(x)
    np.testing.assert_allclose(sparse.todense(), expected, rtol=1e-12)


def random_arithmetic(seed, dtype):
    """A random program on integers, and how many of them it takes."""
    draw = np.random.default_rng(seed)
    two = (
        *(lax.add, lax.sub, lax.mul, lax.max, lax.min, jnp.floor_divide, jnp.remainder),
        *(lax.rem, lax.div),
    )
    one = (
        *(lax.neg, jnp.abs, lax.sign, lambda x: x[::-1], lambda x: jnp.clip(x, -2, 5)),
        *(lambda x: lax.integer_pow(x, 2), lambda x: x.astype(np.int8).astype(dtype)),
        *(lambda x: jnp.concatenate([x[2:], x[:2]]), lambda x: jnp.array([5, 2, 7], dtype)[x % 3]),
        lambda x: jnp.broadcast_to(x[1], x.shape),
    )
    steps = [(draw.random(), draw.integers(0, 100, 3)) for _ in range(6)]

    def program(*inputs):
        made = [*(jnp.clip(x, 0, 3) for x in inputs), jnp.arange(4, dtype=dtype), inputs[0]]
        for kind, (a, b, which) in steps:
            left, right = made[a % len(made)], made[b % len(made)]
            if kind < 0.2:
                made.append(jnp.where(left < right, left, right + 4))
            elif kind < 0.6:
                operation = two[which % len(two)]
                safe = operation in (lax.rem, lax.div)
                made.append(operation(left, jnp.where(right == 0, 3, right) if safe else right))
            else:
                made.append(one[which % len(one)](left))
        return made

    return program


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
@pytest.mark.parametrize("seed", range(6))
def test_values_are_among_those_said_to_be_possible(seed, dtype):
    program = random_arithmetic(seed, dtype)
    closed = jax.make_jaxpr(program)(*(jnp.zeros(4, dtype),) * 2)
    listing, _ = flatten_jaxpr(closed, [False, False], treatment)
    possible = [PossibleValues(listing).of(atom) for atom in listing.outputs]
    draw = np.random.default_rng(seed)
    assert any(p is not None and p.values is not None for p in possible[2:])
    for trial in range(20):
        inputs = [draw.integers(0, 6, 4) if trial else np.full(4, 120) for _ in range(2)]
        for found, value in zip(
            possible, program(*(jnp.asarray(x, dtype) for x in inputs)), strict=True
        ):
            if found is None:
                continue
            number = np.asarray(value).astype(np.int64)
            assert (found.low <= number).all()
            assert (number <= found.high).all()
            if found.values is not None:
                assert (found.values == np.asarray(value)).any(0).all()


@pytest.mark.parametrize("rows", [2, 3, 5, 9])
@pytest.mark.parametrize("dtype", [jnp.int8, jnp.int32])
def test_a_row_of_a_matrix(rows, dtype):
    """The columns stand for themselves, in the map and in what limits it."""
    x = jnp.sin(jnp.arange(3.0 * rows)).reshape(rows, 3)
    jacobian = jax.jit(lambda x, k: jacve(lambda x: x[k] * x[0], order="reverse")(x))
    expected = jax.jit(lambda x, k: jax.jacfwd(lambda x: x[k] * x[0])(x))
    for k in range(-rows, rows):
        place = jnp.asarray(k, dtype)
        np.testing.assert_array_equal(jacobian(x, place), expected(x, place))
