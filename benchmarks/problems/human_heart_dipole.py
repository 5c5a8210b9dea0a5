"""The human-heart dipole: eight polynomial equations for two dipoles in a sphere.

Sources: C. V. Nelson, B. C. Hodgkin, "Determination of magnitudes, directions, and locations of two
independent dipoles in a circular conducting region from boundary potential measurements", IEEE
Trans. Biomed. Eng. 28 (1981) 817-823; in the form of J. E. Dennis, D. M. Gay, P. A. Vu (1985) and
of the MINPACK-2 test problem collection (Averick, Carter, More, Xue 1992), experiment 791129.
"""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.problem import Problem

# Measured moments of experiment 791129 and the collection's starting point.
SUM_MX, SUM_MY = 0.485, -0.0019
SUM_A, SUM_B = -0.0581, 0.015
SUM_C, SUM_D = 0.105, 0.0406
SUM_E, SUM_F = 0.167, -0.399
START = (0.299, 0.186, -0.0273, 0.0254, -0.474, 0.474, -0.0892, 0.0892)


def human_heart_dipole(
    a: jax.Array,
    b: jax.Array,
    c: jax.Array,
    d: jax.Array,
    t: jax.Array,
    u: jax.Array,
    v: jax.Array,
    w: jax.Array,
) -> tuple[jax.Array, ...]:
    """Residuals of the eight equations.

    Args:
        a: x component of the first dipole, scalar.
        b: x component of the second.
        c: y component of the first.
        d: y component of the second.
        t: x coordinate of the first.
        u: x coordinate of the second.
        v: y coordinate of the first.
        w: y coordinate of the second.

    Returns:
        Eight scalars, zero at a solution.
    """
    # Real and imaginary parts of (t + i v)^2 and (t + i v)^3, and of (u + i w)^2, (u + i w)^3.
    tt, vv, uu, ww = t * t, v * v, u * u, w * w
    t2, u2 = tt - vv, uu - ww
    tv2, uw2 = 2.0 * t * v, 2.0 * u * w
    t3, v3 = t * (tt - 3.0 * vv), v * (vv - 3.0 * tt)
    u3, w3 = u * (uu - 3.0 * ww), w * (ww - 3.0 * uu)
    return (
        a + b - SUM_MX,
        c + d - SUM_MY,
        t * a + u * b - v * c - w * d - SUM_A,
        v * a + w * b + t * c + u * d - SUM_B,
        a * t2 - c * tv2 + b * u2 - d * uw2 - SUM_C,
        c * t2 + a * tv2 + d * u2 + b * uw2 - SUM_D,
        a * t3 + c * v3 + b * u3 + d * w3 - SUM_E,
        c * t3 - a * v3 + d * u3 - b * w3 - SUM_F,
    )


def sample(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random points about the collection's starting point."""
    noise = jax.random.uniform(key, (8, *batch), dtype, -0.5, 0.5)
    return tuple(start + entry for start, entry in zip(START, noise, strict=True))


PROBLEMS = (
    Problem(
        "human_heart_dipole",
        human_heart_dipole,
        sample,
        tuple(range(8)),
        "Nelson and Hodgkin 1981; MINPACK-2",
    ),
)
