"""From a graph of second order to a program: Laplacian columns and Hessian blocks.

For `y = f(x)`, with v running over the nonlinear vertices and u, w over their arguments,

    sum_ij A_ij d2y/dx_i dx_j  =  sum_v dy/dv q_v,     q_v = sum over columns of H_v[du/dx, dw/dx A]
    d2y/dx_i dx_j              =  sum_v dy/dv H_v[du/dx_i, dw/dx_j]

So the Jacobians of the arguments are accumulated first. Each q_v is then an arrow from one further
input, the number one, to v, and eliminating the vertices carries these columns to the outputs:
forward elimination pushes them (the forward Laplacian), reverse elimination pulls the outputs back
to them, and any order in between does the same sum.

Vertices are named by their variable in the listing here; `("end", v)` is an output of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..edges.algebra import accumulate, add, compose
from ..edges.operations import Recipe
from ..edges.terms import Structure, intern_structure
from ..graph.computational_graph import VertexName
from ..graph.listing import Atom
from ..rules.curvature import Curvature
from ..rules.lowering import closure, identity_structure
from ..rules.second_order import SecondOrderGraph, references_of
from ..rules.site import Reference
from .builder import Builder, Edge

__all__ = ["Jacobians", "SecondOrderBuilder"]

#: Jacobians by variable and column space (one space per differentiated leaf, or one for seeds).
Jacobians = dict[int, dict[int, Edge]]


class SecondOrderBuilder(Builder):
    """What both programs share: values, local partials, Jacobians, curvatures."""

    def __init__(self, graph: SecondOrderGraph):
        super().__init__(graph.graph)
        self.second = graph
        self.names = {vertex.variable: vertex.name for vertex in graph.graph.vertices}

    def wanted_references(self) -> Iterable[Reference]:
        """References of local partials and of curvatures."""
        return references_of(self.second)

    def wanted_atoms(self) -> Iterable[Atom]:
        """Outputs, and operands of equations that are differentiated as a whole."""
        yield from self.listing.outputs
        for item in self.second.opaque:
            yield from item.equation.inputs

    def dtype_of(self, vertex: Any) -> Any:
        """Dtype of a variable, or of the output `("end", variable)`."""
        return self.listing.variables[vertex[1] if isinstance(vertex, tuple) else vertex].dtype

    def name_of(self, vertex: Any) -> VertexName:
        """Id of a variable's vertex."""
        return self.names.get(vertex, "q")

    def shape_of(self, variable: int) -> tuple[int, ...]:
        """Shape of a variable."""
        return self.listing.variables[variable].shape

    def made_by(self, recipe: Recipe, slots: Sequence[int], vertex: int) -> Edge | None:
        """The edge that a recipe makes of slots; None for zero."""
        self.program.local_cost = self.program.local_cost + recipe.cost
        if recipe.result is None:
            return None
        name = self.names.get(vertex)
        return recipe.result, self.replay(recipe, slots, self.dtype_of(vertex), name)

    def product(self, outer: Edge, inner: Edge, vertex: int) -> Edge | None:
        """`outer @ inner`, an arrow into `vertex`."""
        return self.made_by(compose(outer[0], inner[0]), (*outer[1], *inner[1]), vertex)

    def sum(self, first: Edge | None, second: Edge | None, vertex: int) -> Edge | None:
        """The sum of parallel arrows into `vertex`; None stands for zero."""
        if first is None or second is None:
            return first or second
        return self.made_by(add(first[0], second[0]), (*first[1], *second[1]), vertex)

    def prepare(self) -> dict[tuple[int, int], Edge]:
        """Evaluate the function and its local partials."""
        self.primals()
        made = {}
        for (u, v), arrow in self.second.arrows.items():
            edge = self.made_by(arrow.recipe, self.slots_of(arrow.references, v), v)
            if edge is not None:
                made[u, v] = edge
        return made

    def slots_of(self, references: Sequence[Reference], vertex: int) -> list[int]:
        """The slots of what references stand for."""
        dtype = self.dtype_of(vertex)
        return [self.reference(reference, dtype) for reference in references]

    def identity_columns(self) -> Jacobians:
        """One column space per leaf, in which the leaf's Jacobian is the identity."""
        starts: Jacobians = {}
        for space, variable in enumerate(self.second.inputs):
            recipe = accumulate((identity_structure(self.listing, variable),))
            if recipe.result is not None:
                starts[variable] = {space: (recipe.result, ())}
        return starts

    def jacobians(
        self, local: dict[tuple[int, int], Edge], starts: Jacobians, ends: Iterable[int]
    ) -> Jacobians:
        """Push columns forward to `ends`; the Jacobians of all vertices on the way."""
        backward: dict[int, list[int]] = {}
        for u, v in local:
            backward.setdefault(v, []).append(u)
        result = dict(starts)
        for v in sorted(closure(sorted(ends), backward)):
            row: dict[int, Edge | None] = dict(result.get(v, {}))
            for u in backward.get(v, ()):
                for space, inner in result.get(u, {}).items():
                    made = self.product(local[u, v], inner, v)
                    row[space] = self.sum(row.get(space), made, v)
            result[v] = {space: edge for space, edge in row.items() if edge is not None}
        return result

    def curvature(self, vertex: int, share: Curvature) -> Edge:
        """A bilinear map, doubled where its mirror image is left out."""
        edge = self.made_by(
            share.arrow.recipe, self.slots_of(share.arrow.references, vertex), vertex
        )
        assert edge is not None
        return (times(edge[0], 2), edge[1]) if share.symmetric else edge


def times(structure: Structure, number: int) -> Structure:
    """A structure multiplied by a number."""
    return intern_structure(
        structure.out_shape,
        structure.in_shape,
        [term.scaled(number) for term in structure.terms],
        structure.complex_out,
        structure.complex_in,
    )
