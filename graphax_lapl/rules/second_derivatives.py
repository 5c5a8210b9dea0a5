"""What is known of the second derivatives of single equations."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.computational_graph import Arrow
from ..graph.listing import Equation

__all__ = ["Curvature", "Curvatures", "ImplicitCurvature", "OpaqueCurvature"]


@dataclass(frozen=True)
class Curvature:
    """A share of the second derivative of one vertex.

    Attributes:
        first: variable of the first argument; the local partial is taken with respect to it.
        second: variable of the second argument, which that partial depends on.
        arrow: the bilinear map, out of (first, second).
        symmetric: whether the mirrored share, with first and second exchanged, is left out
            because it is the same.
    """

    first: int
    second: int
    arrow: Arrow
    symmetric: bool


@dataclass(frozen=True)
class ImplicitCurvature:
    """The second derivative of what solves an equation `F(u, y) = b`, see `implicit.py`.

    Attributes:
        output: variable of the solution y.
        arrow: the derivative of y along b, as the equation has it.
        shares: of the second derivative of -F, as maps into b.
    """

    output: int
    arrow: Arrow
    shares: tuple[Curvature, ...]

    @property
    def arguments(self) -> set[int]:
        """The variables whose columns the second derivative is made of."""
        return {v for share in self.shares for v in (share.first, share.second)}


@dataclass(frozen=True)
class OpaqueCurvature:
    """An equation whose second derivative is taken by `jvp` of `jvp`.

    Attributes:
        equation: the equation.
        tangents: for each input the variable whose columns are pushed through it, or None.
        moving: for each input the variable whose columns its value moves along, or None.
        solution: of an equation that solves a linear one, the variable that it solves for: its
            columns stand in its second derivative, and elimination has them. None elsewhere.
        implicit: the second derivative as that of the equation that is solved; None where that is
            not known.
    """

    equation: Equation
    tangents: tuple[int | None, ...]
    moving: tuple[int | None, ...]
    solution: int | None = None
    implicit: ImplicitCurvature | None = None

    @property
    def arguments(self) -> set[int]:
        """The variables whose columns the second derivative is made of."""
        return {v for v in (*self.tangents, *self.moving, self.solution) if v is not None}


@dataclass
class Curvatures:
    """Second derivatives by the variable whose vertex they belong to."""

    local: dict[int, list[Curvature]]
    opaque: list[OpaqueCurvature]
