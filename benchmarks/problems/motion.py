r"""Mechanics and a neuron in time: one step of a Runge-Kutta method, or the right-hand side itself.

Sources: the double pendulum as in T. Shinbrot, C. Grebogi, J. Wisdom, J. Yorke, Am. J. Phys. 60
(1992), 491; A. L. Hodgkin, A. F. Huxley, J. Physiol. 117 (1952), 500, with potentials as P. Dayan,
L. F. Abbott, "Theoretical Neuroscience" (2001), section 5.6, have them; an orbit about an oblate
Earth: D. Vallado, "Fundamentals of Astrodynamics and Applications" (4th edition), section 8.7.1;
the quadrotor: R. Mahony, V. Kumar, P. Corke, IEEE Robotics & Automation Magazine 19 (2012), 20,
with a unit quaternion for its attitude.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.problem import Problem, Sampler

GRAVITY = 9.81
LENGTHS, MASSES = (1.0, 0.8), (1.0, 0.6)
PENDULUM_STEP, NEURON_STEP, ORBIT_STEP = 0.01, 0.01, 0.02

#: Conductances in mS / cm^2, reversal potentials in mV, capacitance in uF / cm^2.
SODIUM, POTASSIUM, LEAK = (120.0, 50.0), (36.0, -77.0), (0.3, -54.387)
CAPACITANCE = 1.0

#: Second zonal harmonic of the Earth, in units of its radius and of sqrt(radius^3 / mu).
J2 = 1.08262668e-3

#: Of the quadrotor: kg, m, N m per N of thrust, principal moments of inertia in kg m^2.
MASS, ARM, DRAG = 0.5, 0.17, 0.016
INERTIA = (3.2e-3, 3.2e-3, 5.5e-3)


def runge_kutta(slope: Callable[[jax.Array], jax.Array], y: jax.Array, step: float) -> jax.Array:
    """A step of the classical method of fourth order."""
    k1 = slope(y)
    k2 = slope(y + 0.5 * step * k1)
    k3 = slope(y + 0.5 * step * k2)
    k4 = slope(y + step * k3)
    return y + step / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def pendulum_slope(state: jax.Array) -> jax.Array:
    """Of both angles, from the vertical, and their velocities: (4,) -> (4,)."""
    (l1, l2), (m1, m2) = LENGTHS, MASSES
    a, b, u, v = state
    difference = a - b
    sin, cos = jnp.sin(difference), jnp.cos(difference)
    below = 2.0 * m1 + m2 - m2 * jnp.cos(2.0 * difference)
    first = (
        -GRAVITY * (2.0 * m1 + m2) * jnp.sin(a)
        - m2 * GRAVITY * jnp.sin(a - 2.0 * b)
        - 2.0 * sin * m2 * (v * v * l2 + u * u * l1 * cos)
    ) / (l1 * below)
    second = (
        2.0
        * sin
        * (u * u * l1 * (m1 + m2) + GRAVITY * (m1 + m2) * jnp.cos(a) + v * v * l2 * m2 * cos)
    ) / (l2 * below)
    return jnp.stack([u, v, first, second])


def double_pendulum(state: jax.Array) -> jax.Array:
    """A step of the double pendulum, (4,) -> (4,)."""
    return runge_kutta(pendulum_slope, state, PENDULUM_STEP)


def neuron_slope(state: jax.Array, current: jax.Array) -> jax.Array:
    """Of the potential in mV and the gates m, h, n, per ms: (4,) -> (4,)."""
    v, m, h, n = state
    opening = {
        "m": 0.1 * (v + 40.0) / (1.0 - jnp.exp(-0.1 * (v + 40.0))),
        "h": 0.07 * jnp.exp(-0.05 * (v + 65.0)),
        "n": 0.01 * (v + 55.0) / (1.0 - jnp.exp(-0.1 * (v + 55.0))),
    }
    closing = {
        "m": 4.0 * jnp.exp(-(v + 65.0) / 18.0),
        "h": 1.0 / (1.0 + jnp.exp(-0.1 * (v + 35.0))),
        "n": 0.125 * jnp.exp(-0.0125 * (v + 65.0)),
    }
    outward = (
        SODIUM[0] * m**3 * h * (v - SODIUM[1])
        + POTASSIUM[0] * n**4 * (v - POTASSIUM[1])
        + LEAK[0] * (v - LEAK[1])
    )
    gates = [
        opening[name] * (1.0 - gate) - closing[name] * gate
        for name, gate in (("m", m), ("h", h), ("n", n))
    ]
    return jnp.stack([(current - outward) / CAPACITANCE, *gates])


def hodgkin_huxley(state: jax.Array, current: jax.Array) -> jax.Array:
    """A step of the neuron under a current in uA / cm^2, (4,), () -> (4,)."""
    return runge_kutta(lambda y: neuron_slope(y, current), state, NEURON_STEP)


def gravity_j2(r: jax.Array) -> jax.Array:
    """Acceleration at a position in units of the Earth's radius, (3,) -> (3,)."""
    square = r @ r
    distance = jnp.sqrt(square)
    polar = 5.0 * r[2] * r[2] / square
    oblate = 1.5 * J2 / square * (polar - jnp.asarray([1.0, 1.0, 3.0], r.dtype))
    return r * (oblate - 1.0) / (square * distance)


def j2_orbit(state: jax.Array) -> jax.Array:
    """A step of a satellite's position and velocity, (6,) -> (6,)."""

    def slope(y: jax.Array) -> jax.Array:
        return jnp.concatenate([y[3:], gravity_j2(y[:3])])

    return runge_kutta(slope, state, ORBIT_STEP)


def quadrotor(state: jax.Array, thrusts: jax.Array) -> jax.Array:
    """Slope of position, velocity, quaternion (w, x, y, z) and angular velocity: (13,) -> (13,).

    Args:
        state: positions and velocities in the world's axes, angular velocity in the body's.
        thrusts: of the rotors in front, on the left, behind and on the right, (4,).
    """
    velocity, spin = state[3:6], state[10:]
    w, x, y, z = state[6:10]
    upwards = jnp.stack([2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y)])
    front, left, behind, right = thrusts
    weight = jnp.asarray([0.0, 0.0, GRAVITY], state.dtype)
    acceleration = upwards * (jnp.sum(thrusts) / MASS) - weight
    p, q, r = spin
    turning = 0.5 * jnp.stack(
        [
            -x * p - y * q - z * r,
            w * p + y * r - z * q,
            w * q + z * p - x * r,
            w * r + x * q - y * p,
        ]
    )
    torque = jnp.stack(
        [ARM * (left - right), ARM * (behind - front), DRAG * (front - left + behind - right)]
    )
    inertia = jnp.asarray(INERTIA, state.dtype)
    swirl = (torque - jnp.cross(spin, inertia * spin)) / inertia
    return jnp.concatenate([velocity, acceleration, turning, swirl])


def sample_pendulum(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random angles and velocities."""
    return (jax.random.uniform(key, (*batch, 4), dtype, -2.0, 2.0),)


def sample_neuron(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random potentials, gates and currents."""
    first, second, third = jax.random.split(key, 3)
    potential = jax.random.uniform(first, (*batch, 1), dtype, -75.0, 30.0)
    gates = jax.random.uniform(second, (*batch, 3), dtype, 0.05, 0.95)
    current = jax.random.uniform(third, batch, dtype, 0.0, 20.0)
    return jnp.concatenate([potential, gates], axis=-1), current


def sample_orbit(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Positions between the surface and three radii, velocities of about that of a circle."""
    first, second = jax.random.split(key)
    position = jax.random.uniform(first, (*batch, 3), dtype, 0.7, 1.7)
    return (
        jnp.concatenate([position, 0.5 * jax.random.normal(second, (*batch, 3), dtype)], axis=-1),
    )


def sample_quadrotor(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random states, with quaternions of length one, and thrusts about those of hovering."""
    first, second = jax.random.split(key)
    state = jax.random.normal(first, (*batch, 13), dtype)
    attitude = state[..., 6:10]
    attitude = attitude / jnp.linalg.norm(attitude, axis=-1, keepdims=True)
    thrusts = jax.random.uniform(second, (*batch, 4), dtype, 0.5, 2.0)
    return jnp.concatenate([state[..., :6], attitude, state[..., 10:]], axis=-1), thrusts


def _problem(
    fun: Callable[..., Any], sample: Sampler, argnums: int | tuple[int, ...], source: str
) -> Problem:
    return Problem(fun.__name__, fun, sample, argnums, source, group="more")


PROBLEMS = (
    _problem(double_pendulum, sample_pendulum, 0, "Shinbrot et al., Am. J. Phys. 60 (1992) 491"),
    _problem(hodgkin_huxley, sample_neuron, (0, 1), "Hodgkin, Huxley, J. Physiol. 117 (1952) 500"),
    _problem(j2_orbit, sample_orbit, 0, "Vallado, Fundamentals of Astrodynamics, section 8.7.1"),
    _problem(quadrotor, sample_quadrotor, (0, 1), "Mahony et al., IEEE RAM 19 (2012) 20"),
)
