"""Dense results with entries that are known while planning, and with triangles of one factor."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve
from graphax_lapl.emit import masked

#: Numbers of points: below and above what is kept as one constant (with its square).
FEW, MANY = 9, 150


def bratu(u):
    """A tridiagonal matrix of known weights and a diagonal."""
    padded = jnp.pad(u, 1)
    return (padded[:-2] - 2 * u + padded[2:]) * 289 + 1.5 * jnp.exp(u)


def periodic(u):
    return jnp.roll(u, 1) - 3 * u + 0.5 * jnp.roll(u, -2)


def plane(u):
    """Five points with a mirrored edge, in two dimensions."""
    square = jnp.pad(u[:9].reshape(3, 3), 1, mode="edge")
    sums = square[:-2, 1:-1] + square[2:, 1:-1] + square[1:-1, :-2] + square[1:-1, 2:]
    return sums - 4 * square[1:-1, 1:-1] + square[1:-1, 1:-1] ** 3


def spectrum(u):
    """Known complex weights and numbers that move."""
    z = u.astype(jnp.complex128)
    return (z + jnp.asarray(2j) * jnp.roll(z, 1)) * 1.5 + z**2


def convected(u):
    """A periodic stencil of numbers that move: two diagonals and two corners."""
    return -u * (jnp.roll(u, -1) - jnp.roll(u, 1)) + 0.1 * (jnp.roll(u, 1) - u)


def halved(u):
    return jnp.concatenate([u[::2] * 2, u]) + jnp.concatenate([jnp.zeros_like(u[::2]), u])


def weights(u):
    """Softmax behind a cumulative sum: a triangle scaled by rows, and its columns' sums."""
    return jax.nn.softmax(jnp.cumsum(u[:14]))


def scaled_before(u):
    return jnp.cumsum(jnp.sin(u[:12])[::-1])[::-1] * u[:12]


def returns(rewards):
    """Discounted sums from the end, whose two factors stand for row and column."""
    discount = jnp.cumprod(jnp.full(12, 0.9) + 0.01 * rewards[:12])
    return jnp.cumsum((rewards[:12] * discount)[::-1])[::-1] / discount


def along_rows(u):
    """A cumulative sum along an axis of several rows."""
    rows = u[:12].reshape(3, 4)
    return jnp.cumsum(rows, axis=1) * jnp.cos(rows[:, :1]) + jnp.cumsum(rows**2, axis=0)


def read_twice(u):
    """Sums of what one input stands twice in."""
    return jnp.sin(jax.lax.cumsum(u[:8].at[5].set(u[0]), reverse=True))


def smoothed(u):
    """A product with a sum over windows of what is read backwards."""
    window = jax.lax.reduce_window(u[7::-1], 0.0, jax.lax.add, (3,), (1,), "SAME")
    return jnp.sum(window) * (1 + jnp.sum(u))


TRIANGLES = [weights, scaled_before, returns, along_rows]
LARGE = [bratu, periodic, spectrum, convected]
CASES = [(f, 16) for f in (*LARGE, plane, halved, *TRIANGLES)]
CASES += [(f, MANY) for f in LARGE] + [(bratu, FEW), (periodic, FEW), (convected, 40)]


def drawn(n, *batch):
    return jnp.asarray(np.random.default_rng(n).uniform(0.3, 1.4, (*batch, n)))


def compare(found, expected, tolerance=1e-11):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize(("fun", "n"), CASES)
def test_against_jax(fun, n, order):
    ours = jacve(fun, order)
    for batch in ((), (3,), (300,)) if n < MANY else ((),):
        u = drawn(n, *batch)
        both = [jax.vmap(f) if batch else f for f in (ours, jax.jacfwd(fun))]
        compiled, expected = jax.jit(lambda u, both=both: [f(u) for f in both])(u)
        compare(both[0](u), expected)
        compare(compiled, expected)


@pytest.mark.smoke
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("fun", [read_twice, smoothed])
def test_entries_that_stand_upon_each_other_are_counted(fun, order):
    for batch in ((), (3,)):
        u = drawn(16, *batch)
        ours, reference = (
            jax.jit(jax.vmap(j(fun)) if batch else j(fun))
            for j in (functools.partial(jacve, order=order), jax.jacfwd)
        )
        compare(ours(u), reference(u))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fun", [bratu, plane, weights])
def test_dtype_of_known_entries(fun, dtype):
    u = drawn(16).astype(dtype)
    found, expected = jacve(fun)(u), jax.jit(jax.jacfwd(fun))(u)
    assert found.dtype == expected.dtype
    tolerance = 1e-4 if dtype == "float32" else 0.05
    found, expected = (np.asarray(a, np.float64) for a in (found, expected))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found / scale, expected / scale, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("fun", [bratu, plane, weights, returns, along_rows])
def test_derivatives_of_jacobians(fun):
    @jax.jit
    def derivatives(u):
        norms = [lambda u, j=j: jnp.sum(jnp.sin(j(fun)(u))) for j in (jacve, jax.jacfwd)]
        return [(jax.grad(norm)(u), jax.jvp(norm, [u], [u])[1]) for norm in norms]

    (gradient, slope), (wanted, wanted_slope) = derivatives(drawn(16))
    compare(gradient, wanted, 1e-9)
    compare(slope, wanted_slope, 1e-9)


def test_infinite_factor_stays_in_its_entries():
    """What a mask leaves out is zero, whatever stands in the row."""

    def roots(u):
        return jnp.sqrt(u) * jnp.arange(1.0, 9.0) + jnp.cumsum(u) * jnp.sqrt(u)

    u = drawn(8).at[3].set(0.0)
    found = np.asarray(jacve(roots)(u))
    assert np.isfinite(found[np.triu_indices(8, 1)]).all()
    assert (found[np.triu_indices(8, 1)] == 0).all()
    mask = np.ones(8, bool)
    mask[3] = False
    compare(found[mask], np.asarray(jax.jacfwd(roots)(u))[mask])


@pytest.mark.parametrize("fun", TRIANGLES)
def test_sparse_results_have_the_same_numbers(fun):
    u = drawn(16)
    sparse = jacve(fun, sparse_representation=True)(u)
    compare(sparse.todense(), jax.jit(jax.jacfwd(fun))(u))


def test_triangles_are_masked_and_stencils_are_constants(monkeypatch):
    """Neither scatters nor comparisons of positions are left in such programs."""
    batch = drawn(16, 3)
    assert "scatter" not in str(jax.make_jaxpr(jax.vmap(jacve(weights)))(batch))
    text = str(jax.make_jaxpr(jax.vmap(jacve(periodic)))(batch))
    assert "iota" not in text
    text = str(jax.make_jaxpr(jax.vmap(jacve(convected)))(drawn(40, 3)))
    assert "concatenate" not in text.split("iota", 1)[1]
    monkeypatch.setattr(masked, "MAX_PLACES", 0)
    masked.read_by_position.cache_clear()
    compare(jax.vmap(jacve(weights))(batch), jax.vmap(jax.jacfwd(weights))(batch))
    masked.read_by_position.cache_clear()
