r"""Helmholtz energy of a mixed fluid in a unit volume (Peng-Robinson equation of state).

    f(x) = R T sum_i x_i log( x_i / (1 - b.x) )
           - x'A x / (sqrt(8) b.x) log( (1 + (1 + sqrt 2) b.x) / (1 + (1 - sqrt 2) b.x) )

Source: A. Griewank, "Direct calculation of Newton steps without accumulating Jacobians" (1990), and
A. Griewank, A. Walther, "Evaluating Derivatives", where it is the running example of a gradient.
The parameters here are made up, of realistic size, and fulfil b.x < 1 on the inputs drawn.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.problem import Problem

RT = 1.0
SQRT2 = 2.0**0.5


def helmholtz_energy(x: jax.Array) -> jax.Array:
    """Energy of a mixture.

    Args:
        x: amounts of the species, shape (n,), positive.

    Returns:
        The energy, scalar.
    """
    a, b = (jnp.asarray(table, x.dtype) for table in parameters(x.shape[0]))
    bx = b @ x
    entropy = RT * jnp.sum(x * jnp.log(x / (1.0 - bx)))
    logarithm = jnp.log((1.0 + (1.0 + SQRT2) * bx) / (1.0 + (1.0 - SQRT2) * bx))
    return entropy - (x @ a @ x) / (SQRT2 * 2.0 * bx) * logarithm


def parameters(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Interaction matrix A, symmetric (n, n), and volumes b, (n,), of n species."""
    b = 0.1 / n * (1.0 + np.arange(n) / n)
    strength = 1.0 + 0.5 * np.cos(np.arange(n))
    a = np.sqrt(np.outer(strength, strength)) * (1.0 - 0.1 * (1.0 - np.eye(n)))
    return a, b


def sample(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32, *, n: int = 4
) -> tuple[jax.Array, ...]:
    """Random amounts of n species."""
    return (jax.random.uniform(key, (*batch, n), dtype, 0.1, 1.0),)


PROBLEMS = (
    Problem("helmholtz_energy", helmholtz_energy, sample, 0, "Griewank and Walther; Griewank 1990"),
)
