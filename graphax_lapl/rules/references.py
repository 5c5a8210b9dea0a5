"""What a local partial's factors refer to, and the terms that they are factors of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..edges.terms import Opaque, Term
from ..edges.values import immutable, record
from ..graph.listing import Equation

__all__ = ["Known", "Local", "OpaqueMap", "Piece", "Primal", "Reference"]


@immutable
class Primal:
    """The value of a variable of the function."""

    variable: int


@record
class Known:
    """An array known while planning."""

    value: np.ndarray


@immutable
class Local:
    """A local partial: a function of primal values.

    Attributes:
        name: what to print.
        fun: maps arrays to the array of the partial.
        arguments: where its arguments come from.
        shape: shape of the result.
        slope: what is known of its own derivative: "elementwise" (a diagonal along every argument),
            "constant" (zero almost everywhere, and taken as zero), "unknown", or a function of
            the `Local` that returns pairs of an argument's position and a `Piece`.
        mask: whether it holds ones where a tangent is selected, and zeros elsewhere.
    """

    name: str
    fun: Callable[..., Any]
    arguments: tuple[Reference, ...]
    shape: tuple[int, ...]
    slope: str | Callable[..., Any] = "unknown"
    mask: bool = False


@immutable
class OpaqueMap:
    """The linear map of an equation, from one input to one output, as `jvp` and `vjp`.

    Attributes:
        equation: the equation.
        into: position of the input.
        out: position of the output.
        opaque: what is known of the map.
        batch_in: dimensions of the input along which the map is diagonal.
        batch_out: the same dimensions of the output.
        arguments: references of all inputs; None where a linear equation has no value.
        slot: whether the map is the equation itself, with the tangent in the place of the input.
        conjugate: of a map `A dz + B conj(dz)` between complex arrays, which half is meant: False
            for A, True for B; None where the map is as it is.
    """

    equation: Equation
    into: int
    out: int
    opaque: Opaque
    batch_in: tuple[int, ...]
    batch_out: tuple[int, ...]
    arguments: tuple[Reference | None, ...]
    slot: bool = False
    conjugate: bool | None = None


Reference = Primal | Known | Local | OpaqueMap


@immutable
class Piece:
    """One term of a local partial, with the references of its factors."""

    term: Term
    references: tuple[Reference, ...]
