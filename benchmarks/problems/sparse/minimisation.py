r"""Two test functions of minimisation with a sparse Hessian, at any number of variables.

Chained Rosenbrock, sum_i 100 (x_{i+1} - x_i^2)^2 + (1 - x_i)^2: tridiagonal, 3 n - 2 nonzeros.
Extended Powell, for each four variables (a + 10 b)^2 + 5 (c - d)^2 + (b - 2 c)^4 + 10 (a - d)^4:
blocks of 12 nonzeros, 3 n in all.

Sources: A. R. Conn, N. Gould, Ph. Toint, "Testing a class of methods for solving minimization
problems with simple bounds on the variables", Math. Comp. 50 (1988), 399-430 (chained Rosenbrock);
J. More, B. Garbow, K. Hillstrom, "Testing unconstrained optimization software", ACM TOMS 7 (1981),
problem 22 (extended Powell).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.sparse.problem import Instance, SparseProblem, joined, uniform


def rosenbrock(x: jax.Array) -> jax.Array:
    """Chained Rosenbrock function; (n,) -> ()."""
    return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def _rosenbrock_by_hand(x: jax.Array) -> tuple[jax.Array, ...]:
    head = x[:-1]
    own = 1200.0 * head * head - 400.0 * x[1:] + 2.0
    diagonal = jnp.pad(own, (0, 1)) + jnp.pad(jnp.full_like(head, 200.0), (1, 0))
    side = -400.0 * head
    return side, diagonal, side


def make_rosenbrock(n: int, dtype: Any, seed: int) -> Instance:
    """The function of n variables."""
    head, every = np.arange(n - 1), np.arange(n)
    rows, cols = joined((head + 1, head), (every, every), (head, head + 1))
    return Instance(rosenbrock, uniform(seed, n, dtype), _rosenbrock_by_hand, rows, cols)


def powell(x: jax.Array) -> jax.Array:
    """Extended Powell singular function; (n,) -> (), n a multiple of 4."""
    a, b, c, d = x.reshape(-1, 4).T
    terms = (a + 10.0 * b) ** 2 + 5.0 * (c - d) ** 2 + (b - 2.0 * c) ** 4 + 10.0 * (a - d) ** 4
    return jnp.sum(terms)


def _powell_by_hand(x: jax.Array) -> tuple[jax.Array, ...]:
    a, b, c, d = x.reshape(-1, 4).T
    bc, ad = 12.0 * (b - 2.0 * c) ** 2, 120.0 * (a - d) ** 2
    twenty, ten = jnp.full_like(a, 20.0), jnp.full_like(a, -10.0)
    diagonal = jnp.stack([ad + 2.0, bc + 200.0, 4.0 * bc + 10.0, ad + 10.0])
    side = jnp.stack([twenty, -ad, -2.0 * bc, ten])
    return diagonal, side, side


def make_powell(n: int, dtype: Any, seed: int) -> Instance:
    """The function of n variables, n a multiple of 4."""
    first = 4 * np.arange(n // 4)
    diagonal = np.stack([first + k for k in range(4)])
    row = np.stack([first + k for k in (0, 0, 1, 2)])
    col = np.stack([first + k for k in (1, 3, 2, 3)])
    rows, cols = joined((diagonal, diagonal), (row, col), (col, row))
    return Instance(powell, uniform(seed, n, dtype), _powell_by_hand, rows, cols)


PROBLEMS = (
    SparseProblem(
        "rosenbrock",
        make_rosenbrock,
        100_000,
        9,
        "Conn, Gould and Toint, Math. Comp. 50 (1988)",
        "hessian",
    ),
    SparseProblem(
        "powell",
        make_powell,
        10_000,
        8,
        "More, Garbow and Hillstrom, ACM TOMS 7 (1981), problem 22",
        "hessian",
    ),
)
