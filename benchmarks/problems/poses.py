"""Rigid motions and cameras, the small dense blocks of which least-squares problems are made.

Sources: R. Murray, Z. Li, S. Sastry, "A Mathematical Introduction to Robotic Manipulation" (1994),
proposition 2.9 (the exponential of a twist); S. Agarwal, N. Snavely, S. Seitz, R. Szeliski, "Bundle
adjustment in the large", ECCV 2010 (the camera, whose whole problem is `bundle_adjustment` among
the sparse ones).
"""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.problem import Problem
from benchmarks.problems.sparse.bundle_adjustment import project


def se3_exponential(twist: jax.Array) -> jax.Array:
    """The motion of a twist (rotation vector, velocity): (6,) -> (3, 4), rotation and shift."""
    turn, along = twist[:3], twist[3:]
    square = turn @ turn
    angle = jnp.sqrt(square)
    x, y, z = turn
    zero = jnp.zeros_like(x)
    cross = jnp.stack([zero, -z, y, z, zero, -x, -y, x, zero]).reshape(3, 3)
    twice = cross @ cross
    one = jnp.eye(3, dtype=twist.dtype)
    slower = (1.0 - jnp.cos(angle)) / square
    rotation = one + jnp.sin(angle) / angle * cross + slower * twice
    shift = (one + slower * cross + (angle - jnp.sin(angle)) / (square * angle) * twice) @ along
    return jnp.concatenate([rotation, shift[:, None]], axis=1)


def camera_residual(camera: jax.Array, point: jax.Array, image: jax.Array) -> jax.Array:
    """Where a camera sees a point, less where it was seen: (9,), (3,), (2,) -> (2,)."""
    return project(camera[None], point[None])[0] - image


def sample_twist(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random twists, away from no rotation, where the quotients have no value."""
    return (jax.random.uniform(key, (*batch, 6), dtype, 0.2, 1.2),)


def sample_camera(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random cameras, some lengths away, that look along -z at random points."""
    first, second, third = jax.random.split(key, 3)
    camera = jax.random.uniform(first, (*batch, 9), dtype, 0.2, 0.5)
    point = jax.random.uniform(second, (*batch, 3), dtype, -1.0, 1.0)
    return camera.at[..., 5].add(-8.0), point, jax.random.normal(third, (*batch, 2), dtype)


PROBLEMS = (
    Problem(
        "se3_exponential",
        se3_exponential,
        sample_twist,
        0,
        "Murray, Li, Sastry 1994, proposition 2.9",
        group="more",
    ),
    Problem(
        "camera_residual",
        camera_residual,
        sample_camera,
        (0, 1),
        "Agarwal et al., Bundle adjustment in the large, ECCV 2010",
        group="more",
    ),
)
