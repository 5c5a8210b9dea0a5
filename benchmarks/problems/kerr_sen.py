r"""Metric of the Kerr-Sen black hole: rotating, charged, of heterotic string theory.

In Boyer-Lindquist coordinates, with mass M, spin a and the charge parameter b = Q^2 / (2 M),

    Sigma = r (r + 2 b) + a^2 cos^2 theta,   Delta = r (r + 2 b) - 2 M r + a^2,
    g_tt = -(1 - 2 M r / Sigma),             g_rr = Sigma / Delta,   g_thth = Sigma,
    g_tphi = -2 M r a sin^2 theta / Sigma,
    g_phiphi = (r (r + 2 b) + a^2 + 2 M r a^2 sin^2 theta / Sigma) sin^2 theta.

Source: A. Sen, "Rotating charged black hole solution in heterotic string theory", Phys. Rev. Lett.
69 (1992) 1006-1009. Without charge (b = 0) it is the Kerr metric.
"""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.problem import Problem


def kerr_sen(
    r: jax.Array, theta: jax.Array, mass: jax.Array, spin: jax.Array, charge: jax.Array
) -> tuple[jax.Array, ...]:
    """The five different entries of the metric.

    Args:
        r: radial coordinate, scalar, outside the horizon.
        theta: polar angle in radians, scalar.
        mass: M, scalar, in geometric units.
        spin: a = J / M, scalar.
        charge: b = Q^2 / (2 M), scalar.

    Returns:
        g_tt, g_rr, g_thth, g_tphi, g_phiphi, five scalars.
    """
    sin2, cos = jnp.sin(theta) ** 2, jnp.cos(theta)
    spin2 = spin * spin
    area = r * (r + 2.0 * charge)
    pull = 2.0 * mass * r
    sigma = area + spin2 * cos * cos
    delta = area - pull + spin2
    drag = pull / sigma
    return (
        drag - 1.0,
        sigma / delta,
        sigma,
        -drag * spin * sin2,
        (area + spin2 + drag * spin2 * sin2) * sin2,
    )


def sample(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random points well outside the horizon of a hole of about unit mass."""
    uniform = jax.random.uniform(key, (5, *batch), dtype)
    low = (4.0, 0.2, 0.8, 0.1, 0.0)
    high = (10.0, 2.9, 1.2, 0.7, 0.3)
    return tuple(a + (b - a) * x for a, b, x in zip(low, high, uniform, strict=True))


PROBLEMS = (
    Problem("kerr_sen", kerr_sen, sample, (0, 1, 2, 3, 4), "Sen 1992, Phys. Rev. Lett. 69, 1006"),
)
