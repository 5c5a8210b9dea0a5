"""Linear solves inside loops and branches, where an opaque equation moves one operand at a time."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import hessve, jacve, laplacian_ve, make_plan
from graphax_lapl.edges.operations import ApplyOpaque, MaterializeOpaque
from tests.checks import assert_same

MATRIX = np.array([[2.0, 0.3], [0.1, 1.5]])
RIGHT = np.array([0.4, -1.2])


def branch(a: jax.Array) -> jax.Array:
    """A solve in one branch: its factors are residuals of the branch."""
    return jax.lax.cond(a[0, 0] > 1, lambda m: jnp.linalg.solve(m, RIGHT), lambda m: m @ RIGHT, a)


def loop(a: jax.Array) -> jax.Array:
    def step(x: jax.Array, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
        solved = jnp.linalg.solve(a + shift, x)
        return solved, solved[0]

    return jax.lax.scan(step, RIGHT, np.linspace(0, 1, 12))[1]


@pytest.mark.parametrize("fun", [branch, loop])
@pytest.mark.parametrize("first", [jax.jacrev, jax.jacfwd], ids=["of jacrev", "of jacfwd"])
def test_jacobian_of_a_jacobian(fun: Callable[..., Any], first: Callable[..., Any]) -> None:
    expected = jax.jit(jax.jacfwd(jax.jacrev(fun)))(MATRIX)
    assert_same(jacve(first(fun))(MATRIX), expected)


@pytest.mark.slow
@pytest.mark.parametrize("fun", [branch, loop])
def test_second_order(fun: Callable[..., Any]) -> None:
    expected = jax.jit(jax.hessian(fun))(MATRIX)
    assert_same(hessve(fun)(MATRIX), expected)
    assert_same(laplacian_ve(fun)(MATRIX), jnp.einsum("kabab->k", expected))


@pytest.mark.conformance
def test_matrix_exponential_twice() -> None:
    fun = jax.scipy.linalg.expm
    assert_same(hessve(fun)(0.3 * MATRIX), jax.jit(jax.hessian(fun))(0.3 * MATRIX))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_entries_of_a_triangular_solve(left: bool, lower: bool, transposed: bool) -> None:
    """Each right-hand side on its own, in the order of the triangle: no entry is always zero."""

    def fun(x: jax.Array) -> jax.Array:
        a, b = x[:9].reshape(3, 3) + 4 * jnp.eye(3), x[9:].reshape(3, 2)
        return jax.lax.linalg.triangular_solve(
            a, b if left else b.T, left_side=left, lower=lower, transpose_a=transposed
        )

    x = np.random.default_rng(5).standard_normal(15)
    expected = np.asarray(jax.jit(jax.jacrev(fun))(x))
    found = jax.jit(jacve(fun, "reverse", sparse_representation=True))(x)
    assert_same(found.todense(), expected)
    assert found.nse == np.count_nonzero(np.abs(expected) > 1e-14)


@pytest.mark.parametrize("argnums", [1, (0, 1)])
def test_a_system_is_solved_for_value_and_inverse_alone(argnums: int | tuple[int, int]) -> None:
    """One inverse for both operands, and nothing for operands that do not move."""
    random = np.random.default_rng(4)  # of so many unknowns that a library is called
    point = (np.eye(6) + 0.1 * random.standard_normal((6, 6)), random.standard_normal(6))
    jacobian = jacve(jnp.linalg.solve, argnums=argnums)
    assert_same(jacobian(*point), jax.jacrev(jnp.linalg.solve, argnums)(*point))
    text = jax.jit(jacobian).lower(*point).compile().as_text()
    solves = len(re.findall(r'custom_call_target="lapack_\w*trsm', text))
    assert solves == (2 if argnums == 1 else 4)  # each with two triangular factors


def boundary_value_problem(u: jax.Array) -> jax.Array:
    inner = jnp.concatenate([jnp.zeros(1), u, jnp.ones(1)])
    return 9 * (inner[2:] - 2 * inner[1:-1] + inner[:-2]) - jnp.exp(u)


def newton_step(u: jax.Array) -> jax.Array:
    """Three diagonals in front of the solve."""
    return u - jnp.linalg.solve(jax.jacfwd(boundary_value_problem)(u), boundary_value_problem(u))


def few_columns(u: jax.Array) -> jax.Array:
    """Columns one by one; that of u[2] is zero."""
    right = jnp.stack([u[0] * u[1], u[1] ** 2, jnp.sin(u[3]) * u[0], u[3] * u[1]])
    return jnp.linalg.solve(jnp.diag(jnp.arange(3.0, 7.0)) + jnp.ones((4, 4)), right)


def rows_of_a_solution(u: jax.Array) -> jax.Array:
    """Rows behind the solve."""
    solution = jnp.linalg.solve(jnp.diag(jnp.arange(3.0, 7.0)) + jnp.ones((4, 4)), jnp.sin(u))
    return jnp.stack([solution[0] * solution[1], solution[2] ** 2, jnp.cos(solution[3])])


@pytest.mark.parametrize("fun", [newton_step, few_columns, rows_of_a_solution])
@pytest.mark.parametrize("order", ["auto", "forward"])
def test_a_solve_met_by_several_terms_is_evaluated_once(
    fun: Callable[..., Any], order: str
) -> None:
    point = np.linspace(0.3, 1.2, 4)
    assert_same(jacve(fun, order=order)(point), jax.jit(jax.jacfwd(fun))(point))
    instructions = make_plan(fun, point, order=order).program.instructions
    operations = [getattr(instruction, "operation", None) for instruction in instructions]
    assert sum(isinstance(o, ApplyOpaque | MaterializeOpaque) for o in operations) == 1


def test_a_solve_met_by_several_terms_keeps_zeros() -> None:
    point = np.linspace(0.3, 1.2, 4)
    found = jacve(few_columns, sparse_representation=True)(point)
    assert found.nse == 12
    assert_same(found.todense(), jax.jacfwd(few_columns)(point))
