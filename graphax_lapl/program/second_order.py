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

from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

from ..edges.algebra import accumulate, add, compose, densify, is_nearly_dense, terms_everywhere
from ..edges.bilinear import pull_back, swapped
from ..edges.maps import label
from ..edges.operations import Recipe
from ..edges.terms import Factor, Structure, Term, intern_structure
from ..graph.computational_graph import VertexName
from ..graph.listing import Atom, Listing
from ..rules.lowering import closure, identity_structure
from ..rules.second_order import SecondOrderGraph, references_of, references_of_equations
from ..rules.site import Reference
from .builder import Builder, Edge
from .instructions import moving_inputs
from .repetition import LAYERS
from .sums import RunningSum

__all__ = ["Curvatures", "Jacobians", "Place", "SecondOrderBuilder", "diagonal_structure"]

Key = TypeVar("Key")
#: Columns of so many terms that stand everywhere are written out where they are so behind.
MANY_EVERYWHERE = 4
#: Where the columns hold no more numbers than this, so are sums of three: what their products
#: take is calls rather than operations.
FEW_NUMBERS, MANY_OF_FEW = 1 << 12, 3

#: Jacobians by variable and column space (one space per differentiated leaf, or one for seeds).
Jacobians = dict[int, dict[int, Edge]]
#: Pointwise steps by vertex: from or to another one, and the arrow between the two.
Steps = dict[int, tuple[int, Edge]]
#: A vertex, or the right-hand side of the equation that it solves.
Place = int | tuple[str, int]
#: Bilinear maps by place, first and second argument, and whether a mirror image is left out.
Curvatures = dict[tuple[Place, int, int, bool], Edge]


class SecondOrderBuilder(Builder):
    """What both programs share: values, local partials, Jacobians, curvatures."""

    #: Whether second derivatives of what solves an equation are those of the equation.
    of_equations = False

    def __init__(self, graph: SecondOrderGraph):
        super().__init__(graph.graph)
        self.second = graph
        self.names = {vertex.variable: vertex.name for vertex in graph.graph.vertices}

    def wanted_references(self) -> Iterable[Reference]:
        """References of local partials and of curvatures."""
        yield from references_of(self.second)
        if self.of_equations:
            yield from references_of_equations(self.second)

    def wanted_atoms(self) -> Iterable[Atom]:
        """Outputs, and operands of equations that are differentiated as a whole."""
        yield from self.listing.outputs
        for item in self.second.opaque:
            yield from item.equation.inputs

    def dtype_of(self, vertex: Any) -> Any:
        """Dtype of a variable, of the output `("end", variable)`, or of its equation."""
        return self.listing.variables[vertex[1] if isinstance(vertex, tuple) else vertex].dtype

    def name_of(self, vertex: Any) -> VertexName:
        """Id of a variable's vertex."""
        return self.names.get(vertex, "q")

    def shape_of(self, variable: int) -> tuple[int, ...]:
        """Shape of a variable."""
        return self.listing.variables[variable].shape

    def moving_inputs(self) -> set[int]:
        """The program's inputs that are differentiated, or come with the operator."""
        return moving_inputs(self.program, self.listing, self.second.inputs)

    def made_by(self, recipe: Recipe, slots: Sequence[int], vertex: Place) -> Edge | None:
        """The edge that a recipe makes of slots; None for zero."""
        self.program.local_cost = self.program.local_cost + recipe.cost
        if recipe.result is None:
            return None
        name = self.names.get(vertex) if isinstance(vertex, int) else None
        return recipe.result, self.replay(recipe, slots, self.dtype_of(vertex), name)

    def product(self, outer: Edge, inner: Edge, vertex: Place) -> Edge | None:
        """`outer @ inner`, an arrow into `vertex`."""
        return self.made_by(compose(outer[0], inner[0]), (*outer[1], *inner[1]), vertex)

    def sum(self, first: Edge | None, second: Edge | None, vertex: Place) -> Edge | None:
        """The sum of parallel arrows into `vertex`; None stands for zero."""
        if first is None or second is None:
            return first or second
        return self.made_by(add(first[0], second[0]), (*first[1], *second[1]), vertex)

    def include(self, edges: dict[Key, Edge], key: Key, edge: Edge | None, vertex: Place) -> None:
        """Add an arrow into `vertex` to those at `key`; what cancels leaves none."""
        total = self.sum(edges.get(key), edge, vertex)
        if total is None:
            edges.pop(key, None)
        else:
            edges[key] = total

    def running_sum(self, vertex: int, first: Edge | None = None) -> RunningSum:
        """A sum of arrows into `vertex`, of which there may be very many."""
        running = RunningSum(lambda a, b: self.sum(a, b, vertex))
        running.add(first)
        return running

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
            if 0 not in self.shape_of(variable):
                starts[variable] = {space: self.identity(variable)}
        return starts

    def require_closed_forms(self) -> None:
        """Raise `NotImplementedError` where an equation has no closed second derivative."""
        unknown = self.second.unknown if self.of_equations else self.second.opaque
        if unknown:
            names = ", ".join(sorted({item.equation.name for item in unknown}))
            raise NotImplementedError(f"no closed second derivative of {names}")

    def curvature_edges(self) -> Curvatures:
        """Bilinear maps by vertex, first and second argument, and whether a mirror is left out."""
        found: Curvatures = {}
        for vertex, shares in self.second.curvatures.items():
            for share in shares:
                slots = self.slots_of(share.arrow.references, vertex)
                edge = self.made_by(share.arrow.recipe, slots, vertex)
                if edge is not None and vertex in self.second.still.curved:
                    moving = ~self.second.still.curved[vertex]
                    mask = self.constant(moving.astype(self.dtype_of(vertex)))
                    is_complex = self.listing.variables[vertex].is_complex
                    diagonal = diagonal_structure(moving.shape, is_complex)
                    edge = self.product((diagonal, (mask,)), edge, vertex)
                if edge is not None:
                    found[vertex, share.first, share.second, share.symmetric] = edge
        for item in self.second.implicit if self.of_equations else ():
            for share in item.shares:
                slots = self.slots_of(share.arrow.references, item.output)
                edge = self.made_by(share.arrow.recipe, slots, item.output)
                if edge is not None:
                    side = right_hand_side(item.output)
                    found[side, share.first, share.second, share.symmetric] = edge
        return found

    def sides(self) -> dict[Place, tuple[int, Edge]]:
        """What solves an equation, and its derivative along the equation's right-hand side."""
        found: dict[Place, tuple[int, Edge]] = {}
        for item in self.second.implicit:
            slots = self.slots_of(item.arrow.references, item.output)
            edge = self.made_by(item.arrow.recipe, slots, item.output)
            if edge is not None:
                found[right_hand_side(item.output)] = item.output, edge
        return found

    def through_pointwise(
        self,
        local: dict[tuple[int, int], Edge],
        curvatures: Curvatures,
    ) -> tuple[dict[tuple[int, int], Edge], Curvatures]:
        """Take pointwise functions of one array together, so that columns pass through once.

        For `u * sigmoid(u)` the columns of `sigmoid(u)` are a multiple of those of u: second
        derivatives with respect to it become ones with respect to u, and its arrows are composed
        before any column is there. What the product alone reads of it has its curvature there.
        """
        kept: set[int | None] = {v for item in self.second.opaque for v in item.arguments}
        kept.update(self.second.outputs)
        arrows, steps, ahead = self.fused(local, kept)
        moved: Curvatures = {}
        for (vertex, first, second, mirrored), edge in curvatures.items():
            made: Edge | None = edge
            while first in steps or second in steps:
                # The later one first: it may depend on the other.
                at_first = first in steps and (first >= second or second not in steps)
                place = first if at_first else second
                before, step = steps[place]
                same = first == second
                sides = [step if v == place else self.identity(v) for v in (first, second)]
                recipe = pull_back(edge[0], sides[0][0], sides[1][0])
                slots = (*edge[1], *sides[0][1], *sides[1][1])
                made = self.made_by(recipe, slots, vertex)
                if made is None:
                    break
                edge = made
                if same:
                    first = second = before
                elif at_first:
                    first = before
                else:
                    second = before
            while made is not None and isinstance(vertex, int) and vertex in ahead:
                vertex, step = ahead[vertex]
                made = self.product(step, made, vertex)
            if made is None:
                continue
            edge = made
            if mirrored and first == second and self.is_own_mirror(edge, first, vertex):
                edge, mirrored = (times(edge[0], 2), edge[1]), False
            self.include(moved, (vertex, first, second, mirrored), edge, vertex)
        return arrows, moved

    def is_own_mirror(self, edge: Edge, variable: int, vertex: Place) -> bool:
        """Whether a bilinear map of one array is its own transpose, to the same slots."""
        split = len(self.shape_of(variable))
        return self.made_by(swapped(edge[0], split), edge[1], vertex) == edge

    def fused(
        self, local: dict[tuple[int, int], Edge], kept: Collection[int | None]
    ) -> tuple[dict[tuple[int, int], Edge], Steps, Steps]:
        """Eliminate pointwise functions of one array between pointwise arrows, but for `kept`.

        Returns:
            The arrows that are left; for every pointwise function of one array that array and the
            arrow from it; for every eliminated one with one reader this and the arrow to it.
        """
        result = dict(local)
        steps: Steps = {}
        ahead: Steps = {}
        of_vectors = not multiplies_arrays(self.listing)
        sources, targets = neighbours(local)
        for v in sorted(sources):
            if len(sources[v]) > 1:
                self.join_pointwise(v, result, steps, sources, targets)
            if v in kept or len(sources[v]) != 1:
                continue
            (before,) = sources[v]
            inner = result[before, v]
            if not is_pointwise(inner[0]):
                continue
            steps[v] = before, inner
            after = targets.get(v, [])
            if not after or not all(is_pointwise(result[v, w][0]) for w in after):
                continue
            targets[before].remove(v)
            if len(after) == 1 and of_vectors:
                ahead[v] = after[0], result[v, after[0]]
            for w in after:
                sources[w].remove(v)
                made = self.product(result.pop((v, w)), inner, w)
                self.include(result, (before, w), made, w)
                connected = before in sources[w]
                if (before, w) in result and not connected:
                    sources[w].append(before)
                    targets[before].append(w)
                elif (before, w) not in result and connected:  # two arrows cancel
                    sources[w].remove(before)
                    targets[before].remove(w)
            del result[before, v]
        return result, steps, ahead

    def join_pointwise(
        self,
        v: int,
        arrows: dict[tuple[int, int], Edge],
        steps: Steps,
        sources: dict[int, list[int]],
        targets: dict[int, list[int]],
    ) -> None:
        """Join the arrows of a pointwise function of arrays that are all functions of one.

        The slope of `log(1 + exp(u))` is `exp(u - y)`, of u and of its value y, whose own columns
        are wanted by what follows.
        """
        if not all(is_pointwise(arrows[u, v][0]) for u in sources[v]):
            return
        paths = [_path(u, steps) for u in sources[v]]
        (root, *_) = [u for u in paths[0] if all(u in path for path in paths)] or (None,)
        if root is None:
            return
        total: Edge | None = None
        for u, path in zip(sources[v], paths, strict=True):
            made: Edge | None = arrows.pop((u, v))
            targets[u].remove(v)
            for between in path[: path.index(root)]:
                made = None if made is None else self.product(made, steps[between][1], v)
            total = self.sum(total, made, v)
        sources[v] = []
        if total is not None:
            arrows[root, v] = total
            sources[v], targets[root] = [root], [*targets.get(root, ()), v]

    def identity(self, variable: int) -> Edge:
        """The identity on a variable's array."""
        recipe = accumulate((identity_structure(self.listing, variable),))
        assert recipe.result is not None
        return recipe.result, ()

    def jacobians(
        self, local: dict[tuple[int, int], Edge], starts: Jacobians, ends: Iterable[int]
    ) -> Jacobians:
        """Push columns forward to `ends`; the Jacobians of all vertices on the way."""
        backward: dict[int, list[int]] = {}
        for u, v in local:
            backward.setdefault(v, []).append(u)
        result = self.pushed(local, backward, starts, ends, frozenset())
        early = _written_out_behind(result, backward)
        return self.pushed(local, backward, starts, ends, early) if early else result

    def pushed(
        self,
        local: dict[tuple[int, int], Edge],
        backward: dict[int, list[int]],
        starts: Jacobians,
        ends: Iterable[int],
        early: frozenset[tuple[int, int]],
    ) -> Jacobians:
        """Columns at all vertices before `ends`; those of `early` are single dense arrays."""
        result = dict(starts)
        for v in sorted(closure(sorted(ends), backward)):
            row = {space: self.running_sum(v, edge) for space, edge in result.get(v, {}).items()}
            for u in backward.get(v, ()):
                for space, inner in result.get(u, {}).items():
                    made = self.product(local[u, v], inner, v)
                    row.setdefault(space, self.running_sum(v)).add(made)
            totals = {space: running.total() for space, running in row.items()}
            result[v] = {
                space: self.written_out(edge, v, (v, space) in early)
                for space, edge in totals.items()
                if edge is not None
            }
        return result

    def written_out(self, edge: Edge, vertex: int, always: bool = False) -> Edge:
        """An arrow into `vertex` as one dense array where it nearly is one, or always."""
        if not (is_nearly_dense(edge[0]) or (always and len(edge[0].terms) > 1)):
            return edge
        made = self.made_by(densify(edge[0]), edge[1], vertex)
        assert made is not None
        return made


def _written_out_behind(
    columns: Jacobians, backward: dict[int, list[int]]
) -> frozenset[tuple[int, int]]:
    """Vertices, and spaces, whose columns are many terms and one array at a vertex behind.

    Every product on the way multiplies all terms, and where a sum of two such products is written
    out at last, reverse mode keeps two arrays of its size for each of them. What is one array in
    the end is therefore one from where its terms became many. Columns that stay a sum are left:
    they are few outer products, and contracting these takes less than the matrix holds.
    """
    many = {
        (v, space)
        for v, row in columns.items()
        for space, (structure, _) in row.items()
        if terms_everywhere(structure)
        >= (MANY_OF_FEW if structure.size <= FEW_NUMBERS else MANY_EVERYWHERE)
        and not (structure.complex_in or any(f.opaque for f in structure.factors))
    }
    found: set[tuple[int, int]] = set()
    for v, row in columns.items():
        for space, (structure, _) in row.items():
            if len(structure.terms) > 1 or not terms_everywhere(structure):
                continue
            found |= {
                (u, space)
                for u in backward.get(v, ())
                if (u, space) in many and columns[u][space][0].size <= structure.size
            }
    pending = list(found)
    while pending:
        v, space = pending.pop()
        for u in backward.get(v, ()):
            if (u, space) in many and (u, space) not in found:
                found.add((u, space))
                pending.append((u, space))
    return frozenset(found)


def right_hand_side(variable: int) -> Place:
    """What stands for the right-hand side of the equation that a variable solves."""
    return "side", variable


def neighbours(
    arrows: Iterable[tuple[int, int]],
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Predecessors and successors of every vertex."""
    sources: dict[int, list[int]] = {}
    targets: dict[int, list[int]] = {}
    for u, v in arrows:
        sources.setdefault(v, []).append(u)
        targets.setdefault(u, []).append(v)
    return sources, targets


def is_pointwise(structure: Structure) -> bool:
    """Whether a map is a diagonal: every output entry depends on the input entry of its place."""
    return structure.complex_in == structure.complex_out and all(
        term.out == term.into and not term.conj and not _is_opaque(term) for term in structure.terms
    )


def multiplies_arrays(listing: Listing) -> bool:
    """Whether layers are products of arrays that have axes beside the one that is contracted.

    What XLA's library takes into one call are networks of vectors.
    """
    return any(
        any(equation.active)
        and equation.name in LAYERS
        and any(len(listing.variables[v].shape) > 1 for v in equation.outputs)
        for equation in listing.equations
    )


def _path(v: int, steps: Steps) -> list[int]:
    """A vertex and the arrays that it is a pointwise function of, the nearest first."""
    path = [v]
    while path[-1] in steps:
        path.append(steps[path[-1]][0])
    return path


def _is_opaque(term: Term) -> bool:
    return any(factor.opaque is not None for factor in term.factors)


def diagonal_structure(shape: tuple[int, ...], is_complex: bool = False) -> Structure:
    """A diagonal with one factor of the array's shape."""
    axes = tuple(label(n) for n in range(len(shape)))
    terms = [Term(shape, axes, axes, (Factor(axes, shape),))]
    structure = intern_structure(shape, shape, terms, is_complex, is_complex)
    result = accumulate((structure,)).result
    return structure if result is None else result


def times(structure: Structure, number: float) -> Structure:
    """A structure multiplied by a number."""
    return intern_structure(
        structure.out_shape,
        structure.in_shape,
        [term.scaled(number) for term in structure.terms],
        structure.complex_out,
        structure.complex_in,
    )
