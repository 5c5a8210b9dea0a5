"""The graph on which vertices are eliminated.

A vertex is a value of a computation, an edge ``u -> v`` the local partial derivative of ``v`` with
respect to ``u``.  Eliminating a vertex ``v`` multiplies every edge into ``v`` with every edge out
of it, adds the products to the edges from its predecessors to its successors and removes ``v``.
When every intermediate vertex is gone, the edges from inputs to outputs are the Jacobian.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from elimination_orders.algebra import EDGE_KINDS, EdgeAlgebra, LiteratureAlgebra, MemoizedAlgebra
from elimination_orders.errors import InvalidGraphError, InvalidOrderError

__all__ = ["EliminationGraph", "Vertex"]

Vertex = Hashable


class EliminationGraph:
    """A directed acyclic graph of local partial derivatives; never changed once built.

    A vertex is *eliminable* unless it is an input or a pure output (an output without successors).
    An output that has successors is an intermediate value too: it is eliminable, and its
    elimination removes the edges out of it but keeps the edges into it, because these are the part
    of the Jacobian that the caller asked for.  The cost is the number of its predecessors times the
    number of its successors, as for any other vertex.

    Parallel edges are added by the algebra when the graph is built.  Vertices that no input reaches
    or that reach no output are allowed (they cost nothing to eliminate first).

    Args:
        inputs: vertices with respect to which is differentiated.
        outputs: vertices that are differentiated.  Naming one twice is the same as naming it once.
        edges: ``(u, v)`` or ``(u, v, edge)``.  On a scalar graph the third item is the kind of the
            partial: ``"unit"`` (+1 or -1), ``"constant"`` or ``"variable"`` (the default).  With an
            `algebra` it is whatever the algebra understands and may not be left out.
        algebra: how partials are multiplied and added, and what that costs.  None: a scalar graph.
        vertices: all vertices, if some stand on no edge or if their order matters.  It decides
            which vertex comes first where the topological order leaves a choice.  Without it,
            vertices are sorted if they can be compared, and else come as they appear in `edges`.

    Raises:
        InvalidGraphError: on a cycle, an edge into an input, an unknown vertex or kind, a repeated
            input, or a malformed edge.
    """

    def __init__(
        self,
        inputs: Iterable[Vertex],
        outputs: Iterable[Vertex],
        edges: Iterable[Sequence[Any]],
        algebra: EdgeAlgebra | None = None,
        *,
        vertices: Iterable[Vertex] | None = None,
    ) -> None:
        self.inputs: tuple[Vertex, ...] = _names("inputs", inputs)
        self.outputs: tuple[Vertex, ...] = tuple(dict.fromkeys(_names("outputs", outputs)))
        self.algebra = algebra
        _check_algebra(algebra)
        if len(set(self.inputs)) != len(self.inputs):
            raise InvalidGraphError(
                f"inputs: every vertex may be named once, but {_first_repeated(self.inputs)!r} is "
                "named twice. Drop the repetition."
            )
        merge = LiteratureAlgebra() if algebra is None else algebra
        self._algebra = merge if algebra is None else MemoizedAlgebra(algebra)
        declared = None if vertices is None else dict.fromkeys(_names("vertices", vertices))
        table: dict[tuple[Vertex, Vertex], Any] = {}
        if not isinstance(edges, Iterable):
            raise InvalidGraphError(
                f"edges: expected (u, v) or (u, v, edge) for every edge, got {edges!r}."
            )
        for position, item in enumerate(edges):
            u, v, edge = _read_edge(position, item, algebra)
            known = table.get((u, v), _ABSENT)
            table[u, v] = edge if known is _ABSENT else self._algebra.merge(known, edge)[0]
        self._edges = table

        named = dict.fromkeys(self.inputs)
        named.update(dict.fromkeys(vertex for pair in table for vertex in pair))
        if declared is not None:
            for vertex in (*named, *self.outputs):
                if vertex not in declared:
                    raise InvalidGraphError(
                        f"vertices: does not list {vertex!r}, which the inputs, the outputs or an "
                        "edge name. Add it, or leave `vertices` out."
                    )
            named = declared
        for vertex in self.outputs:
            if vertex not in named:
                raise InvalidGraphError(
                    f"outputs: unknown vertex {vertex!r}: it is neither an input nor on any edge. "
                    "Correct the name, or list it in `vertices` if it depends on nothing."
                )
        self._pred: dict[Vertex, dict[Vertex, Any]] = {vertex: {} for vertex in named}
        self._succ: dict[Vertex, dict[Vertex, Any]] = {vertex: {} for vertex in named}
        for (u, v), edge in table.items():
            self._succ[u][v] = edge
            self._pred[v][u] = edge
        input_set = frozenset(self.inputs)
        for vertex in self.inputs:
            if self._pred[vertex]:
                source = next(iter(self._pred[vertex]))
                raise InvalidGraphError(
                    f"edges: {source!r} -> {vertex!r} leads into an input. Nothing may lead into "
                    "an input; name another vertex as the input, or drop the edge."
                )
        ranked = list(named) if declared is not None else _ranked(list(named), self.inputs)
        self.vertices: tuple[Vertex, ...] = self._topological(ranked)
        output_set = frozenset(self.outputs)
        self.eliminable: tuple[Vertex, ...] = tuple(
            vertex
            for vertex in self.vertices
            if vertex not in input_set and not (vertex in output_set and not self._succ[vertex])
        )
        self._output_set = output_set
        self._position = {vertex: i for i, vertex in enumerate(self.vertices)}
        self._eliminable_set = frozenset(self.eliminable)

    # -- what the graph consists of ------------------------------------------------------------

    @property
    def edges(self) -> Mapping[tuple[Vertex, Vertex], Any]:
        """Edge by pair ``(u, v)``; parallel edges are already one."""
        return dict(self._edges)

    @property
    def is_scalar(self) -> bool:
        """Whether the edges are kinds of scalar partials, with no algebra given."""
        return self.algebra is None

    def predecessors(self, vertex: Vertex) -> tuple[Vertex, ...]:
        """Vertices with an edge into `vertex`, in the order in which their edges were given."""
        return tuple(self._pred[vertex])

    def successors(self, vertex: Vertex) -> tuple[Vertex, ...]:
        """Vertices with an edge from `vertex`, in the order in which their edges were given."""
        return tuple(self._succ[vertex])

    def position(self, vertex: Vertex) -> int:
        """Place of `vertex` in the topological order `vertices`."""
        return self._position[vertex]

    def is_output(self, vertex: Vertex) -> bool:
        """Whether `vertex` is an output."""
        return vertex in self._output_set

    def is_eliminable(self, vertex: Vertex) -> bool:
        """Whether `vertex` is neither an input nor a pure output."""
        return vertex in self._eliminable_set

    def check_order(self, order: Iterable[Vertex]) -> tuple[Vertex, ...]:
        """Make sure that `order` names every eliminable vertex once.

        Args:
            order: vertices, first eliminated first.

        Returns:
            The order as a tuple.

        Raises:
            InvalidOrderError: if a vertex is unknown, not eliminable, repeated or missing.
        """
        order = tuple(order)
        seen: set[Vertex] = set()
        for place, vertex in enumerate(order):
            if not _can_be_hashed(vertex) or vertex not in self._position:
                raise InvalidOrderError(
                    f"order: {vertex!r} at place {place} is not a vertex of this graph. Expected "
                    f"every one of its {len(self.eliminable)} eliminable vertices once."
                )
            if vertex not in self._eliminable_set:
                role = "an input" if vertex in self.inputs else "an output without successors"
                raise InvalidOrderError(
                    f"order: {vertex!r} at place {place} is {role} and cannot be eliminated. "
                    "Leave it out of the order."
                )
            if vertex in seen:
                raise InvalidOrderError(
                    f"order: {vertex!r} stands twice, at place {order.index(vertex)} and at place "
                    f"{place}. Name every eliminable vertex once."
                )
            seen.add(vertex)
        if len(seen) != len(self.eliminable):
            missing = [vertex for vertex in self.eliminable if vertex not in seen]
            shown = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
            raise InvalidOrderError(
                f"order: {len(missing)} of {len(self.eliminable)} eliminable vertices are missing: "
                f"{shown}. Name every one of them once."
            )
        return order

    # -- conversions ---------------------------------------------------------------------------

    def with_algebra(self, algebra: EdgeAlgebra | None) -> EliminationGraph:
        """The same graph with the same edges under another algebra."""
        triples = [(u, v, edge) for (u, v), edge in self._edges.items()]
        return EliminationGraph(self.inputs, self.outputs, triples, algebra, vertices=self.vertices)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EliminationGraph:
        """Scalar graph from a mapping with the keys ``inputs``, ``outputs`` and ``edges``.

        Args:
            data: for instance a parsed JSON file; other keys are ignored.
        """
        return cls(data["inputs"], data["outputs"], [tuple(edge) for edge in data["edges"]])

    def __repr__(self) -> str:
        return (
            f"EliminationGraph({len(self.inputs)} inputs, {len(self.outputs)} outputs, "
            f"{len(self.eliminable)} eliminable vertices, {len(self._edges)} edges)"
        )

    def __len__(self) -> int:
        """Number of eliminable vertices."""
        return len(self.eliminable)

    # -- construction --------------------------------------------------------------------------

    def _topological(self, ranked: list[Vertex]) -> tuple[Vertex, ...]:
        """Kahn's algorithm; of the vertices that are ready, the first in `ranked` comes next."""
        rank = {vertex: i for i, vertex in enumerate(ranked)}
        waiting = {vertex: len(self._pred[vertex]) for vertex in ranked}
        ready = [rank[vertex] for vertex, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        result: list[Vertex] = []
        while ready:
            vertex = ranked[heapq.heappop(ready)]
            result.append(vertex)
            for successor in self._succ[vertex]:
                waiting[successor] -= 1
                if waiting[successor] == 0:
                    heapq.heappush(ready, rank[successor])
        if len(result) != len(ranked):
            cycle = _find_cycle(self._succ, [vertex for vertex in ranked if waiting[vertex]])
            path = " -> ".join(map(repr, cycle))
            raise InvalidGraphError(
                f"edges: contain the cycle {path}. A graph of partial derivatives has no cycles; "
                "remove one of these edges."
            )
        return tuple(result)


_ABSENT = object()


def _check_algebra(algebra: Any) -> None:
    if algebra is not None and not isinstance(algebra, EdgeAlgebra):
        raise InvalidGraphError(
            f"algebra: expected an object with compose and merge, got {type(algebra).__name__}. "
            "See elimination_orders.EdgeAlgebra."
        )


def _read_edge(position: int, item: Sequence[Any], algebra: Any) -> tuple[Vertex, Vertex, Any]:
    if not _is_sequence(item) or len(item) not in (2, 3):
        raise InvalidGraphError(
            f"edges: item {position} should be (u, v) or (u, v, edge), got {item!r}."
        )
    u, v = item[0], item[1]
    if not (_can_be_hashed(u) and _can_be_hashed(v)):
        raise InvalidGraphError(
            f"edges: item {position}, {item!r}, names a vertex that cannot be hashed. Use numbers, "
            "strings or tuples."
        )
    if u == v:
        raise InvalidGraphError(
            f"edges: item {position} leads from {u!r} to itself, which is a cycle. Remove it."
        )
    if algebra is not None:
        if len(item) == 2:
            raise InvalidGraphError(
                f"edges: item {position}, {u!r} -> {v!r}, has no edge object, which the algebra "
                "needs. Write (u, v, edge)."
            )
        return u, v, item[2]
    kind = item[2] if len(item) == 3 else "variable"
    if kind not in EDGE_KINDS:
        raise InvalidGraphError(
            f"edges: item {position}, {u!r} -> {v!r}, has the unknown kind {kind!r}. Expected one "
            f"of {', '.join(map(repr, EDGE_KINDS))}, or pass the algebra that understands it."
        )
    return u, v, kind


def _names(argument: str, names: Any) -> tuple[Vertex, ...]:
    """Names of vertices as a tuple."""
    found = tuple(names) if isinstance(names, Iterable) else None
    if found is None or not all(map(_can_be_hashed, found)):
        raise InvalidGraphError(
            f"{argument}: expected several names of vertices that can be hashed (numbers, strings, "
            f"tuples), got {names!r}."
        )
    return found


def _can_be_hashed(name: Any) -> bool:
    try:
        hash(name)
    except TypeError:
        return False
    return True


def _is_sequence(item: Any) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, (str, bytes))


def _first_repeated(names: Sequence[Vertex]) -> Vertex:
    seen: set[Vertex] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("nothing is repeated; please file a bug")


def _ranked(named: list[Vertex], inputs: Sequence[Vertex]) -> list[Vertex]:
    """Inputs first, as given; the others sorted if they can be, else as they appear."""
    input_set = set(inputs)
    others: list[Any] = [vertex for vertex in named if vertex not in input_set]
    try:
        others = sorted(others)
    except TypeError:
        # Names of several types, such as 3 and "y0": compare within a type only.
        by_type: dict[type, list[Any]] = {}
        for vertex in others:
            by_type.setdefault(type(vertex), []).append(vertex)
        others = []
        for group in by_type.values():
            try:
                others.extend(sorted(group))
            except TypeError:
                others.extend(group)
    return [*inputs, *others]


def _find_cycle(
    succ: Mapping[Vertex, Mapping[Vertex, Any]], stuck: Sequence[Vertex]
) -> list[Vertex]:
    """A cycle among `stuck`, the vertices that Kahn's algorithm could not place.

    A stuck vertex has a stuck predecessor, though perhaps no stuck successor, so the walk goes
    against the edges.
    """
    stuck_set = set(stuck)
    pred: dict[Vertex, Vertex] = {}
    for u in stuck:
        for v in succ[u]:
            if v in stuck_set:
                pred[v] = u
    walk = [stuck[0]]
    place = {stuck[0]: 0}
    while True:
        vertex = pred[walk[-1]]
        if vertex in place:
            return [vertex, *reversed(walk[place[vertex] :])]
        place[vertex] = len(walk)
        walk.append(vertex)
