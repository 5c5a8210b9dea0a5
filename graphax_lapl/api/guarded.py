"""Functions whose tangents are zero where none can be, whatever the slopes are.

A seed's zero times an infinite slope is NaN. Where no path leads from a seed's inputs to an entry,
its tangent there is known to be zero, and nothing is multiplied with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero, zero_from_primal

from ..graph.listing import Atom, Constant, Equation, Listing

__all__ = ["GuardedFunction"]


@dataclass(frozen=True, eq=False)
class GuardedFunction:
    """A flat program, and which tangents of some operands can be other than zero.

    Attributes:
        listing: the program; every variable has its own value.
        reached: by the positions of an equation and of an operand, for every seed and entry whether
            a path leads there; shape `(seeds, *operand shape)`.
    """

    listing: Listing
    reached: Mapping[tuple[int, int], np.ndarray]

    def guards(self) -> tuple[list[Array], list[Array]]:
        """Arguments beside the function's own, and their seeds."""
        seeds = []
        for (place, operand), reached in self.reached.items():
            dtype = self.listing.type_of(self.listing.equations[place].inputs[operand]).dtype
            seeds.append(jnp.asarray(reached, dtype))
        return [jnp.zeros(seed.shape[1:], seed.dtype) for seed in seeds], seeds

    def __call__(self, inputs: Sequence[Any], guards: Sequence[Any]) -> list[Any]:
        """The results of the program, of its constants and leaves."""
        listing = self.listing
        places = (*listing.constants, *listing.inputs)
        values: dict[int, Any] = {**listing.known, **dict(zip(places, inputs, strict=True))}
        by_place: dict[int, dict[int, Any]] = {}
        for (place, operand), guard in zip(self.reached, guards, strict=True):
            by_place.setdefault(place, {})[operand] = guard

        def read(atom: Atom) -> Any:
            return atom.value if isinstance(atom, Constant) else values[atom]

        for place, equation in enumerate(listing.equations):
            operands = [read(atom) for atom in equation.inputs]
            if own := by_place.get(place):
                results = [_guarded(equation, tuple(own))([*own.values()], *operands)]
            else:
                results = equation.evaluate(*operands)
            values.update(zip(equation.outputs, results, strict=True))
        return [read(atom) for atom in listing.outputs]


def _guarded(equation: Equation, guarded: Sequence[int]) -> Callable[..., Any]:
    """An elementwise equation that multiplies no slope with a tangent that its guard rules out."""

    @jax.custom_jvp
    def apply(guards: Sequence[Any], *values: Any) -> Any:
        del guards
        return equation.evaluate(*values)[0]

    def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
        values, (shown, *moved) = primals[1:], tangents
        out = apply(*primals)
        parts = []
        for k, (value, tangent) in enumerate(zip(values, moved, strict=True)):
            guard = shown[guarded.index(k)] if k in guarded else None
            if isinstance(tangent, SymbolicZero) or isinstance(guard, SymbolicZero):
                continue

            def alone(x: Any, k: int = k) -> Any:
                return equation.evaluate(*values[:k], x, *values[k + 1 :])[0]

            part = jax.jvp(alone, (value,), (tangent,))[1]
            if guard is not None:
                part = lax.select(
                    lax.ne(guard, lax.full_like(guard, 0)), part, lax.full_like(part, 0)
                )
            parts.append(part)
        if not parts:
            return out, zero_from_primal(out, symbolic_zeros=True)
        return out, functools.reduce(lax.add, parts)

    apply.defjvp(rule, symbolic_zeros=True)
    return apply
