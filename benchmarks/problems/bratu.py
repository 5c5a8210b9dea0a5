"""Solid fuel ignition on the unit square: the five-point residual of Bratu's problem.

    -h^2 (u_xx + u_yy) - h^2 lambda exp(u) = 0,   u = 0 outside

Source: B. Averick, R. Carter, J. More, G.-L. Xue, "The MINPACK-2 test problem collection", Argonne
ANL/MCS-P153-0692 (1992), section "Solid fuel ignition".
"""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.problem import Problem

POINTS = 8
LAMBDA = 5.0


def bratu(u: jax.Array) -> jax.Array:
    """Residuals at the inner points, (n, n) -> (n, n)."""
    outside = jnp.pad(u, 1)
    around = outside[:-2, 1:-1] + outside[2:, 1:-1] + outside[1:-1, :-2] + outside[1:-1, 2:]
    spacing = 1.0 / (u.shape[0] + 1)
    return 4.0 * u - around - spacing**2 * LAMBDA * jnp.exp(u)


def sample(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32, *, n: int = POINTS
) -> tuple[jax.Array, ...]:
    """Random temperatures."""
    return (jax.random.uniform(key, (*batch, n, n), dtype),)


SOURCE = "MINPACK-2, solid fuel ignition"
PROBLEMS = (Problem("bratu", bratu, sample, 0, SOURCE, batches=(1, 4096), group="more"),)
