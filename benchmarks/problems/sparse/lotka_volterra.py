r"""Generalised Lotka-Volterra competition along a ring, each species with two on either side.

    dx_i/dt = x_i (r_i - x_i - sum_d a_d x_{i+d}),   d = -2, -1, 1, 2;   5 n nonzeros

Source: J. A. Vano et al., "Chaos in low-dimensional Lotka-Volterra models of competition",
Nonlinearity 19 (2006), 2391-2404, equation (1).
"""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.sparse.problem import Instance, SparseProblem, bands, uniform

OFFSETS = (-2, -1, 0, 1, 2)
COMPETITION = (0.3, 0.5, 1.0, 0.4, 0.2)


def make(n: int, dtype: Any, seed: int) -> Instance:
    """The model with n species, n >= 5."""
    growth = uniform(seed + 1, n, dtype)

    def capacity(x: jax.Array) -> jax.Array:
        shifted = (jnp.roll(x, -d) for d in OFFSETS)
        return growth - sum(a * other for a, other in zip(COMPETITION, shifted, strict=True))

    def lotka_volterra(x: jax.Array) -> jax.Array:
        return x * capacity(x)

    def by_hand(x: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(
            -a * x if d else capacity(x) - a * x for a, d in zip(COMPETITION, OFFSETS, strict=True)
        )

    rows, cols = bands(n, OFFSETS, periodic=True)
    return Instance(lotka_volterra, uniform(seed, n, dtype), by_hand, rows, cols)


SOURCE = "Vano et al., Nonlinearity 19 (2006), equation (1)"
PROBLEMS = (SparseProblem("lotka_volterra", make, 10_000, 9, SOURCE),)
