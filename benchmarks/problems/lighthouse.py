r"""The lighthouse: where its beam hits the quay.

A lighthouse at distance nu from the shore turns with angular speed omega; the quay is the line
y2 = gamma y1. At time t the beam hits it at

    y1 = nu tan(omega t) / (gamma - tan(omega t)),   y2 = gamma y1.

Source: A. Griewank, A. Walther, "Evaluating Derivatives", 2nd edition, section 2.1.
"""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.problem import Problem


def lighthouse(
    nu: jax.Array, gamma: jax.Array, omega: jax.Array, t: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Point on the quay that the beam hits.

    Args:
        nu: distance from the shore, scalar.
        gamma: slope of the quay, scalar.
        omega: angular speed in radians per unit of time, scalar.
        t: time, scalar.

    Returns:
        Its two coordinates.
    """
    tangent = jnp.tan(omega * t)
    y1 = nu * tangent / (gamma - tangent)
    return y1, gamma * y1


def sample(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random positions with the beam well inside the quay: tan(omega t) < 0.55 < 1 < gamma."""
    nu, gamma, omega, t = jax.random.uniform(key, (4, *batch), dtype, 0.0, 1.0)
    return 1.0 + nu, 1.0 + gamma, 0.5 * omega, t


PROBLEMS = (
    Problem("lighthouse", lighthouse, sample, (0, 1, 2, 3), "Griewank and Walther, section 2.1"),
)
