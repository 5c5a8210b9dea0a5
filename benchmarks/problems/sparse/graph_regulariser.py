r"""A smoothed total variation on a random graph.

    f(x) = sum_(i,j) log cosh(x_i - x_j) + |x - b|^2 / 2

The Hessian is the graph's Laplacian with weights 1 / cosh^2, plus the identity: n + 2 |edges|
nonzeros. Three edges per vertex, all distinct.

Source: D. I. Shuman et al., "The emerging field of signal processing on graphs", IEEE Signal
Processing Magazine 30 (2013), section III; log cosh in place of the absolute value.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.sparse.problem import Assembly, Instance, SparseProblem, joined, uniform


def random_edges(n: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` distinct pairs of distinct vertices of n, in random order."""
    generator = np.random.default_rng(seed)
    drawn = np.sort(generator.integers(0, n, (4 * count + 16, 2)), axis=1)
    drawn = drawn[drawn[:, 0] != drawn[:, 1]]
    _, first = np.unique(drawn, axis=0, return_index=True)
    edges = drawn[np.sort(first)[:count]]
    return edges[:, 0], edges[:, 1]


def make(n: int, dtype: Any, seed: int) -> Instance:
    """A graph of n vertices and up to 3 n edges."""
    i, j = random_edges(n, 3 * n, seed)
    target = uniform(seed + 1, n, dtype)

    def regulariser(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.log(jnp.cosh(x[i] - x[j]))) + 0.5 * jnp.sum((x - target) ** 2)

    every = np.arange(n)
    degrees = Assembly(np.concatenate([i, j, every]), np.concatenate([i, j, every]), n)

    def by_hand(x: jax.Array) -> tuple[jax.Array, ...]:
        weight = 1.0 - jnp.tanh(x[i] - x[j]) ** 2
        side = -weight
        return side, side, *degrees(jnp.concatenate([weight, weight, jnp.ones_like(x)]))

    rows, cols = joined((i, j), (j, i), (degrees.rows, degrees.cols))
    return Instance(regulariser, uniform(seed + 2, n, dtype), by_hand, rows, cols)


SOURCE = "Shuman et al., IEEE Signal Processing Magazine 30 (2013), section III"
PROBLEMS = (SparseProblem("graph_regulariser", make, 10_000, 9, SOURCE, "hessian"),)
