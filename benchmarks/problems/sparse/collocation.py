r"""Defects of a trapezoidal collocation of a car's path: equality constraints of optimal control.

A step's unknowns are position p, q, heading, speed, steering angle and acceleration, with

    p' = v cos(heading),   q' = v sin(heading),   heading' = v tan(steering) / L,   v' = a

and each step contributes four defects  s_{k+1} - s_k - h/2 (s'_k + s'_{k+1}):  22 nonzeros.

Source: M. Kelly, "An introduction to trajectory optimization", SIAM Review 59 (2017), section 3;
the kinematic bicycle model as in R. Rajamani, "Vehicle Dynamics and Control" (2012), section 2.2.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.sparse.problem import Instance, SparseProblem, joined, uniform

WHEELBASE = 2.5
STEP = 0.05
STATES = 4
UNKNOWNS = 6


def car(point: jax.Array) -> jax.Array:
    """Time derivative of (p, q, heading, speed); (6,) -> (4,)."""
    _, _, heading, speed, steering, acceleration = point
    return jnp.stack(
        [
            speed * jnp.cos(heading),
            speed * jnp.sin(heading),
            speed * jnp.tan(steering) / WHEELBASE,
            acceleration,
        ]
    )


def defects(z: jax.Array) -> jax.Array:
    """Defects of all steps; (6 (n + 1),) -> (4 n,)."""
    points = z.reshape(-1, UNKNOWNS)
    states, slopes = points[:, :STATES], jax.vmap(car)(points)
    change = states[1:] - states[:-1]
    return (change - 0.5 * STEP * (slopes[1:] + slopes[:-1])).reshape(-1)


def _by_hand(z: jax.Array) -> tuple[jax.Array, ...]:
    points = z.reshape(-1, UNKNOWNS)
    heading, speed, steering = points[:, 2], points[:, 3], points[:, 4]
    cos, sin, tan = jnp.cos(heading), jnp.sin(heading), jnp.tan(steering)
    slopes = (-0.5 * STEP) * jnp.stack(
        [
            -speed * sin,
            cos,
            speed * cos,
            sin,
            tan / WHEELBASE,
            speed * (1.0 + tan * tan) / WHEELBASE,
            jnp.ones_like(speed),
        ]
    )
    steps = len(points) - 1
    return (
        slopes[:, :-1],
        slopes[:, 1:],
        jnp.full((STATES, steps), -1.0, z.dtype),
        jnp.full((STATES, steps), 1.0, z.dtype),
    )


def make(n: int, dtype: Any, seed: int) -> Instance:
    """A path of n steps."""
    row, col = STATES * np.arange(n), UNKNOWNS * np.arange(n)
    pattern = [(0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (2, 4), (3, 5)]
    slopes = (
        np.stack([row + r for r, _ in pattern]),
        np.stack([col + c for _, c in pattern]),
    )
    states = np.stack([row + k for k in range(STATES)]), np.stack([col + k for k in range(STATES)])
    rows, cols = joined(
        slopes,
        (slopes[0], slopes[1] + UNKNOWNS),
        states,
        (states[0], states[1] + UNKNOWNS),
    )
    x = uniform(seed, UNKNOWNS * (n + 1), dtype, 0.1, 1.0)
    return Instance(defects, x, _by_hand, rows, cols)


SOURCE = "Kelly, SIAM Review 59 (2017), section 3"
PROBLEMS = (SparseProblem("collocation", make, 1_000, 3, SOURCE),)
