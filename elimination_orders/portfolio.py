"""`find_order` and the names it knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from elimination_orders.cost import elimination_cost
from elimination_orders.errors import InvalidOrderError
from elimination_orders.graph import EliminationGraph, Vertex
from elimination_orders.heuristics import forward_order, markowitz_order, reverse_order
from elimination_orders.objectives import OBJECTIVES, Objective, Score, resolve_objective
from elimination_orders.result import HistoryEntry, OrderResult

__all__ = ["ORDERS", "OrderRegistry", "auto_order", "find_order"]

OrderFunction = Callable[[EliminationGraph, Objective], tuple[Vertex, ...]]


class OrderRegistry(Mapping[str, OrderFunction]):
    """Named ways to find an order: a mapping from a name to a callable.

    Iteration yields the proper names; look-up accepts aliases too, in any case.
    """

    def __init__(self) -> None:
        self._functions: dict[str, OrderFunction] = {}
        self._aliases: dict[str, str] = {}

    def register(self, name: str, function: OrderFunction, *aliases: str) -> None:
        """Make `function` known as `name`, and under further names."""
        self._functions[name] = function
        self._aliases.update(dict.fromkeys(aliases, name))

    def resolve(self, name: str) -> str:
        """The proper name that `name` stands for.

        Raises:
            InvalidOrderError: if the name is unknown; the message lists all names.
        """
        wanted = name.lower()
        wanted = self._aliases.get(wanted, wanted)
        if wanted not in self._functions:
            raise InvalidOrderError(
                f"order: unknown name {name!r}. Expected one of "
                f"{', '.join(map(repr, self.names()))}, or a sequence of vertices."
            )
        return wanted

    def names(self) -> list[str]:
        """All names, every one followed by its aliases."""
        result: list[str] = []
        for name in self._functions:
            result.append(name)
            result.extend(alias for alias, target in self._aliases.items() if target == name)
        return result

    def __getitem__(self, name: str) -> OrderFunction:
        if not isinstance(name, str):
            raise KeyError(name)
        wanted = self._aliases.get(name.lower(), name.lower())
        return self._functions[wanted]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __repr__(self) -> str:
        return f"OrderRegistry({', '.join(self.names())})"


def auto_order(
    graph: EliminationGraph, objective: Objective = OBJECTIVES["muls"]
) -> tuple[Vertex, ...]:
    """The cheapest of forward, reverse and Markowitz; of equals the first in this list.

    Args:
        graph: the graph to eliminate from.
        objective: what to compare the orders by.
    """
    candidates = [
        reverse_order(graph, objective),
        forward_order(graph, objective),
        markowitz_order(graph, objective),
    ]
    return min(candidates, key=lambda order: elimination_cost(graph, order, objective))


#: Ways to find an order by name.
ORDERS = OrderRegistry()
ORDERS.register("auto", auto_order)
ORDERS.register("forward", forward_order, "fwd")
ORDERS.register("reverse", reverse_order, "rev")
ORDERS.register("markowitz", markowitz_order)


def find_order(
    graph: EliminationGraph,
    order: str | Iterable[Vertex] | OrderFunction = "auto",
    *,
    max_time: float | None = None,
    seed: int = 0,
    progress: bool = False,
    objective: str | Objective | Score = "muls",
) -> OrderResult:
    """Find an elimination order of `graph`.

    Args:
        graph: the graph to eliminate from.
        order: a name of `ORDERS`, a callable that takes a graph and an objective and returns an
            order, or an order, which is checked and costed.
        max_time: seconds after which a search should end; None: its own default.
        seed: of the random numbers of a search.
        progress: whether to show the state of a search.
        objective: what to minimise, see `resolve_objective`.

    Returns:
        The order with its cost and how it was found.

    Raises:
        InvalidOrderError: if the name is unknown or the sequence is no order of this graph.
        InvalidObjectiveError: if the objective is unknown.
    """
    objective = resolve_objective(objective)
    begin = time.perf_counter()
    if isinstance(order, str):
        method = ORDERS.resolve(order)
        found = ORDERS[method](graph, objective)
    elif callable(order):
        method = getattr(order, "__name__", type(order).__name__)
        found = order(graph, objective)
    elif isinstance(order, Iterable):
        method, found = "explicit", tuple(order)
    else:
        raise InvalidOrderError(
            f"order: expected a name, a sequence of vertices or a callable, got "
            f"{type(order).__name__}."
        )
    cost = elimination_cost(graph, found, objective)
    seconds = time.perf_counter() - begin
    return OrderResult(
        order=tuple(found),
        cost=cost,
        method=method,
        objective=objective.name,
        history=(HistoryEntry(cost, 1, seconds, method),),
        seconds=seconds,
    )
