r"""The Brusselator reaction with diffusion on a periodic square, method of lines.

    du/dt = B + u^2 v - (A + 1) u + alpha (u_xx + u_yy)
    dv/dt = A u - u^2 v           + alpha (v_xx + v_yy)

with A = 3.4, B = 1 and five-point differences on an N x N grid of the unit square. The Jacobian has
exactly 12 N^2 nonzeros (N >= 3): for each of the 2 N^2 unknowns the five points of its stencil and
the other species at the same point.

Source: E. Hairer, G. Wanner, "Solving Ordinary Differential Equations II", section IV.10
(BRUSS-2D), before the forcing sets in.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.problem import Problem, Sampler

A = 3.4
B = 1.0
ALPHA = 0.1


def brusselator(state: jax.Array) -> jax.Array:
    """Time derivative of the concentrations; the neighbours are fetched with `jnp.roll`.

    Args:
        state: concentrations u and v, shape (2, N, N), N >= 3.

    Returns:
        Their time derivatives, shape (2, N, N).
    """
    u, v = state[0], state[1]
    return _reaction_diffusion(u, v, _laplacian_roll(u), _laplacian_roll(v))


def brusselator_slices(state: jax.Array) -> jax.Array:
    """The same function; the neighbours are fetched with slices and `jnp.concatenate`."""
    u, v = state[0], state[1]
    return _reaction_diffusion(u, v, _laplacian_slices(u), _laplacian_slices(v))


def brusselator_flat(y: jax.Array) -> jax.Array:
    """The same function as an ODE solver sees it: (2 N^2,) -> (2 N^2,)."""
    n = round((y.size / 2) ** 0.5)
    return brusselator(y.reshape(2, n, n)).reshape(-1)


def _reaction_diffusion(
    u: jax.Array, v: jax.Array, laplacian_u: jax.Array, laplacian_v: jax.Array
) -> jax.Array:
    u2v = u * u * v
    du = B + u2v - (A + 1.0) * u + ALPHA * laplacian_u
    dv = A * u - u2v + ALPHA * laplacian_v
    return jnp.stack([du, dv])


def _laplacian_roll(w: jax.Array) -> jax.Array:
    neighbours = (
        jnp.roll(w, 1, axis=0)
        + jnp.roll(w, -1, axis=0)
        + jnp.roll(w, 1, axis=1)
        + jnp.roll(w, -1, axis=1)
    )
    return (neighbours - 4.0 * w) * float(w.shape[0] ** 2)


def _laplacian_slices(w: jax.Array) -> jax.Array:
    north = jnp.concatenate([w[-1:], w[:-1]], axis=0)
    south = jnp.concatenate([w[1:], w[:1]], axis=0)
    west = jnp.concatenate([w[:, -1:], w[:, :-1]], axis=1)
    east = jnp.concatenate([w[:, 1:], w[:, :1]], axis=1)
    return (north + south + west + east - 4.0 * w) * float(w.shape[0] ** 2)


def nonzeros(n: int) -> int:
    """Number of nonzeros of the Jacobian on an n x n grid, n >= 3."""
    return 12 * n * n


def sample(
    key: jax.Array,
    batch: tuple[int, ...] = (),
    dtype: Any = jnp.float32,
    *,
    n: int = 64,
    flat: bool = False,
) -> tuple[jax.Array, ...]:
    """Random concentrations about the steady state (u, v) = (B, A / B), on an n x n grid."""
    noise = jax.random.uniform(key, (*batch, 2, n, n), dtype, -0.5, 0.5)
    steady = jnp.array([B, A / B], dtype).reshape(2, 1, 1)
    state = steady + noise
    return (state.reshape(*batch, -1) if flat else state,)


def sampler(n: int, *, flat: bool = False) -> Sampler:
    """`sample` for one grid size."""
    return partial(sample, n=n, flat=flat)


SOURCE = "Hairer and Wanner, Solving ODEs II, section IV.10 (BRUSS-2D)"
PROBLEMS = (
    Problem("brusselator", brusselator, sampler(16), 0, SOURCE, batches=(1,)),
    Problem("brusselator_slices", brusselator_slices, sampler(16), 0, SOURCE, batches=(1,)),
    Problem("brusselator_flat", brusselator_flat, sampler(16, flat=True), 0, SOURCE, batches=(1,)),
)
