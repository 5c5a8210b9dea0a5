r"""Transport on periodic grids: upwind advection, shallow water, and phases that separate.

* `upwind`: dw/dt = -w w_x + w_xx + w_yy, with w_x taken from the left where w > 1 and from the
  right elsewhere (`jnp.where`); 5 N^2 nonzeros.
* `shallow_water`: depth and two velocities on an N x N grid, central differences; 24 N^2 nonzeros.
* `cahn_hilliard`: dc/dt = D (c^3 - c - D c / 2) with D the second difference on a ring, a stencil
  composed with itself; 5 n nonzeros.

Sources: R. J. LeVeque, "Finite Difference Methods for Ordinary and Partial Differential Equations"
(2007), section 10.4; G. K. Vallis, "Atmospheric and Oceanic Fluid Dynamics" (2017), section 3.1;
J. W. Cahn, J. E. Hilliard, "Free energy of a nonuniform system", J. Chem. Phys. 28 (1958), 258-267.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.sparse.problem import Instance, SparseProblem, bands, joined, uniform

GRAVITY, CORIOLIS = 9.8, 0.1
# Neighbours as (axis, step): the value at position + step.
EAST, WEST, SOUTH, NORTH = (1, 1), (1, -1), (0, 1), (0, -1)


def _at(w: jax.Array, neighbour: tuple[int, int]) -> jax.Array:
    axis, step = neighbour
    return jnp.roll(w, -step, axis)


def upwind(w: jax.Array) -> jax.Array:
    """Time derivative on a square grid; (N^2,) -> (N^2,)."""
    n = round(w.size**0.5)
    grid = w.reshape(n, n)
    east, west, south, north = (_at(grid, k) for k in (EAST, WEST, SOUTH, NORTH))
    slope = jnp.where(grid > 1.0, grid - west, east - grid)
    return (-grid * slope * n + east + west + south + north - 4.0 * grid).reshape(-1)


def _upwind_by_hand(w: jax.Array) -> tuple[jax.Array, ...]:
    n = round(w.size**0.5)
    grid = w.reshape(n, n)
    right = grid > 1.0
    east, west = _at(grid, EAST), _at(grid, WEST)
    own = n * jnp.where(right, west - 2.0 * grid, 2.0 * grid - east) - 4.0
    sides = [1.0 + jnp.where(right, 0.0, -n * grid), 1.0 + jnp.where(right, n * grid, 0.0)]
    return own, *sides, jnp.ones((2, n, n), w.dtype)


def make_upwind(n: int, dtype: Any, seed: int) -> Instance:
    """The equation on an n x n grid, n >= 3."""
    own = np.arange(n * n).reshape(n, n)
    beside = [np.roll(own, -step, axis) for axis, step in (EAST, WEST, SOUTH, NORTH)]
    rows, cols = joined(*((own, part) for part in (own, *beside)))
    return Instance(upwind, uniform(seed, n * n, dtype), _upwind_by_hand, rows, cols)


def shallow_water(state: jax.Array) -> jax.Array:
    """Time derivative of depth and velocities; (3 N^2,) -> (3 N^2,)."""
    n = round((state.size / 3) ** 0.5)
    h, u, v = state.reshape(3, n, n)

    def along(axis: int, w: jax.Array) -> jax.Array:
        return 0.5 * n * (_at(w, (axis, 1)) - _at(w, (axis, -1)))

    depth = -along(1, h * u) - along(0, h * v)
    u_rate = -u * along(1, u) - v * along(0, u) - GRAVITY * along(1, h) + CORIOLIS * v
    v_rate = -u * along(1, v) - v * along(0, v) - GRAVITY * along(0, h) - CORIOLIS * u
    return jnp.stack([depth, u_rate, v_rate]).reshape(-1)


def _shallow_water_by_hand(state: jax.Array) -> tuple[jax.Array, ...]:
    n = round((state.size / 3) ** 0.5)
    h, u, v = state.reshape(3, n, n)
    c = 0.5 * n
    cu, cv, ch = c * u, c * v, c * h

    def along(axis: int, w: jax.Array) -> jax.Array:
        return c * (_at(w, (axis, 1)) - _at(w, (axis, -1)))

    return (
        jnp.stack([-_at(cu, EAST), _at(cu, WEST), -_at(cv, SOUTH), _at(cv, NORTH)]),  # h by h
        jnp.stack([-_at(ch, EAST), _at(ch, WEST), -_at(ch, SOUTH), _at(ch, NORTH)]),  # h by u, v
        jnp.stack([-along(1, u), CORIOLIS - along(0, u), -along(1, v) - CORIOLIS, -along(0, v)]),
        jnp.stack([-cu, cu, -cv, cv]),  # u by u, and v by v
        jnp.broadcast_to(
            jnp.asarray([[[-c]], [[c]], [[-c]], [[c]]], state.dtype) * GRAVITY, (4, n, n)
        ),  # u and v by h
    )


def make_shallow_water(n: int, dtype: Any, seed: int) -> Instance:
    """The equations on an n x n grid, n >= 3: 3 n^2 unknowns."""
    h, u, v = np.arange(3 * n * n).reshape(3, n, n)

    def beside(field: np.ndarray) -> list[np.ndarray]:
        return [np.roll(field, -step, axis) for axis, step in (EAST, WEST, SOUTH, NORTH)]

    rows, cols = joined(
        (np.stack([h] * 4), np.stack(beside(h))),
        (np.stack([h] * 4), np.stack(beside(u)[:2] + beside(v)[2:])),
        (np.stack([u, u, v, v]), np.stack([u, v, u, v])),
        (np.stack([u] * 4), np.stack(beside(u))),
        (np.stack([u, u, v, v]), np.stack(beside(h))),
        (np.stack([v] * 4), np.stack(beside(v))),
    )

    def by_hand(state: jax.Array) -> tuple[jax.Array, ...]:
        *others, advection, gravity = _shallow_water_by_hand(state)
        return *others, advection, gravity, advection

    x = uniform(seed, 3 * n * n, dtype)
    return Instance(shallow_water, x, by_hand, rows, cols)


def _second_difference(c: jax.Array) -> jax.Array:
    return jnp.roll(c, 1) - 2.0 * c + jnp.roll(c, -1)


def cahn_hilliard(c: jax.Array) -> jax.Array:
    """Time derivative of the concentration on a ring; (n,) -> (n,)."""
    return _second_difference(c**3 - c - 0.5 * _second_difference(c))


def _cahn_hilliard_by_hand(c: jax.Array) -> tuple[jax.Array, ...]:
    w = 3.0 * c * c - 1.0
    end = jnp.full_like(c, -0.5)
    return end, jnp.roll(w, 1) + 2.0, -2.0 * w - 3.0, jnp.roll(w, -1) + 2.0, end


def make_cahn_hilliard(n: int, dtype: Any, seed: int) -> Instance:
    """The equation at n >= 5 points."""
    rows, cols = bands(n, (-2, -1, 0, 1, 2), periodic=True)
    return Instance(cahn_hilliard, uniform(seed, n, dtype), _cahn_hilliard_by_hand, rows, cols)


PROBLEMS = (
    SparseProblem("upwind", make_upwind, 64, 5, "LeVeque (2007), section 10.4"),
    SparseProblem("shallow_water", make_shallow_water, 48, 4, "Vallis (2017), section 3.1"),
    SparseProblem("cahn_hilliard", make_cahn_hilliard, 10_000, 9, "Cahn and Hilliard (1958)"),
)
