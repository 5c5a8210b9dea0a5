r"""The Lorenz-96 model, dx_i/dt = (x_{i+1} - x_{i-2}) x_{i-1} - x_i + F on a ring; 4 n nonzeros.

Source: E. N. Lorenz, "Predictability: a problem partly solved", ECMWF Seminar on Predictability
(1996), equation (1).
"""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.sparse.problem import Instance, SparseProblem, bands, uniform

FORCING = 8.0


def lorenz96(x: jax.Array) -> jax.Array:
    """Time derivative; (n,) -> (n,), n >= 4."""
    return (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x + FORCING


def _by_hand(x: jax.Array) -> tuple[jax.Array, ...]:
    before = jnp.roll(x, 1)
    return -before, jnp.roll(x, -1) - jnp.roll(x, 2), jnp.full_like(x, -1.0), before


def make(n: int, dtype: Any, seed: int) -> Instance:
    """The model with n variables."""
    rows, cols = bands(n, (-2, -1, 0, 1), periodic=True)
    return Instance(lorenz96, uniform(seed, n, dtype), _by_hand, rows, cols)


SOURCE = "Lorenz, ECMWF Seminar on Predictability (1996)"
PROBLEMS = (SparseProblem("lorenz96", make, 10_000, 9, SOURCE),)
