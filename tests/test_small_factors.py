"""Factors and solves of a few rows in batches: mechanics, filters and fits, number by number."""

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import hessve, jacve, laplacian_ve, value_and_jacve
from graphax_lapl.emit.numbers import run_numbers
from graphax_lapl.emit.small_programs import BATCH, MANY_SAMPLES
from graphax_lapl.emit.tape import Tape

#: What LAPACK and BLAS are called by on a CPU.
CALLS = ("lapack_", "triangular-solve", "cholesky(")


def square(x: jax.Array, rows: int) -> jax.Array:
    return x[: rows * rows].reshape(rows, rows)


def positive(x: jax.Array, rows: int) -> jax.Array:
    return square(x, rows) @ square(x, rows).T + jnp.eye(rows)


def solve(x: jax.Array) -> jax.Array:
    return jnp.linalg.solve(square(x, 3), x[9:12])


def solve_two(x: jax.Array) -> jax.Array:
    return jnp.linalg.solve(square(x, 2), x[4:10].reshape(2, 3))


def solve_four(x: jax.Array) -> jax.Array:
    return jnp.linalg.solve(square(x, 4), x[:4])


def solve_symmetric(x: jax.Array) -> jax.Array:
    return jax.scipy.linalg.solve(positive(x, 3), x[9:12], assume_a="pos")


def root(x: jax.Array) -> jax.Array:
    return jnp.linalg.cholesky(positive(x, 3))


def likelihood(x: jax.Array) -> jax.Array:
    covariance = positive(x, 3)
    return jax.scipy.stats.multivariate_normal.logpdf(x[9:12], x[12:15], covariance)


def inverse(x: jax.Array) -> jax.Array:
    return jnp.linalg.inv(square(x, 3))


def volume(x: jax.Array) -> jax.Array:
    return jnp.stack([jnp.linalg.slogdet(square(x, 4))[1], jnp.linalg.det(square(x, 4))])


def substitution(x: jax.Array) -> jax.Array:
    triangle = jnp.triu(square(x, 3)) + jnp.eye(3)
    return jax.scipy.linalg.solve_triangular(triangle, x[9:15].reshape(3, 2), trans=1)


def stacked_solves(x: jax.Array) -> jax.Array:
    return jnp.linalg.solve(x[:8].reshape(2, 2, 2), x[8:12].reshape(2, 2, 1))


def pendulums(x: jax.Array) -> jax.Array:
    """Rates of three joined pendulums."""
    angles, rates = x[:3], x[3:6]
    masses = jnp.minimum(*jnp.ix_(jnp.array([3.0, 2, 1]), jnp.array([3.0, 2, 1])))
    turned = angles[:, None] - angles
    forces = -(masses * jnp.sin(turned)) @ rates**2 - jnp.sin(angles)
    return jnp.linalg.solve(masses * jnp.cos(turned) + 0.1 * jnp.eye(3), forces)


def filtered(x: jax.Array) -> jax.Array:
    """A state and its covariance behind two measurements of it, as Kalman's filter says."""
    state, covariance, measures = x[:2], positive(x[2:6], 2), x[6:10].reshape(2, 2)
    expected = measures @ covariance @ measures.T + jnp.eye(2)
    gain = jnp.linalg.solve(expected, measures @ covariance).T
    moved = state + gain @ (x[10:12] - measures @ state)
    return jnp.append(moved, covariance - gain @ measures @ covariance)


FUNCTIONS = {
    solve: 12,
    solve_two: 10,
    solve_four: 16,
    solve_symmetric: 12,
    root: 9,
    likelihood: 15,
    inverse: 9,
    volume: 16,
    substitution: 15,
    stacked_solves: 12,
    pendulums: 6,
    filtered: 12,
}


def draw(fun: Callable[..., Any], samples: int = BATCH) -> np.ndarray:
    return np.random.default_rng(FUNCTIONS[fun]).normal(size=(samples, FUNCTIONS[fun]))


def assert_close(found: Any, expected: Any) -> None:
    """As accurate as the matrices of a batch are regular."""
    found, expected = np.asarray(found), np.asarray(expected)
    scale = np.abs(expected).max(axis=tuple(range(1, expected.ndim)), keepdims=True)
    np.testing.assert_allclose(found / scale, expected / scale, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda fun: fun.__name__)
def test_jacobians_in_batches(fun: Callable[..., Any], order: str) -> None:
    """No library is called for any of the samples."""
    x = draw(fun, MANY_SAMPLES)
    compiled = jax.jit(jax.vmap(jacve(fun, order=order))).lower(x).compile()
    # One after the other: JAX 0.10 may wait forever for a batch of its own.
    assert_close(compiled(x)[:32], jnp.stack([jax.jacrev(fun)(one) for one in x[:32]]))
    text = compiled.as_text()
    assert not any(call in text for call in CALLS)


@pytest.mark.parametrize("fun", [solve, root, likelihood, inverse], ids=lambda fun: fun.__name__)
def test_a_call_for_every_sample_is_what_jax_makes(fun: Callable[..., Any]) -> None:
    """What the tests before this one do not find is found here."""
    text = jax.jit(jax.vmap(jax.jacrev(fun))).lower(draw(fun)).compile().as_text()
    assert any(call in text for call in CALLS)


@pytest.mark.parametrize("fun", [solve, likelihood, inverse, pendulums], ids=lambda f: f.__name__)
def test_second_derivatives_in_batches(fun: Callable[..., Any]) -> None:
    x = draw(fun)

    def total(y: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(fun(y)))

    hessians = jnp.stack([jax.jacfwd(jax.jacrev(total))(one) for one in x[:8]])
    assert_close(jax.jit(jax.vmap(hessve(total)))(x)[:8], hessians)
    traces = jax.jit(jax.vmap(laplacian_ve(total)))(x)[:8]
    scale = jnp.abs(hessians).max(axis=(1, 2))
    np.testing.assert_allclose(traces / scale, jnp.trace(hessians, 0, 1, 2) / scale, atol=1e-8)


@pytest.mark.parametrize("fun", [solve, root], ids=lambda fun: fun.__name__)
def test_derivatives_of_derivatives(fun: Callable[..., Any]) -> None:
    x = draw(fun)

    def loss(x: jax.Array, derive: Callable[..., Any]) -> jax.Array:
        return jnp.sum(jnp.sin(jax.vmap(derive(fun))(x)))

    found = jax.jit(jax.grad(loss), static_argnums=1)(x, jacve)
    each = [jax.grad(lambda y: jnp.sum(jnp.sin(jax.jacrev(fun)(y))))(one) for one in x[:8]]
    assert_close(found[:8], jnp.stack(each))


def in_numbers(fun: Callable[..., Any], x: np.ndarray) -> list[np.ndarray]:
    """The results of a function number by number, of numbers that are known when it runs."""
    closed = jax.make_jaxpr(fun)(x)
    tape = Tape()
    recorded = tape.input(x.shape, x.dtype, True)
    results = run_numbers(closed.jaxpr, closed.consts, [recorded], tape.apply)
    program = tape.program(results, 1, 1)
    found = jax.jit(lambda x: [jnp.stack([*n.ravel()]).reshape(n.shape) for n in program([x])])
    return list(map(np.asarray, found(x)))


MATRICES = {
    "zeros": np.zeros((3, 3)),
    "a column of zeros": np.array([[1.0, 0, 2], [3, 0, 4], [5, 0, 6]]),
    "equal rows": np.array([[1.0, 2, 3], [1, 2, 3], [4, 5, 7]]),
    "pivots of the same size": np.array([[2.0, 1, 1], [-2, 3, 0], [2, 0, 5]]),
    "from the last row to the first": np.array([[0.0, 0, 1], [0, 1, 0], [1, 0, 0]]),
    "around": np.array([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]]),
    "in order": np.eye(3),
}


@pytest.mark.parametrize("name", MATRICES)
def test_which_rows_are_pivots(name: str) -> None:
    """The first of those of the same size; a column of zeros is left as it is."""
    found = in_numbers(jax.lax.linalg.lu, MATRICES[name])
    for ours, theirs in zip(found, jax.lax.linalg.lu(MATRICES[name]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-14)


@pytest.mark.parametrize(
    "matrix",
    [
        np.diag([1.0, -1.0, 1.0]),
        np.diag([1.0, 1.0, 0.0]),
        np.diag([1.0, np.nan, 1.0]),
        np.array([[1.0, 2.0], [2.0, 1.0]]),
        np.array([[4.0, 7.0], [2.0, 5.0]]),
    ],
    ids=["negative", "singular", "no number", "indefinite", "only below the diagonal"],
)
def test_matrices_without_a_root(matrix: np.ndarray) -> None:
    """No entry is a number where there is none; what stands above the diagonal is not read."""

    def lower(matrix: jax.Array) -> jax.Array:
        return jnp.tril(jax.lax.linalg.cholesky(matrix, symmetrize_input=False))

    (found,) = in_numbers(lower, matrix)
    np.testing.assert_allclose(found, lower(matrix), rtol=1e-14)


@pytest.mark.parametrize("name", ["zeros", "a column of zeros", "equal rows"])
def test_determinants_of_singular_matrices(name: str) -> None:
    batch = np.broadcast_to(np.pad(MATRICES[name], (0, 1)), (BATCH, 4, 4))
    found = jax.jit(jax.vmap(jacve(jnp.linalg.det)))(batch)
    np.testing.assert_allclose(found[0], jacve(jnp.linalg.det)(batch[0]), atol=1e-13)
    logarithms = jax.jit(jax.vmap(value_and_jacve(jnp.linalg.slogdet)))(batch)[0]
    assert np.all(logarithms[0] == 0.0)
    assert np.all(logarithms[1] == -np.inf)


def test_larger_matrices_are_left_to_the_library() -> None:
    """As arrays they are, and so is all around them."""
    x = np.random.default_rng(1).normal(size=(BATCH, 6, 6))
    compiled = jax.jit(jax.vmap(jacve(lambda x: jnp.linalg.solve(x, x[0])))).lower(x).compile()
    assert any(call in compiled.as_text() for call in CALLS)
    each = [jax.jacrev(lambda x: jnp.linalg.solve(x, x[0]))(one) for one in x[:8]]
    assert_close(compiled(x)[:8], jnp.stack(each))


@pytest.mark.parametrize("fun", [solve, likelihood], ids=lambda fun: fun.__name__)
def test_they_lower_for_other_devices(fun: Callable[..., Any]) -> None:
    own = jax.jit(jax.vmap(jacve(fun)))
    exported = jax.export.export(own, platforms=("cpu", "cuda"))(draw(fun))
    assert exported.platforms == ("cpu", "cuda")
