"""The program of a Hessian whose nonlinear part treats rows of a cut independently.

With `y = g(L x)`, L affine, the Hessian is `L^T G L`, and G has one dense block per row (see
`rows.py`). G is evaluated by as many products as a row has numbers; L stays a structure, so that
the blocks are put in their places by the edge algebra.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..edges.algebra import accumulate
from ..edges.maps import IndexMap, constant, label
from ..edges.terms import Factor, Structure, Term, intern_structure
from ..graph.listing import Atom
from ..rules.lowering import closure
from ..rules.second_order import SecondOrderGraph
from ..rules.site import Reference
from .builder import Edge
from .hessian import HessianBuilder
from .instructions import Program, RowHessianInstruction
from .rows import Rows, rows_before

__all__ = ["build_row_hessian", "most_products"]


def build_row_hessian(graph: SecondOrderGraph) -> Program | None:
    """The program of all second derivatives; None where an output has no such form."""
    parts: dict[int, list[Rows]] = {}
    for end in graph.outputs:
        if end is not None and end not in parts:
            found = rows_before(graph, end)
            if found is None:
                return None
            parts[end] = found
    return _RowHessian(graph, parts).hessian() if parts else None


def most_products(program: Program) -> int:
    """The most Hessian-vector products that a part of such a program takes."""
    parts = [i for i in program.instructions if isinstance(i, RowHessianInstruction)]
    return max(part.width for part in parts)


class _RowHessian(HessianBuilder):
    def __init__(self, graph: SecondOrderGraph, parts: dict[int, list[Rows]]):
        super().__init__(graph)
        self.parts = parts
        self.cut = sorted({u for found in parts.values() for part in found for u in part.moving})
        backward: dict[int, list[int]] = {}
        for u, v in graph.arrows:
            backward.setdefault(v, []).append(u)
        before = closure(self.cut, backward)
        self.affine = {pair: arrow for pair, arrow in graph.arrows.items() if pair[1] in before}

    def wanted_references(self) -> Iterable[Reference]:
        """References of the affine part."""
        for arrow in self.affine.values():
            yield from arrow.references

    def wanted_atoms(self) -> Iterable[Atom]:
        """Outputs, and what the rows are computed from."""
        yield from self.listing.outputs
        yield from self.cut
        for found in self.parts.values():
            for part in found:
                yield from part.captured

    def hessian(self) -> Program:
        """The whole program."""
        self.primals()
        local = {}
        for (u, v), arrow in self.affine.items():
            edge = self.made_by(arrow.recipe, self.slots_of(arrow.references, v), v)
            if edge is not None:
                local[u, v] = edge
        spans = self.jacobians(local, self.identity_columns(), self.cut)
        for end, atom in zip(self.second.outputs, self.listing.outputs, strict=False):
            found = {}
            if end is not None:
                found = self.pulled(self.blocks_of(end), spans, end)
            self.program.blocks.append(self.row(found, self.listing.type_of(atom)))
        self.program.values = [self.value(atom) for atom in self.listing.outputs]
        return self.program

    def blocks_of(self, end: int) -> dict[tuple[int, int, bool], Edge | None]:
        """The second derivatives of an output with respect to the arrays of the cut."""
        weights: dict[tuple[int, int, bool], Edge | None] = {}
        for part in self.parts[end]:
            inputs = tuple(self.value(v) for v in (*part.moving, *part.captured))
            pairs = [(i, j) for i in range(len(part.moving)) for j in range(i, len(part.moving))]
            structures = [_block(self, part, i, j) for i, j in pairs]
            outputs = tuple(
                self.slot(structure.factors[0].shape, self.dtype_of(part.moving[i]))
                for structure, (i, _) in zip(structures, pairs, strict=True)
            )
            self.program.instructions.append(
                RowHessianInstruction(
                    part.moving,
                    part.batch,
                    part.captured,
                    part.width,
                    part.equations,
                    end,
                    self.listing,
                    inputs,
                    outputs,
                )
            )
            for (i, j), structure, slot in zip(pairs, structures, outputs, strict=True):
                key = (part.moving[i], part.moving[j], i != j)
                made = self.of_moving(structure, slot, part.moving[i], part.moving[j], end)
                weights[key] = self.sum(weights.get(key), made, end)
        return weights

    def of_moving(
        self, structure: Structure, slot: int, first: int, second: int, end: int
    ) -> Edge | None:
        """The blocks of two arrays, with zeros where an entry of these does not move."""
        (term,) = structure.terms
        factors, slots, split = list(term.factors), [slot], len(self.shape_of(first))
        for variable, axes in ((first, term.into[:split]), (second, term.into[split:])):
            if variable in self.second.still.cancelling:
                moving = ~self.second.still.cancelling[variable]
                factors.append(Factor(axes, moving.shape))
                slots.append(self.constant(moving.astype(self.dtype_of(variable))))
        whole = replace(term, factors=tuple(factors))
        structure = intern_structure((), structure.in_shape, (whole,))
        return self.made_by(accumulate((structure,)), slots, end)


def _block(builder: HessianBuilder, part: Rows, i: int, j: int) -> Structure:
    """The bilinear map of arrays i and j of a cut, as the instruction lays its values out."""
    shapes = [builder.shape_of(part.moving[k]) for k in (i, j)]
    sizes: list[int] = []

    def fresh(size: int) -> IndexMap:
        if size == 1:
            return constant(0)
        sizes.append(size)
        return label(len(sizes) - 1)

    first = [fresh(size) for size in shapes[0]]
    rows = {d: first[e] for d, e in zip(part.batch[j], part.batch[i], strict=True)}
    second = [rows[d] if d in rows else fresh(size) for d, size in enumerate(shapes[1])]
    core = [d for d in range(len(second)) if d not in rows]
    factor = Factor(
        (*(second[d] for d in core), *first), (*(shapes[1][d] for d in core), *shapes[0])
    )
    term = Term(tuple(sizes), (), (*first, *second), (factor,))
    return intern_structure((), (*shapes[0], *shapes[1]), (term,))
