"""What a benchmark problem is: a function, its differentiated arguments and random inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from benchmarks.problems.groups import Group


class Sampler(Protocol):
    """Draws inputs of a problem."""

    def __call__(
        self, key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
    ) -> tuple[Any, ...]:
        """Returns the positional arguments, each with the leading axes `batch`."""
        ...


@dataclass(frozen=True)
class Problem:
    """A function to differentiate, written from published equations.

    Attributes:
        name: short name, unique among the problems.
        fun: function of one input (no batch axis); batches are made with `jax.vmap`.
        sample: random inputs for it, `sample(key, batch, dtype)`.
        argnums: the arguments that are differentiated, as for `jax.jacfwd`.
        source: where the equations are published.
        batches: batch sizes at which the problem is timed.
        shared: arguments that all samples of a batch share; `sample` gives them no batch axes.
        group: whether the suites measure it by themselves.
    """

    name: str
    fun: Callable[..., Any]
    sample: Sampler
    argnums: int | tuple[int, ...]
    source: str
    batches: tuple[int, ...] = (1, 4096, 100_000)
    shared: tuple[int, ...] = ()
    group: Group = "named"

    def __str__(self) -> str:
        """The problem's name."""
        return self.name


def over_batch(fun: Callable[..., Any], shared: tuple[int, ...] = ()) -> Callable[..., Any]:
    """`fun` of one sample as a function of a batch, which shares some arguments."""

    def batched(*arguments: Any) -> Any:
        axes = [None if k in shared else 0 for k in range(len(arguments))]
        return jax.vmap(fun, axes)(*arguments)

    return batched


def first_sample(arguments: tuple[Any, ...], shared: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """The first sample of a batch."""
    return tuple(
        argument if k in shared else jax.tree.map(lambda leaf: leaf[0], argument)
        for k, argument in enumerate(arguments)
    )
