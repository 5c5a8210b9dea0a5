r"""A chain of cells of three states, a function of a cell and its neighbours under `jax.vmap`.

    y_i = tanh(A x_i) (x_i)_0 + sin(x_{i-1}) x_i - x_{i+1}^2

(products by element), zero before the first and one after the last cell: a block tridiagonal
Jacobian, full blocks on the diagonal and diagonal ones beside it, 15 n - 6 nonzeros.

Source: such matrices are those of U. Ascher, R. Mattheij, R. Russell, "Numerical Solution of
Boundary Value Problems for Ordinary Differential Equations" (1995), chapter 7; the cell is this
file's own.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.sparse.problem import Instance, SparseProblem, joined, uniform

STATES = 3


def make(n: int, dtype: Any, seed: int) -> Instance:
    """A chain of n >= 2 cells, 3 n unknowns."""
    weights = uniform(seed + 1, (STATES, STATES), dtype, -1.0, 1.0)

    def cell(left: jax.Array, own: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.tanh(weights @ own) * own[0] + jnp.sin(left) * own - right**2

    def chain(x: jax.Array) -> jax.Array:
        cells = x.reshape(n, STATES)
        left = jnp.concatenate([jnp.zeros((1, STATES), x.dtype), cells[:-1]])
        right = jnp.concatenate([cells[1:], jnp.ones((1, STATES), x.dtype)])
        return jax.vmap(cell)(left, cells, right).reshape(-1)

    def by_hand(x: jax.Array) -> tuple[jax.Array, ...]:
        cells = x.reshape(n, STATES)
        bend = jnp.tanh(cells @ weights.T)
        full = ((1.0 - bend**2) * cells[:, :1])[:, :, None] * weights
        full = full.at[:, :, 0].add(bend)
        before = jnp.pad(jnp.sin(cells[:-1]), ((1, 0), (0, 0)))
        full += before[:, :, None] * jnp.eye(STATES, dtype=x.dtype)
        return full, jnp.cos(cells[:-1]) * cells[1:], -2.0 * cells[1:]

    own = np.arange(STATES * n).reshape(n, STATES)
    shape = (n, STATES, STATES)
    block = np.broadcast_to(own[:, :, None], shape), np.broadcast_to(own[:, None, :], shape)
    rows, cols = joined(block, (own[1:], own[:-1]), (own[:-1], own[1:]))
    return Instance(chain, uniform(seed, STATES * n, dtype), by_hand, rows, cols)


SOURCE = "Ascher, Mattheij and Russell (1995), chapter 7"
PROBLEMS = (SparseProblem("cell_chain", make, 3_000, 5, SOURCE),)
