"""Mass-action kinetics of random reactions A + B -> C: rates by a gather, balances by scatter-add.

Three reactions per species. The number of nonzeros is that of the distinct pairs (species,
reactant) that share a reaction; a reactant's own column adds up over all of its reactions.

Source: M. Feinberg, "Foundations of Chemical Reaction Network Theory" (2019), section 2.2.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.sparse.problem import Assembly, Instance, SparseProblem, uniform


def make(n: int, dtype: Any, seed: int) -> Instance:
    """The kinetics of n species, n >= 3, in 3 n reactions."""
    generator = np.random.default_rng(seed)
    reactions = np.array([generator.choice(n, 3, replace=False) for _ in range(3 * n)])
    first, second, product = reactions.T
    constants = uniform(seed + 1, 3 * n, dtype)

    def mass_action(x: jax.Array) -> jax.Array:
        rate = constants * x[first] * x[second]
        return jnp.zeros_like(x).at[first].add(-rate).at[second].add(-rate).at[product].add(rate)

    # Contribution [s, r, k]: species s of reaction k, by reactant r.
    rows = np.stack([np.stack([species] * 2) for species in (first, second, product)])
    cols = np.stack([np.stack([first, second])] * 3)
    assembly = Assembly(rows, cols, n)

    def by_hand(x: jax.Array) -> tuple[jax.Array, ...]:
        partials = constants * jnp.stack([x[second], x[first]])
        return assembly(jnp.stack([-partials, -partials, partials]))

    return Instance(mass_action, uniform(seed + 2, n, dtype), by_hand, assembly.rows, assembly.cols)


SOURCE = "Feinberg, Foundations of Chemical Reaction Network Theory (2019), section 2.2"
PROBLEMS = (SparseProblem("mass_action", make, 5_000, 40, SOURCE),)
