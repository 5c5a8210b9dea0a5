"""Hessians of sums of one function per row: energies of bonds, angles, faces, observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import hessve, register_partial
from graphax_lapl.api.hessian import hessian_plan
from graphax_lapl.api.planning import prepare
from graphax_lapl.program.instructions import RowHessianInstruction
from graphax_lapl.program.row_hessian import build_row_hessian
from graphax_lapl.rules.custom import unregister_partial

ATOMS = 9
GENERATOR = np.random.default_rng(7)
TRIPLES = np.stack([GENERATOR.permutation(ATOMS)[:3] for _ in range(8)])
QUADS = np.arange(ATOMS - 3)[:, None] + np.arange(4)


def norm(x):
    return jnp.sqrt(jnp.sum(x * x, axis=-1))


def dihedrals_of_slices(x):
    p = x.reshape(-1, 3)
    d = p[1:] - p[:-1]
    n, m = jnp.cross(d[:-2], d[1:-1]), jnp.cross(d[1:-1], d[2:])
    return jnp.sum((jnp.sum(n * m, -1) / (norm(n) * norm(m))) ** 3)


def dihedrals_of_gathers(x):
    a, b, c, d = (x.reshape(-1, 3)[QUADS[:, k]] for k in range(4))
    n, m = jnp.cross(b - a, c - b), jnp.cross(c - b, d - c)
    axis = (c - b) / norm(c - b)[:, None]
    angle = jnp.arctan2(jnp.sum(jnp.cross(n, axis) * m, -1), jnp.sum(n * m, -1))
    return jnp.sum(1.0 + jnp.cos(3.0 * angle - 0.3))


def angles_and_bonds(x):
    p = x.reshape(-1, 3)
    u, v = (p[TRIPLES[:, k]] - p[TRIPLES[:, 0]] for k in (1, 2))
    cosine = jnp.einsum("ij,ij->i", u, v) / (norm(u) * norm(v))
    bonds = norm(p[1:] - p[:-1])
    return jnp.sum((cosine + 1 / 3) ** 2 * jnp.exp(-norm(u) - norm(v))) + jnp.sum((bonds - 1) ** 2)


def least_squares_of_a_reshape(x):
    """The rows of residuals are digits of one dimension."""
    p = x.reshape(-1, 3)[TRIPLES]
    seen = p[:, 0, :2] / (p[:, 1, 2:] ** 2 + 3.0) * norm(p[:, 2])[:, None]
    return 0.5 * jnp.sum((seen.reshape(-1) - 0.3) ** 2)


def array_beside_its_slices(x):
    q = x.reshape(-1, 3)
    return jnp.sum(jnp.cross(q[1:], q[:-1]) ** 4) + jnp.sum((jnp.sum(q * q, -1) - 1.0) ** 2)


def two_batches(x):
    """Rows along two dimensions, with a factor that differs between them."""
    p = x.reshape(3, 3, 3)
    u, v = p[:, 1:], p[:, :-1]
    return jnp.sum(norm(jnp.cross(u, v)) * jnp.arange(1.0, 7.0).reshape(3, 2)) + jnp.sum(x)


BY_ROWS = [
    dihedrals_of_gathers,
    angles_and_bonds,
    least_squares_of_a_reshape,
    array_beside_its_slices,
    two_batches,
]


def rows_mix_first(x):
    p = jnp.cumsum(x.reshape(-1, 3) ** 2, axis=0)
    return jnp.sum(norm(jnp.cross(p[1:], p[:-1])))


def rows_mix_last(x):
    p = x.reshape(-1, 3)
    return jnp.log(jnp.sum(jnp.exp(norm(p[1:] - p[:-1]))))


def shuffled_between(x):
    d = jnp.sin(x.reshape(-1, 3))
    return jnp.sum((d * d[::-1, ::-1]) ** 2)


@jax.custom_jvp
def straight_through(x):
    return jnp.round(x) * x


@straight_through.defjvp
def _(primals, tangents):
    return straight_through(*primals), 2.0 * primals[0] * tangents[0]


def custom_inside(x):
    return jnp.sum(straight_through(norm(jnp.cross(x.reshape(-1, 3)[1:], x.reshape(-1, 3)[:-1]))))


def prepared(fun, x):
    return prepare(fun, (x,), {}, 0, False, 2, False)


def point():
    return jnp.asarray(np.random.default_rng(3).normal(size=3 * ATOMS), jnp.float64)


@pytest.mark.parametrize("fun", BY_ROWS)
def test_rows_are_found_and_their_blocks_are_the_hessian(fun, monkeypatch):
    monkeypatch.setattr("graphax_lapl.api.hessian.OPERATIONS_PER_PRODUCT", 0)
    with jax.enable_x64(True):
        x = point()
        plan = hessian_plan(prepared(fun, x), "auto")
        assert any(isinstance(i, RowHessianInstruction) for i in plan.program.instructions)
        expected = jax.jit(jax.hessian(fun))(x)
        found = hessve(fun, sparse_representation=True)(x)
        np.testing.assert_allclose(found.todense(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "fun", [rows_mix_first, rows_mix_last, shuffled_between, custom_inside, lambda x: x[0] * 2.0]
)
def test_where_rows_mix_none_are_found(fun):
    with jax.enable_x64(True):
        x = point()
        assert build_row_hessian(prepared(fun, x).second) is None
        np.testing.assert_allclose(
            hessve(fun)(x), jax.jit(jax.hessian(fun))(x), rtol=1e-9, atol=1e-9
        )


def test_rules_of_users_are_not_passed_over():
    with jax.enable_x64(True):
        x = point()
        register_partial(jax.lax.sin_p, lambda x: 2.0 * jnp.cos(x))
        try:
            fun = lambda x: jnp.sum(jnp.sin(norm(x.reshape(-1, 3)[1:])))  # noqa: E731
            assert build_row_hessian(prepared(fun, x).second) is None
        finally:
            unregister_partial(jax.lax.sin_p)


def test_several_leaves_and_outputs():
    def fun(p, q):
        d = p[1:] - q[:-1]
        energy = jnp.sum(norm(jnp.cross(d, p[:-1])) ** 3)
        return energy, jnp.sum(norm(q) ** 5)

    with jax.enable_x64(True):
        p, q = point().reshape(-1, 3), point()[::-1].reshape(-1, 3)
        found = hessve(fun, argnums=(0, 1))(p, q)
        expected = jax.jit(jax.hessian(fun, argnums=(0, 1)))(p, q)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), found, expected
        )


@pytest.mark.slow
def test_block_diagonals_of_a_chain_are_one_band():
    """Differences of positions spread every block to neighbours; what lies side by side joins."""
    with jax.enable_x64(True):
        x = point()
        found = hessve(dihedrals_of_slices, sparse_representation=True)(x)
        expected = jax.hessian(dihedrals_of_slices)(x)
        np.testing.assert_allclose(found.todense(), expected, rtol=1e-9, atol=1e-9)
    assert len(found.structure.terms) <= 2
    assert found.nse == 9 * (7 * ATOMS - 12)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["compressed", "compressed_symmetric"])
def test_colours_on_request(order):
    with jax.enable_x64(True):
        x = point()
        found = hessve(shuffled_between, order=order, sparse_representation=True)(x)
        expected = jax.hessian(shuffled_between)(x)
        np.testing.assert_allclose(found.todense(), expected, rtol=1e-9, atol=1e-9)
