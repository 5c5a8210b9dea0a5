r"""Pose of a six-joint robot arm by Denavit-Hartenberg parameters.

Link k carries the frame of joint k to that of joint k + 1:

    A_k = Rot_z(theta_k) Trans_z(d_k) Trans_x(a_k) Rot_x(alpha_k),

and the hand's frame is A_1 A_2 ... A_6. Its origin is the position; its orientation is given by
roll, pitch and yaw, R = Rot_z(yaw) Rot_y(pitch) Rot_x(roll).

Sources: J. Denavit, R. S. Hartenberg, "A kinematic notation for lower-pair mechanisms based on
matrices", J. Appl. Mech. 22 (1955) 215-221; angles as in B. Siciliano et al., "Robotics", eq. 2.22;
the numbers are the published parameters of the UR5 arm (Universal Robots).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.problem import Problem

# Per joint: offset d and length a in metres, twist alpha in quarter turns (all are multiples of
# 90 degrees, so that cos and sin of it are exactly 0 or +-1 and never multiplied with).
D = (0.089159, 0.0, 0.0, 0.10915, 0.09465, 0.0823)
A = (0.0, -0.425, -0.39225, 0.0, 0.0, 0.0)
TWIST = (1, 0, 0, 1, -1, 0)

# Numbers that are known while tracing (the zeros and ones of the base frame) stay Python floats.
Number = jax.Array | float
Vector = tuple[Number, Number, Number]


def robot_arm(
    t1: jax.Array, t2: jax.Array, t3: jax.Array, t4: jax.Array, t5: jax.Array, t6: jax.Array
) -> tuple[jax.Array, ...]:
    """Forward kinematics: six joint angles -> position and orientation of the hand.

    Args:
        t1: angle of the first joint in radians, scalar; t2 to t6 alike.
        t2: second joint.
        t3: third joint.
        t4: fourth joint.
        t5: fifth joint.
        t6: sixth joint.

    Returns:
        x, y, z in metres, then roll, pitch, yaw in radians, six scalars.
    """
    x_axis: Vector = (1.0, 0.0, 0.0)
    y_axis: Vector = (0.0, 1.0, 0.0)
    z_axis: Vector = (0.0, 0.0, 1.0)
    origin: Vector = (0.0, 0.0, 0.0)
    for theta, d, a, twist in zip((t1, t2, t3, t4, t5, t6), D, A, TWIST, strict=True):
        cos, sin = jnp.cos(theta), jnp.sin(theta)
        turned_x = _plus(_times(cos, x_axis), _times(sin, y_axis))
        turned_y = _difference(_times(cos, y_axis), _times(sin, x_axis))
        origin = _plus(origin, _plus(_times(a, turned_x), _times(d, z_axis)))
        x_axis = turned_x
        if twist == 0:
            y_axis = turned_y
        elif twist == 1:
            y_axis, z_axis = z_axis, _minus(turned_y)
        else:
            y_axis, z_axis = _minus(z_axis), turned_y

    (r11, r21, r31), (_, _, r32), (_, _, r33) = x_axis, y_axis, z_axis
    yaw = jnp.arctan2(r21, r11)
    pitch = jnp.arctan2(-r31, jnp.sqrt(r32 * r32 + r33 * r33))
    roll = jnp.arctan2(r32, r33)
    x, y, z = (jnp.asarray(value) for value in origin)
    return x, y, z, roll, pitch, yaw


def robot_arm_packed(angles: jax.Array) -> jax.Array:
    """The same with one argument: (6,) joint angles -> (6,) position and orientation."""
    return jnp.stack(robot_arm(*angles))


def _times(scale: Number, vector: Vector) -> Vector:
    return tuple(_product(scale, entry) for entry in vector)  # type: ignore[return-value]


def _plus(left: Vector, right: Vector) -> Vector:
    return tuple(_sum(a, b) for a, b in zip(left, right, strict=True))  # type: ignore[return-value]


def _difference(left: Vector, right: Vector) -> Vector:
    return tuple(  # type: ignore[return-value]
        a
        if isinstance(b, float) and b == 0.0
        else -b
        if isinstance(a, float) and a == 0.0
        else a - b
        for a, b in zip(left, right, strict=True)
    )


def _minus(vector: Vector) -> Vector:
    # 0.0 - x instead of -x for floats, which would give a negative zero.
    return tuple(0.0 - v if isinstance(v, float) else -v for v in vector)  # type: ignore[return-value]


def _product(a: Number, b: Number) -> Number:
    """A product that traces nothing where a factor is known to be 0 or +-1."""
    if isinstance(b, float):
        a, b = b, a
    if isinstance(a, float) and a in (0.0, 1.0, -1.0):
        if a == 0.0:
            return 0.0
        return b if a == 1.0 else -b
    return a * b


def _sum(a: Number, b: Number) -> Number:
    """A sum that traces nothing where a term is known to be 0."""
    if isinstance(a, float) and a == 0.0:
        return b
    return a if isinstance(b, float) and b == 0.0 else a + b


def sample(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random joint angles, uniform on the circle."""
    angles = jax.random.uniform(key, (6, *batch), dtype, -math.pi, math.pi)
    return tuple(angles)


def sample_packed(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """The angles of `sample` on a last axis of 6."""
    return (jnp.stack(sample(key, batch, dtype), axis=-1),)


SOURCE = "Denavit and Hartenberg 1955, J. Appl. Mech. 22, 215; parameters of the UR5"
PROBLEMS = (
    Problem("robot_arm", robot_arm, sample, tuple(range(6)), SOURCE),
    Problem("robot_arm_packed", robot_arm_packed, sample_packed, 0, SOURCE),
)
