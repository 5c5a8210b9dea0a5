"""The program of a Hessian: adjoints and Jacobians around every nonlinear vertex."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..edges.algebra import accumulate
from ..edges.bilinear import pull_back, swapped
from ..edges.terms import Structure, intern_structure
from ..rules.lowering import closure, identity_structure
from ..rules.second_order import SecondOrderGraph
from .builder import Edge
from .instructions import Block, Program
from .second_order import Jacobians, Place, SecondOrderBuilder

__all__ = ["HessianBuilder", "build_hessian"]


def build_hessian(
    graph: SecondOrderGraph,
    max_operations: int | None = None,
    builder: type[HessianBuilder] | None = None,
) -> Program | None:
    """The program of all second derivatives.

    Args:
        graph: the graph of second order.
        max_operations: on partials; none by default.
        builder: how it is built, by default each curvature is contracted with both Jacobians.

    Returns:
        A program with one row of blocks per output leaf: for leaves i and j in turn the map
        (*output, *leaf i) <- leaf j. None where it takes more operations than allowed.

    Raises:
        NotImplementedError: where an equation has no closed second derivative.
    """
    try:
        return (builder or HessianBuilder)(graph, max_operations).hessian()
    except _TooLong:
        return None


class _TooLong(Exception):
    """The program has more operations than allowed."""


class HessianBuilder(SecondOrderBuilder):
    """Pulls second derivatives of vertices back to the leaves."""

    of_equations = True

    def __init__(self, graph: SecondOrderGraph, max_operations: int | None = None):
        super().__init__(graph)
        self.remaining = max_operations

    def operate(self, *arguments: Any) -> int:
        """See `Builder.operate`; raises where too many operations were done."""
        if self.remaining is not None:
            self.remaining -= 1
            if self.remaining < 0:
                raise _TooLong
        return super().operate(*arguments)

    def hessian(self) -> Program:
        """The whole program."""
        second = self.second
        self.require_closed_forms()
        local = self.prepare()
        self.solved = self.sides()
        self.arrows, self.curvatures = self.through_pointwise(local, self.curvature_edges())
        targets = {v for _, first, other, _ in self.curvatures for v in (first, other)}
        spans = self.jacobians(self.arrows, self.identity_columns(), targets)
        for end, atom in zip(second.outputs, self.listing.outputs, strict=False):
            found = self.of_output(local, spans, end) if end is not None else {}
            self.program.blocks.append(self.row(found, self.listing.type_of(atom)))
        self.program.values = [self.value(atom) for atom in self.listing.outputs]
        return self.program

    def row(self, found: dict[tuple[int, int], Edge], type_: Any) -> list[Block]:
        """The blocks of an output of some type."""
        row = []
        for i, first in enumerate(self.second.inputs):
            for j, other in enumerate(self.second.inputs):
                out, into = (*type_.shape, *self.shape_of(first)), self.shape_of(other)
                # jax.hessian's dtype: a gradient has that of the argument.
                dtype = type_.dtype if type_.is_complex else self.dtype_of(first)
                edge = found.get((i, j))
                if edge is None:
                    row.append(Block(None, (), out, into, dtype))
                    continue
                structure, slots = self.without_opaque(edge, dtype)
                matrix = _as_matrix(structure, len(self.shape_of(first)))
                row.append(Block(matrix, slots, out, into, dtype))
        return row

    def of_output(
        self, local: dict[tuple[int, int], Edge], spans: Jacobians, end: int
    ) -> dict[tuple[int, int], Edge]:
        """The bilinear maps end <- (leaf i, leaf j)."""
        adjoints = self.adjoints(local, end)
        weights: dict[tuple[int, int, bool], Edge | None] = {}
        for (vertex, *key), edge in self.curvatures.items():
            if vertex in adjoints:
                made = self.product(adjoints[vertex], edge, end)
                place = (key[0], key[1], bool(key[2]))
                weights[place] = self.sum(weights.get(place), made, end)
        return self.pulled(weights, spans, end)

    def pulled(
        self, weights: dict[tuple[int, int, bool], Edge | None], spans: Jacobians, end: int
    ) -> dict[tuple[int, int], Edge]:
        """Bilinear maps of intermediate arguments as such of leaves, added up."""
        parts: dict[tuple[int, int], list[Edge]] = {}
        mirror = not self.listing.moves_with  # otherwise the user's rules may be asymmetric
        for (first, other, symmetric), weight in weights.items():
            if weight is None:
                continue
            for i, left in spans.get(first, {}).items():
                for j, right in spans.get(other, {}).items():
                    if mirror and not symmetric and i > j:
                        continue
                    recipe = pull_back(weight[0], left[0], right[0])
                    made = self.made_by(recipe, (*weight[1], *left[1], *right[1]), end)
                    if made is None:
                        continue
                    if not (mirror and i > j):
                        parts.setdefault((i, j), []).append(made)
                    if symmetric and not (mirror and j > i):
                        turned = self.turned(made, i, end)
                        if turned is not None:
                            parts.setdefault((j, i), []).append(turned)
        found: dict[tuple[int, int], Edge] = {}
        for key, edges in parts.items():
            total = self.total(edges, end)
            if total is not None:
                found[key] = total
        if mirror:
            for (i, j), edge in list(found.items()):
                if i < j:
                    turned = self.turned(edge, i, end)
                    assert turned is not None
                    found[j, i] = turned
        return found

    def total(self, edges: list[Edge], end: int) -> Edge | None:
        """The sum of parallel maps, taken at once: pieces that join need not be joined twice."""
        recipe = accumulate(tuple(structure for structure, _ in edges))
        return self.made_by(recipe, [slot for _, slots in edges for slot in slots], end)

    def turned(self, edge: Edge, first: int, end: int) -> Edge | None:
        """A bilinear map of leaves (i, j) as one of (j, i)."""
        split = len(self.shape_of(self.second.inputs[first]))
        return self.made_by(swapped(edge[0], split), edge[1], end)

    def adjoints(self, local: dict[tuple[int, int], Edge], end: int) -> dict[Place, Edge]:
        """The Jacobian of an output with respect to every vertex that a curvature lies before.

        Those that solve an equation have one with respect to its right-hand side too.
        """
        sides = {side: self.solved[side] for side, *_ in self.curvatures if side in self.solved}
        forward: dict[int, list[int]] = {}
        for u, v in local:
            if u in self.names and v in self.names:
                forward.setdefault(u, []).append(v)
        ends = {vertex for vertex, *_ in self.curvatures if isinstance(vertex, int)}
        ends.update(vertex for vertex, _ in sides.values())
        curved = closure(sorted(ends), forward)
        forward = {u: after for u, after in forward.items() if u in curved}
        structure = accumulate((identity_structure(self.listing, end),)).result
        if structure is None:
            return {}
        found: dict[Place, Edge | None] = {end: (structure, ())}
        pulled: dict[tuple[int, Edge], Edge | None] = {}
        for u in sorted((u for u in forward if u < end), reverse=True):
            running = self.running_sum(end)
            for v in forward[u]:
                outer = found.get(v)
                if outer is not None:
                    made = self.product(outer, local[u, v], end)
                    pulled[v, local[u, v]] = made
                    running.add(made)
            found[u] = running.total()
        for side, (v, arrow) in sides.items():
            outer = found.get(v)
            if outer is not None:
                known = (v, arrow) in pulled
                found[side] = pulled[v, arrow] if known else self.product(outer, arrow, end)
        return {v: edge for v, edge in found.items() if edge is not None}


def _as_matrix(structure: Structure, split: int) -> Structure:
    """A bilinear map out <- (first, second) as the map (out, first) <- second."""
    return intern_structure(
        (*structure.out_shape, *structure.in_shape[:split]),
        structure.in_shape[split:],
        [
            replace(term, out=(*term.out, *term.into[:split]), into=term.into[split:])
            for term in structure.terms
        ],
        structure.complex_out,
        structure.complex_in,
    )
