r"""Roe's approximate Riemann flux for the three-dimensional Euler equations.

As `roe_flux`, with a velocity vector u of which the first component is normal to the interface.
Two shear waves travel with the normal velocity beside the entropy wave, so the jump splits into

    alpha_s = d_m_t - u_t d_rho                                    (two shear waves),
    alpha_2 = (gamma - 1) / c^2 (d_rho (H - u_1^2) + u_1 d_m_1 - d_e'),
    alpha_1 = (d_rho (u_1 + c) - d_m_1 - c alpha_2) / (2 c),
    alpha_5 = d_rho - alpha_1 - alpha_2,                           d_e' = d_e - alpha_s . u_t.

Source: P. L. Roe, J. Comput. Phys. 43 (1981) 357-372; E. F. Toro, "Riemann Solvers and Numerical
Methods for Fluid Dynamics", section 11.2.
"""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.problem import Problem
from benchmarks.problems.roe_flux import GAMMA, SOURCE


def roe_flux_3d(
    rho_left: jax.Array,
    m_left: jax.Array,
    e_left: jax.Array,
    rho_right: jax.Array,
    m_right: jax.Array,
    e_right: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Flux of mass, momentum and energy through an interface normal to the first axis.

    Args:
        rho_left: density on the left, scalar, positive.
        m_left: momentum density on the left, shape (3,).
        e_left: total energy density on the left, scalar; the pressure it implies must be positive.
        rho_right: density on the right.
        m_right: momentum density on the right.
        e_right: total energy density on the right.

    Returns:
        Fluxes of mass (scalar), momentum (3,) and energy (scalar).
    """
    u_left, p_left = m_left / rho_left, _pressure(rho_left, m_left, e_left)
    u_right, p_right = m_right / rho_right, _pressure(rho_right, m_right, e_right)
    h_left, h_right = (e_left + p_left) / rho_left, (e_right + p_right) / rho_right

    w_left, w_right = jnp.sqrt(rho_left), jnp.sqrt(rho_right)
    w = w_left + w_right
    u = (w_left * u_left + w_right * u_right) / w
    h = (w_left * h_left + w_right * h_right) / w
    square = jnp.sum(u * u)
    c2 = (GAMMA - 1.0) * (h - 0.5 * square)
    c = jnp.sqrt(c2)

    d_rho, d_m, d_e = rho_right - rho_left, m_right - m_left, e_right - e_left
    normal, along = u[0], u[1:]
    shear = d_m[1:] - along * d_rho
    d_e = d_e - jnp.sum(shear * along)
    alpha_2 = (GAMMA - 1.0) / c2 * (d_rho * (h - normal * normal) + normal * d_m[0] - d_e)
    alpha_1 = (d_rho * (normal + c) - d_m[0] - c * alpha_2) / (2.0 * c)
    alpha_5 = d_rho - alpha_1 - alpha_2

    wave_1 = jnp.abs(normal - c) * alpha_1
    wave_2 = jnp.abs(normal) * alpha_2
    wave_5 = jnp.abs(normal + c) * alpha_5
    sheared = jnp.abs(normal) * shear

    axis = jnp.array([1.0, 0.0, 0.0], u.dtype)
    mass = m_left[0] + m_right[0] - (wave_1 + wave_2 + wave_5)
    momentum = m_left * u_left[0] + p_left * axis + m_right * u_right[0] + p_right * axis
    momentum = momentum - (wave_1 * (u - c * axis) + wave_2 * u + wave_5 * (u + c * axis))
    momentum = momentum - jnp.concatenate([jnp.zeros(1, u.dtype), sheared])
    energy = u_left[0] * (e_left + p_left) + u_right[0] * (e_right + p_right)
    energy = energy - (
        wave_1 * (h - normal * c) + wave_2 * 0.5 * square + wave_5 * (h + normal * c)
    )
    energy = energy - jnp.sum(sheared * along)
    return 0.5 * mass, 0.5 * momentum, 0.5 * energy


def _pressure(rho: jax.Array, m: jax.Array, e: jax.Array) -> jax.Array:
    return (GAMMA - 1.0) * (e - 0.5 * jnp.sum(m * m) / rho)


def sample(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random pairs of physical states: positive density and pressure, sub- and supersonic."""
    key_rho, key_u, key_p = jax.random.split(key, 3)
    rho = jax.random.uniform(key_rho, (2, *batch), dtype, 0.1, 2.0)
    u = jax.random.uniform(key_u, (2, *batch, 3), dtype, -2.0, 2.0)
    p = jax.random.uniform(key_p, (2, *batch), dtype, 0.1, 2.0)
    m = rho[..., None] * u
    e = p / (GAMMA - 1.0) + 0.5 * jnp.sum(m * u, axis=-1)
    return rho[0], m[0], e[0], rho[1], m[1], e[1]


PROBLEMS = (Problem("roe_flux_3d", roe_flux_3d, sample, tuple(range(6)), SOURCE),)
