"""Numbers of many samples that are written side by side: branches, selections, concatenations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import jacve
from graphax_lapl.emit import joining, packing
from graphax_lapl.emit.holding import BARRIERS_STAND
from graphax_lapl.emit.small_programs import BATCH
from tests.checks import primitives


def draw(seed, *shape):
    return jax.random.uniform(jax.random.key(seed), shape, jnp.float64, 0.3, 1.2)


def compare(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "stretches"), [((), 0), ((2, 4), 0), ((5, 5), 5), ((2, 3, 3), 3), ((3, 13), 6)]
)
def test_matrices_are_joined_by_rows(shape, stretches, monkeypatch):
    monkeypatch.setattr(packing, "held", lambda value, sizes: lax.optimization_barrier(value))

    def joined(x):
        numbers = np.empty(shape, object)
        for k, place in enumerate(np.ndindex(shape)):
            numbers[place] = x * k if k % 4 else np.float64(k)
        return packing.in_rows(numbers)

    x = draw(3, 7)
    table = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    expected = np.where(table % 4, np.multiply.outer(x, table), table)
    found = jax.make_jaxpr(jax.vmap(joined))(x)
    assert primitives(found.jaxpr, ("optimization_barrier",)).total() == stretches
    np.testing.assert_array_equal(jax.vmap(joined)(x), expected)


@pytest.mark.parametrize(
    ("shape", "short"),
    [
        ((2, 2), True),
        ((3, 8), True),
        ((2, 3, 4), True),
        ((8, 8), True),
        ((), False),
        ((6,), True),
        ((1, 6), True),
        ((6, 1), False),
        ((9, 2), False),
        ((2, 9), False),
    ],
)
def test_short_rows(shape, short):
    """Each is a branch, whose entries select theirs; equal numbers are selected together."""
    numbers = np.empty(shape, object)
    assert packing.has_short_rows(numbers) == short
    if not short:
        return
    x = draw(26, BATCH, 4)
    kinds = np.arange(numbers.size).reshape(shape) % 6

    def matrix(row):
        for place in np.ndindex(shape):
            kind = kinds[place]
            numbers[place] = row[kind] if kind < 4 else np.float64(-0.0 if kind < 5 else 7.0)
        return packing.by_rows(numbers)

    known = np.broadcast_to([-0.0, 7.0], (BATCH, 2))
    expected = np.concatenate([x, known], axis=1)[:, kinds]
    found = jax.vmap(matrix)(x)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def mostly_known(x):
    """Many entries are equal, zeros or constants, some of them zeros with a sign."""
    return jnp.stack([2.0 * x[0] - x[1] * x[2], x[1] * x[2], -x[0] - 0.0 * x[2]])


def full(n, m):
    weights = 1.0 + np.arange(n * m).reshape(n, m) % 7
    return lambda x: jnp.stack([jnp.dot(w * x, jnp.roll(x, k + 1)) for k, w in enumerate(weights)])


def neighbours(n):
    def fun(x):
        return x * jnp.roll(x, 1) + 0.3 * jnp.roll(x, 2)

    return lambda x: jnp.concatenate([fun(x)] * 2)[:n]


@pytest.mark.parametrize("samples", [BATCH, 2**16])
@pytest.mark.parametrize(
    ("fun", "inputs"),
    [
        (mostly_known, 3),
        (full(4, 4), 4),
        (full(2, 7), 7),
        (full(6, 7), 7),
        (neighbours(11), 11),
        (neighbours(5), 13),
    ],
    ids=["3x3", "4x4", "2x7", "6x7", "11x11", "5x13"],
)
def test_matrices_of_many_samples(fun, inputs, samples):
    x = draw(21, samples, inputs)
    run = jax.jit(jax.vmap(jacve(fun)))
    compare(run(x), jax.jit(jax.vmap(jax.jacrev(fun)))(x))


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("rows", "columns", "apart", "inside", "outside"),
    [
        (3, 3, 2, True, True),
        (4, 4, 2, False, True),
        (4, 4, 4, False, True),
        (5, 5, 2, False, True),
        (6, 7, 7, False, True),
        (13, 13, 3, True, True),
        (13, 13, 13, False, False),
        (10, 10, 2, False, True),
        (9, 5, 5, False, False),
        (6, 2, 2, False, False),
        (2, 4, 2, True, True),
        (2, 2, 2, True, True),
        (1, 8, 8, False, False),
    ],
)
def test_where_entries_are_selected(rows, columns, apart, inside, outside):
    """Of every row so many entries are distinct, the others are zeros."""
    x = draw(24, BATCH, rows, apart)

    def matrix(row, beyond):
        numbers = np.zeros((rows, columns), object)
        for i in range(rows):
            for j in range(apart):
                numbers[i, (i + j) % columns] = row[i, j]
        return packing.by_selection(numbers, beyond)

    for beyond, expected in ((False, inside), (True, outside)):
        found = jax.vmap(lambda row, beyond=beyond: matrix(row, beyond))
        if not expected:
            assert found(x) is None
            continue
        places = (np.arange(rows)[:, None] + np.arange(apart)) % columns
        wanted = np.zeros((BATCH, rows, columns))
        wanted[:, np.arange(rows)[:, None], places] = x
        np.testing.assert_array_equal(found(x), wanted)


@pytest.mark.parametrize(("size", "apart"), [(5, 2), (6, 2), (7, 2), (6, 5)])
def test_rows_of_few_numbers_select_theirs(size, apart):
    """Outside of the cache; more numbers and larger matrices are concatenated."""

    def matrix(row):
        numbers = np.zeros((size, size), object)
        for i in range(size):
            for j in range(apart):
                numbers[i, (i + j) % size] = row[j] * (i + 1)
        return packing.by_selection(numbers, True)

    jaxpr = jax.make_jaxpr(matrix)(draw(26, apart)).jaxpr
    concatenated = primitives(jaxpr, ("concatenate",)).total()
    assert concatenated == (0 if size < 7 and apart == 2 else size)


def mirrored(x):
    return jnp.exp(-x) * x[::-1]


def ended(x):
    """Entries at both ends that are no part of a diagonal."""
    return jnp.concatenate([x[:1] * x[1:2], x[1:-1] * x[2:] - x[:-2], x[-1:] ** 2])


@pytest.mark.parametrize(
    ("fun", "size", "samples", "joined"),
    [
        (mirrored, 7, BATCH, True),
        (mirrored, 8, BATCH, False),
        (mirrored, 10, BATCH, True),
        (mirrored, 16, BATCH, False),
        (mirrored, 8, 2**14, False),
        (mirrored, 10, 2**14, False),  # outside of the cache
        (mirrored, 7, 2**14, True),
        (ended, 8, BATCH, True),
    ],
)
def test_rows_of_vectors_are_filled_as_arrays(fun, size, samples, joined):
    x = draw(25, samples, size)
    compiled = jax.jit(jax.vmap(jacve(fun))).lower(x).compile()
    compare(compiled(x), jax.jit(jax.vmap(jax.jacfwd(fun)))(x))
    assert (" concatenate(" in compiled.as_text()) == joined


@pytest.mark.parametrize(
    ("rows", "samples", "joined"), [(8, BATCH, True), (8, 2**12, False), (6, 2**12, True)]
)
def test_blocks_that_are_mostly_zeros(rows, samples, joined):
    """Of lengths of vectors: outside of the cache 256 entries are filled as arrays, 144 are not."""

    def lengths(x):
        return jnp.sqrt(jnp.sum(x * x, -1))

    x = draw(27, samples, rows, 4)
    compiled = jax.jit(jax.vmap(jacve(lengths))).lower(x).compile()
    compare(compiled(x), jax.jit(jax.vmap(jax.jacrev(lengths)))(x))
    assert (" concatenate(" in compiled.as_text()) == joined


def test_numbers_that_are_not_finite_stay_in_their_places():
    x = draw(22, BATCH, 3).at[:, 1].set(jnp.inf).at[::2, 2].set(jnp.nan)
    jacobian = jax.jit(jax.vmap(jacve(mostly_known)))(x)
    np.testing.assert_array_equal(jacobian[:, 0, 0], 2.0)
    np.testing.assert_array_equal(jacobian[:, 1, 1], x[:, 2])
    np.testing.assert_array_equal(jacobian[:, 1, 2], jnp.inf)


def test_dear_numbers_are_concatenated():
    def fun(x):
        return jnp.stack([jnp.exp(x[k] * x[0]) + jnp.exp(x[1] - x[k]) / x[2] for k in range(3)])

    x = draw(23, BATCH, 3)
    run = jax.jit(jax.vmap(jacve(fun)))
    compare(run(x), jax.jit(jax.vmap(jax.jacrev(fun)))(x))
    assert "select(" not in run.lower(x).compile().as_text()


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 100])
def test_wide_matrices_of_few_samples(size):
    """Every entry of a row selects its own."""

    def band(x):
        y = x * jnp.roll(x, 1) - jnp.roll(x, 2)
        return y[:9]

    points = draw(32, size, 13)
    found = jax.jit(jax.vmap(jacve(band)))(points)
    compare(found, jax.vmap(jax.jacrev(band))(points))
    chosen = primitives(jax.make_jaxpr(jax.vmap(jacve(band)))(points).jaxpr, ("select_n",))
    assert chosen


def pose(joints):
    """The rotation that all joints make together, about axes in turn."""
    turned = jnp.eye(3)
    for k in range(joints.shape[0]):
        c, s = jnp.cos(joints[k]), jnp.sin(joints[k])
        rows = [[c, -s, 0.1 * k], [s, c, 0.2], [0.3 * s, -0.1, 1.0]]
        turned = turned @ jnp.array(rows)
    return turned.ravel()


def sparse(x):
    """Eleven rows of few different entries."""
    return jnp.concatenate([x[:10] * x[1:], jnp.sqrt(x[:1])]) + 2.0 * x


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize(
    ("fun", "inputs", "samples", "apart"),
    [
        (pose, 9, BATCH, True),  # dear entries
        (pose, 9, 2**19, False),  # as many as a copy is not worth
        (pose, 6, BATCH, False),  # shorter rows, that share less
        (sparse, 11, 4096, BARRIERS_STAND),  # 121 is no product of digits
        (sparse, 11, BATCH, False),
        (neighbours(10), 10, 4096, False),
    ],
)
def test_rows_apart(fun, inputs, samples, apart, monkeypatch):
    seen = []
    original = joining.in_rows_apart
    monkeypatch.setattr(joining, "in_rows_apart", lambda n: (seen.append(n.shape), original(n))[1])
    run = jax.jit(jax.vmap(jacve(fun)))
    run.lower(jax.ShapeDtypeStruct((samples, inputs), jnp.float64))
    assert bool(seen) == apart
    if samples == BATCH or inputs == 11:
        x = draw(22, samples, inputs)
        compare(run(x), jax.jit(jax.vmap(jax.jacfwd(fun)))(x))


@pytest.mark.parametrize("count", [3, 8, 9, 12, 70])
def test_stacked_arrays(count):
    parts = list(jax.random.normal(jax.random.key(count), (count, 2, 3), jnp.float64))
    expected = jnp.stack(parts)
    np.testing.assert_array_equal(jax.jit(packing.stacked)(parts), expected)
    many = [jnp.stack([part, 2.0 * part]) for part in parts[:-1]]
    batch = jax.vmap(lambda many: packing.stacked([*many, parts[-1]]))(many)
    np.testing.assert_array_equal(batch[1, :-1], 2.0 * expected[:-1])
    np.testing.assert_array_equal(batch[1, -1], parts[-1])
    slopes = jax.grad(lambda parts: jnp.sum(jnp.sin(packing.stacked(parts))))(parts)
    np.testing.assert_allclose(jnp.stack(slopes), jnp.cos(expected), rtol=1e-14)


def test_terms_that_are_stacked_are_one_kernel_for_a_single_input():
    def products(x):
        return jnp.cross(x[:5], x[5:])

    x = jax.random.normal(jax.random.key(0), (10, 3), jnp.float32)
    compiled = jax.jit(jacve(products)).lower(x).compile()
    np.testing.assert_allclose(compiled(x), jax.jit(jax.jacfwd(products))(x), rtol=1e-6)
    text = compiled.as_text()
    assert " concatenate(" not in text[text.index("ENTRY") :]


@pytest.mark.parametrize("batch", [0, 5])
@pytest.mark.parametrize("decays", [2, 4, 11, 12])
def test_columns_of_a_curve_are_selected(decays, batch):
    """Up to 24 parameters of residuals, of which every entry is a branch when concatenated."""
    times = np.linspace(0.0, 3.0, 15)

    def residuals(p):
        parts = p[: 2 * decays].reshape(decays, 2)
        return p[-1] + sum(parts[k, 0] * jnp.exp(-parts[k, 1] * times) for k in range(decays))

    x = draw(4, batch, 2 * decays + 1) if batch else draw(4, 2 * decays + 1)
    ours, theirs = jacve(residuals), jax.jacfwd(residuals)
    if batch:
        ours, theirs = jax.vmap(ours), jax.vmap(theirs)
    compare(jax.jit(ours)(x), jax.jit(theirs)(x))
    joined = primitives(jax.make_jaxpr(ours)(x).jaxpr, ("concatenate",)).total()
    assert (joined == 0) == (2 * decays + 1 <= 24)
