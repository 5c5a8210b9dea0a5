"""Second derivatives of factorizations and solves, also of ill-conditioned matrices."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import computational_graph, hessve, laplacian_ve, make_plan
from graphax_lapl.program.instructions import CurvatureInstruction
from tests.checks import assert_same

N = 5
RNG = np.random.default_rng(5)
MIXES = RNG.standard_normal((3, N))
X = RNG.standard_normal((N, 3))
SYMMETRIC = RNG.standard_normal((3 * N, 3 * N))
METRIC = SYMMETRIC + SYMMETRIC.T


def general(x: Any) -> Any:
    """A matrix without symmetry."""
    return jnp.tanh(x @ MIXES) + 2 * np.eye(N)


def positive(x: Any, shift: float = 1.0) -> Any:
    """A positive definite matrix, whose smallest eigenvalues are near `shift`."""
    return jnp.sin(x) @ jnp.sin(x).T + shift * np.diag(1 + np.arange(N))


def triangular(x: Any) -> list[Any]:
    """All ways to solve with a triangle, with right-hand sides that move and that do not."""

    def solved(side: Any, lower: bool, transposed: bool, unit: bool, left: bool) -> Any:
        return lax.linalg.triangular_solve(
            general(x),
            jnp.asarray(side),
            left_side=left,
            lower=lower,
            transpose_a=transposed,
            unit_diagonal=unit,
        )

    sides = {True: (x, np.ones((N, 3))), False: (x.T, np.ones((3, N)))}
    flags = itertools.product((True, False), repeat=4)
    # A right-hand side that moves for every other way.
    return [solved(sides[how[-1]][sum(how) % 2], *how) for how in flags]


def skewed_factor(x: Any) -> Any:
    """The factor of a matrix whose upper triangle is another one, which is not read."""
    return jnp.tril(
        lax.linalg.cholesky(positive(x) + jnp.triu(general(x), 1), symmetrize_input=False)
    )


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "triangular solves": triangular,
    "cholesky": lambda x: jnp.linalg.cholesky(positive(x)),
    "cholesky, skewed": skewed_factor,
    "cholesky, ill-conditioned": lambda x: jnp.linalg.cholesky(positive(x, 1e-8)),
    "cholesky in a batch": lambda x: jnp.linalg.cholesky(
        jnp.stack([positive(x), positive(jnp.cos(x))])
    ),
    "eigenvalues": lambda x: jnp.linalg.eigvalsh(positive(x)),
    "inverse": lambda x: jnp.linalg.inv(general(x)),
    "solve": lambda x: jnp.linalg.solve(general(x), jnp.sin(x)),
    "cho_solve": lambda x: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(positive(x)), True), x),
    "inverse, ill-conditioned": lambda x: jnp.linalg.inv(positive(x, 1e-4)),
}


def test_second_derivatives_of_solves_read_the_columns_of_the_solution() -> None:
    program = make_plan(FUNCTIONS["solve"], X, kind="laplacian").program
    made = [i for i in program.instructions if isinstance(i, CurvatureInstruction)]
    assert [instruction.solution for instruction in made] == [(True, True)]


@pytest.mark.parametrize(
    "fun",
    [jnp.linalg.inv, jnp.linalg.det, lambda a: jnp.linalg.slogdet(a)[1]],
    ids=["inv", "det", "slogdet"],
)
def test_matrices_are_factorised_once_in_a_training_step(fun: Callable[[Any], Any]) -> None:
    """All else is products, on the way back as well."""

    def energy(x: Any) -> Any:
        return jnp.sum(jnp.sin(fun(general(x))))

    laplacian = laplacian_ve(energy)
    value, step = (str(jax.make_jaxpr(f)(X)) for f in (laplacian, jax.grad(laplacian)))
    for name in ("custom_linear_solve[", "triangular_solve["):
        assert step.count(name) == value.count(name)


def test_inverses_under_vmap() -> None:
    """Mapped along any axes the program is another one, and their second derivatives too."""
    x = np.stack([general(X), general(0.5 * X)], 2)
    energy = lambda inverse: lambda x: jnp.sum(jnp.sin(inverse(x)))  # noqa: E731
    ours = energy(jax.vmap(jnp.linalg.inv, 2))
    plain = energy(lambda x: jnp.linalg.inv(jnp.moveaxis(x, 2, 0)))
    expected = jax.jit(jax.hessian(plain))(x)
    sparse = jax.jit(hessve(ours, sparse_representation=True, strict=True))(x)
    assert sparse.nse == 2 * N**4
    assert_same(sparse.todense(), expected)
    graph = computational_graph(ours, x, kind="laplacian")
    assert [v.primitive for v in graph.vertices if "inv" in v.primitive] == ["inverse"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_contracted_with_the_identity_and_with_a_matrix(name: str) -> None:
    """With a matrix the two Jacobians of a pair differ."""
    fun = FUNCTIONS[name]
    found = jax.jit(lambda x: (laplacian_ve(fun)(x), laplacian_ve(fun, weights=METRIC)(x)))(X)
    hessians = jax.jit(jax.hessian(fun))(X)
    tolerance = 1e-6 if "ill" in name else 1e-9
    for ours, matrix in zip(found, (np.eye(X.size), METRIC), strict=True):
        for own, hessian in zip(jax.tree.leaves(ours), jax.tree.leaves(hessians), strict=True):
            flat = jnp.reshape(hessian, (*own.shape, X.size, X.size))
            expected = jnp.einsum("...ij,ij->...", flat, matrix)
            scale = float(jnp.max(jnp.abs(expected)))
            assert_same(own / scale, expected / scale, tolerance=tolerance)


@pytest.mark.slow
def test_a_training_step_through_a_factor() -> None:
    """Closed forms are differentiated as any other program."""

    def energy(x: Any) -> Any:
        return jnp.sum(jnp.sin(jnp.linalg.cholesky(positive(x))))

    def trace(x: Any) -> Any:
        return jnp.trace(jnp.reshape(jax.jit(jax.hessian(energy))(x), (X.size, X.size)))

    found, expected = (
        jax.jit(jax.grad(lambda scale, f=f: f(scale * X)))(1.3)
        for f in (laplacian_ve(energy), trace)
    )
    assert_same(found, expected)
