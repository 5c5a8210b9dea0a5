"""The Brusselator on a square grid as an ODE solver sees it; 12 N^2 nonzeros."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems import brusselator as equations
from benchmarks.problems.sparse.problem import (
    Instance,
    Positions,
    SparseProblem,
    joined,
    uniform,
)


def _by_hand(y: jax.Array) -> tuple[jax.Array, ...]:
    n = round((y.size / 2) ** 0.5)
    u, v = y.reshape(2, n, n)
    diffusion = equations.ALPHA * n**2
    uv, uu = 2.0 * u * v, u * u
    return (
        jnp.stack([uv - (equations.A + 1.0) - 4.0 * diffusion, -uu - 4.0 * diffusion]),
        jnp.stack([uu, equations.A - uv]),
        jnp.full((4, 2, n, n), diffusion, y.dtype),
    )


def _positions(n: int) -> Positions:
    own = np.arange(2 * n * n).reshape(2, n, n)
    neighbours = [np.roll(own, shift, axis) for axis in (1, 2) for shift in (1, -1)]
    return joined((own, own), (own, own[::-1]), (np.stack([own] * 4), np.stack(neighbours)))


def make(n: int, dtype: Any, seed: int) -> Instance:
    """The reaction on an n x n grid, n >= 3: 2 n^2 unknowns."""
    rows, cols = _positions(n)
    x = uniform(seed, 2 * n * n, dtype)
    return Instance(equations.brusselator_flat, x, _by_hand, rows, cols)


PROBLEMS = tuple(SparseProblem(f"brusselator_{n}", make, n, 4, equations.SOURCE) for n in (64, 128))
