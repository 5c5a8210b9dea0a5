"""A recurrent network in a scan, differentiated with respect to its weights.

Source: S. Hochreiter, J. Schmidhuber, Neural Computation 9 (1997), 1735, with the forget gate of
F. Gers, J. Schmidhuber, F. Cummins, Neural Computation 12 (2000), 2451. A batch shares the weights.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.problems.problem import Problem

STEPS, INPUTS, UNITS = 8, 3, 8


def lstm(
    into: jax.Array, back: jax.Array, bias: jax.Array, xs: jax.Array, target: jax.Array
) -> jax.Array:
    """Half the squared distance of the last state from a target.

    Args:
        into: weights of the inputs, (inputs, 4 units): input gate, forget gate, cell, output gate.
        back: weights of the state, (units, 4 units).
        bias: (4 units,).
        xs: a sequence, (steps, inputs).
        target: (units,).

    Returns:
        The loss, scalar.
    """

    def step(
        carry: tuple[jax.Array, jax.Array], x: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        state, cell = carry
        taken, kept, new, shown = jnp.split(x @ into + state @ back + bias, 4)
        cell = jax.nn.sigmoid(kept) * cell + jax.nn.sigmoid(taken) * jnp.tanh(new)
        return (jax.nn.sigmoid(shown) * jnp.tanh(cell), cell), None

    zero = jnp.zeros_like(target)
    (state, _), _ = lax.scan(step, (zero, zero), xs)
    return 0.5 * jnp.sum((state - target) ** 2)


def sample(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random weights, sequences and targets."""
    keys = jax.random.split(key, 5)
    return (
        jax.random.normal(keys[0], (INPUTS, 4 * UNITS), dtype) / math.sqrt(INPUTS),
        jax.random.normal(keys[1], (UNITS, 4 * UNITS), dtype) / math.sqrt(UNITS),
        0.1 * jax.random.normal(keys[2], (4 * UNITS,), dtype),
        jax.random.normal(keys[3], (*batch, STEPS, INPUTS), dtype),
        jax.random.uniform(keys[4], (*batch, UNITS), dtype, -1.0, 1.0),
    )


PROBLEMS = (
    Problem(
        "lstm",
        lstm,
        sample,
        (0, 1, 2),
        "Hochreiter, Schmidhuber 1997; Gers et al. 2000",
        batches=(1, 4096),
        shared=(0, 1, 2),
        group="more",
    ),
)
