r"""The viscous Burgers equation in one dimension, method of lines.

    du_i/dt = -u_i (u_{i+1} - u_{i-1}) / (2 h) + nu (u_{i+1} - 2 u_i + u_{i-1}) / h^2

on the unit interval: with u = 0 at both ends (neighbours by concatenation and slices) the Jacobian
is tridiagonal, 3 n - 2 nonzeros; on a ring (neighbours by `jnp.roll`) it has 3 n.

Source: J. M. Burgers, "A mathematical model illustrating the theory of turbulence", Advances in
Applied Mechanics 1 (1948), 171-199.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.sparse.problem import Instance, SparseProblem, bands, uniform

VISCOSITY = 0.01


def right_side(left: jax.Array, u: jax.Array, right: jax.Array) -> jax.Array:
    """Time derivative from the values at a point and at its neighbours."""
    h = 1.0 / (u.size + 1)
    return -u * (right - left) / (2.0 * h) + VISCOSITY * (right - 2.0 * u + left) / h**2


def burgers_slices(u: jax.Array) -> jax.Array:
    """Zero at both ends; (n,) -> (n,)."""
    end = jnp.zeros((1,), u.dtype)
    padded = jnp.concatenate([end, u, end])
    return right_side(padded[:-2], padded[1:-1], padded[2:])


def burgers_roll(u: jax.Array) -> jax.Array:
    """On a ring; (n,) -> (n,)."""
    return right_side(jnp.roll(u, 1), u, jnp.roll(u, -1))


def _by_hand(u: jax.Array, *, periodic: bool) -> tuple[jax.Array, ...]:
    h = 1.0 / (u.size + 1)
    padded = jnp.pad(u, 1, mode="wrap" if periodic else "constant")
    advection, diffusion = u / (2.0 * h), VISCOSITY / h**2
    slope = (padded[2:] - padded[:-2]) / (2.0 * h)
    return advection + diffusion, -slope - 2.0 * diffusion, diffusion - advection


def make(n: int, dtype: Any, seed: int, *, periodic: bool) -> Instance:
    """The equation at n points."""
    fun = burgers_roll if periodic else burgers_slices
    rows, cols = bands(n, (-1, 0, 1), periodic=periodic)
    return Instance(fun, uniform(seed, n, dtype), partial(_by_hand, periodic=periodic), rows, cols)


SOURCE = "Burgers, Advances in Applied Mechanics 1 (1948)"
PROBLEMS = tuple(
    SparseProblem(f"burgers_{name}_{label}", partial(make, periodic=periodic), n, 12, SOURCE)
    for name, periodic in (("slices", False), ("roll", True))
    for label, n in (("1e4", 10_000), ("1e5", 100_000))
)
