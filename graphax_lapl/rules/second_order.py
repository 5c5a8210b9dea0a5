"""The graph of a function that is differentiated twice.

The vertices and arrows are those of first order; what is added are the second derivatives of the
nonlinear vertices and the list of vertices whose Jacobians those need (targets). The coefficients
of inlined tangent programs are vertices too: they carry a derivative, and no output depends on
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..graph.computational_graph import Arrow, ComputationalGraph
from ..graph.listing import Listing
from .curvature import curvatures
from .lowering import closure, local_partials, lower
from .second_derivatives import Curvature, ImplicitCurvature, OpaqueCurvature
from .still_entries import StillEntries

__all__ = [
    "SecondOrderGraph",
    "lower_second_order",
    "references_of",
    "references_of_equations",
]


@dataclass
class SecondOrderGraph:
    """A computational graph with second derivatives; vertices are variables of the listing.

    Attributes:
        graph: the graph of first order, whose vertex ids orders refer to.
        arrows: all local partials, those of tangent programs' coefficients included.
        inputs: the differentiated leaves.
        outputs: for every output leaf its variable, None where it is constant.
        curvatures: second derivatives in closed form, by vertex.
        opaque: equations whose second derivative is taken by `jvp` of `jvp`, or is that of an
            equation that they solve.
        targets: variables whose Jacobian the second derivatives need, in topological order.
        still: entries that do not move.
    """

    graph: ComputationalGraph
    arrows: dict[tuple[int, int], Arrow]
    inputs: list[int]
    outputs: list[int | None]
    curvatures: dict[int, list[Curvature]]
    opaque: list[OpaqueCurvature]
    targets: list[int]
    still: StillEntries

    @property
    def listing(self) -> Listing:
        """The flat program."""
        return self.graph.listing

    @property
    def implicit(self) -> list[ImplicitCurvature]:
        """Second derivatives of what solves an equation."""
        return [item.implicit for item in self.opaque if item.implicit is not None]

    @property
    def unknown(self) -> list[OpaqueCurvature]:
        """Second derivatives that only `jvp` of `jvp` has."""
        return [item for item in self.opaque if item.implicit is None]

    @property
    def opaque_outputs(self) -> list[tuple[OpaqueCurvature, int, int]]:
        """Opaque second derivatives, with position and variable of every output they enter at."""
        vertices = {vertex.variable for vertex in self.graph.vertices}
        return [
            (item, k, output)
            for item in self.opaque
            for k, output in enumerate(item.equation.outputs)
            if output in vertices and output in self.listing.active
        ]


def lower_second_order(
    listing: Listing, differentiated: Sequence[bool], active_outputs: Sequence[bool], name: str
) -> SecondOrderGraph:
    """Build the graph of a listing that was flattened for two orders; arguments as in `lower`."""
    graph = lower(listing, differentiated, active_outputs, name)
    vertices = {vertex.variable for vertex in graph.vertices}
    found = curvatures(listing)
    local = {v: shares for v, shares in found.local.items() if v in vertices}
    opaque = [item for item in found.opaque if vertices.intersection(item.equation.outputs)]
    moving = [v for v, moves in zip(listing.inputs, differentiated, strict=True) if moves]
    arrows, _, still = local_partials(listing)
    forward: dict[int, list[int]] = {}
    backward: dict[int, list[int]] = {}
    for u, v in arrows:
        forward.setdefault(u, []).append(v)
        backward.setdefault(v, []).append(u)
    reached = closure(moving, forward)
    wanted = {v for v in _arguments(local, opaque) if v in reached}
    factors = {v for item in opaque if item.implicit is not None for v in item.implicit.arguments}
    alive = vertices | (closure(sorted(wanted | (factors & reached)), backward) & reached)
    outputs = []
    for atom, active in zip(listing.outputs, active_outputs, strict=False):
        end = listing.vertex(atom) if active and isinstance(atom, int) else None
        outputs.append(end if end in vertices else None)
    return SecondOrderGraph(
        graph,
        {(u, v): arrow for (u, v), arrow in arrows.items() if u in alive and v in alive},
        moving,
        outputs,
        local,
        opaque,
        sorted(wanted),
        still,
    )


def _arguments(local: dict[int, list[Curvature]], opaque: list[OpaqueCurvature]) -> Iterable[int]:
    for shares in local.values():
        for share in shares:
            yield from (share.first, share.second)
    for item in opaque:
        yield from item.arguments


def references_of(graph: SecondOrderGraph) -> Iterable[Any]:
    """All references that the second derivatives in closed form read."""
    for arrow in graph.arrows.values():
        yield from arrow.references
    for shares in graph.curvatures.values():
        for share in shares:
            yield from share.arrow.references


def references_of_equations(graph: SecondOrderGraph) -> Iterable[Any]:
    """All references that the second derivatives of what solves an equation read."""
    for item in graph.implicit:
        yield from item.arrow.references
        for share in item.shares:
            yield from share.arrow.references
