r"""Robertson's stiff kinetics in a chain of cells that exchange their contents by diffusion.

    a' = -0.04 a + 1e4 b c,   b' = 0.04 a - 1e4 b c - 3e7 b^2,   c' = 3e7 b^2

in each cell, plus D (left - 2 own + right) for every species, no flux at the ends: 8 nonzeros per
cell and 6 per pair of neighbours.

Source: H. H. Robertson (1966), as given in Hairer and Wanner, "Solving Ordinary Differential
Equations II", section IV.1, equation (1.4).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.sparse.problem import Instance, SparseProblem, joined, uniform

K1, K2, K3 = 0.04, 3e7, 1e4
DIFFUSION = 0.1


def robertson(y: jax.Array) -> jax.Array:
    """Time derivative; the three species of a cell stand next to each other, (3 n,) -> (3 n,)."""
    cells = y.reshape(-1, 3)
    a, b, c = cells[:, 0], cells[:, 1], cells[:, 2]
    first, second, third = K1 * a, K2 * b * b, K3 * b * c
    reaction = jnp.stack([third - first, first - third - second, second], axis=1)
    flux = DIFFUSION * (cells[1:] - cells[:-1])
    exchange = jnp.pad(flux, ((0, 1), (0, 0))) - jnp.pad(flux, ((1, 0), (0, 0)))
    return (reaction + exchange).reshape(-1)


def _by_hand(y: jax.Array) -> tuple[jax.Array, ...]:
    cells = y.reshape(-1, 3)
    n = len(cells)
    b, c = cells[:, 1], cells[:, 2]
    kb, kc, square = K3 * b, K3 * c, 2.0 * K2 * b
    loss = np.full((n,), 2.0 * DIFFUSION)
    loss[[0, -1]] = DIFFUSION
    out = jnp.asarray(loss, y.dtype)
    k1 = jnp.full_like(b, K1)
    block = [-K1 - out, kc, kb, k1, -kc - square - out, -kb, square, -out]
    return jnp.stack(block), jnp.full((2, n - 1, 3), DIFFUSION, y.dtype)


def make(n: int, dtype: Any, seed: int) -> Instance:
    """A chain of n >= 2 cells, 3 n unknowns."""
    own = 3 * np.arange(n)
    rows = np.stack([own + k for k in (0, 0, 0, 1, 1, 1, 2, 2)])
    cols = np.stack([own + k for k in (0, 1, 2, 0, 1, 2, 1, 2)])
    left = np.arange(3 * n - 3).reshape(-1, 3)
    exchange = np.stack([left, left + 3]), np.stack([left + 3, left])
    rows, cols = joined((rows, cols), exchange)
    x = uniform(seed, 3 * n, dtype) * jnp.tile(jnp.asarray([1.0, 1e-4, 1.0], dtype), n)
    return Instance(robertson, x, _by_hand, rows, cols)


SOURCE = "Robertson (1966); Hairer and Wanner, Solving ODEs II, equation IV.1.4"
PROBLEMS = (SparseProblem("robertson_chain", make, 3_000, 4, SOURCE),)
