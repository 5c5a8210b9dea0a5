"""Portfolios: the default ``"auto"`` and the planner with all the knobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from elimination_orders.bitgraph import BitProblem
from elimination_orders.bounds import lower_bound
from elimination_orders.checks import check_between
from elimination_orders.errors import InvalidOrderError
from elimination_orders.heuristics import CRITERIA, HEURISTICS, greedy_order
from elimination_orders.reductions import reduce_problem
from elimination_orders.search.annealing import MAX_LENGTH, Annealing
from elimination_orders.search.base import Budget, Search, Strategy
from elimination_orders.search.beam import Beam
from elimination_orders.search.cuts import chain_order
from elimination_orders.search.optimal import Optimal
from elimination_orders.search.subset_dp import solve_by_subsets
from elimination_orders.search.window import WindowDP, improve_by_windows

__all__ = ["Auto", "HyperPlanner"]

#: Parts of at most so many vertices are solved exactly: a few milliseconds even in Python.
EXACT_LENGTH = 9


@dataclass(frozen=True)
class Auto(Strategy):
    """A good order in milliseconds to a second, never worse than forward and reverse.

    Heuristics first; then the problem is reduced and taken apart, small parts are solved exactly
    and larger ones annealed with a fixed number of evaluations, so that the result does not depend
    on the speed of the machine.

    Args:
        evaluations: orders per vertex that annealing looks at in parts of ordinary size.
        most: limit on the orders for one part of ordinary size.
        questions: new products and sums that the algebra of a graph may be asked for after the
            heuristics.
    """

    evaluations: int = 400
    most: int = 40_000
    questions: int = 3000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("evaluations", "most", "questions"):
            check_between(name, getattr(self, name), 0)

    def run(self, search: Search) -> None:
        """Run the stages until the lower bound is met or all are done."""
        try_heuristics(search)
        search.question_limit = search.questions + self.questions
        if search.is_over():
            return
        solve_in_parts(search, self._solve)

    def _solve(self, search: Search) -> None:
        problem = search.problem
        if problem.n <= EXACT_LENGTH and search.is_sum:
            cost, order = solve_by_subsets(problem)
            search.evaluations += 1 << problem.n
            search.offer(order, cost, "subsets")
            return
        if not isinstance(problem, BitProblem):
            self._solve_tensor(search)
            return
        orders = min(self.evaluations * problem.n, self.most)
        if problem.n > MAX_LENGTH:
            orders = 25 * problem.n
        orders = int(min(orders, search.remaining))
        if orders > 0:
            # One round: a slow descent is worth more than several quick ones.
            budget = replace(search.budget, evaluations=search.evaluations + orders)
            search.budget = budget
            per_vertex = math.ceil(orders / problem.n)
            Annealing(starts=(), round_evaluations=per_vertex).run(search)

    def _solve_tensor(self, search: Search) -> None:
        """Algebras are slow to ask: few evaluations, all of them close to the best order."""
        n = search.problem.n
        if search.is_sum:
            width, sweeps = (6, 3) if n <= 60 else (5, 2) if n <= 300 else (4, 1)
            starts = [list(search.best_order or ())]
            if n <= MAX_LENGTH:
                starts.append(_annealed_as_scalars(search))
            for order in starts:
                search.try_order(order, "annealing of the structure")
                if search.is_over():
                    return
                improve_by_windows(search, order, width, sweeps, "windows")
        orders = int(min(40 * n, 1500, search.remaining))
        if orders > 0:
            search.budget = replace(search.budget, evaluations=search.evaluations + orders)
            Annealing(starts=(), round_evaluations=math.ceil(orders / n), levels=20).run(search)


def _annealed_as_scalars(search: Search) -> list[int]:
    """An order that is good where every product costs one, which takes next to no time to find."""
    structure = search.problem.structure()
    scalar = Search(structure, search.seed, Budget(evaluations=400 * structure.n))
    for name in ("eliad", "markowitz"):
        scalar.try_order(HEURISTICS[name](structure), name)
    Annealing(starts=(), round_evaluations=400).run(scalar)
    return list(scalar.best_order or ())


def try_heuristics(search: Search) -> None:
    """Offer forward, reverse and a few greedy orders; large graphs get fewer of them."""
    problem = search.problem
    search.reference = search.try_order(HEURISTICS["reverse"](problem), "reverse")
    search.try_order(HEURISTICS["forward"](problem), "forward")
    scalar = isinstance(problem, BitProblem)
    structure = problem.structure()
    names = ["markowitz", "eliad", "eliad_forward"]
    if problem.n <= 2000:
        names += ["lowest_fill"]
    if problem.n <= 300:
        names += ["lmmd"] if scalar else ["lmmd", "greedy"]
    for name in names:
        if search.is_over():
            return
        if name in CRITERIA:
            criterion = CRITERIA[name]
            # A greedy order can fill the graph up; it is given up when that makes it slow.
            target = structure if criterion.structural else problem
            order = greedy_order(target, [criterion], max_work=max(20_000, 60 * problem.n))
            if order is None:
                continue
        else:
            order = HEURISTICS[name](problem)
        search.try_order(order, name)
    try_chain(search)


def try_chain(search: Search) -> None:
    """Offer the order of the vertices that everything runs through, if there are some."""
    problem = search.problem
    plain = isinstance(problem, BitProblem) or problem.plain
    if plain and search.is_sum and problem.n > EXACT_LENGTH and not search.is_over():
        order = chain_order(problem)
        if order is not None:
            search.try_order(order, "chain")


def solve_in_parts(search: Search, solve: Callable[[Search], None]) -> None:
    """Reduce the problem, search every part from the best order so far, and join the parts.

    Args:
        search: the whole search, in which some order is known.
        solve: takes the search of a part, in which the order to start from is known.
    """
    problem = search.problem
    reduction = reduce_problem(problem)
    pieces = [s.problem for s in reduction.sections if s.problem is not None]
    if len(reduction.sections) == 1 and pieces:
        solve(search)
        return
    place = {vertex: i for i, vertex in enumerate(search.best_order or ())}
    orders = [
        _ranked([place[vertex] for vertex in section.vertices])
        for section in reduction.sections
        if section.problem is not None
    ]
    costs = [piece.evaluate(order) for piece, order in zip(pieces, orders, strict=True)]
    unsolved = reduction.n_left
    # Where sums count, the costs of the parts add up to the whole but for a constant.
    additive = not isinstance(problem, BitProblem) or problem.weights[2] == 0
    interrupted = False
    # Small parts first: what they leave of the budget goes to the large ones.
    for i in sorted(range(len(pieces)), key=lambda i: pieces[i].n):
        piece = pieces[i]
        outside = reduction.cost + sum(costs) - costs[i]

        def tell(inner: Search, outside: float = outside) -> None:
            evaluations = search.evaluations + inner.evaluations
            if not additive:
                return
            if outside + inner.best_cost < search.best_cost:
                search.record(outside + inner.best_cost, evaluations, inner.best_method)

        inner = search.part(piece, share=piece.n / unsolved, listener=tell)
        unsolved -= piece.n
        inner.lower_bound = lower_bound(piece)
        inner.offer(orders[i], costs[i], "order")
        try:
            if not interrupted:
                _solve_part(inner, solve)
        except KeyboardInterrupt:
            interrupted = True
        search.evaluations += inner.evaluations
        orders[i], costs[i] = list(inner.best_order or ()), inner.best_cost
    search.try_order(reduction.join(orders), "parts")
    if interrupted:
        raise KeyboardInterrupt


def _ranked(places: list[int]) -> list[int]:
    return sorted(range(len(places)), key=places.__getitem__)


def _solve_part(search: Search, solve: Callable[[Search], None]) -> None:
    for name in ("eliad", "lowest_fill", "markowitz"):
        if search.problem.n <= 300 and not search.is_over():
            search.try_order(HEURISTICS[name](search.problem), name)
    try_chain(search)
    if not search.is_over():
        solve(search)


METHODS: Mapping[str, Strategy] = {
    "annealing": Annealing(),
    "window": WindowDP(),
    "beam": Beam(),
    "optimal": Optimal(),
    "auto": Auto(),
}


@dataclass(frozen=True)
class HyperPlanner(Strategy):
    """Several methods one after the other, on several threads if wished.

    Without any limit it looks at 1000 orders per vertex.

    Args:
        methods: names among ``"annealing"``, ``"window"``, ``"beam"``, ``"optimal"`` and the
            heuristics, or strategy objects.  The last one gets what is left of the budget.
        parallel: number of searches with different seeds run at once; the best wins.  The result
            depends on this number, but not on the number of cores.  Threads help where the
            compiled kernel is in use.
    """

    methods: tuple[str | Strategy, ...] = ("annealing",)
    parallel: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("parallel", int(self.parallel) if self.parallel is True else self.parallel, 1)
        methods: Any = self.methods
        if not isinstance(methods, tuple | list):
            raise InvalidOrderError(f"methods: expected a tuple of methods, got {methods!r}.")
        for method in methods:
            self._strategy(method)

    @property
    def name(self) -> str:
        """How the strategy is called in results."""
        return "search"

    def run(self, search: Search) -> None:
        """Heuristics, then the methods on every part of the reduced problem."""
        if not search.budget.is_limited:
            search.budget = Budget(evaluations=1000 * max(1, search.problem.n))
        try_heuristics(search)
        if search.is_over():
            return
        if self.parallel <= 1:
            solve_in_parts(search, self._solve)
            return
        seeds = [search.seed + 7919 * k for k in range(self.parallel)]
        others = [search.part(search.problem) for _ in seeds]
        interrupted = False
        with ThreadPoolExecutor(self.parallel) as pool:
            futures = [
                pool.submit(self._alone, search, other, seed)
                for other, seed in zip(others, seeds, strict=True)
            ]
            try:
                for future in futures:
                    future.result()
            except KeyboardInterrupt:
                interrupted = search.stopped = True  # the threads end by themselves
        for other in others:
            search.evaluations += other.evaluations
            search.offer(other.best_order or (), other.best_cost, other.best_method)
        if interrupted:
            raise KeyboardInterrupt

    def _alone(self, search: Search, other: Search, seed: int) -> None:
        other.seed = seed
        other.lower_bound = search.lower_bound
        other.offer(search.best_order or (), search.best_cost, search.best_method)
        solve_in_parts(other, self._solve)

    def _solve(self, search: Search) -> None:
        n = search.problem.n
        if n <= EXACT_LENGTH and search.is_sum:
            Auto()._solve(search)
            return
        if not isinstance(search.problem, BitProblem):
            # Asking an algebra is slow: what "auto" finds is where to go on from.
            budget = search.budget
            Auto()._solve_tensor(search)
            search.budget = budget
        for method in self.methods:
            if search.is_over():
                return
            strategy = self._strategy(method)
            if isinstance(strategy, WindowDP):
                if search.is_sum:
                    order = list(search.best_order or ())
                    improve_by_windows(search, order, strategy.width, strategy.sweeps, "windows")
            else:
                strategy.run(search)

    @staticmethod
    def _strategy(method: str | Strategy) -> Strategy:
        if isinstance(method, Strategy):
            return method
        if method in METHODS:
            return METHODS[method]
        if method in HEURISTICS:
            from elimination_orders.search.heuristic import Heuristic

            return Heuristic(names=(method,))
        names = ", ".join(map(repr, [*METHODS, *HEURISTICS]))
        raise InvalidOrderError(
            f"methods: unknown method {method!r}. Expected some of {names}, or strategy objects."
        )
