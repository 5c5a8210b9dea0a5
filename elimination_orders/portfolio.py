"""`find_order` and the names it knows."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, overload

from elimination_orders.beyond import FineResult
from elimination_orders.bounds import lower_bound
from elimination_orders.cache import PlanCache
from elimination_orders.cost import elimination_cost
from elimination_orders.errors import InvalidGraphError, InvalidOrderError
from elimination_orders.graph import EliminationGraph, Vertex
from elimination_orders.heuristics import HEURISTICS
from elimination_orders.objectives import Objective, Score, resolve_objective
from elimination_orders.result import HistoryEntry, OrderResult
from elimination_orders.search import (
    Annealing,
    Auto,
    Beam,
    EdgeSearch,
    FaceSearch,
    Heuristic,
    HyperPlanner,
    Optimal,
    Strategy,
    WindowDP,
)
from elimination_orders.tensorgraph import number_problem

__all__ = ["ORDERS", "OrderRegistry", "find_order"]

OrderFunction = Callable[..., Any]


class OrderRegistry(Mapping[str, OrderFunction]):
    """Named ways to find an order: a mapping from a name to a callable.

    The callables take a graph and an objective; `Strategy` objects return an `OrderResult`, others
    an order.  Iteration yields the proper names; look-up accepts aliases too, in any case.
    """

    def __init__(self) -> None:
        self._functions: dict[str, OrderFunction] = {}
        self._aliases: dict[str, str] = {}

    def register(self, name: str, function: OrderFunction, *aliases: str) -> None:
        """Make `function` known as `name`, and under further names."""
        self._functions[name] = function
        self._aliases.update(dict.fromkeys(aliases, name))

    def resolve(self, name: str, further: Iterable[str] = ()) -> str:
        """The proper name that `name` stands for.

        Args:
            name: a name or an alias, in any case.
            further: names that the caller knows besides, one of which may have been meant.

        Raises:
            InvalidOrderError: if the name is unknown; the message has the name that is closest to
                it, and lists all names.
        """
        wanted = name.lower()
        wanted = self._aliases.get(wanted, wanted)
        if wanted not in self._functions:
            close = difflib.get_close_matches(wanted, [*self.names(), *further], 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise InvalidOrderError(
                f"order: unknown name {name!r}.{hint} Expected one of "
                f"{', '.join(map(repr, self.names()))}, a strategy, or a sequence of vertices."
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
        return self._functions[self._aliases.get(name.lower(), name.lower())]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __repr__(self) -> str:
        return f"OrderRegistry({', '.join(self.names())})"


def _registry() -> OrderRegistry:
    orders = OrderRegistry()
    orders.register("auto", Auto())
    aliases = {"forward": ("fwd",), "reverse": ("rev",), "lowest_fill": ("lowest_fill_in",)}
    for name in HEURISTICS:
        orders.register(name, Heuristic(names=(name,)), *aliases.get(name, ()))
    orders.register("window", WindowDP(), "window_dp")
    orders.register("annealing", Annealing(), "anneal")
    orders.register("beam", Beam())
    orders.register("search", HyperPlanner(), "hyper")
    orders.register("optimal", Optimal())
    orders.register("edges", EdgeSearch(), "edge")
    orders.register("faces", FaceSearch(), "face")
    return orders


#: Ways to find an order by name.
ORDERS = _registry()


@overload
def find_order(  # type: ignore[overload-overlap]
    graph: EliminationGraph,
    order: Literal["edges", "faces"] | EdgeSearch | FaceSearch,
    *,
    max_time: float | str | None = None,
    seed: int = 0,
    progress: bool = False,
    objective: str | Objective | Score = "muls",
    cache: bool | str | Path | PlanCache | None = None,
) -> FineResult: ...


@overload
def find_order(
    graph: EliminationGraph,
    order: str | Iterable[Vertex] | OrderFunction = "auto",
    *,
    max_time: float | str | None = None,
    seed: int = 0,
    progress: bool = False,
    objective: str | Objective | Score = "muls",
    cache: bool | str | Path | PlanCache | None = None,
) -> OrderResult: ...


def find_order(
    graph: EliminationGraph,
    order: str | Iterable[Vertex] | OrderFunction = "auto",
    *,
    max_time: float | str | None = None,
    seed: int = 0,
    progress: bool = False,
    objective: str | Objective | Score = "muls",
    cache: bool | str | Path | PlanCache | None = None,
) -> OrderResult | FineResult:
    """Find an elimination order of `graph`.

    Args:
        graph: the graph to eliminate from.
        order: a name of `ORDERS`; a `Strategy`, such as ``Annealing(max_time=5, seed=1)``; a
            callable that takes a graph and an objective and returns an order; or an order, which is
            checked and costed.
        max_time: when a search should end: seconds, ``"rate:1e9"`` (no longer than one run of the
            best order at so many multiplications per second), ``"equil:10000"`` (after so many
            orders without an improvement), or None for the number of evaluations that the search
            has by itself, which makes the result reproducible on every machine.
        seed: of the random numbers of a search.
        progress: whether to show the state of a search.
        objective: what to minimise, see `elimination_orders.objectives.resolve_objective`.

        cache: orders kept on disk: a `PlanCache`, a folder, True for the user's cache folder, or
            None to search anew at every call.

    Returns:
        The order with its cost and how it was found.  For ``"edges"`` and ``"faces"``, a
        `FineResult` with a program to replay.

    Raises:
        InvalidOrderError: if the name is unknown or the sequence is no order of this graph.
        InvalidObjectiveError: if the objective is unknown or does not fit the graph or the search.
    """
    if not isinstance(graph, EliminationGraph):
        raise InvalidGraphError(
            f"graph: expected an EliminationGraph, got {type(graph).__name__}. Build one from "
            "inputs, outputs and edges, or with EliminationGraph.from_dict."
        )
    objective = resolve_objective(objective)
    if isinstance(order, str):
        order = ORDERS[ORDERS.resolve(order)]
    if isinstance(order, Strategy):
        return order(
            graph,
            objective,
            max_time=max_time,
            seed=seed,
            progress=progress,
            cache=_as_cache(cache),
        )
    begin = time.perf_counter()
    if callable(order):
        method = getattr(order, "__name__", type(order).__name__)
        found = order(graph, objective)
        if not isinstance(found, Iterable):
            raise InvalidOrderError(
                f"order: {method} returned {found!r}. It should return the eliminable vertices, "
                "first eliminated first."
            )
    elif isinstance(order, Iterable):
        method, found = "explicit", order
    else:
        raise InvalidOrderError(
            f"order: expected a name, a strategy, a sequence of vertices or a callable, got "
            f"{type(order).__name__}."
        )
    found = tuple(found)
    cost = elimination_cost(graph, found, objective)
    seconds = time.perf_counter() - begin
    bound = min(cost, lower_bound(number_problem(graph, objective)))
    return OrderResult(
        order=found,
        cost=cost,
        method=method,
        objective=objective.name,
        lower_bound=bound,
        optimal=cost <= bound,
        history=(HistoryEntry(cost, 1, seconds, method),),
        seconds=seconds,
        graph=graph,
        reference=objective,
    )


def _as_cache(cache: bool | str | Path | PlanCache | None) -> PlanCache | None:
    if cache is None or cache is False:
        return None
    if cache is True:
        return PlanCache()
    if isinstance(cache, PlanCache):
        return cache
    if isinstance(cache, (str, Path)):
        return PlanCache(Path(cache))
    raise InvalidOrderError(
        f"cache: expected a PlanCache, a folder, True or None, got {type(cache).__name__}."
    )
