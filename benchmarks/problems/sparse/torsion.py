r"""Torsion energy of a chain of atoms, sum over four consecutive atoms of 1 + cos(3 phi).

phi is the dihedral angle; cos(3 phi) = 4 cos^3(phi) - 3 cos(phi) needs no arctangent. Atoms
interact up to the third neighbour: blocks of 3 x 3 in seven block diagonals, 9 (7 n - 12) nonzeros.

Source: A. D. MacKerell et al., "All-atom empirical potential for molecular modeling and dynamics
studies of proteins", J. Phys. Chem. B 102 (1998), equation (1), dihedral term.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.sparse.problem import Instance, SparseProblem, total, uniform

ATOMS = 4  # of a dihedral


def dihedral_energy(first: jax.Array, second: jax.Array, third: jax.Array) -> jax.Array:
    """Energy of dihedrals between bonds, shapes (..., 3); shape (...)."""
    normal, other = jnp.cross(first, second), jnp.cross(second, third)
    lengths = jnp.sum(normal * normal, axis=-1) * jnp.sum(other * other, axis=-1)
    cos = jnp.sum(normal * other, axis=-1) / jnp.sqrt(lengths)
    return 1.0 + (4.0 * cos**2 - 3.0) * cos


def torsion(x: jax.Array) -> jax.Array:
    """Energy of the chain; (3 n,) -> ()."""
    atoms = x.reshape(-1, 3)
    bonds = atoms[1:] - atoms[:-1]
    return jnp.sum(dihedral_energy(bonds[:-2], bonds[1:-1], bonds[2:]))


def _by_hand(x: jax.Array) -> tuple[jax.Array, ...]:
    """Blocks of one dihedral by forward over reverse mode, added up by hand."""
    atoms = x.reshape(-1, 3)
    n = len(atoms)
    count = n - ATOMS + 1

    def energy(four: jax.Array) -> jax.Array:
        return dihedral_energy(*(four[1:] - four[:-1]))

    quads = jnp.stack([atoms[k : k + count] for k in range(ATOMS)], axis=1)
    blocks = jax.vmap(jax.hessian(energy))(quads)  # [dihedral, atom, xyz, atom, xyz]
    return tuple(
        total(
            jnp.pad(blocks[:, k, :, k + d], ((k, n - count - k), (0, 0), (0, 0)))
            for k in range(max(0, -d), min(ATOMS, ATOMS - d))
        )
        for d in range(1 - ATOMS, ATOMS)
    )


def make(n: int, dtype: Any, seed: int) -> Instance:
    """A chain of n >= 4 atoms, 3 n coordinates."""
    atom = np.arange(n)[None, :, None, None]
    other = atom + np.arange(1 - ATOMS, ATOMS)[:, None, None, None]
    xyz = np.arange(3)
    shape = (2 * ATOMS - 1, n, 3, 3)
    rows = np.where((other < 0) | (other >= n), -1, 3 * atom + xyz[:, None])
    rows = np.broadcast_to(rows, shape).ravel()
    cols = np.broadcast_to(3 * other + xyz, shape).ravel()
    # A zigzag with noise: no three atoms in a line.
    steps = np.stack([np.arange(n), np.arange(n) % 2, (np.arange(n) // 2) % 2], axis=1)
    x = jnp.asarray(steps.ravel(), dtype) + uniform(seed, 3 * n, dtype, -0.2, 0.2)
    return Instance(torsion, x, _by_hand, rows, cols)


SOURCE = "MacKerell et al., J. Phys. Chem. B 102 (1998), equation (1)"
PROBLEMS = (SparseProblem("torsion", make, 1_000, 6, SOURCE, "hessian"),)
