r"""A dense row, a dense column and a diagonal: 3 n - 2 nonzeros, and no colouring compresses it.

    f_0 = sum_i x_i^2,    f_i = sin(x_i) + x_0 x_i   (i > 0)

Every pair of columns meets in the first row and every pair of rows in the first column.

Source: T. F. Coleman, A. Verma, "The efficient computation of sparse Jacobian matrices using
automatic differentiation", SIAM J. Sci. Comput. 19 (1998), section 2, where such matrices motivate
products from both sides.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.sparse.problem import Instance, SparseProblem, joined, uniform


def arrowhead(x: jax.Array) -> jax.Array:
    """One equation that couples to all, all others couple to one; (n,) -> (n,)."""
    rest = x[1:]
    return jnp.concatenate([jnp.sum(x * x)[None], jnp.sin(rest) + x[0] * rest])


def _by_hand(x: jax.Array) -> tuple[jax.Array, ...]:
    rest = x[1:]
    return 2.0 * x, rest, jnp.cos(rest) + x[0]


def make(n: int, dtype: Any, seed: int) -> Instance:
    """The function of n numbers."""
    every = np.arange(n)
    rest, zero = every[1:], np.zeros(n, np.int64)
    rows, cols = joined((zero, every), (rest, zero[1:]), (rest, rest))
    return Instance(arrowhead, uniform(seed, n, dtype), _by_hand, rows, cols)


SOURCE = "Coleman and Verma, SIAM J. Sci. Comput. 19 (1998), section 2"
PROBLEMS = (SparseProblem("arrowhead", make, 5_000, 9, SOURCE),)
