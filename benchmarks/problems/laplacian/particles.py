"""Energies of particles: a learned pair potential, and a message-passing network.

Sources: Behler, Parrinello, Phys. Rev. Lett. 98 (2007) 146401 for networks of distances; Gilmer et
al., arXiv 1704.01212 for message passing, with the continuous filters of Schütt et al., arXiv
1706.08566.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.laplacian.problem import (
    Draw,
    Instance,
    LaplacianProblem,
    Layer,
    dense,
    mlp,
)


def pair_potential(params: list[Layer], x: jax.Array) -> jax.Array:
    """A network of the distance, summed over pairs; x: (particles, 3)."""
    first, second = np.triu_indices(x.shape[0], 1)
    distance = jnp.sqrt(jnp.sum((x[first] - x[second]) ** 2, axis=-1))
    return jnp.sum(mlp(params, distance[:, None], jax.nn.silu))


def message_passing(params: dict[str, Any], x: jax.Array, radial: int) -> jax.Array:
    """Messages along all pairs, filtered by radial functions of the distance; x: (particles, 3)."""
    n = x.shape[0]
    diagonal = jnp.eye(n, dtype=x.dtype)
    difference = x[:, None] - x[None, :]
    # One is added on the diagonal, where the square root has no derivative.
    distance = jnp.sqrt(jnp.sum(difference**2, axis=-1) + diagonal)
    centres = jnp.linspace(0.0, 4.0, radial, dtype=x.dtype)
    features = jnp.exp(-((distance[..., None] - centres) ** 2)) * (1.0 - diagonal)[..., None]
    h = jnp.broadcast_to(params["start"], (n, params["start"].shape[0]))
    for filters, update in params["layers"]:
        weights = mlp(filters, features, jax.nn.silu)
        messages = jnp.sum(weights * h[None, :, :], axis=1)
        h = h + jax.nn.silu(dense(update, jnp.concatenate([h, messages], axis=-1)))
    return jnp.sum(mlp(params["readout"], h, jax.nn.silu))


def make_pair_potential(draw: Draw, batch: int, particles: int, width: int, depth: int) -> Instance:
    """`depth` hidden layers of `width` after the distance."""
    params = draw.mlp(1, *[width] * depth, 1)
    return Instance(pair_potential, params, draw.normal(batch, particles, 3, scale=2.0))


def make_message_passing(
    draw: Draw, batch: int, particles: int, radial: int, width: int, depth: int
) -> Instance:
    """`depth` rounds of messages of `width` features."""
    layers = [(draw.mlp(radial, width, width), draw.dense(2 * width, width)) for _ in range(depth)]
    params = {
        "start": draw.normal(width),
        "layers": layers,
        "readout": draw.mlp(width, width, 1),
    }
    xs = draw.normal(batch, particles, 3, scale=1.5)
    return Instance(lambda params, x: message_passing(params, x, radial), params, xs)


PROBLEMS = (
    LaplacianProblem(
        "pair_potential",
        make_pair_potential,
        {"batch": 8, "particles": 32, "width": 32, "depth": 2},
        {"batch": 2, "particles": 4, "width": 3, "depth": 2},
        "Behler, Parrinello, Phys. Rev. Lett. 98 (2007) 146401",
    ),
    LaplacianProblem(
        "message_passing",
        make_message_passing,
        {"batch": 4, "particles": 16, "radial": 8, "width": 32, "depth": 3},
        {"batch": 2, "particles": 3, "radial": 3, "width": 4, "depth": 2},
        "Gilmer et al., arXiv 1704.01212",
    ),
)
