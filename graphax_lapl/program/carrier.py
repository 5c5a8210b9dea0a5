"""Columns of second order on their way from nonlinear vertices to the outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ..edges.algebra import accumulate
from ..edges.terms import Structure
from ..errors import InternalError
from ..rules.lowering import closure, identity_structure
from .builder import Edge
from .instructions import Block
from .second_order import Curvatures, SecondOrderBuilder, is_pointwise, neighbours

__all__ = ["Carrier", "is_entry_by_entry"]

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

    def past_pointwise(
        self,
        local: dict[tuple[int, int], Edge],
        curvatures: Curvatures,
        entered: Collection[int],
    ) -> tuple[dict[tuple[int, int], Edge], Curvatures]:
        """Let columns enter behind pointwise functions instead of inside them.

        Where all that reads a vertex v does so entry by entry, `dw/dv H_v` is a share of the second
        derivative of each reader w. So `u * sigmoid(u)` has one second derivative with respect to
        u and one column, and what is pulled back to u or pushed on passes it in one step.

        Args:
            local: the arrows.
            curvatures: the second derivatives.
            entered: vertices at which columns enter for other reasons.

        Returns:
            The arrows that columns are carried along, and the second derivatives.
        """
        inside = set(self.names) - set(self.second.inputs)
        arrows = {(u, v): edge for (u, v), edge in local.items() if v in inside}
        _, targets = neighbours(arrows)
        kept = {v for item in self.second.opaque for v in (*item.tangents, *item.moving)}
        kept.update(vertex for *_, vertex in self.second.opaque_outputs)
        kept.update(self.second.outputs)
        kept.update(entered)
        pointwise = {key for key, edge in arrows.items() if is_pointwise(edge[0])}
        at: dict[int, Curvatures] = {}
        for key, edge in curvatures.items():
            at.setdefault(key[0], {})[key] = edge
        for v in sorted(inside):
            after = targets.get(v, [])
            stays = v in kept or not after or any((v, w) not in pointwise for w in after)
            if stays or not all(is_entry_by_entry(edge[0]) for edge in at.get(v, {}).values()):
                continue
            for (_, first, second, mirrored), edge in at.pop(v, {}).items():
                for w in after:
                    key = (w, first, second, mirrored)
                    there = at.setdefault(w, {})
                    total = self.sum(there.get(key), self.product(arrows[v, w], edge, w), w)
                    if total is not None:
                        there[key] = total
                    else:
                        there.pop(key, None)
        moved = {key: edge for there in at.values() for key, edge in there.items()}
        kept.update(vertex for vertex, *_ in moved)
        return self.fused(arrows, kept)[0], moved

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


def is_entry_by_entry(curvature: Structure) -> bool:
    """Whether a bilinear map takes the entries of one place of both arguments to that place."""
    rank = len(curvature.out_shape)
    return (
        curvature.in_shape == (*curvature.out_shape, *curvature.out_shape)
        and not curvature.complex_out
        and not curvature.complex_in
        and all(term.out == term.into[:rank] == term.into[rank:] for term in curvature.terms)
    )
