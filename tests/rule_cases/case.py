"""One case of the rule battery: a function of real arrays and where to differentiate it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Table = dict[str, dict[str, "Case"]]
"""Primitive -> form -> case."""


@dataclass(frozen=True)
class Case:
    """A function and its arguments; every argument is differentiated.

    Args:
        fun: the function under test, a few primitives at most.
        args: float64 arrays.
        warp: whether the arguments may be moved a little (at most 0.05) before ``fun``.
        extended: whether the case belongs to `make conformance` only.
    """

    fun: Callable[..., Any]
    args: tuple[np.ndarray, ...]
    warp: bool = True
    extended: bool = False

    def composed(self, *args: jax.Array) -> tuple[Any, Any]:
        """The function alone, and between two smooth elementwise functions.

        Alone its partial is the Jacobian; in between, the partial meets a variable diagonal on
        either side, in an order that depends on the elimination order.
        """
        moved = [x + 0.05 * jnp.sin(3.0 * x) for x in args] if self.warp else args
        return self.fun(*args), jax.tree.map(jnp.sin, self.fun(*moved))


def sample(shape: Sequence[int], low: float = -1.0, high: float = 1.0, seed: int = 0) -> np.ndarray:
    """Distinct numbers between ``low`` and ``high`` in a random arrangement.

    They are equally spaced, so that no two of them tie and none comes closer than half a step to
    either end.
    """
    size = math.prod(shape)
    steps = np.random.Generator(np.random.PCG64(seed)).permutation(size) + 0.5
    return (low + (high - low) * steps / max(size, 1)).reshape(tuple(shape))
