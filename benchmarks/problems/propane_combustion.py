"""Combustion of propane in air: eleven equations of chemical equilibrium, full formulation.

Sources: K. Meintjes, A. P. Morgan, "Chemical equilibrium systems as numerical test problems", ACM
Trans. Math. Softw. 16 (1990) 143-151; constants of the MINPACK-2 test problem collection (Averick,
Carter, More, Xue 1992), problem CPF.
"""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.problem import Problem

PRESSURE = 40.0  # atmospheres
RATIO = 10.0  # air to fuel
K5, K6, K7 = 1.930e-1, 2.597e-3, 3.448e-3
K8, K9, K10 = 1.799e-5, 2.155e-4, 3.846e-5


def propane_combustion(
    x1: jax.Array,
    x2: jax.Array,
    x3: jax.Array,
    x4: jax.Array,
    x5: jax.Array,
    x6: jax.Array,
    x7: jax.Array,
    x8: jax.Array,
    x9: jax.Array,
    x10: jax.Array,
    x11: jax.Array,
) -> tuple[jax.Array, ...]:
    """Residuals of the eleven equations.

    Args:
        x1: moles of the first combustion product per mole of propane, scalar, positive.
        x2: second product.
        x3: third product.
        x4: fourth product.
        x5: fifth product.
        x6: sixth product.
        x7: seventh product.
        x8: eighth product.
        x9: ninth product.
        x10: tenth product.
        x11: sum of the ten.

    Returns:
        Eleven scalars, zero at equilibrium.
    """
    p = PRESSURE / x11
    sqrt_p = jnp.sqrt(p)
    total = x1 + x2 + x3 + x4 + x5 + x6 + x7 + x8 + x9 + x10
    return (
        x1 + x4 - 3.0,
        2.0 * x1 + x2 + x4 + x7 + x8 + x9 + 2.0 * x10 - RATIO,
        2.0 * x2 + 2.0 * x5 + x6 + x7 - 8.0,
        2.0 * x3 + x9 - 4.0 * RATIO,
        K5 * x2 * x4 - x1 * x5,
        K6 * jnp.sqrt(x2 * x4) - jnp.sqrt(x1) * x6 * sqrt_p,
        K7 * jnp.sqrt(x1 * x2) - jnp.sqrt(x4) * x7 * sqrt_p,
        K8 * x1 - x4 * x8 * p,
        K9 * x1 * jnp.sqrt(x3) - x4 * x9 * sqrt_p,
        K10 * x1 * x1 - x4 * x4 * x10 * p,
        x11 - total,
    )


def sample(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random positive amounts (not in equilibrium)."""
    return tuple(jax.random.uniform(key, (11, *batch), dtype, 0.1, 5.0))


PROBLEMS = (
    Problem(
        "propane_combustion",
        propane_combustion,
        sample,
        tuple(range(11)),
        "Meintjes and Morgan 1990, ACM TOMS 16, 143; MINPACK-2",
    ),
)
