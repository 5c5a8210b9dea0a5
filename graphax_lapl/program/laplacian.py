"""The program of a Laplacian: Jacobians of arguments, a column per nonlinear vertex, their sum."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from ..edges.algebra import dense_structure, densify, transpose
from ..edges.bilinear import folded, gram
from ..edges.terms import Structure, Term, intern_structure
from ..graph.computational_graph import VertexName
from ..rules.lowering import closure
from ..rules.second_derivatives import OpaqueCurvature
from ..rules.second_order import SecondOrderGraph
from .builder import Edge
from .carrier import Carrier
from .cuts import narrow_cuts
from .instructions import CurvatureInstruction, Program
from .second_order import Curvatures, Jacobians, diagonal_structure, times
from .tidying import tidied

__all__ = ["FirstOrder", "LaplacianPrograms", "Metric"]

#: Column space behind a cut (those of the differentiated leaves are 0, 1, ...).
BEHIND = -1


@dataclass(frozen=True)
class Metric:
    """The matrix A that second derivatives are contracted with.

    Attributes:
        kind: "identity"; "seeds", A = S^T S, with an array (columns, *leaf) per leaf as further
            input of the program; "diagonal", an array like the leaf per leaf; "matrix", the block
            (*leaf, *other leaf) of the symmetric A per pair of leaves, row by row.
        columns: number of seeds.
        leaves: for each leaf whether A has entries there (None: everywhere); not with seeds.
        scale: a number that A is multiplied with.
    """

    kind: str = "identity"
    columns: int = 0
    leaves: tuple[bool, ...] | None = None
    scale: float = 1.0

    def moves(self, leaf: int) -> bool:
        """Whether second derivatives with respect to a leaf are wanted."""
        return self.leaves is None or self.leaves[leaf]

    @property
    def spans_all(self) -> bool:
        """Whether the columns are those of the Jacobian."""
        return self.kind != "seeds" and self.leaves is None


@dataclass(frozen=True)
class FirstOrder:
    """What is added to the contracted second derivatives.

    Attributes:
        drift: for each leaf whether a first derivative enters, `b . dy/dx`; its b is a further
            input of the program, like the leaf, after those of the metric.
        square: whether `sum_ij A_ij dy/dx_i dy/dx_j` enters, entry by entry of the output (without
            conjugation): with it, the contraction is that of `exp(y)`, divided by `exp(y)`.
    """

    drift: tuple[bool, ...] = ()
    square: bool = False


class LaplacianPrograms:
    """Programs of `sum_ij A_ij d2y/dx_i dx_j`, which share what does not depend on the order.

    Args:
        graph: the graph of second order.
        metric: the matrix A; its arrays become inputs of the programs after the function's.
        jacobian: whether the Jacobian is wanted too.
        first: terms of first order that are added.
    """

    def __init__(
        self,
        graph: SecondOrderGraph,
        metric: Metric,
        jacobian: bool = False,
        first: FirstOrder = FirstOrder(),
    ):
        self._start = _Laplacian(graph, metric, jacobian, first)
        self._with_spans: dict[int | None, _Laplacian | None] = {}
        self._with_columns: set[int | None] = set()

    @property
    def has_cuts(self) -> bool:
        """Whether there is a vertex to cut at."""
        return bool(self._start.cuts)

    def program(self, order: Sequence[VertexName], cut: int | None = None) -> Program | None:
        """The program that carries columns in an order.

        Args:
            order: a permutation of the eliminable vertices.
            cut: which of the vertices c that are narrower than the input and that all later columns
                pass through (the narrowest first; None for none). Behind c, columns are those of c
                itself, contracted with `J_c A J_c^T` instead of A.

        Returns:
            A program with one row of blocks per output leaf: the contraction (from a scalar), then,
            with `jacobian`, the Jacobian with respect to every leaf. None where there is no such
            cut.
        """
        made = self._made(cut)
        return None if made is None else made.carried(order)

    def spans(self, cut: int | None) -> Program | None:
        """What they hold before Jacobians are contracted, a part of `columns`; None as there."""
        made = self._pushed_to(cut)
        return None if made is None else made.until_contracted()

    def columns(self, cut: int | None) -> Program | None:
        """What programs with this cut hold before columns are carried; None without such a cut."""
        made = self._made(cut)
        return None if made is None else made.until_carried()

    def _pushed_to(self, cut: int | None) -> _Laplacian | None:
        if cut not in self._with_spans:
            self._with_spans[cut] = self._start.with_spans(cut)
        return self._with_spans[cut]

    def _made(self, cut: int | None) -> _Laplacian | None:
        made = self._pushed_to(cut)
        if made is not None and cut not in self._with_columns:
            made.add_columns()
            self._with_columns.add(cut)
        return made


class _Laplacian(Carrier):
    """A program in the making: values and local partials, then columns, then these carried on."""

    def __init__(self, graph: SecondOrderGraph, metric: Metric, jacobian: bool, first: FirstOrder):
        super().__init__(graph)
        self.metric, self.jacobian, self.first = metric, jacobian, first
        self.local = self.prepare()
        self.starts, self.weights = self.metric_inputs(metric)
        self.drift = self.drift_inputs(first)
        self.fused_local, self.curvatures = self.through_pointwise(
            self.local, self.met_by_equal_columns(self.curvature_edges())
        )
        self.ends = {v for v in graph.outputs if v is not None}
        self.spans: Jacobians = {}
        self.weighted_spans: Jacobians = {}
        self.contracted_with: dict[int, dict[int, Edge]] | None = self.weights
        self.whole: Jacobians = {}
        self.found_columns: dict[int, Edge] = {}

    def met_by_equal_columns(self, curvatures: Curvatures) -> Curvatures:
        """Of mirror images within a bilinear map of one array one is left, doubled.

        Both meet the same sum over columns, which A makes a symmetric matrix. Behind pointwise
        functions their factors are other products of the same arrays, so this comes first.
        """
        return {
            (vertex, one, other, mirrored): folded(*edge, len(self.shape_of(one)))
            if one == other
            else edge
            for (vertex, one, other, mirrored), edge in curvatures.items()
        }

    @cached_property
    def targets(self) -> set[int]:
        """The vertices whose Jacobians are contracted."""
        return set().union(*self.groups)

    @cached_property
    def groups(self) -> list[set[int]]:
        """Vertices whose Jacobians are contracted with one another."""
        groups: list[set[int]] = [{one, other} for _, one, other, _ in self.curvatures]
        groups += [item.arguments for item in self.second.opaque]
        return [*groups, *({end} for end in self.ends)] if self.first.square else groups

    @cached_property
    def cuts(self) -> list[int]:
        """Narrow vertices that columns pass through."""
        local = self.fused_local
        return narrow_cuts(local, self.sizes(local), self.second.inputs, self.groups)

    def with_spans(self, cut: int | None) -> Self | None:
        """The program on from here to the Jacobians of all targets; None without the cut."""
        if cut is not None and cut >= len(self.cuts):
            return None
        twin = self.fork()
        twin.add_spans(cut)
        return twin

    def add_spans(self, cut: int | None) -> None:
        """Push Jacobians to every argument of a curvature."""
        local, targets = self.fused_local, self.targets
        if cut is None:
            shared = self.jacobian and self.metric.spans_all
            ends = self.ends if shared else ()
            self.spans = self.jacobians(local, self.starts, [*targets, *ends])
            self.whole = self.spans if shared else {}
        else:
            self.spans, self.contracted_with = self.compressed(
                local, self.starts, self.weights, targets, self.cuts[cut]
            )
        if self.jacobian and not self.whole:
            self.whole = self.jacobians(local, self.identity_columns(), self.ends)

    def add_columns(self) -> None:
        """Contract Jacobians with every curvature."""
        targets, weights = self.targets, self.contracted_with
        self.weighted_spans = (
            self.spans if weights is None else self.weighted(self.spans, weights, targets)
        )
        self.found_columns = self.columns(
            self.curvatures, self.spans, self.weighted_spans, self.metric.scale
        )
        self.drift_columns(self.local, self.drift, self.found_columns)

    def until_contracted(self) -> Program:
        """The program up to here; its values are the Jacobians of the targets."""
        rows = [row for v, row in self.spans.items() if v in self.targets]
        return self._until([edge for row in rows for edge in row.values()])

    def until_carried(self) -> Program:
        """The program up to here; its values are what carrying reads, and the Jacobian."""
        edges = [*self.local.values(), *self.found_columns.values()]
        return self._until(
            [*edges, *(edge for row in self.whole.values() for edge in row.values())]
        )

    def _until(self, edges: Iterable[Edge]) -> Program:
        """The program up to here, whose values are what these arrows are made of."""
        read = sorted({slot for _, slots in edges for slot in slots})
        return replace(self.program, values=read).without_dead_code(None)

    def carried(self, order: Sequence[VertexName]) -> Program:
        """The complete program whose columns are carried in an order."""
        return self.fork().carry_columns(order)

    def carry_columns(self, order: Sequence[VertexName]) -> Program:
        """Carry the columns to the outputs."""
        second, ends = self.second, self.ends
        variables = [self.graph.by_name[v].variable for v in order]
        carried = self.carry(self.local, self.found_columns, variables)
        carried.update({leaf: edge for leaf, edge in self.drift.items() if leaf in ends})
        if self.first.square:
            squares: Curvatures = {(v, v, v, False): self.elementwise(v) for v in sorted(ends)}
            made = self.products(squares, self.spans, self.weighted_spans, self.metric.scale)
            for v, square in made.items():
                self.include(carried, v, square, v)
        for end, atom in zip(second.outputs, self.listing.outputs, strict=False):
            type_ = self.listing.type_of(atom)
            row = [self.block(carried.get(end) if end is not None else None, type_, ())]
            if self.jacobian:
                for space, leaf in enumerate(second.inputs):
                    edge = self.whole.get(end, {}).get(space) if end is not None else None
                    row.append(self.block(edge, type_, self.shape_of(leaf)))
            self.program.blocks.append(row)
        self.program.values = [self.value(atom) for atom in self.listing.outputs]
        return tidied(self.program, self.moving_inputs())

    def extra_input(self, shape: tuple[int, ...], dtype: Any) -> int:
        slot = self.slot(shape, dtype)
        self.program.inputs.append(slot)
        return slot

    def metric_inputs(self, metric: Metric) -> tuple[Jacobians, dict[int, dict[int, Edge]] | None]:
        """The columns to start from, and A by rows of column spaces (None for the identity)."""
        leaves = self.second.inputs
        if metric.kind == "seeds":
            starts: Jacobians = {}
            for leaf in leaves:
                shape = self.shape_of(leaf)
                slot = self.extra_input((metric.columns, *shape), self.dtype_of(leaf))
                structure = dense_structure(shape, (metric.columns,))
                if structure.terms:
                    starts[leaf] = {0: (structure, (slot,))}
            return starts, None
        starts = {
            leaf: row
            for leaf, row in self.identity_columns().items()
            if metric.moves(leaves.index(leaf))
        }
        if metric.kind == "identity":
            return starts, None
        weights: dict[int, dict[int, Edge]] = {}
        moving = [(i, self.shape_of(leaf)) for i, leaf in enumerate(leaves) if metric.moves(i)]
        for i, shape in moving:
            dtype = self.dtype_of(leaves[i])
            if metric.kind == "diagonal":
                slot = self.extra_input(shape, dtype)
                structure = diagonal_structure(shape)
                if structure.terms:
                    weights[i] = {i: (structure, (slot,))}
                continue
            for j, other_shape in moving:
                # Matrices are stored with the input's axes first: the block (i, j) of A, as an
                # array, is the map from leaf i to leaf j, which the symmetry of A makes A's own.
                slot = self.extra_input((*shape, *other_shape), dtype)
                structure = dense_structure(other_shape, shape)
                if structure.terms:
                    weights.setdefault(j, {})[i] = (structure, (slot,))
        return starts, weights

    def drift_inputs(self, first: FirstOrder) -> dict[int, Edge]:
        """The direction b of every leaf that a first derivative is wanted of."""
        found: dict[int, Edge] = {}
        for leaf, there in zip(self.second.inputs, first.drift, strict=False):
            if there:
                shape = self.shape_of(leaf)
                slot = self.extra_input(shape, self.dtype_of(leaf))
                structure = dense_structure(shape, ())
                if structure.terms:
                    found[leaf] = (structure, (slot,))
        return found

    def drift_columns(
        self,
        local: dict[tuple[int, int], Edge],
        drift: dict[int, Edge],
        columns: dict[int, Edge],
    ) -> None:
        """Let the directions enter, as a column at every vertex that reads a leaf."""
        for (u, v), edge in local.items():
            if u in drift and v in self.names:
                self.include(columns, v, self.product(edge, drift[u], v), v)

    def elementwise(self, variable: int) -> Edge:
        """The bilinear map that multiplies two arrays like the variable's entry by entry."""
        (term,) = self.identity(variable)[0].terms or (None,)
        shape, is_complex = self.shape_of(variable), self.listing.variables[variable].is_complex
        terms = [] if term is None else [Term(term.sizes, term.out, (*term.into, *term.into))]
        structure = intern_structure(shape, (*shape, *shape), terms, is_complex, is_complex)
        return structure, ()

    def sizes(self, local: Iterable[tuple[int, int]]) -> dict[int, int]:
        """Number of elements of every real variable that has an arrow."""
        return {
            v: math.prod(self.shape_of(v))
            for arrow in local
            for v in arrow
            if not self.listing.variables[v].is_complex
        }

    def compressed(
        self,
        local: dict[tuple[int, int], Edge],
        starts: Jacobians,
        weights: dict[int, dict[int, Edge]] | None,
        targets: Iterable[int],
        cut: int,
    ) -> tuple[Jacobians, dict[int, dict[int, Edge]]]:
        """Jacobians of the targets, with columns of `cut` behind it, and the metric of all columns.

        A Laplacian asks for `J_t A J_t^T`. Where J_t = K_t J_c that is `K_t (J_c A J_c^T) K_t^T`:
        columns of c with another metric, which is exact and needs no factorisation.
        """
        forward: dict[int, list[int]] = {}
        for u, v in local:
            forward.setdefault(u, []).append(v)
        behind = closure([cut], forward)
        before = self.jacobians(local, starts, [*(t for t in targets if t not in behind), cut])
        columns = self.jacobians(
            local, {cut: {BEHIND: self.identity(cut)}}, [t for t in targets if t in behind]
        )
        total: Edge | None = None
        arriving = before.get(cut, {})
        for space, edge in arriving.items():
            for other, weight in (weights or {}).get(space, {space: None}).items():
                if other not in arriving:
                    continue
                half = edge if weight is None else self.product(edge, weight, cut)
                across = self.made_by(transpose(arriving[other][0]), arriving[other][1], cut)
                if half is not None and across is not None:
                    total = self.sum(total, self.product(half, across, cut), cut)
        metric = dict(weights or {})
        metric[BEHIND] = {} if total is None else {BEHIND: total}
        spans = {v: row for v, row in before.items() if v not in behind}
        spans.update({v: columns.get(v, {}) for v in behind})
        return spans, metric

    def weighted(
        self, spans: Jacobians, weights: dict[int, dict[int, Edge]], targets: Iterable[int]
    ) -> Jacobians:
        """The Jacobians of the targets times A."""
        result: Jacobians = {}
        for v in sorted(targets):
            row: dict[int, Edge | None] = {}
            for i, edge in spans.get(v, {}).items():
                if i not in weights:
                    row[i] = edge
                    continue
                for j, weight in weights[i].items():
                    row[j] = self.sum(row.get(j), self.product(edge, weight, v), v)
            result[v] = {space: edge for space, edge in row.items() if edge is not None}
        return result

    def columns(
        self,
        curvatures: Curvatures,
        spans: Jacobians,
        weighted: Jacobians,
        scale: float,
    ) -> dict[int, Edge]:
        """The column q_v of every nonlinear vertex."""
        found = self.products(curvatures, spans, weighted, scale)
        for item, k, vertex in self.second.opaque_outputs:
            for edge in self.opaque_columns(item, k, vertex, spans, weighted):
                scaled = edge if scale == 1 else (times(edge[0], scale), edge[1])
                self.include(found, vertex, scaled, vertex)
        return found

    def products(
        self,
        curvatures: Curvatures,
        spans: Jacobians,
        weighted: Jacobians,
        scale: float,
    ) -> dict[int, Edge]:
        """Bilinear maps contracted with the Jacobians of their arguments, summed by vertex."""
        found: dict[int, Edge | None] = {}
        for (vertex, one, other, mirrored), weight in curvatures.items():
            assert isinstance(vertex, int)  # what solves an equation is an opaque curvature here
            first, second = spans.get(one, {}), weighted.get(other, {})
            factor = scale * (2 if mirrored else 1)
            inner, after = weight, None
            if _is_entry_by_entry(weight[0]) and len(weight[0].terms) == 1:
                # Entries of the columns are multiplied and summed first, with the fewer of them.
                inner, after = self.elementwise(vertex), _diagonal_of(weight)
            scaled = (inner[0] if factor == 1 else times(inner[0], factor), inner[1])
            total: Edge | None = None
            for space in first:
                if space not in second:
                    continue
                left, right = first[space], second[space]
                equal = left == right
                rank = len(self.shape_of(one))
                structure, slots = folded(*scaled, rank) if equal and one == other else scaled
                recipe = gram(structure, left[0], right[0], equal)
                made = self.made_by(recipe, (*slots, *left[1], *right[1]), vertex)
                total = self.sum(total, made, vertex)
            if after is not None and total is not None:
                total = self.product(after, total, vertex)
            found[vertex] = self.sum(found.get(vertex), total, vertex)
        return {vertex: edge for vertex, edge in found.items() if edge is not None}

    def opaque_columns(
        self, item: OpaqueCurvature, k: int, vertex: int, spans: Jacobians, weighted: Jacobians
    ) -> Iterable[Edge]:
        """Columns of an equation without a closed second derivative, one per column space."""
        equation = item.equation
        spaces: dict[int, int] = {}
        for v in item.tangents:
            for space, edge in spans.get(v, {}).items() if v is not None else ():
                spaces[space] = len(edge[0].in_shape)
        present = tuple(self.listing.value(atom) is not None for atom in equation.inputs)
        values = [self.value(a) for a, there in zip(equation.inputs, present, strict=True) if there]
        type_ = self.listing.variables[vertex]
        for space, rank in spaces.items():
            tangents = [self.dense(spans, v, space) for v in item.tangents]
            moving = [self.dense(weighted, v, space) for v in item.moving]
            if all(slot is None for slot in moving):
                continue
            solution = [self.dense(found, item.solution, space) for found in (spans, weighted)]
            slot = self.slot(type_.shape, type_.dtype)
            self.program.instructions.append(
                CurvatureInstruction(
                    equation,
                    k,
                    present,
                    tuple(slot is not None for slot in tangents),
                    tuple(slot is not None for slot in moving),
                    tuple(slot is not None for slot in solution),
                    tuple(self.listing.type_of(atom) for atom in equation.inputs),
                    rank,
                    (*values, *(s for s in (*tangents, *moving, *solution) if s is not None)),
                    (slot,),
                )
            )
            yield dense_structure(type_.shape, (), type_.is_complex), (slot,)

    def dense(self, spans: Jacobians, v: int | None, space: int) -> int | None:
        """The slot of a Jacobian written out, None where it is zero."""
        edge = spans.get(v, {}).get(space) if v is not None else None
        if edge is None or v is None:
            return None
        made = self.made_by(densify(edge[0]), edge[1], v)
        assert made is not None
        (slot,) = made[1]
        return slot


def _is_entry_by_entry(curvature: Structure) -> bool:
    """Whether a bilinear map takes the entries of one place of both arguments to that place."""
    rank = len(curvature.out_shape)
    return (
        curvature.in_shape == (*curvature.out_shape, *curvature.out_shape)
        and not curvature.complex_out
        and not curvature.complex_in
        and all(term.out == term.into[:rank] == term.into[rank:] for term in curvature.terms)
    )


def _diagonal_of(curvature: Edge) -> Edge:
    """The linear map that multiplies entries by those of a bilinear map from entry to entry."""
    (term,) = curvature[0].terms
    shape = curvature[0].out_shape
    return intern_structure(shape, shape, [replace(term, into=term.out)]), curvature[1]
