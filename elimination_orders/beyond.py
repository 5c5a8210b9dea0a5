"""Eliminations finer than that of a vertex: edges and faces.

Eliminating a vertex carries out all products at it at once.  *Edge elimination* carries out those
of one edge: front elimination of ``i -> j`` multiplies it with every edge out of j, back
elimination with every edge into i.  *Face elimination* carries out one product, of two edges that
meet at a vertex; it works on the line graph, whose vertices are the edges.  Every order of vertices
is an order of edges, and every order of edges one of faces, so that the optimum can only fall
(Naumann, Optimal accumulation of Jacobian matrices by elimination methods on the dual computational
graph, Math. Program. 2004).

`elimination_orders.exact` searches both spaces, `elimination_orders.program` turns orders into
programs.  Here orders are replayed: `replay_edges` and `replay_faces`, with any algebra.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from elimination_orders.algebra import EdgeAlgebra
from elimination_orders.errors import InvalidOrderError
from elimination_orders.graph import EliminationGraph, Vertex

if TYPE_CHECKING:
    from elimination_orders.program import Program

__all__ = [
    "EdgeStep",
    "FaceStep",
    "FineResult",
    "replay_edges",
    "replay_faces",
    "run_edges",
    "run_faces",
]

Pair = tuple[Vertex, Vertex]
#: An edge of the line graph's current state: the paths of the original graph that it sums up.
Label = frozenset[tuple[Vertex, ...]]
#: A face joins two labels; the ends of a path are the pairs ("in", x) and ("out", y).
End = Hashable
Face = tuple[End, End]
Operation = Callable[[Any, Any], Any]
#: Carries out steps: (graph, partial by edge, steps, multiply, add) to the Jacobian.
Run = Callable[
    [EliminationGraph, Mapping[Pair, Any], Iterable[Any], Operation, Operation], dict[Pair, Any]
]


class EdgeStep(NamedTuple):
    """One edge elimination."""

    kind: Literal["front", "back"]
    edge: Pair


class FaceStep(NamedTuple):
    """One face elimination: the product of two (sums of) paths that meet."""

    first: Label
    second: Label


@dataclass(frozen=True)
class FineResult:
    """The outcome of a search over edges or faces.

    Args:
        steps: eliminations in order; of a search that is not exact, moves of
            `elimination_orders.dual`.
        cost: number of multiplications, or their cost under an algebra.
        states: states or sequences that were looked at.
        program: the steps as products and sums, to be replayed on any partials.
        optimal: whether the cost is proved to be the least.
        method: what found it.
        vertex_cost: cost of the order of vertices that a search began with; None if it began with
            nothing.
        seconds: duration of the search, where it is measured.
    """

    steps: tuple[Any, ...]
    cost: float
    states: int
    program: Program = field(repr=False)
    optimal: bool = True
    method: str = "exact"
    vertex_cost: float | None = None
    seconds: float = 0.0


class _Costed:
    """Products and sums by an algebra, with what they cost; None is a structural zero."""

    def __init__(self, algebra: EdgeAlgebra) -> None:
        self.algebra = algebra
        self.cost: float = 0

    def multiply(self, outer: Any, inner: Any) -> Any:
        if outer is None or inner is None:
            return None
        product, cost = self.algebra.compose(outer, inner)
        self.cost += cost
        return product

    def add(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        total, cost = self.algebra.merge(a, b)
        self.cost += cost
        return total


def _replay(
    run: Run, graph: EliminationGraph, steps: Iterable[Any], algebra: EdgeAlgebra | None
) -> tuple[dict[Pair, Any], float]:
    costed = _Costed(algebra or graph._algebra)
    jacobian = run(graph, graph._edges, steps, costed.multiply, costed.add)
    return {pair: edge for pair, edge in jacobian.items() if edge is not None}, costed.cost


# -- edges -----------------------------------------------------------------------------------------


def replay_edges(
    graph: EliminationGraph, steps: Iterable[EdgeStep], algebra: EdgeAlgebra | None = None
) -> tuple[dict[Pair, Any], float]:
    """Carry out edge eliminations on the partials of a graph.

    Args:
        graph: the graph with its partials.
        steps: edge eliminations that leave no intermediate vertex.
        algebra: of the partials; by default that of the graph.

    Returns:
        The Jacobian by pair (input, output), and the cost under the algebra.

    Raises:
        InvalidOrderError: if a step does not apply, or something is left over.
    """
    return _replay(run_edges, graph, steps, algebra)


def run_edges(
    graph: EliminationGraph,
    partials: Mapping[Pair, Any],
    steps: Iterable[EdgeStep],
    multiply: Operation,
    add: Operation,
) -> dict[Pair, Any]:
    """Carry out edge eliminations with given products and sums; see `replay_edges`."""
    _require_pure_outputs(graph)
    middle = frozenset(graph.eliminable)
    values = {pair: partials[pair] for pair in _clean(frozenset(partials), middle)}
    for place, step in enumerate(steps):
        at = step.edge[1] if step.kind == "front" else step.edge[0]
        if step.edge not in values or at not in middle:
            raise InvalidOrderError(f"steps: {step} at place {place} does not apply to the graph.")
        for inner, outer, new in _edge_products(frozenset(values), step):
            product = multiply(values[outer], values[inner])
            values[new] = add(values[new], product) if new in values else product
        del values[step.edge]
        kept = _clean(frozenset(values), middle)
        values = {pair: value for pair, value in values.items() if pair in kept}
    if any(u in middle or v in middle for u, v in values):
        raise InvalidOrderError("steps: leave intermediate vertices. Eliminate all edges at them.")
    return {pair: values[pair] for pair in sorted(values, key=repr)}


def _edge_products(edges: frozenset[Pair], step: EdgeStep) -> list[tuple[Pair, Pair, Pair]]:
    """(inner, outer, new edge) for every product of an edge elimination."""
    u, v = step.edge
    if step.kind == "front":
        return [((u, v), (v, w), (u, w)) for x, w in sorted(edges, key=repr) if x == v]
    return [((t, u), (u, v), (t, v)) for t, x in sorted(edges, key=repr) if x == u]


def _clean(edges: frozenset[Pair], middle: frozenset[Vertex]) -> frozenset[Pair]:
    """Without the edges at intermediate vertices that nothing leads to or from any more."""
    while True:
        sources = {u for u, _ in edges}
        targets = {v for _, v in edges}
        kept = frozenset(
            (u, v)
            for u, v in edges
            if (u not in middle or u in targets) and (v not in middle or v in sources)
        )
        if kept == edges:
            return edges
        edges = kept


# -- faces -----------------------------------------------------------------------------------------


def replay_faces(
    graph: EliminationGraph, steps: Iterable[FaceStep], algebra: EdgeAlgebra | None = None
) -> tuple[dict[Pair, Any], float]:
    """Carry out face eliminations on the partials of a graph.

    Args:
        graph: the graph with its partials.
        steps: face eliminations that leave no face.
        algebra: of the partials; by default that of the graph.

    Returns:
        The Jacobian by pair (input, output), and the cost under the algebra.

    Raises:
        InvalidOrderError: if a step does not apply, or something is left over.
    """
    return _replay(run_faces, graph, steps, algebra)


def run_faces(
    graph: EliminationGraph,
    partials: Mapping[Pair, Any],
    steps: Iterable[FaceStep],
    multiply: Operation,
    add: Operation,
) -> dict[Pair, Any]:
    """Carry out face eliminations with given products and sums; see `replay_faces`."""
    _require_pure_outputs(graph)
    values: dict[End, Any] = {frozenset({pair}): edge for pair, edge in partials.items()}

    def join(joins: list[tuple[Label, Label]]) -> None:
        for a, b in joins:
            values[a | b] = add(values.pop(a), values.pop(b))

    faces, joins = _merge_equal(_line_graph(graph))
    join(joins)
    for place, step in enumerate(steps):
        if (step.first, step.second) not in faces:
            raise InvalidOrderError(f"steps: {step} at place {place} does not apply to the graph.")
        faces, new, joins = _eliminate_face(faces, (step.first, step.second))
        values[new] = multiply(values[step.second], values[step.first])
        join(joins)
    if _inner_faces(faces):
        raise InvalidOrderError("steps: leave faces. Eliminate all of them.")
    jacobian: dict[Pair, Any] = {}
    for source, label in faces:
        if isinstance(label, frozenset):
            (target,) = {end for first, end in faces if first == label}
            jacobian[source[1], target[1]] = values[label]  # type: ignore[index]
    return {pair: jacobian[pair] for pair in sorted(jacobian, key=repr)}


def _line_graph(graph: EliminationGraph) -> frozenset[Face]:
    """Faces of the original edges, with the ends of all paths."""
    edges = _clean(frozenset(graph._edges), frozenset(graph.eliminable))
    inputs = set(graph.inputs)
    faces: set[Face] = set()
    for u, v in edges:
        label: Label = frozenset({(u, v)})
        if u in inputs:
            faces.add((("in", u), label))
        if graph.is_output(v):
            faces.add((label, ("out", v)))
        faces.update((label, frozenset({(x, w)})) for x, w in edges if x == v)
    return frozenset(faces)


def _inner_faces(faces: frozenset[Face]) -> list[Face]:
    return [(a, b) for a, b in faces if isinstance(a, frozenset) and isinstance(b, frozenset)]


def _eliminate_face(
    faces: frozenset[Face], face: Face
) -> tuple[frozenset[Face], Label, list[tuple[Label, Label]]]:
    """Faces after an elimination, the label of the product, and the sums that follow from it."""
    first, second = face
    assert isinstance(first, frozenset)
    assert isinstance(second, frozenset)
    # Paths meet at a vertex: the last of the first is the first of the second.
    new: Label = frozenset((*a, *b[1:]) for a in first for b in second)
    before = {a for a, b in faces if b == first}
    after = {b for a, b in faces if a == second}
    rest = set(faces) - {face}
    rest |= {(a, new) for a in before} | {(new, b) for b in after}
    rest = set(_without_dead_ends(frozenset(rest)))
    merged, joins = _merge_equal(frozenset(rest))
    return merged, new, joins


def _without_dead_ends(faces: frozenset[Face]) -> frozenset[Face]:
    while True:
        firsts = {a for a, _ in faces}
        seconds = {b for _, b in faces}
        kept = frozenset(
            (a, b)
            for a, b in faces
            if (not isinstance(a, frozenset) or a in seconds)
            and (not isinstance(b, frozenset) or b in firsts)
        )
        if kept == faces:
            return faces
        faces = kept


def _merge_equal(faces: frozenset[Face]) -> tuple[frozenset[Face], list[tuple[Label, Label]]]:
    """Add up edges with the same neighbours on both sides until there are none."""
    joins: list[tuple[Label, Label]] = []
    while True:
        before: dict[Label, set[End]] = {}
        after: dict[Label, set[End]] = {}
        for a, b in faces:
            if isinstance(b, frozenset):
                before.setdefault(b, set()).add(a)
            if isinstance(a, frozenset):
                after.setdefault(a, set()).add(b)
        known: dict[tuple[frozenset[End], frozenset[End]], Label] = {}
        for label in sorted(before, key=_label_key):
            key = (frozenset(before[label]), frozenset(after.get(label, ())))
            twin = known.setdefault(key, label)
            if twin is not label:
                joins.append((twin, label))
                renamed = {twin: twin | label, label: twin | label}
                faces = frozenset((renamed.get(a, a), renamed.get(b, b)) for a, b in faces)  # type: ignore[call-overload]
                break
        else:
            return faces, joins


def _label_key(label: End) -> str:
    return repr(sorted(label, key=repr)) if isinstance(label, frozenset) else repr(label)


def _face_key(face: Face) -> tuple[str, str]:
    return _label_key(face[0]), _label_key(face[1])


def _require_pure_outputs(graph: EliminationGraph) -> None:
    for vertex in graph.eliminable:
        if graph.is_output(vertex):
            raise InvalidOrderError(
                f"graph: the output {vertex!r} has successors. Give it a copy without any, joined "
                "by a unit edge."
            )
