"""Functions that are linear in each of their arguments: partials are environments.

All environments of a call are one array, so that what they share is computed once; the partial with
respect to an argument reads its part of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidArgumentError
from .custom import register_function
from .site import Local, Piece, Reference, Site, axes_of

__all__ = ["Multilinear", "register_multilinear"]


@dataclass(frozen=True, eq=False)
class Multilinear:
    """The rule of a multilinear function.

    Attributes:
        name: its name.
        fun: the function.
        argnums: the arguments that it is linear in; None for all.
        environments: the user's function for all environments, or None.
    """

    name: str
    fun: Callable[..., Any]
    argnums: tuple[int, ...] | None
    environments: Callable[..., Sequence[Any]] | None

    def __call__(self, site: Site, i: int, k: int) -> list[Piece]:
        """The partial with respect to input `i`."""
        chosen = tuple(range(len(site.inputs))) if self.argnums is None else self.argnums
        if i not in chosen:
            raise InvalidArgumentError(
                f"{self.name} is multilinear in the arguments {chosen}, and a derivative along "
                f"argument {i} is asked for ({site.equation.source}). Add it to argnums, or keep "
                "it constant with jax.lax.stop_gradient."
            )
        if self.environments is None and site.out_shape != ():
            return site.opaque(i, k, slot="each")
        return self.environment(site, i, chosen)

    def environment(self, site: Site, i: int, chosen: tuple[int, ...]) -> list[Piece]:
        """The partial as the array of the open slot."""
        out = site.out_shape
        shapes = [(*out, *site.shape(position)) for position in chosen]
        types = [jax.ShapeDtypeStruct(type_.shape, type_.dtype) for type_ in site.inputs]
        compute = _all_environments(self, chosen, out)
        found = jax.eval_shape(compute.each, *types)
        if [tuple(array.shape) for array in found] != shapes:
            raise InvalidArgumentError(
                f"The environments of {self.name} have shapes "
                f"{[tuple(array.shape) for array in found]}, expected {shapes}: one for each of "
                f"the arguments {chosen}, of the output's dimensions and then the argument's own."
            )
        sizes = [math.prod(shape) for shape in shapes]
        values = tuple(site.value(position) for position in range(len(site.inputs)))
        together: Reference = Local(f"environments of {self.name}", compute, values, (sum(sizes),))
        n = chosen.index(i)
        part = _part(sum(sizes[:n]), shapes[n])
        array = Local(f"environment {i} of {self.name}", part, (together,), shapes[n])
        rank = len(out)
        axes = axes_of(len(shapes[n]))
        return site.piece(
            shapes[n], axes[:rank], axes[rank:], [site.factor(array, axes, shapes[n])]
        )


@dataclass(frozen=True)
class _All:
    """All environments, raveled, as one array."""

    rule: Multilinear
    chosen: tuple[int, ...]
    out: tuple[int, ...]

    def each(self, *values: Array) -> list[Array]:
        """One array per environment."""
        if self.rule.environments is not None:
            return [jnp.asarray(array) for array in self.rule.environments(*values)]
        return list(jax.grad(self.rule.fun, self.chosen)(*values))

    def __call__(self, *values: Array) -> Array:
        return jnp.concatenate([jnp.ravel(array) for array in self.each(*values)])


@lru_cache(maxsize=1024)
def _all_environments(rule: Multilinear, chosen: tuple[int, ...], out: tuple[int, ...]) -> _All:
    return _All(rule, chosen, out)


@lru_cache(maxsize=4096)
def _part(start: int, shape: tuple[int, ...]) -> Callable[[Array], Array]:
    size = int(np.prod(shape, dtype=np.int64))

    def part(together: Array) -> Array:
        return jnp.reshape(together[start : start + size], shape)

    return part


def register_multilinear(function: Callable[..., Any], rule: Multilinear) -> None:
    """Let calls of a multilinear function be one vertex."""
    register_function(function, rule)
