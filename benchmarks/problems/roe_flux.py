r"""Roe's approximate Riemann flux for the Euler equations in one and three dimensions.

With conserved variables U = (rho, m, E), velocity u = m / rho, pressure
p = (gamma - 1) (E - m^2 / (2 rho)) and total enthalpy H = (E + p) / rho, the physical flux is
F(U) = (m, m u + p, u (E + p)). Between a left and a right state Roe linearises about averages
weighted with the square roots of the densities,

    u~ = (sqrt(rho_L) u_L + sqrt(rho_R) u_R) / (sqrt(rho_L) + sqrt(rho_R)),   H~ alike,
    c~^2 = (gamma - 1) (H~ - u~^2 / 2),

and splits the jump U_R - U_L into the three waves of that linear system, with speeds
u~ - c~, u~, u~ + c~. The interface flux is

    F = (F_L + F_R) / 2 - 1/2 sum_k |lambda_k| alpha_k r_k.

In three dimensions the velocity u is a vector whose first component is normal to the interface. Two
shear waves travel with the normal velocity beside the entropy wave, of strengths

    alpha_s = d_m_t - u_t d_rho     (t: the two components along the interface),

and the strengths of the others follow from the remaining jump d_e - alpha_s . u_t of the energy.

Source: P. L. Roe, "Approximate Riemann solvers, parameter vectors, and difference schemes",
J. Comput. Phys. 43 (1981) 357-372; wave strengths in the notation of E. F. Toro, "Riemann Solvers
and Numerical Methods for Fluid Dynamics", section 11.2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

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
    left = _state(_of_number, rho_left, m_left, e_left)
    right = _state(_of_number, rho_right, m_right, e_right)
    u, h, _, c2, c = _averages(_of_number, left, right)
    d_rho, d_m, d_e = rho_right - rho_left, m_right - m_left, e_right - e_left
    alpha_1, alpha_2, alpha_3 = _strengths(u, h, c2, c, d_rho, d_m, d_e)

    wave_1 = jnp.abs(u - c) * alpha_1
    wave_2 = jnp.abs(u) * alpha_2
    wave_3 = jnp.abs(u + c) * alpha_3

    mass = m_left + m_right - (wave_1 + wave_2 + wave_3)
    momentum = (m_left * left.u + left.p) + (m_right * right.u + right.p)
    momentum = momentum - (wave_1 * (u - c) + wave_2 * u + wave_3 * (u + c))
    energy = left.u * (e_left + left.p) + right.u * (e_right + right.p)
    energy = energy - (wave_1 * (h - u * c) + wave_2 * (0.5 * u * u) + wave_3 * (h + u * c))
    return 0.5 * mass, 0.5 * momentum, 0.5 * energy


def roe_flux_packed(states: jax.Array) -> jax.Array:
    """The same with one argument: (6,) left state, then right state -> (3,) fluxes."""
    return jnp.stack(roe_flux(*states))


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
    left = _state(_of_vector, rho_left, m_left, e_left)
    right = _state(_of_vector, rho_right, m_right, e_right)
    u, h, half, c2, c = _averages(_of_vector, left, right)
    d_rho, d_m, d_e = rho_right - rho_left, m_right - m_left, e_right - e_left
    normal, along = u[0], u[1:]
    shear = d_m[1:] - along * d_rho
    rest = d_e - jnp.sum(shear * along)
    alpha_1, alpha_2, alpha_5 = _strengths(normal, h, c2, c, d_rho, d_m[0], rest)

    wave_1 = jnp.abs(normal - c) * alpha_1
    wave_2 = jnp.abs(normal) * alpha_2
    wave_5 = jnp.abs(normal + c) * alpha_5
    sheared = jnp.abs(normal) * shear

    axis = jnp.array([1.0, 0.0, 0.0], u.dtype)
    mass = m_left[0] + m_right[0] - (wave_1 + wave_2 + wave_5)
    momentum = m_left * left.u[0] + left.p * axis + m_right * right.u[0] + right.p * axis
    momentum = momentum - (wave_1 * (u - c * axis) + wave_2 * u + wave_5 * (u + c * axis))
    momentum = momentum - jnp.concatenate([jnp.zeros(1, u.dtype), sheared])
    energy = left.u[0] * (e_left + left.p) + right.u[0] * (e_right + right.p)
    energy = energy - (wave_1 * (h - normal * c) + wave_2 * half + wave_5 * (h + normal * c))
    energy = energy - jnp.sum(sheared * along)
    return 0.5 * mass, 0.5 * momentum, 0.5 * energy


def euler_flux(rho: jax.Array, m: jax.Array, e: jax.Array) -> Scalars3:
    """The physical flux F(U); `roe_flux` of two equal states is this."""
    state = _state(_of_number, rho, m, e)
    return m, m * state.u + state.p, state.u * (e + state.p)


class _State(NamedTuple):
    """Density, velocity, pressure and total enthalpy on one side."""

    rho: jax.Array
    u: jax.Array
    p: jax.Array
    h: jax.Array


def _of_number(u: jax.Array) -> jax.Array:
    """u^2 / 2 of the velocity in one dimension."""
    return 0.5 * u * u


def _of_vector(u: jax.Array) -> jax.Array:
    """The same in three."""
    return 0.5 * jnp.sum(u * u)


HalfSquare = Callable[[jax.Array], jax.Array]


def _state(half_square: HalfSquare, rho: jax.Array, m: jax.Array, e: jax.Array) -> _State:
    p = (GAMMA - 1.0) * (e - half_square(m) / rho)
    return _State(rho, m / rho, p, (e + p) / rho)


def _averages(half_square: HalfSquare, left: _State, right: _State) -> tuple[jax.Array, ...]:
    """Roe's averages: velocity, enthalpy, u^2 / 2, the speed of sound squared and as it is."""
    w_left, w_right = jnp.sqrt(left.rho), jnp.sqrt(right.rho)
    w = w_left + w_right
    u = (w_left * left.u + w_right * right.u) / w
    h = (w_left * left.h + w_right * right.h) / w
    half = half_square(u)
    c2 = (GAMMA - 1.0) * (h - half)
    return u, h, half, c2, jnp.sqrt(c2)


def _strengths(
    u: jax.Array,
    h: jax.Array,
    c2: jax.Array,
    c: jax.Array,
    d_rho: jax.Array,
    d_m: jax.Array,
    d_e: jax.Array,
) -> Scalars3:
    """Coefficients of the jump in the eigenvectors of the sound waves and the entropy wave.

    With the normal velocity u these are r_1 = (1, u - c, h - u c), r_2 = (1, u, u^2 / 2) and
    r_3 = (1, u + c, h + u c).
    """
    alpha_2 = (GAMMA - 1.0) / c2 * (d_rho * (h - u * u) + u * d_m - d_e)
    alpha_1 = (d_rho * (u + c) - d_m - c * alpha_2) / (2.0 * c)
    return alpha_1, alpha_2, d_rho - alpha_1 - alpha_2


def sample(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random pairs of physical states: positive density and pressure, sub- and supersonic."""
    rho, u, p = _drawn(key, batch, (), dtype)
    m = rho * u
    return _pair(rho, m, p / (GAMMA - 1.0) + 0.5 * m * u)


def sample_3d(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """The same with vectors of velocity."""
    rho, u, p = _drawn(key, batch, (3,), dtype)
    m = rho[..., None] * u
    return _pair(rho, m, p / (GAMMA - 1.0) + 0.5 * jnp.sum(m * u, axis=-1))


def _drawn(key: jax.Array, batch: tuple[int, ...], vector: tuple[int, ...], dtype: Any) -> Scalars3:
    """Densities, velocities and pressures; left and right along the first axis."""
    key_rho, key_u, key_p = jax.random.split(key, 3)
    return (
        jax.random.uniform(key_rho, (2, *batch), dtype, 0.1, 2.0),
        jax.random.uniform(key_u, (2, *batch, *vector), dtype, -2.0, 2.0),
        jax.random.uniform(key_p, (2, *batch), dtype, 0.1, 2.0),
    )


def _pair(rho: jax.Array, m: jax.Array, e: jax.Array) -> tuple[jax.Array, ...]:
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
    Problem("roe_flux_3d", roe_flux_3d, sample_3d, tuple(range(6)), SOURCE),
)
