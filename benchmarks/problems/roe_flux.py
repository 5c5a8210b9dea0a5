r"""Roe's approximate Riemann flux for the one-dimensional Euler equations.

With conserved variables U = (rho, m, E), velocity u = m / rho, pressure
p = (gamma - 1) (E - m^2 / (2 rho)) and total enthalpy H = (E + p) / rho, the physical flux is
F(U) = (m, m u + p, u (E + p)). Between a left and a right state Roe linearises about averages
weighted with the square roots of the densities,

    u~ = (sqrt(rho_L) u_L + sqrt(rho_R) u_R) / (sqrt(rho_L) + sqrt(rho_R)),   H~ alike,
    c~^2 = (gamma - 1) (H~ - u~^2 / 2),

and splits the jump U_R - U_L into the three waves of that linear system, with speeds
u~ - c~, u~, u~ + c~. The interface flux is

    F = (F_L + F_R) / 2 - 1/2 sum_k |lambda_k| alpha_k r_k.

Source: P. L. Roe, "Approximate Riemann solvers, parameter vectors, and difference schemes",
J. Comput. Phys. 43 (1981) 357-372; wave strengths in the notation of E. F. Toro, "Riemann Solvers
and Numerical Methods for Fluid Dynamics", section 11.2.
"""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.problem import Problem

GAMMA = 1.4  # ratio of specific heats of a diatomic gas

Scalars3 = tuple[jax.Array, jax.Array, jax.Array]


def roe_flux(
    rho_left: jax.Array,
    m_left: jax.Array,
    e_left: jax.Array,
    rho_right: jax.Array,
    m_right: jax.Array,
    e_right: jax.Array,
) -> Scalars3:
    """Flux of mass, momentum and energy through an interface.

    Args:
        rho_left: density on the left, scalar, positive.
        m_left: momentum density on the left, scalar.
        e_left: total energy density on the left, scalar; the pressure it implies must be positive.
        rho_right: density on the right.
        m_right: momentum density on the right.
        e_right: total energy density on the right.

    Returns:
        The three scalar fluxes.
    """
    u_left, p_left = m_left / rho_left, _pressure(rho_left, m_left, e_left)
    u_right, p_right = m_right / rho_right, _pressure(rho_right, m_right, e_right)
    h_left = (e_left + p_left) / rho_left
    h_right = (e_right + p_right) / rho_right

    # Roe averages
    w_left, w_right = jnp.sqrt(rho_left), jnp.sqrt(rho_right)
    w = w_left + w_right
    u = (w_left * u_left + w_right * u_right) / w
    h = (w_left * h_left + w_right * h_right) / w
    c2 = (GAMMA - 1.0) * (h - 0.5 * u * u)
    c = jnp.sqrt(c2)

    # Wave strengths: coefficients of the jump in the eigenvectors
    # r_1 = (1, u - c, h - u c), r_2 = (1, u, u^2 / 2), r_3 = (1, u + c, h + u c).
    d_rho, d_m, d_e = rho_right - rho_left, m_right - m_left, e_right - e_left
    alpha_2 = (GAMMA - 1.0) / c2 * (d_rho * (h - u * u) + u * d_m - d_e)
    alpha_1 = (d_rho * (u + c) - d_m - c * alpha_2) / (2.0 * c)
    alpha_3 = d_rho - alpha_1 - alpha_2

    wave_1 = jnp.abs(u - c) * alpha_1
    wave_2 = jnp.abs(u) * alpha_2
    wave_3 = jnp.abs(u + c) * alpha_3

    mass = m_left + m_right - (wave_1 + wave_2 + wave_3)
    momentum = (m_left * u_left + p_left) + (m_right * u_right + p_right)
    momentum = momentum - (wave_1 * (u - c) + wave_2 * u + wave_3 * (u + c))
    energy = u_left * (e_left + p_left) + u_right * (e_right + p_right)
    energy = energy - (wave_1 * (h - u * c) + wave_2 * (0.5 * u * u) + wave_3 * (h + u * c))
    return 0.5 * mass, 0.5 * momentum, 0.5 * energy


def roe_flux_packed(states: jax.Array) -> jax.Array:
    """The same with one argument: (6,) left state, then right state -> (3,) fluxes."""
    return jnp.stack(roe_flux(*states))


def euler_flux(rho: jax.Array, m: jax.Array, e: jax.Array) -> Scalars3:
    """The physical flux F(U); `roe_flux` of two equal states is this."""
    u, p = m / rho, _pressure(rho, m, e)
    return m, m * u + p, u * (e + p)


def _pressure(rho: jax.Array, m: jax.Array, e: jax.Array) -> jax.Array:
    return (GAMMA - 1.0) * (e - 0.5 * m * m / rho)


def sample(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random pairs of physical states: positive density and pressure, sub- and supersonic."""
    key_rho, key_u, key_p = jax.random.split(key, 3)
    rho = jax.random.uniform(key_rho, (2, *batch), dtype, 0.1, 2.0)
    u = jax.random.uniform(key_u, (2, *batch), dtype, -2.0, 2.0)
    p = jax.random.uniform(key_p, (2, *batch), dtype, 0.1, 2.0)
    m = rho * u
    e = p / (GAMMA - 1.0) + 0.5 * m * u
    return rho[0], m[0], e[0], rho[1], m[1], e[1]


def sample_packed(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """The states of `sample` on a last axis of 6."""
    return (jnp.stack(sample(key, batch, dtype), axis=-1),)


SOURCE = "Roe 1981, J. Comput. Phys. 43, 357"
PROBLEMS = (
    Problem("roe_flux", roe_flux, sample, tuple(range(6)), SOURCE),
    Problem("roe_flux_packed", roe_flux_packed, sample_packed, 0, SOURCE),
)
