"""Columns of second order on their way from nonlinear vertices to the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..edges.algebra import accumulate
from ..errors import InternalError
from ..rules.lowering import closure, identity_structure
from .builder import Edge
from .instructions import Block
from .second_order import SecondOrderBuilder

__all__ = ["Carrier"]

#: The further input that columns of second order come from.
COLUMN = "q"


class Carrier(SecondOrderBuilder):
    """What programs share whose columns enter at nonlinear vertices."""

    def block(self, edge: Edge | None, type_: Any, in_shape: tuple[int, ...]) -> Block:
        """The block of a result that an edge holds; zero for None."""
        if edge is None:
            return Block(None, (), type_.shape, in_shape, type_.dtype)
        structure, slots = self.without_opaque(edge, type_.dtype)
        return Block(structure, slots, type_.shape, in_shape, type_.dtype)

    def carry(
        self, local: dict[tuple[int, int], Edge], columns: dict[int, Edge], order: Sequence[int]
    ) -> dict[int, Edge]:
        """Carry columns to the outputs by eliminating the vertices in `order`."""
        inside = set(self.names) - set(self.second.inputs)
        ends = {v for v in self.second.outputs if v is not None and v in inside}
        forward: dict[int, list[int]] = {}
        for u, v in local:
            forward.setdefault(u, []).append(v)
        reached = closure(sorted(columns), forward) & inside
        edges: dict[Any, dict[Any, Edge]] = {COLUMN: {}, **{v: {} for v in reached}}
        into: dict[Any, dict[Any, None]] = {v: {} for v in reached}

        def connect(u: Any, v: Any, edge: Edge) -> None:
            edges[u][v] = edge
            into[v][u] = None

        for (u, v), edge in local.items():
            if u in reached and v in reached:
                connect(u, v, edge)
        for v, edge in columns.items():
            connect(COLUMN, v, edge)
        for end in sorted(ends & reached):
            if edges[end]:  # it feeds something else too: an arrow to an output of its own
                identity = accumulate((identity_structure(self.listing, end),)).result
                assert identity is not None
                edges["end", end], into["end", end] = {}, {}
                connect(end, ("end", end), (identity, ()))
        for v in order:
            if v in reached:
                self.eliminate(v, edges, into)
        left = [self.names[v] for v in sorted(reached & set(edges)) if v not in ends or edges[v]]
        if left:  # columns would be lost silently
            raise InternalError(f"The order does not hold the vertices {left}.")
        from_column = edges[COLUMN]
        return {
            end: from_column.get(("end", end)) or from_column[end]
            for end in ends
            if end in from_column or ("end", end) in from_column
        }
