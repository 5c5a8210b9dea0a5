"""The program of a Hessian's diagonal: columns of second order that are not summed.

    d2y/dx_d^2  =  sum_v dy/dv q_v[:, d],     q_v[:, d] = H_v[du/dx_d, dw/dx_d]

So each nonlinear vertex gets a matrix with one column per input number, and the matrices are
carried to the outputs as the one column of a Laplacian is (`second_order` explains v, u and w).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..edges.bilinear import columnwise
from ..graph.computational_graph import VertexName
from ..rules.second_order import SecondOrderGraph
from .builder import Edge
from .carrier import Carrier
from .instructions import Program
from .second_order import Curvatures, Jacobians, Place, times

__all__ = ["build_hessian_diagonal"]


def build_hessian_diagonal(graph: SecondOrderGraph, order: Sequence[VertexName]) -> Program:
    """The program of all `d2y/dx_d^2`.

    Args:
        graph: the graph of second order, without unknown second derivatives.
        order: a permutation of the eliminable vertices, in which columns are carried.

    Returns:
        A program with one row of blocks per output leaf: for every leaf the map from it to the
        output that holds the second derivatives.

    Raises:
        NotImplementedError: where an equation has no closed second derivative.
    """
    return _HessianDiagonal(graph).diagonal(order)


class _HessianDiagonal(Carrier):
    of_equations = True

    def diagonal(self, order: Sequence[VertexName]) -> Program:
        self.require_closed_forms()
        second = self.second
        local = self.prepare()
        self.solved = self.sides()
        fused, curvatures = self.through_pointwise(local, self.curvature_edges())
        targets = {v for _, first, other, _ in curvatures for v in (first, other)}
        spans = self.jacobians(fused, self.identity_columns(), targets)
        names = [self.graph.by_name[v].variable for v in order]
        carried = [
            self.carry(local, self.columns_of(space, curvatures, spans), names)
            for space in range(len(second.inputs))
        ]
        for end, atom in zip(second.outputs, self.listing.outputs, strict=False):
            type_ = self.listing.type_of(atom)
            self.program.blocks.append(
                [
                    self.block(
                        carried[k].get(end) if end is not None else None, type_, self.shape_of(leaf)
                    )
                    for k, leaf in enumerate(second.inputs)
                ]
            )
        self.program.values = [self.value(atom) for atom in self.listing.outputs]
        return self.program

    def columns_of(self, space: int, curvatures: Curvatures, spans: Jacobians) -> dict[int, Edge]:
        """The columns of one leaf at every nonlinear vertex."""
        found: dict[Place, Edge | None] = {}
        for (vertex, one, other, mirrored), weight in curvatures.items():
            left, right = spans.get(one, {}).get(space), spans.get(other, {}).get(space)
            if left is None or right is None:
                continue
            structure = times(weight[0], 2) if mirrored else weight[0]
            recipe = columnwise(structure, left[0], right[0], left == right)
            made = self.made_by(recipe, (*weight[1], *left[1], *right[1]), vertex)
            found[vertex] = self.sum(found.get(vertex), made, vertex)
        for side, (vertex, arrow) in self.solved.items():
            column = found.pop(side, None)
            if column is not None:
                made = self.product(arrow, column, vertex)
                found[vertex] = self.sum(found.get(vertex), made, vertex)
        return {v: edge for v, edge in found.items() if edge is not None and isinstance(v, int)}
