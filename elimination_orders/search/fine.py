"""Searches over eliminations finer than those of vertices, for graphs of any size.

The start is the best order of vertices.  It is annealed as a sequence of moves (see
`elimination_orders.dual`): single edges, or single paths of two edges, are multiplied out before
the vertex that they meet at is eliminated, moved about and dropped again, and vertices are
relocated.  A sequence replaces the best one only if it is cheaper, so that the result never costs
more than the order of vertices.
"""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from elimination_orders.algebra import MemoizedAlgebra
from elimination_orders.beyond import EdgeStep, FineResult
from elimination_orders.bitgraph import bits
from elimination_orders.cache import PlanCache
from elimination_orders.checks import check_between, check_flag, check_seed
from elimination_orders.dual import DualProblem, DualState, Move, PathMove, VertexMove
from elimination_orders.errors import InvalidObjectiveError, InvalidOrderError
from elimination_orders.exact import find_edge_order, find_face_order
from elimination_orders.graph import EliminationGraph
from elimination_orders.objectives import Objective, Score, resolve_objective
from elimination_orders.program import moves_program
from elimination_orders.progress import ProgressLine
from elimination_orders.search.annealer import SURPRISE
from elimination_orders.search.base import Budget, Search, Strategy
from elimination_orders.search.hyper import Auto

__all__ = ["EdgeSearch", "FaceSearch"]

#: States kept along a sequence of moves.
MAX_STATES = 250
#: Scalar graphs of up to so many eliminable vertices are tried exactly first.
MAX_EXACT = 4


@dataclass(frozen=True)
class FineSearch(Strategy):
    """Annealing of a sequence of moves that starts from an order of vertices.

    The result is a `FineResult`, whose program can be replayed with any partials.  Without any
    limit the search ends after ``max_evaluations``, by default 2000.

    Args:
        vertices: finds the order to start from.
        hot: first temperature, as a multiple of the mean cost of a product at the start.
        cold: last temperature, likewise.
        levels: number of temperatures.
    """

    vertices: Strategy = field(default_factory=Auto)
    hot: float = 1.0
    cold: float = 0.1
    levels: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("hot", self.hot, 0.0)
        check_between("cold", self.cold, 0.0)
        check_between("levels", self.levels, 1)

    @property
    @abstractmethod
    def kind(self) -> str:
        """What is eliminated, in the plural."""

    @property
    def name(self) -> str:
        """How the strategy is called in results."""
        return self.kind

    @abstractmethod
    def finer_move(self, problem: DualProblem, state: DualState, a: int, b: int, draw: int) -> Move:
        """A move that multiplies the labels a and b and as little else as may be."""

    def run(self, search: Search) -> None:
        """Anneal the best sequence of moves until the budget is spent."""
        problem: DualProblem = search.problem
        n = len(problem.graph)
        if n < 2:
            return
        if not search.budget.is_limited:
            search.budget = Budget(evaluations=2000)
        annealer = _MoveAnnealer(problem, list(search.best_order or ()), search.seed, self)
        level, begin = 0, search.seconds
        while not search.is_over():
            fraction = self.hot * (self.cold / self.hot) ** (level / max(1, self.levels - 1))
            temperature = float(f"{annealer.unit * fraction:.6g}")
            # A level takes its share of the evaluations, or of the time.
            share = max(1, int(min(search.budget.evaluations, 10_000) / self.levels))
            until = begin + (search.budget.seconds - begin) * (level + 1) / self.levels
            for _ in range(share):
                annealer.step(temperature)
                search.evaluations += 1
                if annealer.cost < search.best_cost:
                    search.offer(annealer.moves, annealer.cost, f"annealing of {self.kind}")  # type: ignore[arg-type]
                if search.is_over() or search.seconds > until:
                    break
            search.show(f"T={temperature:.1e}")
            level = (level + 1) % self.levels
            if level == 0:
                annealer.restart(list(search.best_order or ()))
                begin = search.seconds

    @abstractmethod
    def solve(self, graph: EliminationGraph) -> FineResult:
        """The exact search, with a small limit on its states."""

    def _solve_exactly(self, graph: EliminationGraph, objective: Objective) -> FineResult | None:
        """A proved optimum, where the graph is small enough for one at once."""
        if not graph.is_scalar or objective.weights != (1, 0, 0) or len(graph) > MAX_EXACT:
            return None
        try:
            return self.solve(graph)
        except InvalidOrderError:
            return None

    def __call__(  # type: ignore[override]
        self,
        graph: EliminationGraph,
        objective: str | Objective | Score = "muls",
        *,
        max_time: float | str | None = None,
        seed: int = 0,
        progress: bool = False,
        cache: PlanCache | None = None,
    ) -> FineResult:
        """Find a program for `graph`.

        ``KeyboardInterrupt`` ends the search and returns the best program found until then.

        Args:
            graph: the graph to eliminate from.
            objective: a count of products: ``"muls"`` or ``"unit_muls"``.
            max_time: see `find_order`; the order to start from is not counted in.
            seed: of the random numbers, unless the strategy has its own.
            progress: whether to show the state of the search.
            cache: for the order to start from.

        Returns:
            Moves, cost and program.

        Raises:
            InvalidObjectiveError: if the objective is something else than a count of products.
        """
        check_flag("progress", progress)
        begin = time.perf_counter()
        objective = resolve_objective(objective)
        if not objective.is_algebra_cost:
            raise InvalidObjectiveError(
                f"objective: {self.kind} are searched by the cost of their products only, got "
                f"{objective.name!r}. Use 'muls' or 'unit_muls', or an order of vertices."
            )
        budget = Budget.parse(self.max_time if max_time is None else max_time, self.max_evaluations)
        seed = check_seed(seed if self.seed is None else self.seed)
        order = self.vertices(graph, objective, seed=seed, cache=cache)
        exact = self._solve_exactly(graph, objective)
        if exact is not None:
            seconds = time.perf_counter() - begin
            return replace(exact, vertex_cost=order.cost, seconds=seconds)
        problem = dual_problem(graph, objective)
        with ProgressLine(self.name, progress or self.progress) as line:
            search = Search(problem, seed, budget, line)
            search.reference = order.cost
            search.lower_bound = 0
            start: list[Any] = [VertexMove(vertex) for vertex in order.order]
            search.offer(start, order.cost, order.method)
            self._run_until_interrupted(search)
        moves: list[Any] = _without_idle(problem, search.best_order or ())  # type: ignore[arg-type]
        return FineResult(
            steps=tuple(moves),
            cost=search.best_cost,
            states=search.evaluations,
            program=moves_program(graph, moves),
            optimal=False,
            method=search.best_method,
            vertex_cost=order.cost,
            seconds=time.perf_counter() - begin,
        )


@dataclass(frozen=True)
class EdgeSearch(FineSearch):
    """Eliminations of edges, see `FineSearch`; small scalar graphs are solved exactly."""

    @property
    def kind(self) -> str:
        """What is eliminated, in the plural."""
        return "edges"

    def solve(self, graph: EliminationGraph) -> FineResult:
        """As `find_edge_order`."""
        return find_edge_order(graph, max_states=5000)

    def finer_move(self, problem: DualProblem, state: DualState, a: int, b: int, draw: int) -> Move:
        """Front or back elimination."""
        vertices = problem.graph.vertices
        middle = vertices[state.target[a]]
        if draw % 2:
            return EdgeStep("front", (vertices[state.source[a]], middle))
        return EdgeStep("back", (middle, vertices[state.target[b]]))


@dataclass(frozen=True)
class FaceSearch(FineSearch):
    """Eliminations of edges and of paths of two edges, see `FineSearch`.

    Small scalar graphs are solved exactly.
    """

    @property
    def kind(self) -> str:
        """What is eliminated, in the plural."""
        return "faces"

    def solve(self, graph: EliminationGraph) -> FineResult:
        """As `find_face_order`."""
        return find_face_order(graph, max_states=5000)

    def finer_move(self, problem: DualProblem, state: DualState, a: int, b: int, draw: int) -> Move:
        """A path, or one time in three front or back elimination."""
        vertices = problem.graph.vertices
        first, middle = vertices[state.source[a]], vertices[state.target[a]]
        last = vertices[state.target[b]]
        if draw % 6 == 0:
            return EdgeStep("front", (first, middle))
        if draw % 6 == 1:
            return EdgeStep("back", (middle, last))
        return PathMove(first, middle, last)


def dual_problem(graph: EliminationGraph, objective: Objective) -> DualProblem:
    """The problem of `graph` at the costs of `objective`."""
    if graph.is_scalar and objective.weights == (1, 0, 0):
        partials = dict.fromkeys(graph._edges, True)
        return DualProblem(graph, partials, lambda outer, inner: (True, 1), lambda a, b: (True, 0))
    algebra = objective.scalar_algebra if graph.is_scalar else graph._algebra
    assert algebra is not None
    memo = MemoizedAlgebra(algebra)
    return DualProblem(graph, graph._edges, memo.compose, memo.merge)


def _without_idle(problem: DualProblem, moves: Sequence[Move]) -> list[Move]:
    """The moves that multiply something, and the eliminations of vertices."""
    state = DualState(problem)
    kept = []
    for move in moves:
        if isinstance(move, VertexMove) or any(True for _ in problem.faces(state, move)):
            kept.append(move)
            state.apply(move)
    return kept


class _MoveAnnealer:
    """A sequence of moves with states along it.

    Args:
        problem: the graph.
        moves: where to start; names every eliminable vertex.
        seed: of the random numbers.
        settings: makes finer moves.
    """

    def __init__(
        self, problem: DualProblem, moves: list[Any], seed: int, settings: FineSearch
    ) -> None:
        self._problem = problem
        self._rng = random.Random(seed)
        self._settings = settings
        self.restart(moves)
        n_products = moves_program(problem.graph, moves).multiplications
        self.unit = self.cost / max(1, n_products)

    def restart(self, moves: list[Any]) -> None:
        """Go on from another sequence."""
        self.moves: list[Move] = moves
        self._stride = 1 + len(moves) // MAX_STATES
        # (state, cost so far) before every move whose place is a multiple of the stride.
        self._marks: list[tuple[DualState, float]] = [(DualState(self._problem), 0)]
        self.cost = 0.0
        self._remember(0)

    def step(self, temperature: float) -> None:
        """Propose a change and take it if it costs little enough."""
        proposal = self._propose()
        if proposal is None:
            return
        moves, place = proposal
        bound = self.cost + temperature * SURPRISE[self._rng.randrange(1024)]
        state, cost, at = self._state_before(place)
        for move in moves[at:]:
            cost += state.apply(move)
            if cost > bound:
                return
        self.moves = moves
        self._remember(place)

    def _state_before(self, place: int) -> tuple[DualState, float, int]:
        """A state at or before a place, the cost so far, and where it stands."""
        mark = min(place // self._stride, len(self._marks) - 1)
        state, cost = self._marks[mark]
        return state.copy(), cost, mark * self._stride

    def _remember(self, place: int) -> None:
        state, cost, at = self._state_before(place)
        del self._marks[at // self._stride :]
        for i in range(at, len(self.moves)):
            if i % self._stride == 0:
                self._marks.append((state.copy(), cost))
            cost += state.apply(self.moves[i])
        self.cost = cost

    def _propose(self) -> tuple[list[Move], int] | None:
        """A changed sequence and the first place that is different; None for no change."""
        draw, moves = self._rng.randrange, self.moves
        kind = draw(10)
        place = draw(len(moves))
        if kind < 6:
            move = self._finer(place)
            return None if move is None else ([*moves[:place], move, *moves[place:]], place)
        if kind < 8:
            finer = [i for i, move in enumerate(moves) if not isinstance(move, VertexMove)]
            if not finer:
                return None
            place = finer[draw(len(finer))]
            if draw(2):
                return [*moves[:place], *moves[place + 1 :]], place
        # Relocate, most often nearby.
        target = place + draw(17) - 8 if draw(3) else draw(len(moves))
        if target == place or not 0 <= target < len(moves):
            return None
        changed = [*moves[:place], *moves[place + 1 :]]
        changed.insert(target, moves[place])
        return changed, min(place, target)

    def _finer(self, place: int) -> Move | None:
        """A finer move at a vertex that is eliminated soon after `place`."""
        draw, problem = self._rng.randrange, self._problem
        move = self.moves[min(place + draw(6), len(self.moves) - 1)]
        if not isinstance(move, VertexMove):
            return None
        state, _ = self._marks[min(place // self._stride, len(self._marks) - 1)]
        inner = list(bits(state.into[problem.number[move.vertex]]))
        if not inner:
            return None
        a = inner[draw(len(inner))]
        outer = list(bits(state.succ[a] & ~state.ends))
        if not outer:
            return None
        return self._settings.finer_move(problem, state, a, outer[draw(len(outer))], draw(6))
