"""The program of a Hessian whose columns are pulled back through the function.

    d2y/dx_i dx_j  =  sum_v (du/dx_i)^T C_v dw/dx_j,     C_v = dy/dv H_v

`hessian.py` contracts each curvature with both Jacobians, which is for a batch a small product for
every sample. Here it is multiplied with one of them, and the columns `K_u = sum C dw/dx_j` of an
argument u are taken on: contracted with du/dx_i, or pulled back through the arrows into u and added
to the columns that are there. A product with weights that samples share is one large product for
all of them, and where several vertices have one in front of them it is done once. Forward over
reverse mode pulls all columns back to the inputs; contracting all is edge pushing (Gower and Mello,
2012).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TypeVar

from ..edges.bilinear import pull_back, swapped
from ..edges.operations import Einsum, Recipe
from ..rules.second_order import SecondOrderGraph
from .builder import Edge
from .hessian import HessianBuilder, build_hessian
from .instructions import Program
from .orientation import multiplies
from .second_order import Jacobians, times

__all__ = ["build_hessian_by_columns"]

#: How much longer an operation takes in a product that every sample has of its own.
OWN = 8
#: Operations and memory traffic of adding a number to columns.
MERGING = 3

Key = TypeVar("Key")
#: Bilinear maps of (leaf, vertex) by vertex and leaf, to be added up.
Columns = dict[int, dict[int, list[Edge]]]
#: Bilinear maps of two leaves.
Pairs = dict[tuple[int, int], Edge]


def build_hessian_by_columns(
    graph: SecondOrderGraph, max_operations: int | None = None
) -> Program | None:
    """The program of all second derivatives, see `build_hessian`.

    Args:
        graph: the graph of second order.
        max_operations: on partials; none by default.

    Returns:
        The program; None where it takes more operations, or complex numbers are in between.
    """
    variables = [vertex.variable for vertex in graph.graph.vertices]
    if any(graph.listing.variables[v].is_complex for v in variables):
        return None
    return build_hessian(graph, max_operations, _ByColumns)


class _ByColumns(HessianBuilder):
    def pulled(
        self, weights: dict[tuple[int, int, bool], Edge | None], spans: Jacobians, end: int
    ) -> Pairs:
        """Bilinear maps of intermediate arguments as such of leaves, added up."""
        columns: Columns = {}

        def enter(weight: Edge, first: int, other: int) -> None:
            row = columns.setdefault(other, {})
            for j, span in spans.get(first, {}).items():
                self.contract(row, j, weight, span, self.identity(other), end)

        half = False
        for (first, other, symmetric), weight in weights.items():
            if weight is None:
                continue
            if not symmetric:
                enter(weight, first, other)
                continue
            if not self.listing.moves_with:
                # The other half comes with the mirror image of the result.
                half = True
                enter((times(weight[0], 2), weight[1]), first, other)
                continue
            enter(weight, first, other)
            turned = self.made_by(swapped(weight[0], len(self.shape_of(first))), weight[1], end)
            assert turned is not None
            enter(turned, other, first)
        found = self.pulled_back(columns, spans, end)
        return self.symmetric(found, end) if half else found

    def pulled_back(self, columns: Columns, spans: Jacobians, end: int) -> Pairs:
        """The sum of all columns, each vertex' after those of its readers."""
        fixed = self.program.unreached(self.moving_inputs())
        sources: dict[int, list[int]] = {}
        for u, v in self.arrows:
            if spans.get(u):
                sources.setdefault(v, []).append(u)
        leaves = {variable: k for k, variable in enumerate(self.second.inputs)}
        parts: dict[tuple[int, int], list[Edge]] = {}
        while columns:
            v = max(columns)
            for j, edges in columns.pop(v).items():
                total = self.total(edges, end)
                if total is None:
                    continue
                if v in leaves:
                    parts.setdefault((j, leaves[v]), []).append(total)
                    continue
                leaf = self.identity(self.second.inputs[j])
                back = [(u, self.arrows[u, v]) for u in sources.get(v, ())]
                here = list(spans.get(v, {}).items())
                merged = MERGING * math.prod(leaf[0].in_shape)
                pulls = sum(
                    _work(total, leaf, arrow, fixed) + merged * math.prod(arrow[0].in_shape)
                    for _, arrow in back
                )
                if pulls <= sum(_work(total, leaf, span, fixed) for _, span in here):
                    for u, arrow in back:
                        self.contract(columns.setdefault(u, {}), j, total, leaf, arrow, end)
                else:
                    for i, span in here:
                        self.contract(parts, (j, i), total, leaf, span, end)
                if len(edges) > 1:  # XLA would add up again for every product
                    self.program.sums |= {s for s in total[1] if self.program.slots[s].array}
        sums = {key: self.total(edges, end) for key, edges in parts.items()}
        return {key: total for key, total in sums.items() if total is not None}

    def contract(
        self,
        found: dict[Key, list[Edge]],
        key: Key,
        weight: Edge,
        first: Edge,
        second: Edge,
        end: int,
    ) -> None:
        """Add `weight[first, second]` to what is to be added up at `key`."""
        recipe = pull_back(weight[0], first[0], second[0])
        made = self.made_by(recipe, (*weight[1], *first[1], *second[1]), end)
        if made is not None:
            found.setdefault(key, []).append(made)

    def symmetric(self, found: Pairs, end: int) -> Pairs:
        """Half of bilinear maps that cover every pair of leaves, and half of their images."""
        halves: dict[tuple[int, int], list[Edge]] = {}
        for (i, j), (structure, slots) in found.items():
            half = times(structure, 0.5), slots
            halves.setdefault((i, j), []).append(half)
            turned = self.turned(half, i, end)
            if turned is not None:
                halves.setdefault((j, i), []).append(turned)
        sums = {key: self.total(edges, end) for key, edges in halves.items()}
        return {key: total for key, total in sums.items() if total is not None}


def _work(weight: Edge, first: Edge, second: Edge, fixed: Collection[int]) -> int:
    """Operations and memory traffic of `weight[first, second]`.

    Args:
        weight: a bilinear map.
        first: a map into its first argument.
        second: a map into its second one.
        fixed: slots that samples share.
    """
    recipe: Recipe = pull_back(weight[0], first[0], second[0])
    own = not all(slot in fixed for slot in second[1])
    work = 0
    for operation, _ in recipe.steps:
        cost = operation.cost
        by_itself = own and isinstance(operation, Einsum) and multiplies(operation)
        work += (cost.muls + cost.adds) * (OWN if by_itself else 1) + cost.elements
    return work
