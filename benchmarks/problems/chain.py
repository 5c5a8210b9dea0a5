"""Position of the hand of a chain of fifty links, in a loop.

Every step of a `jax.lax.scan` turns the frame by the angle of one joint about an axis that changes
from joint to joint (first the frame's third axis, then its first), and moves along the link. The
loop is differentiated as a whole: how good its Jacobian is depends on what passes through a loop.

Source: J. Denavit, R. S. Hartenberg, "A kinematic notation for lower-pair mechanisms based on
matrices", J. Appl. Mech. 22 (1955) 215-221, with twists of a quarter turn.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.problem import Problem

LINKS = 50
LENGTH = 0.1


def chain(angles: jax.Array) -> jax.Array:
    """Position of the hand.

    Args:
        angles: of the joints in radians, shape (joints,).

    Returns:
        Its coordinates, shape (3,).
    """

    def step(
        state: tuple[jax.Array, jax.Array], angle: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        frame, origin = state
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        x, y, z = frame[:, 0], frame[:, 1], frame[:, 2]
        turned = cos * x + sin * y
        # After the turn about z a quarter turn about the new x axis: y -> z, z -> -y.
        frame = jnp.stack([turned, z, sin * x - cos * y], axis=1)
        return (frame, origin + LENGTH * turned), None

    start = (jnp.eye(3, dtype=angles.dtype), jnp.zeros(3, angles.dtype))
    (_, origin), _ = jax.lax.scan(step, start, angles)
    return origin


def sample(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random joint angles, uniform on the circle."""
    return (jax.random.uniform(key, (*batch, LINKS), dtype, -math.pi, math.pi),)


SOURCE = "Denavit and Hartenberg 1955, J. Appl. Mech. 22, 215"
PROBLEMS = (Problem("chain_of_50", chain, sample, 0, SOURCE, batches=(1, 4096)),)
