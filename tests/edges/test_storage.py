"""What sparse results store: each number once, and the same matrix as when all are written out."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import SparseJacobian, hessve, jacve, value_and_jacve
from graphax_lapl.emit.stored import block_storage, stored_arrays
from graphax_lapl.program.instructions import Block, Program, Slot
from tests.checks import assert_same
from tests.edges.structures import Generator, dense

N = 80  # larger than what is always stored whole


def ring(x: jax.Array) -> jax.Array:
    """Constant neighbours, wrapped around."""
    return jnp.roll(x, 1) - 2.0 * x + jnp.roll(x, -1) - x**3


def shared(x: jax.Array) -> jax.Array:
    """One array on several diagonals, with two coefficients and wrapped ends."""
    return x * (jnp.roll(x, 1) - 3.0 * jnp.roll(x, 2) - 3.0 * jnp.roll(x, -1))


def repeated(x: jax.Array) -> jax.Array:
    """The same small matrix for each of many rows."""
    return x.reshape(-1, 4) @ jnp.exp(0.1 * jnp.arange(12.0).reshape(4, 3))


def narrow(x: jax.Array) -> jax.Array:
    """A small part of a long array."""
    return jnp.exp(x)[:3]


#: Function and how many numbers its Jacobian stores.
CASES: dict[str, tuple[Callable[[jax.Array], jax.Array], int]] = {
    "constants": (ring, 1 + N),
    "shared": (shared, 3 * N),
    "repeated": (repeated, 12),
    "narrow": (narrow, 3),
    "identity": (lambda x: x, 1),
    "zero": (lambda x: jnp.ones(3), 0),
}

every_case = pytest.mark.parametrize("case", CASES)


def point() -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.5, N))


@every_case
def test_each_number_is_stored_once(case: str) -> None:
    fun, stored = CASES[case]
    jacobian = jax.jit(jacve(fun, sparse_representation=True))(point())
    assert sum(array.size for array in jacobian.arrays) == stored
    assert [v.shape for v in jacobian.values] == [t.sizes for t in jacobian.structure.terms]
    written = jacobian.structure
    expected = jax.jit(jax.jacfwd(fun))(point())
    again = SparseJacobian(written, jacobian.arrays, jacobian.dtype, jacobian._sources)
    found = jax.jit(lambda j, k: (j.todense(), j.to_bcoo().todense(), k.matrix.todense()))(
        jacobian, again
    )
    assert_same(found, (expected, expected, np.reshape(expected, (-1, N))))


@every_case
def test_what_is_done_to_the_arrays_is_done_to_the_matrix(case: str) -> None:
    """Linear maps of the leaves, sums over a batch, tangents, sums with other matrices."""
    fun, _ = CASES[case]
    derivative = jacve(fun, sparse_representation=True)

    @jax.jit
    def ours(x: jax.Array, jacobian: SparseJacobian) -> tuple[list[jax.Array], Any]:
        doubled = jax.tree.map(lambda leaf: 2.0 * leaf, jacobian)
        batch = jax.vmap(derivative)(jnp.stack([x, 2.0 * x]))
        matrices = [
            doubled.todense(),
            (3.0 * jacobian.T - jacobian.T).T.todense(),
            (jacobian + derivative(2.0 * x)).todense(),
            jax.tree.map(lambda leaf: leaf.sum(0), batch).todense(),
            jax.jvp(derivative, (x,), (x,))[1].todense(),
            jacobian @ x,
        ]
        assert jacobian.astype(np.float32).todense().dtype == np.float32
        return matrices, (batch.data[0], [v[0] for v in batch.values])

    @jax.jit
    def theirs(x: jax.Array) -> list[jax.Array]:
        expected, tangent = jax.jvp(jax.jacfwd(fun), (x,), (x,))
        both = expected + jax.jacfwd(fun)(2.0 * x)
        return [2.0 * expected, 2.0 * expected, both, both, tangent, jax.jvp(fun, (x,), (x,))[1]]

    x = point()
    jacobian = derivative(x)
    matrices, first = ours(x, jacobian)
    assert_same(matrices, theirs(x))
    assert_same(first, (jacobian.data, list(jacobian.values)))


def test_halves_of_a_hessian_share_their_array() -> None:
    def energy(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.cos(x[1:] - x[:-1]) + x[:-1] ** 2 * x[1:])

    hessian = jax.jit(hessve(energy, sparse_representation=True))(point())
    assert sum(array.size for array in hessian.arrays) < hessian.nse
    assert_same(hessian.todense(), jax.jit(jax.hessian(energy))(point()))


def test_results_are_not_the_callers_buffers() -> None:
    """An argument that is an entry may be given away afterwards."""
    x = point()
    kept = np.array(x)

    @jax.jit
    def derivative(x: jax.Array) -> SparseJacobian:
        return jacve(lambda x, y: x * y, argnums=1, sparse_representation=True)(x, 2.0 * x)

    jacobian = derivative(x)
    jax.jit(lambda x: x + 1.0, donate_argnums=0)(x).block_until_ready()
    x.delete()
    assert_same(jacobian.data, kept)
    value, both = value_and_jacve(jnp.exp, sparse_representation=True)(jnp.asarray(kept))
    assert_same(both.data, value)


@pytest.mark.parametrize("seed", range(40))
def test_storage_of_random_structures(seed: int) -> None:
    """What is read from the stored arrays is the matrix that the factors make."""
    draw = Generator(500 + seed)
    structure, values = draw.structure(draw.shape(), draw.shape())
    # Only slots of the result's own precision are stored as they are.
    singles = [np.asarray(value, np.float32) for value in values]
    for every in (1, 2):
        slots = [
            jnp.asarray(value, np.float32 if k % 2 == every else np.float64)
            for k, value in enumerate(singles)
        ]
        program = Program(slots=[Slot(v.shape, v.dtype) for v in slots])
        shapes = structure.out_shape, structure.in_shape
        block = Block(structure, tuple(range(len(slots))), *shapes, np.dtype(np.float64))
        storage = block_storage(block, program)
        arrays = tuple(stored_arrays(block, program, slots))
        jacobian = SparseJacobian(storage.structure, arrays, np.float64, storage.sources)
        expected = dense(structure, [np.asarray(value, np.float64) for value in singles])
        found = jax.jit(lambda j: (j.todense(), j.to_bcoo().todense()))(jacobian)
        assert_same(found, (expected, expected), tolerance=1e-6)
        assert all(array.dtype == np.float64 for array in arrays)
