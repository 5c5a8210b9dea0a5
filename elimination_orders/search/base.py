"""What all searches have in common: a budget, the best order so far, and how it came about."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elimination_orders.bounds import lower_bound
from elimination_orders.cache import Entry, PlanCache
from elimination_orders.checks import check_between, check_flag, check_seed
from elimination_orders.errors import InvalidOrderError
from elimination_orders.graph import EliminationGraph
from elimination_orders.objectives import Objective, Score, resolve_objective
from elimination_orders.progress import ProgressLine
from elimination_orders.result import HistoryEntry, OrderResult
from elimination_orders.tensorgraph import number_problem

__all__ = ["Budget", "Search", "Strategy"]


@dataclass(frozen=True)
class Budget:
    """When a search has to stop.

    Args:
        seconds: this long after it began; for people, since it makes results depend on the machine.
        evaluations: after so many orders; for reproducible results.
        patience: after so many orders without an improvement.
        rate: multiplications per second of the code that is planned: the search may last as long as
            one run of the best order so far, ``cost / rate``.
    """

    seconds: float = math.inf
    evaluations: float = math.inf
    patience: float = math.inf
    rate: float | None = None

    @classmethod
    def parse(cls, max_time: float | str | None, evaluations: int | None = None) -> Budget:
        """A budget from the ``max_time`` of a caller.

        Args:
            max_time: seconds, ``"rate:1e9"``, ``"equil:10000"`` (orders without an improvement) or
                None for no limit.
            evaluations: limit on the number of orders.

        Raises:
            InvalidOrderError: if `max_time` is none of these.
        """
        orders = math.inf if evaluations is None else evaluations
        if max_time is None:
            return cls(evaluations=orders)
        try:
            if isinstance(max_time, str):
                word, _, number = max_time.partition(":")
                if word == "rate" and float(number) > 0:
                    return cls(evaluations=orders, rate=float(number))
                if word == "equil" and float(number) > 0:
                    return cls(evaluations=orders, patience=float(number))
                raise ValueError(max_time)
            if not float(max_time) >= 0:
                raise ValueError(max_time)
        except (TypeError, ValueError):
            raise InvalidOrderError(
                f"max_time: expected seconds (not negative), 'rate:<multiplications per second>', "
                f"'equil:<orders>' or None, got {max_time!r}."
            ) from None
        return cls(seconds=float(max_time), evaluations=orders)

    @property
    def is_limited(self) -> bool:
        """Whether anything ends a search that does not end by itself."""
        return self.rate is not None or not (
            math.isinf(self.seconds) and math.isinf(self.evaluations) and math.isinf(self.patience)
        )


class Search:
    """A search in progress.

    Args:
        problem: what is searched, see `number_problem`.
        seed: of the random numbers.
        budget: when to stop.
        progress: shows the state of the search, or None.
    """

    def __init__(
        self,
        problem: Any,
        seed: int = 0,
        budget: Budget | None = None,
        progress: ProgressLine | None = None,
    ) -> None:
        self.problem = problem
        self.seed = seed
        self.budget = budget or Budget()
        self.best_cost: float = math.inf
        self.best_order: list[int] | None = None
        self.best_method = ""
        self.lower_bound: float = 0
        self.evaluations = 0
        self.history: list[HistoryEntry] = []
        self.begin = time.perf_counter()
        self._last_improvement = 0
        self._progress = progress
        self.reference: float | None = None
        self.question_limit = math.inf
        self.listener: Callable[[Search], None] | None = None
        self.stopped = False
        self._parent: Search | None = None

    def part(
        self,
        problem: Any,
        share: float = 1.0,
        limit: float = math.inf,
        listener: Callable[[Search], None] | None = None,
    ) -> Search:
        """A search of a part of the problem, which ends no later than this one.

        Args:
            problem: the part.
            share: fraction of the budget that is left.
            limit: on its evaluations.
            listener: is told of every improvement.
        """
        budget = replace(
            self.budget,
            seconds=share * max(0.0, self.budget.seconds - self.seconds),
            evaluations=min(limit, _share(share, self.remaining)),
        )
        search = Search(problem, self.seed, budget)
        search.question_limit = self.question_limit
        search.listener = listener
        search._parent = self
        return search

    def offer(self, order: Sequence[int], cost: float, method: str) -> bool:
        """Keep `order` if it is the best so far; says whether it is."""
        better = cost < self.best_cost
        if better:
            self.best_cost, self.best_order, self.best_method = cost, list(order), method
            self._last_improvement = self.evaluations
            self.record(cost, self.evaluations, method)
            if self.listener is not None:
                self.listener(self)
        self.show()
        return better

    def record(self, cost: float, evaluations: int, method: str) -> None:
        """Enter an improvement in the history, unless it is there already."""
        if not self.history or cost < self.history[-1].cost:
            self.history.append(HistoryEntry(cost, evaluations, self.seconds, method))

    def try_order(self, order: Sequence[int], method: str) -> float:
        """Evaluate `order` as far as it is better than the best, offer it, and return its cost."""
        if self.best_order is None:
            cost = self.problem.evaluate(order)
        else:
            cost = self.problem.evaluate_below(order, self.best_cost)
        self.evaluations += 1
        self.offer(order, cost, method)
        return cost

    @property
    def seconds(self) -> float:
        """Time since the search began."""
        return time.perf_counter() - self.begin

    @property
    def remaining(self) -> float:
        """Evaluations that are left."""
        return max(0, self.budget.evaluations - self.evaluations)

    @property
    def questions(self) -> int:
        """How often the algebra of the graph was asked; 0 where there is none."""
        return getattr(getattr(self.problem, "algebra", None), "questions", 0)

    def is_over(self) -> bool:
        """Whether the budget is spent or nothing can be won any more."""
        budget = self.budget
        if self._is_stopped():
            return True
        if self.questions >= self.question_limit:
            return True
        if self.best_order is not None:
            if self.best_cost <= self.lower_bound:
                return True
            if budget.rate is not None and self.seconds > self.best_cost / budget.rate:
                return True
        return (
            self.evaluations >= budget.evaluations
            or self.evaluations - self._last_improvement >= budget.patience
            or (not math.isinf(budget.seconds) and self.seconds >= budget.seconds)
        )

    def _is_stopped(self) -> bool:
        return self.stopped or (self._parent is not None and self._parent._is_stopped())

    @property
    def is_sum(self) -> bool:
        """Whether the cost of an order is the sum over its steps."""
        return getattr(getattr(self.problem, "objective", None), "combine", "sum") == "sum"

    def show(self, note: str = "") -> None:
        """Tell the progress line how things stand."""
        if self._progress is not None:
            self._progress.update(self.best_cost, self.reference, self.evaluations, note)


def _share(share: float, amount: float) -> float:
    return amount if math.isinf(amount) else math.ceil(share * amount)


@dataclass(frozen=True)
class Strategy(ABC):
    """A way to find an order: an object to be called with a graph.

    Subclasses implement `run`, which offers orders to a `Search`.

    Args:
        max_time: seconds, ``"rate:<multiplications per second>"``, ``"equil:<orders>"`` or None
            for the strategy's own number of evaluations; a ``max_time`` given to the call wins.
        seed: of the random numbers; None: that of the call.
        max_evaluations: number of orders to evaluate at most; None: the strategy's own.
        progress: whether to show the state of the search.
    """

    max_time: float | str | None = None
    seed: int | None = None
    max_evaluations: int | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        """Check the settings; a subclass with more of them calls this one as well."""
        if self.seed is not None:
            check_seed(self.seed)
        if self.max_evaluations is not None:
            check_between("max_evaluations", self.max_evaluations, 1)
        check_flag("progress", self.progress)

    @property
    def name(self) -> str:
        """How the strategy is called in results."""
        return type(self).__name__.lower()

    @abstractmethod
    def run(self, search: Search) -> None:
        """Search; every order worth keeping goes to ``search.offer``."""

    def __call__(
        self,
        graph: EliminationGraph,
        objective: str | Objective | Score = "muls",
        *,
        max_time: float | str | None = None,
        seed: int = 0,
        progress: bool = False,
        cache: PlanCache | None = None,
    ) -> OrderResult:
        """Find an order of `graph`.

        ``KeyboardInterrupt`` ends the search and returns the best order found until then.

        Args:
            graph: the graph to eliminate from.
            objective: what to minimise.
            max_time: see the class.
            seed: of the random numbers, unless the strategy has its own.
            progress: whether to show the state of the search.
            cache: orders on disk; None: every call searches.

        Returns:
            The order with its cost and how it was found.
        """
        check_flag("progress", progress)
        objective = resolve_objective(objective)
        budget = Budget.parse(self.max_time if max_time is None else max_time, self.max_evaluations)
        problem = number_problem(graph, objective)
        seed = check_seed(seed if self.seed is None else self.seed)
        key = None if cache is None else cache.key(problem, objective, f"{self!r} {budget} {seed}")
        with ProgressLine(self.name, progress or self.progress) as line:
            search = Search(problem, seed, budget, line)
            search.lower_bound = lower_bound(problem)
            if cache is None or key is None:
                self._run_until_interrupted(search)
            else:
                self._run_with_cache(search, cache, key)
            return finish(graph, objective, search, self.name)

    def _run_until_interrupted(self, search: Search) -> None:
        try:
            self.run(search)
        except KeyboardInterrupt:
            if search.best_order is None:
                raise

    def _run_with_cache(self, search: Search, cache: PlanCache, key: str) -> None:
        entry = None if cache.overwrite is True else cache.load(key, search.problem)
        if entry is None or cache.overwrite:
            self._run_until_interrupted(search)
            if entry is None or search.best_cost < entry.cost:
                if search.best_order is not None:
                    cache.store(
                        key,
                        Entry(
                            order=tuple(search.best_order),
                            cost=search.best_cost,
                            method=search.best_method,
                            lower_bound=min(search.lower_bound, search.best_cost),
                            optimal=search.best_cost <= search.lower_bound,
                            evaluations=search.evaluations,
                        ),
                    )
                return
        search.lower_bound = max(search.lower_bound, entry.lower_bound)
        search.offer(entry.order, entry.cost, f"cache ({entry.method})")


def finish(
    graph: EliminationGraph, objective: Objective, search: Search, method: str
) -> OrderResult:
    """The result of a search that is over."""
    if search.best_order is None:
        raise InvalidOrderError(
            f"order: {method} ended before it had found any order. Give it a larger budget."
        )
    bound = search.lower_bound
    found = f"{method}: {search.best_method}" if search.best_method not in ("", method) else method
    return OrderResult(
        order=tuple(graph.eliminable[i] for i in search.best_order),
        cost=search.best_cost,
        method=found,
        objective=objective.name,
        lower_bound=min(bound, search.best_cost),
        optimal=search.best_cost <= bound,
        history=tuple(search.history),
        seconds=search.seconds,
        evaluations=search.evaluations,
        graph=graph,
        reference=objective,
    )
