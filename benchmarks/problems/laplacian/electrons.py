"""What the wave functions have in common: distances, envelopes, determinants, a Jastrow factor."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.laplacian.problem import Draw

SPACING = 1.5  # between the nuclei of the chain, in Bohr


def nuclei(count: int) -> np.ndarray:
    """Positions of a chain of nuclei, shape (count, 3), in Bohr."""
    positions = np.zeros((count, 3))
    positions[:, 0] = SPACING * (np.arange(count) - (count - 1) / 2)
    return positions


def to_nuclei(x: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Vectors (electrons, nuclei, 3) and distances (electrons, nuclei) to a chain of nuclei."""
    vectors = x[:, None] - jnp.asarray(nuclei(count), x.dtype)
    return vectors, jnp.linalg.norm(vectors, axis=-1)


def between(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Vectors (electrons, electrons, 3) and distances between electrons, zero on the diagonal."""
    vectors = x[:, None] - x[None, :]
    diagonal = jnp.eye(x.shape[0], dtype=x.dtype)
    # Moved away from zero on the diagonal, where the norm has no derivative.
    distances = jnp.linalg.norm(vectors + diagonal[..., None], axis=-1) * (1 - diagonal)
    return vectors, distances


def draw_envelope(draw: Draw, atoms: int, orbitals: int) -> dict[str, jax.Array]:
    """Decay and weight of every orbital at every nucleus."""
    return {
        "decay": 1.0 + draw.normal(atoms, orbitals, scale=0.1),
        "weight": 1.0 + draw.normal(atoms, orbitals, scale=0.1),
    }


def envelope(params: dict[str, jax.Array], distances: jax.Array) -> jax.Array:
    """Sum of exponentials at the nuclei, shape (electrons, orbitals)."""
    decay = jnp.exp(-distances[..., None] * params["decay"])
    return jnp.sum(params["weight"] * decay, axis=1)


def log_determinants(*matrices: jax.Array) -> jax.Array:
    """log|sum over k of the product of det(matrix[k])|; each argument: (determinants, n, n)."""
    signs, logs = zip(*(jnp.linalg.slogdet(matrix) for matrix in matrices), strict=True)
    sign, log = signs[0], logs[0]
    for other_sign, other_log in zip(signs[1:], logs[1:], strict=True):
        sign, log = sign * other_sign, log + other_log
    return jax.scipy.special.logsumexp(log, b=sign, return_sign=True)[0]


def jastrow(strength: jax.Array, x: jax.Array) -> jax.Array:
    """The electron-electron cusp, summed over pairs."""
    first, second = np.triu_indices(x.shape[0], 1)
    distance = jnp.linalg.norm(x[first] - x[second], axis=-1)
    return jnp.sum(-0.25 * strength**2 / (strength + distance))


def electrons(draw: Draw, batch: int, count: int) -> jax.Array:
    """Positions of electrons, shape (batch, count, 3), in Bohr."""
    return draw.normal(batch, count, 3, scale=1.5)


def split(matrix: jax.Array, determinants: int) -> jax.Array:
    """Orbitals (electrons, determinants * n) to matrices (determinants, electrons, n)."""
    rows = matrix.shape[0]
    return jnp.moveaxis(matrix.reshape(rows, determinants, -1), 1, 0)


Params = dict[str, Any]
