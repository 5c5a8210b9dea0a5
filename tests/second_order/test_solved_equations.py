"""Hessians of what solves an equation: solutions and factors, from the equation itself."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import linalg

from graphax_lapl import hessian_diagonal, hessve, jacve, laplacian_ve
from graphax_lapl.errors import FallbackError
from graphax_lapl.rules.implicit import LOWER_IS_READ

SIDE = 4


def entries(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def positive(a: jax.Array) -> jax.Array:
    return a @ a.mT + 2 * jnp.eye(a.shape[-1])


def same_hessian(f: Any, *inputs: jax.Array, argnums: Any = 0) -> None:
    found, expected = hessve(f, argnums=argnums)(*inputs), jax.hessian(f, argnums)(*inputs)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9 * float(jnp.abs(other).max()))


def evidence(t: jax.Array) -> jax.Array:
    """Of a Gaussian process: a Cholesky factor and two substitutions."""
    x, y = entries(7, 2, seed=1), entries(7, seed=2)
    distances = jnp.sum(((x[:, None] - x[None]) / t[:2]) ** 2, -1)
    factor = jnp.linalg.cholesky(t[2] ** 2 * jnp.exp(-distances / 2) + t[3] ** 2 * jnp.eye(7))
    return y @ linalg.cho_solve((factor, True), y) / 2 + jnp.sum(jnp.log(jnp.diag(factor)))


CASES: dict[str, Any] = {
    "evidence": (evidence, (4,)),
    "factor": (lambda a: jnp.sum(jnp.sin(jnp.linalg.cholesky(positive(a)))), (SIDE, SIDE)),
    "factors": (lambda a: jnp.sum(jnp.linalg.cholesky(positive(a)) ** 3), (2, 3, 3)),
    "upper factor": (lambda a: jnp.sum(linalg.cholesky(positive(a)) ** 3), (SIDE, SIDE)),
    "entries of a factor": (lambda a: jnp.linalg.cholesky(positive(a))[2], (3, 3)),
    "solution": (
        lambda a: jnp.sum(jnp.linalg.solve(a[:, 1:] + 3 * jnp.eye(3), a[:, 0]) ** 2),
        (3, 4),
    ),
    "solutions": (lambda a: jnp.sum(jnp.linalg.solve(positive(a), jnp.sin(a[0])) ** 3), (2, 3, 3)),
    "entries of a solution": (lambda a: jnp.linalg.solve(positive(a), a[1] ** 2), (3, 3)),
    "right-hand side": (
        lambda b: jnp.sum(jnp.linalg.solve(positive(entries(3, 3)), b**2) ** 3),
        (3, 2),
    ),
    "matrix": (lambda a: jnp.sum(jnp.linalg.solve(positive(a), entries(3, 2)) ** 3), (3, 3)),
    "inverse": (lambda a: jnp.sum(jnp.linalg.inv(positive(a)) ** 2), (9, 9)),
    "solution of a solution": (
        lambda a: jnp.sum(
            jnp.linalg.solve(positive(a), jnp.linalg.solve(a + 4 * jnp.eye(3), a[0]))
        ),
        (3, 3),
    ),
    "positive solution": (
        lambda a: jnp.sum(linalg.solve(positive(a), jnp.cos(a[0]), assume_a="pos") ** 2),
        (3, 3),
    ),
    "evidence by elimination": (
        lambda a: jnp.linalg.slogdet(positive(a))[1] + a[0] @ jnp.linalg.solve(positive(a), a[0]),
        (SIDE, SIDE),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_hessians(name: str) -> None:
    fun, shape = CASES[name]
    x = 0.7 + 0.3 * entries(*shape, seed=3)
    same_hessian(fun, x)
    if name != "upper factor" or LOWER_IS_READ:  # of SciPy, which makes nothing symmetric
        hessve(fun, strict=True)(x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["evidence", "factors", "solutions", "solution of a solution"])
def test_diagonals(name: str) -> None:
    fun, shape = CASES[name]
    x = 0.7 + 0.3 * entries(*shape, seed=3)
    expected = jnp.diag(jax.hessian(fun)(x).reshape(x.size, x.size)).reshape(shape)
    np.testing.assert_allclose(hessian_diagonal(fun)(x), expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_substitutions(left: bool, lower: bool, turned: bool, unit: bool) -> None:
    # The other triangle moves too, and counts for nothing.
    def both(t: jax.Array, b: jax.Array) -> jax.Array:
        matrix = 0.3 * t * t + 2 * jnp.eye(3)
        solved = lax.linalg.triangular_solve(
            matrix, b**2, left_side=left, lower=lower, transpose_a=turned, unit_diagonal=unit
        )
        return jnp.sum(jnp.sin(solved))

    t, b = entries(2, 3, 3), entries(2, 3, 2) if left else entries(2, 2, 3)
    same_hessian(both, t, b, argnums=(0, 1))
    same_hessian(both, t, b, argnums=0)
    same_hessian(both, t, b, argnums=1)


@pytest.mark.slow
@pytest.mark.parametrize("symmetrised", [True, False])
def test_the_lower_triangle_is_read(symmetrised: bool) -> None:
    def f(x: jax.Array) -> jax.Array:
        matrix = jnp.diag(4 + x[:3]) + jnp.tril(jnp.outer(x[:3], x[3:]), -1)
        factor = lax.linalg.cholesky(matrix, symmetrize_input=symmetrised)
        return jnp.sum(jnp.tril(factor) ** 3)

    same_hessian(f, entries(6))


@pytest.mark.slow
def test_several_matrices_in_one_program() -> None:
    def f(a: jax.Array, b: jax.Array) -> jax.Array:
        factor = jnp.linalg.cholesky(positive(a))
        inner = linalg.solve_triangular(factor, b, lower=True)
        return jnp.stack([jnp.sum(inner**2), jnp.linalg.solve(positive(inner[:, :3]), b[:, 0])[0]])

    same_hessian(f, entries(3, 3), entries(3, 4), argnums=(0, 1))


@pytest.mark.slow
def test_samples() -> None:
    x = 0.7 + 0.3 * entries(5, 4, seed=3)
    found = jax.jit(jax.vmap(hessve(evidence)))(x)
    np.testing.assert_allclose(found, jax.vmap(jax.hessian(evidence))(x), rtol=1e-9)
    traces = jnp.trace(found, axis1=1, axis2=2)
    np.testing.assert_allclose(traces, jax.vmap(laplacian_ve(evidence))(x), rtol=1e-9)


@pytest.mark.slow
def test_third_derivatives() -> None:
    x = 0.7 + 0.3 * entries(4, seed=3)
    expected = jax.jacfwd(jax.hessian(evidence))(x)
    np.testing.assert_allclose(jax.jacfwd(hessve(evidence))(x), expected, rtol=1e-8)
    np.testing.assert_allclose(jax.jacrev(hessve(evidence))(x), expected, rtol=1e-8)


def solves_of(fun: Any, x: jax.Array) -> int:
    return jax.jit(fun).lower(x).compile().as_text().count("trsm_ffi")


@pytest.mark.slow
def test_columns_are_solved_for_once() -> None:
    # Both substitutions, and each way back; forward over reverse mode also moves those back.
    x = jnp.ones(4)
    assert solves_of(hessve(evidence), x) < solves_of(jax.hessian(evidence), x)
    assert solves_of(hessve(evidence), x) < solves_of(jacve(jax.grad(evidence)), x)


def shifted(x: jax.Array, v: jax.Array) -> jax.Array:
    return (1 + x**2) * v + 0.1 * jnp.roll(v, 1)


def with_numbers(x: jax.Array, v: jax.Array) -> jax.Array:
    return 2.0 * v + 0.1 * jnp.roll(v, 1)


def in_parts(x: jax.Array, v: jax.Array) -> jax.Array:
    first, second = jnp.split(v, 2)
    return jnp.concatenate([(3 + x[:2]) * first, second + jnp.sin(x[0]) * second])


@pytest.mark.slow
@pytest.mark.parametrize("times", [shifted, with_numbers, in_parts])
def test_solves_of_other_kinds_go_around(times: Any) -> None:
    """A matrix that is no array: `custom_linear_solve` with a function of the user's."""

    def f(x: jax.Array) -> jax.Array:
        def solve(matvec: Any, b: jax.Array) -> jax.Array:
            return jnp.linalg.solve(jax.jacfwd(matvec)(jnp.zeros_like(b)), b)

        product = functools.partial(times, x)
        found = lax.custom_linear_solve(product, jnp.sin(x), solve, transpose_solve=solve)
        return jnp.sum(found**2)

    x = entries(4)
    same_hessian(f, x)
    if times is with_numbers:  # whose matrix does not move
        hessve(f, strict=True)(x)
    else:
        with pytest.raises(FallbackError, match="custom_linear_solve"):
            hessve(f, strict=True)(x)
