"""The body of a loop, branch or backward function: its equations and their local structures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np
from jax import dtypes

from ..edges.terms import Structure
from ..edges.values import lazy
from ..graph.inline import flatten_jaxpr
from ..graph.listing import Equation
from .lowering import local_partials
from .opaque import structures_only, treatment
from .possible_values import Possible, PossibleValues
from .window_tables import with_window_tables

__all__ = ["Aligned", "Body", "body_of", "jaxprs_of", "partners"]

#: For a value that an input moves: dimensions that hold the input's position.
Aligned = frozenset[int]


class Body:
    """The local structures of a nested jaxpr."""

    def __init__(self, closed: Any, moving: Collection[int] | None = None):
        """Inline the jaxpr; its rules are asked when the arrows are first read.

        Args:
            closed: the jaxpr.
            moving: the inputs that move; by default all that are not integers do.
        """
        variables = [variable.aval for variable in closed.jaxpr.invars]
        moves = [
            _is_inexact(aval) if moving is None else k in moving for k, aval in enumerate(variables)
        ]
        self.listing, self.active = flatten_jaxpr(closed, moves, treatment)
        with_window_tables(self.listing)
        self.moves = moves
        self.inputs = [self.listing.vertex(variable) for variable in self.listing.inputs]
        self.outputs = [
            self.listing.vertex(atom) if active and isinstance(atom, int) else None
            for atom, active in zip(self.listing.outputs, self.active, strict=True)
        ]
        self._given: Mapping[int, Possible] = {}

    def told(self, given: Mapping[int, Possible]) -> Body:
        """The same, where it is known what some inputs, integers, may be in every evaluation.

        The equations are the same ones, of which much is remembered.
        """
        body = copy(self)
        body._given = given
        vars(body).pop("arrows", None)
        return body

    @lazy
    def arrows(self) -> list[tuple[int, int, Structure]]:
        """The local partials by (from, to), in order."""
        token = structures_only.set(True)
        try:
            arrows, *_ = local_partials(self.listing, self.values(self._given))
        finally:
            structures_only.reset(token)
        return [
            (u, v, arrow.recipe.result)
            for (u, v), arrow in sorted(arrows.items(), key=lambda item: item[0][1])
            if arrow.recipe.result is not None
        ]

    def values(self, given: Mapping[int, Possible]) -> PossibleValues:
        """What its integers may be, from what some of its inputs may be."""
        return PossibleValues(self.listing, {self.listing.inputs[k]: p for k, p in given.items()})

    def shape(self, k: int) -> tuple[int, ...]:
        """Shape of an output."""
        return self.listing.type_of(self.listing.outputs[k]).shape

    def push(self, starts: dict[int, Aligned]) -> dict[int, Aligned]:
        """Aligned dimensions of the outputs that are reached, from those of inputs that move."""
        held = {self.inputs[position]: aligned for position, aligned in starts.items()}
        for u, v, structure in self.arrows:
            if u not in held:
                continue
            reached = frozenset(out for into in held[u] for out in partners(structure, into))
            held[v] = held[v] & reached if v in held else reached
        return {
            k: held[variable]
            for k, variable in enumerate(self.outputs)
            if variable is not None and variable in held
        }


def jaxprs_of(equation: Equation) -> list[Any]:
    """The branches of a `cond`, or the body of a loop alone."""
    if equation.name == "cond":
        return list(equation.params["branches"])
    return [equation.params["jaxpr" if equation.name == "scan" else "body_jaxpr"]]


@lru_cache(maxsize=64)
def _remembered(equation: Equation, number: int) -> Body:
    return Body(jaxprs_of(equation)[number])


def body_of(
    equation: Equation, number: int = 0, given: Mapping[int, Possible] | None = None
) -> Body:
    """A body of a loop or branch, of which several questions are asked.

    It is remembered for the equation, not for its jaxpr, which other traces may share: rules of
    users may have come since.
    """
    body = _remembered(equation, number)
    return body.told(given) if given else body


def _is_inexact(aval: Any) -> bool:
    return hasattr(aval, "dtype") and bool(dtypes.issubdtype(aval.dtype, np.inexact))


@lru_cache(maxsize=4096)
def partners(structure: Structure, into: int) -> frozenset[int]:
    """Dimensions of the output that are at the position of the input along `into`."""
    rank = len(structure.out_shape)
    return frozenset(
        out
        for out in range(rank)
        if all(term.out[out] == term.into[into] for term in structure.terms)
    )
