"""The heat equation with radiation, dw/dt = w_xx + w_yy - w^4, on an N x N grid, in three ways.

The radiation keeps the Jacobian from being a constant, which a compiler would evaluate. Neighbours:
with `jnp.roll` (a torus, 5 N^2 nonzeros), with padding and slices, and as a convolution whose 3 x 3
kernel has zeros in its corners (both zero outside of the square, 5 N^2 - 4 N nonzeros; an analysis
that does not look at the kernel finds 9 N^2 - 12 N + 4).

Source: any textbook, e.g. R. J. LeVeque, "Finite Difference Methods for Ordinary and Partial
Differential Equations" (2007), section 3.2.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.problems.sparse.problem import Instance, SparseProblem, joined, uniform

STENCIL = np.array([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])


def _grid(w: jax.Array) -> tuple[int, jax.Array]:
    n = round(w.size**0.5)
    return n, w.reshape(n, n)


def heat_roll(w: jax.Array) -> jax.Array:
    """On a torus; (N^2,) -> (N^2,)."""
    n, grid = _grid(w)
    neighbours = sum(jnp.roll(grid, shift, axis) for axis in (0, 1) for shift in (1, -1))
    return ((neighbours - 4.0 * grid) * float(n * n) - grid**4).reshape(-1)


def heat_slices(w: jax.Array) -> jax.Array:
    """Zero outside of the square, by slices of the padded grid."""
    n, grid = _grid(w)
    padded = jnp.pad(grid, 1)
    neighbours = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    return ((neighbours - 4.0 * grid) * float(n * n) - grid**4).reshape(-1)


def heat_convolution(w: jax.Array) -> jax.Array:
    """Zero outside of the square, by a convolution."""
    n, grid = _grid(w)
    kernel = jnp.asarray(STENCIL * n * n, w.dtype)
    result = lax.conv_general_dilated(grid[None, None], kernel[None, None], (1, 1), "SAME")
    return result.reshape(-1) - w**4


def _by_hand(w: jax.Array) -> tuple[jax.Array, ...]:
    scale = float(w.size)
    return -4.0 * (scale + w**3), jnp.full((4, w.size), scale, w.dtype)


def make(
    n: int, dtype: Any, seed: int, *, fun: Callable[..., jax.Array], periodic: bool
) -> Instance:
    """The equation on an n x n grid, n >= 3."""
    own = np.arange(n * n).reshape(n, n)
    around = np.pad(own, 1, mode="wrap") if periodic else np.pad(own, 1, constant_values=-1)
    cols = np.stack([around[:-2, 1:-1], around[2:, 1:-1], around[1:-1, :-2], around[1:-1, 2:]])
    rows, cols = joined((own, own), (np.where(cols < 0, -1, own), cols))
    return Instance(fun, uniform(seed, n * n, dtype), _by_hand, rows, cols)


SOURCE = "LeVeque, Finite Difference Methods (2007), section 3.2"
PROBLEMS = tuple(
    SparseProblem(f"heat_{name}", partial(make, fun=fun, periodic=periodic), 64, 5, SOURCE)
    for name, fun, periodic in (
        ("roll", heat_roll, True),
        ("slices", heat_slices, False),
        ("convolution", heat_convolution, False),
    )
)
