"""What `order=` may be, and the order of vertices that it means for a graph."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from elimination_orders import HEURISTICS, EliminationGraph, heuristic_order

from ..edges.algebra import add, compose
from ..edges.operations import Recipe
from ..edges.terms import Structure
from ..errors import InvalidArgumentError, InvalidOrderError, InvalidTypeError, PlanMismatchError
from ..graph.computational_graph import ComputationalGraph, edge_kind
from .compression import COMPRESSED_ORDERS, Compressed

if TYPE_CHECKING:
    from elimination_orders import FineResult, OrderResult, Program as StraightLineProgram, Strategy

__all__ = [
    "EdgeCosts",
    "EliminationOrder",
    "elimination_graph",
    "is_strategy",
    "meeting_orders",
    "parting_orders",
    "resolve_order",
]

#: Narrow vertices that are tried as meeting points.
MAX_CUTS = 3


@dataclass(frozen=True)
class EliminationOrder:
    """An order together with the fingerprint of the graph it was made for.

    Attributes:
        vertices: ids of the eliminable vertices, first eliminated first.
        fingerprint: `ComputationalGraph.fingerprint` of that graph.
        method: how it was found.
        steps: products and sums of partials that are carried out instead of eliminating vertices.
        compression: set where the Jacobian is evaluated compressed; the vertices then say which
            elimination its structure is taken from.
        few: set where fewer samples than `few_limit` are evaluated compressed.
        few_limit: how many samples the elimination is for, at least.
    """

    vertices: tuple[int, ...]
    fingerprint: str
    method: str = "explicit"
    steps: StraightLineProgram | None = None
    compression: Compressed | None = None
    few: Compressed | None = None
    few_limit: int = 1

    def __iter__(self) -> Any:
        return iter(self.vertices)

    def __len__(self) -> int:
        return len(self.vertices)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        steps, compression, few = self.steps, self.compression, self.few
        return {
            "fingerprint": self.fingerprint,
            "method": self.method,
            "order": list(self.vertices),
            "steps": None if steps is None else dataclasses.asdict(steps),
            "compression": None if compression is None else compression.to_dict(),
            "few": None if few is None else few.to_dict(),
            "few_limit": self.few_limit,
        }

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> EliminationOrder:
        """Rebuild from `to_dict`; what is missing has its default, but for the order itself.

        Raises:
            KeyError: where something is missing that has no default.
            TypeError: where something is of another type.
            ValueError: likewise.
        """
        steps, compression, few = (content.get(name) for name in ("steps", "compression", "few"))
        return EliminationOrder(
            tuple(int(v) for v in content["order"]),
            str(content["fingerprint"]),
            str(content["method"]),
            None if steps is None else _straight_line(steps),
            None if compression is None else Compressed.from_dict(compression),
            None if few is None else Compressed.from_dict(few),
            int(content.get("few_limit", 1)),
        )


def _straight_line(content: Mapping[str, Any]) -> StraightLineProgram:
    """Steps from plain data."""
    from elimination_orders import Program as StraightLineProgram, ProgramStep

    return StraightLineProgram(
        tuple((u, v) for u, v in content["partials"]),
        tuple(ProgramStep(**step) for step in content["steps"]),
        tuple(((x, y), int(slot)) for (x, y), slot in content["results"]),
        int(content["n_slots"]),
    )


class EdgeCosts:
    """The edge algebra as the planner asks for it.

    Args:
        unit: "muls" (emitted multiplications), "ad" (the literature's count) or "work"
            (multiplications, additions and elements moved, all weighted equally).
    """

    UNITS = ("ad", "muls", "work")

    def __init__(self, unit: str = "work"):
        """Choose what is counted."""
        self.unit = unit

    def compose(self, outer: Structure, inner: Structure) -> tuple[Structure | None, float]:
        """Structure and cost of a product."""
        recipe = compose(outer, inner)
        return recipe.result, self._cost(recipe)

    def merge(self, a: Structure, b: Structure) -> tuple[Structure, float]:
        """Structure and cost of a sum."""
        recipe = add(a, b)
        result = recipe.result
        if result is None:  # the planner has no cancellation: keep an empty sum
            result = a
        return result, self._cost(recipe)

    def size(self, edge: Structure) -> int:
        """Bytes of the factors, at four bytes an element."""
        return 4 * edge.stored

    def fingerprint(self, edge: Structure) -> str:
        """A digest of a structure that is the same in every process."""
        return hashlib.blake2b(repr(edge).encode(), digest_size=16).hexdigest()

    def _cost(self, recipe: Recipe) -> float:
        cost = recipe.cost
        if self.unit == "ad":
            return cost.ad
        if self.unit == "muls":
            return cost.muls
        return cost.muls + cost.adds + cost.elements


def elimination_graph(graph: ComputationalGraph, unit: str = "ad") -> EliminationGraph:
    """The abstract graph that the planner works on.

    A graph of scalars becomes a scalar planner graph, whose searches are compiled; any other one
    asks the edge algebra what a product or a sum costs.

    Args:
        graph: of a function, from `computational_graph`.
        unit: what is counted: "ad" (the literature's multiplications), "muls" (those that are
            emitted) or "work" (additions and elements moved too).

    Raises:
        InvalidArgumentError: for another unit.
    """
    if unit not in EdgeCosts.UNITS:
        raise InvalidArgumentError(
            f"unit must be one of {', '.join(map(repr, EdgeCosts.UNITS))}, got {unit!r}."
        )
    outputs = dict.fromkeys(name for name in graph.outputs if name is not None)
    vertices = [vertex.name for vertex in graph.vertices]
    if unit == "ad" and all(math.prod(vertex.shape) == 1 for vertex in graph.vertices):
        kinds = [(u, v, edge_kind(arrow.structure)) for (u, v), arrow in graph.arrows.items()]
        return EliminationGraph(graph.inputs, outputs, kinds, vertices=vertices)
    return EliminationGraph(
        graph.inputs,
        outputs,
        [(u, v, arrow.structure) for (u, v), arrow in graph.arrows.items()],
        EdgeCosts(unit),
        vertices=vertices,
    )


def is_strategy(order: Any) -> TypeGuard[str | Strategy]:
    """Whether an order is a name, or an object that finds one: nothing that depends on a graph."""
    if isinstance(order, str):
        return True
    from elimination_orders import Strategy  # searches take long to import

    return isinstance(order, Strategy)


def resolve_order(order: Any, graph: ComputationalGraph) -> EliminationOrder:
    """The order that a specification means for `graph`.

    Args:
        order: a name of `elimination_orders.ORDERS`, a strategy such as
            `elimination_orders.Annealing(max_time=5)`, a sequence of vertex ids, an
            `EliminationOrder`, anything with `order` and `fingerprint` such as a `Plan`, or edge
            or face eliminations found by `elimination_orders.find_edge_order` and
            `find_face_order` on `elimination_graph(graph)`.
        graph: the graph.

    Raises:
        InvalidOrderError: for an unknown name, or a sequence that is not a permutation of
            `1..n`; the message names the vertices that are missing, repeated or unknown.
        PlanMismatchError: for an order that was made for another graph.
        InvalidTypeError: for anything else.
    """
    eliminable = graph.eliminable
    if is_strategy(order):
        return _found(order, graph)
    from elimination_orders import ORDERS, FineResult, OrderResult, Program as StraightLineProgram

    if isinstance(order, FineResult | StraightLineProgram):
        return _finer(order, graph)
    if isinstance(order, OrderResult):
        order = order.order
    if hasattr(order, "fingerprint") and not isinstance(order, EliminationOrder):
        order = order.order
    if isinstance(order, EliminationOrder):
        if order.fingerprint != graph.fingerprint:
            raise PlanMismatchError(
                f"order: this order was made for another graph (fingerprint {order.fingerprint}) "
                f"and {graph.function} has fingerprint {graph.fingerprint}: shapes, dtypes, the "
                "function or the JAX version differ. Find the order again for this function and "
                "these arguments."
            )
        if order.steps is None:
            _check_permutation(order.vertices, eliminable, graph.function)
        else:
            _check_partials(order.steps, graph)
        return order
    if isinstance(order, Sequence) or hasattr(order, "__array__"):
        vertices = _integers(order)
        _check_permutation(vertices, eliminable, graph.function)
        return EliminationOrder(vertices, graph.fingerprint)
    if isinstance(order, int):
        raise InvalidTypeError(
            f"order={order!r} is no order. The second parameter is the order; for the arguments to "
            f"differentiate write argnums={order!r}."
        )
    raise InvalidTypeError(
        f"order must be one of {', '.join(map(repr, (*ORDERS.names(), *COMPRESSED_ORDERS)))}, a "
        "graphax_lapl.Compressed, a strategy of "
        "elimination_orders, a sequence of vertex ids, an EliminationOrder or a Plan, got "
        f"{type(order).__name__}."
    )


def _found(order: str | Strategy, graph: ComputationalGraph) -> EliminationOrder:
    """Ask the planner for an order."""
    name = order.lower() if isinstance(order, str) else type(order).__name__
    if isinstance(order, str) and name not in HEURISTICS:
        from elimination_orders import ORDERS, InvalidOrderError as PlannerOrderError

        try:
            name = ORDERS.resolve(order, COMPRESSED_ORDERS)
        except PlannerOrderError as error:
            raise InvalidOrderError(
                f"{error} Compressed evaluation: {', '.join(map(repr, COMPRESSED_ORDERS))}. "
                "The ids of vertices are listed by graphax_lapl.computational_graph."
            ) from error
    eliminable = graph.eliminable
    if name == "forward" or len(eliminable) < 2:
        return EliminationOrder(eliminable, graph.fingerprint, name)
    if name == "reverse":
        return EliminationOrder(eliminable[::-1], graph.fingerprint, name)
    planner_graph = elimination_graph(graph)
    if name in HEURISTICS:
        found = heuristic_order(planner_graph, name)
        return EliminationOrder(_ids(found), graph.fingerprint, name)
    if name == "search" and not planner_graph.is_scalar:
        # Every new product is a question to the edge algebra: a bounded number of them.
        order = "auto"
    from elimination_orders import FineResult, find_order

    result: OrderResult | FineResult = find_order(planner_graph, order)
    if isinstance(result, FineResult):
        return _finer(result, graph)
    return EliminationOrder(_ids(result.order), graph.fingerprint, name)


def _ids(order: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(vertex) for vertex in order)


def _finer(order: FineResult | StraightLineProgram, graph: ComputationalGraph) -> EliminationOrder:
    """Edge or face eliminations, which must be about exactly the arrows of the graph."""
    from elimination_orders import FineResult

    steps = order.program if isinstance(order, FineResult) else order
    _check_partials(steps, graph)
    return EliminationOrder((), graph.fingerprint, "edges or faces", steps)


def _check_partials(steps: StraightLineProgram, graph: ComputationalGraph) -> None:
    """Refuse products and sums of other partials than those of the graph."""
    if set(steps.partials) != set(graph.arrows):
        raise PlanMismatchError(
            f"order: this program is about {len(steps.partials)} partials that are not the "
            f"{len(graph.arrows)} edges of {graph.function}. Search it again on the graph of this "
            "function (graphax_lapl.elimination_graph)."
        )


def meeting_orders(graph: ComputationalGraph) -> list[EliminationOrder]:
    """Orders that come from both sides to a vertex that all paths pass through.

    Returns:
        At most `MAX_CUTS` of them, that of the narrowest vertex first.
    """
    orders = []
    for _, at in _cuts(graph)[:MAX_CUTS]:
        before, cut, after = _around(graph, at)
        vertices = (*before, *after[::-1], cut)
        orders.append(EliminationOrder(vertices, graph.fingerprint, f"meeting at {cut}"))
    return orders


def parting_orders(graph: ComputationalGraph, narrower: int) -> list[EliminationOrder]:
    """The order that leaves the narrowest vertex of all paths towards both sides.

    What is before it is pulled back from its few numbers, what is behind it pushed forward, and
    the two matrices are multiplied at the end.

    Args:
        graph: the graph.
        narrower: only for a vertex of fewer elements than this.

    Returns:
        One order, or none.
    """
    found = _cuts(graph)
    if not found or found[0][0] >= narrower:
        return []
    before, cut, after = _around(graph, found[0][1])
    vertices = (*before[::-1], *after, cut)
    return [EliminationOrder(vertices, graph.fingerprint, f"parting at {cut}")]


def _around(graph: ComputationalGraph, at: int) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """What is eliminable before a place in the topological order, there, and behind."""
    vertices = graph.eliminable
    return vertices[:at], vertices[at], vertices[at + 1 :]


def _cuts(graph: ComputationalGraph) -> list[tuple[int, int]]:
    """Vertices that all paths pass through, by their elements and their places."""
    place: dict[Any, int] = {name: k for k, name in enumerate(graph.eliminable)}
    end = len(place)
    # A vertex is on all paths where no arrow jumps over its place in the topological order.
    jumps = [0] * (end + 1)
    for u, v in graph.arrows:
        jumps[place[u] + 1 if u in place else 0] += 1
        jumps[place.get(v, end)] -= 1
    over = itertools.accumulate(jumps[:-1])
    return sorted(
        (math.prod(graph.by_name[name].shape), place[name])
        for name, count in zip(graph.eliminable, over, strict=True)
        if not count
    )


def _integers(order: Any) -> tuple[int, ...]:
    vertices = []
    for item in order:
        # An array has `__index__` too, and only one of a single integer keeps what it promises.
        if isinstance(item, bool) or not hasattr(item, "__index__") or np.ndim(item):
            raise InvalidTypeError(
                f"order: a sequence must hold vertex ids (integers), got {item!r}."
            )
        vertices.append(int(item.__index__()))
    return tuple(vertices)


def _check_permutation(
    vertices: tuple[int, ...], eliminable: tuple[int, ...], function: str
) -> None:
    wanted, given = set(eliminable), set(vertices)
    unknown = sorted({v for v in vertices if v not in wanted})
    repeated = (
        sorted({v for v in vertices if vertices.count(v) > 1}) if len(given) < len(vertices) else []
    )
    missing = [v for v in eliminable if v not in given]
    problems = [
        f"{what} {', '.join(map(str, found[:10]))}{', ...' if len(found) > 10 else ''}"
        for what, found in (
            ("unknown vertices", unknown),
            ("repeated vertices", repeated),
            ("missing vertices", missing),
        )
        if found
    ]
    if problems:
        raise InvalidOrderError(
            f"order: expected a permutation of the {len(eliminable)} eliminable vertices "
            f"1..{len(eliminable)} of {function}, got {'; '.join(problems)}. "
            "graphax_lapl.computational_graph lists the vertices, those of operators of second "
            "order with kind='laplacian'. Arguments to differentiate are named by argnums=."
        )
