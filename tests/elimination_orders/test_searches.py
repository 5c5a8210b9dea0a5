"""The searches: what they promise, against brute force and against each other."""

import random

import pytest
from hypothesis import given, strategies as st
from planner_graphs import (
    MatrixShapeAlgebra,
    brute_force_optimum,
    cost_by_sets,
    examples,
    layered_graph,
    load_task,
    random_graph,
    small_graphs,
)

from elimination_orders import (
    OBJECTIVES,
    Annealing,
    Auto,
    Beam,
    EliminationGraph,
    Heuristic,
    HyperPlanner,
    InvalidObjectiveError,
    InvalidOrderError,
    Objective,
    Optimal,
    Strategy,
    WindowDP,
    elimination_cost,
    find_order,
)
from elimination_orders.bitgraph import BitProblem
from elimination_orders.bounds import disjoint_paths, lower_bound
from elimination_orders.native import NativePlanner, kernel_available
from elimination_orders.search.annealer import PythonAnnealer, make_annealer
from elimination_orders.search.base import Budget
from elimination_orders.search.subset_dp import _solve_in_python, solve_by_subsets
from elimination_orders.tensorgraph import TensorProblem, number_problem

ALL_KINDS = ("unit", "constant", "variable")


@pytest.mark.parametrize("objective", list(OBJECTIVES))
@given(graph=small_graphs(8, ALL_KINDS), seed=st.integers(0, 1000))
@examples
def test_numbered_forms_cost_what_the_graph_costs(objective, graph, seed):
    order = list(range(len(graph)))
    random.Random(seed).shuffle(order)
    expected = elimination_cost(graph, [graph.eliminable[i] for i in order], objective)
    chosen = OBJECTIVES[objective]
    assert number_problem(graph, chosen).evaluate(order) == expected
    assert TensorProblem.from_graph(graph, chosen).evaluate(order) == expected


@pytest.mark.parametrize("objective", ["muls", "unit_muls", "adds", "flops"])
@given(graph=small_graphs(8, ALL_KINDS), seed=st.integers(0, 1000))
@examples
def test_windows_cost_what_the_whole_costs(objective, graph, seed):
    rng = random.Random(seed)
    order = list(range(len(graph)))
    rng.shuffle(order)
    lo = rng.randint(0, len(order))
    hi = rng.randint(lo, len(order))
    for problem in (
        number_problem(graph, OBJECTIVES[objective]),
        TensorProblem.from_graph(graph, OBJECTIVES[objective]),
    ):
        state = problem.start()
        for vertex in order[:lo]:
            state.eliminate(vertex)
        part, numbers = problem.window(state, order[lo:hi])
        assert numbers[: hi - lo] == order[lo:hi]
        assert part.step_costs(range(hi - lo)) == problem.step_costs(order)[lo:hi]


@given(graph=small_graphs(9, ALL_KINDS))
@examples
def test_state_agrees_with_its_own_forecasts(graph):
    for problem in (
        number_problem(graph, OBJECTIVES["flops"]),
        TensorProblem.from_graph(graph, OBJECTIVES["flops"]),
    ):
        state = problem.start()
        for vertex in range(problem.n):
            other = state.copy()
            cost = state.cost(vertex)
            assert other.eliminate(vertex) == cost
            assert state.cost(vertex) == cost
            state.eliminate(vertex)


@pytest.mark.parametrize("weights", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 2, 1)])
@pytest.mark.parametrize(("seed", "n"), [(1, 9), (2, 30), (3, 75), (4, 140)])
def test_kernel_and_python_take_the_same_steps(weights, seed, n):
    graph = random_graph(seed, n, 3, 3, 3 / n, ALL_KINDS)
    problem = BitProblem.from_graph(graph, weights)
    order = list(range(problem.n))
    random.Random(seed).shuffle(order)
    fast, slow = make_annealer(problem, order, seed), PythonAnnealer(problem, order, seed)
    for temperature in (20.0, 3.0, 0.1):
        fast.run(temperature, 60)
        slow.run(temperature, 60)
    assert fast.evaluations == slow.evaluations
    assert (fast.cost, fast.best_cost) == (slow.cost, slow.best_cost)
    assert fast.best_order == slow.best_order
    assert problem.evaluate(slow.best_order) == slow.best_cost
    part = BitProblem.from_graph(random_graph(seed, 8, 2, 2, 0.3, ALL_KINDS), weights)
    assert solve_by_subsets(part) == _solve_in_python(part)


def test_a_compiled_kernel_counts_like_python():
    graph, _ = load_task("g")
    problem = BitProblem.from_graph(graph)
    order = list(range(problem.n))[::-1]
    assert problem.evaluate(order) == 566
    if kernel_available():
        assert NativePlanner(problem).evaluate(order) == 566


@pytest.mark.parametrize("objective", ["muls", "unit_muls", "flops"])
@given(graph=small_graphs(6, ALL_KINDS))
@examples
def test_optimal_is_the_brute_force_optimum(objective, graph):
    result = find_order(graph, "optimal", objective=objective)
    best = brute_force_optimum(graph, lambda order: elimination_cost(graph, order, objective))
    assert result.cost == best == result.lower_bound
    assert result.optimal


@pytest.mark.slow
def test_optimal_up_to_eight_vertices():
    for seed in range(5):
        graph = random_graph(seed, 8, 3, 2, 0.3)
        best = brute_force_optimum(graph, lambda order, graph=graph: cost_by_sets(graph, order))
        assert find_order(graph, "optimal").cost == best


@pytest.mark.parametrize("seed", range(6))
def test_sixteen_vertices_are_proved(seed):
    graph = layered_graph(seed, 5, 4)
    assert len(graph) == 16
    result = find_order(graph, "optimal")
    assert result.optimal
    assert result.cost == result.lower_bound
    assert result.cost <= find_order(graph, "search", seed=seed).cost


def test_branch_and_bound_agrees_with_subsets():
    for seed in range(4):
        graph = layered_graph(seed, 5, 5)
        problem = number_problem(graph, OBJECTIVES["muls"])
        result = find_order(graph, Optimal(max_states=10_000))
        assert len(graph) == 20
        assert result.optimal
        assert result.cost == solve_by_subsets(problem)[0]


@given(graph=small_graphs(7))
@examples
def test_no_order_is_below_the_bound(graph):
    problem = number_problem(graph, OBJECTIVES["muls"])
    assert lower_bound(problem) <= solve_by_subsets(problem)[0]


def test_bound_of_a_bottleneck():
    # Three inputs, but all paths to c run through b: one path only.
    rows = (0b0000, 0b0001, 0b0010, 0b0100)
    assert disjoint_paths(rows, 3, 0b0001) == 1
    # Two paths that must be untangled: a greedy first path 4 -> 2 -> 0 blocks the second.
    rows = (0, 0, 0b00011, 0b00001, 0b01100)
    assert disjoint_paths(rows, 4, 0b00011) == 2


@pytest.mark.parametrize(
    ("task", "cost"),
    [("RoeFlux_1d", 295), ("RobotArm_6DOF", 221), ("PropaneCombustion", 88), ("g", 409)],
)
def test_best_known_orders_are_found(task, cost):
    graph, data = load_task(task)
    assert data["best_known"] == cost
    result = find_order(graph, "auto")
    assert result.cost == cost == cost_by_sets(graph, result.order)
    assert result.lower_bound > 0


@pytest.mark.parametrize("task", ["RobotArm_6DOF", "PropaneCombustion"])
def test_orders_proved_optimal(task):
    graph, data = load_task(task)
    result = find_order(graph, "optimal")
    assert result.optimal
    assert result.cost == result.lower_bound == data["best_known"]


@pytest.mark.parametrize(("task", "cost"), [("RoeFlux_1d", 184), ("PropaneCombustion", 24)])
def test_best_known_unit_aware_orders_are_found(task, cost):
    graph, data = load_task(task)
    assert data["best_known_unit_aware"] == cost
    result = find_order(graph, "search", objective="unit_muls", seed=1)
    assert result.cost == cost


@pytest.mark.parametrize(
    "strategy",
    [
        Auto(),
        Annealing(max_evaluations=3000),
        Beam(width=4, branch=3),
        WindowDP(width=5),
        Heuristic(names=("eliad", "momr")),
        HyperPlanner(max_evaluations=5000),
        HyperPlanner(methods=("beam", "lrm", Annealing()), max_evaluations=5000),
        HyperPlanner(max_evaluations=3000, parallel=3),
        Optimal(max_states=20),
    ],
    ids=lambda strategy: strategy.name,
)
def test_a_strategy_repeats_itself(strategy):
    graph = layered_graph(3, 7, 5)
    first, second = (find_order(graph, strategy, seed=5) for _ in range(2))
    assert first.order == second.order
    assert first.evaluations == second.evaluations
    assert first.cost == cost_by_sets(graph, first.order)
    costs = [entry.cost for entry in first.history]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == first.cost


@pytest.mark.parametrize("name", ["auto", "search"])
@pytest.mark.parametrize("seed", range(3))
def test_portfolios_are_never_worse_than_forward_and_reverse(name, seed):
    graph = layered_graph(seed, 12, 9, reach=3)
    ends = min(find_order(graph, end).cost for end in ("forward", "reverse"))
    assert find_order(graph, name, max_time=0.05).cost <= ends


def test_large_graph_beats_both_sweeps():
    graph = layered_graph(1, 150, 10)
    ends = min(find_order(graph, end).cost for end in ("forward", "reverse"))
    result = find_order(graph, "auto")
    assert result.cost < ends
    assert result.cost == elimination_cost(graph, result.order)


@pytest.mark.parametrize("objective", ["peak_edges", "edges_left", "peak_bytes"])
def test_objectives_that_are_no_sums(objective):
    graph = layered_graph(2, 5, 4)
    plain = min(find_order(graph, end, objective=objective).cost for end in ("forward", "reverse"))
    few = HyperPlanner(methods=("window", "annealing", "beam"), max_evaluations=300)
    for strategy in (Annealing(max_evaluations=300), few, Beam(width=2)):
        result = find_order(graph, strategy, objective=objective)
        assert result.cost == elimination_cost(graph, result.order, objective)
        if not isinstance(strategy, Beam):
            assert result.cost <= plain
    with pytest.raises(InvalidObjectiveError, match="needs a sum"):
        find_order(graph, "window", objective=objective)


def test_objective_of_ones_own():
    graph = layered_graph(2, 4, 4)
    squares = Objective("squares", lambda step: step.cost**2, "sum")
    result = find_order(graph, "auto", objective=squares)
    assert result.cost == elimination_cost(graph, result.order, squares)
    assert result.cost <= find_order(graph, "reverse", objective=squares).cost


def test_bytes_need_sizes():
    edges = [("x", "a", (2, 4)), ("a", "b", (3, 2)), ("b", "y", (5, 3))]
    graph = EliminationGraph(["x"], ["y"], edges, MatrixShapeAlgebra())
    with pytest.raises(InvalidObjectiveError, match=r"no method size\(edge\)"):
        find_order(graph, "reverse", objective="peak_bytes")


@pytest.mark.parametrize("seed", range(5))
def test_matrix_chains_are_solved_exactly(seed):
    # A chain of dense matrices is the textbook case with a known optimum.
    rng = random.Random(seed)
    sizes = [rng.randint(1, 30) for _ in range(9)]
    edges = [(i, i + 1, (sizes[i + 1], sizes[i])) for i in range(8)]
    graph = EliminationGraph([0], [8], edges, MatrixShapeAlgebra())
    table: dict[tuple[int, int], int] = {(i, i + 1): 0 for i in range(8)}
    for length in range(2, 9):
        for i in range(9 - length):
            j = i + length
            table[i, j] = min(
                table[i, k] + table[k, j] + sizes[i] * sizes[k] * sizes[j] for k in range(i + 1, j)
            )
    assert find_order(graph, "optimal").cost == table[0, 8]
    assert find_order(graph, "auto").cost == table[0, 8]


def test_a_narrow_middle_is_eliminated_from_within():
    # 100 -> 50 -> 2 -> 50 -> 100: the dense Jacobian is best formed as a product of rank two.
    sizes = [100, 50, 2, 50, 100]
    edges = [(i, i + 1, (sizes[i + 1], sizes[i])) for i in range(4)]
    graph = EliminationGraph([0], [4], edges, MatrixShapeAlgebra())
    result = find_order(graph, "auto")
    assert result.cost == 2 * 50 * 100 + 100 * 50 * 2 + 100 * 2 * 100
    assert result.cost < find_order(graph, "forward").cost
    assert result.cost < find_order(graph, "reverse").cost


def test_keyboard_interrupt_returns_the_best_so_far():
    class Interrupted(Strategy):
        def run(self, search):
            search.try_order(range(search.problem.n), "forward")
            raise KeyboardInterrupt

    class AtOnce(Strategy):
        def run(self, search):
            raise KeyboardInterrupt

    graph = layered_graph(1, 4, 4)
    assert find_order(graph, Interrupted()).order == graph.eliminable
    with pytest.raises(KeyboardInterrupt):
        find_order(graph, AtOnce())


def test_interrupted_part_keeps_what_was_found():
    class Stubborn(Strategy):
        def run(self, search):
            n = search.problem.n
            search.try_order(range(n - 1, -1, -1), "reverse")
            raise KeyboardInterrupt

    graph, _ = load_task("g")
    result = find_order(graph, HyperPlanner(methods=(Stubborn(),)))
    assert result.cost == cost_by_sets(graph, result.order) < 566


@pytest.mark.parametrize("limit", ["rate:1e6", "equil:50", 0, 0.01])
def test_kinds_of_time_limits(limit):
    graph, _ = load_task("RoeFlux_1d")
    result = find_order(graph, "search", max_time=limit)
    assert result.cost <= 364


@pytest.mark.parametrize("limit", ["soon", "rate:0", "equil:x", -1, float("nan"), []])
def test_invalid_time_limits(limit):
    graph, _ = load_task("PropaneCombustion")
    with pytest.raises(InvalidOrderError, match="max_time: expected seconds"):
        find_order(graph, "search", max_time=limit)


def test_budget_says_whether_it_ends():
    assert not Budget.parse(None).is_limited
    assert Budget.parse(None, 10).is_limited
    assert Budget.parse("rate:10").is_limited


def test_unknown_methods_and_heuristics():
    with pytest.raises(InvalidOrderError, match="unknown method 'magic'"):
        HyperPlanner(methods=("magic",))
    with pytest.raises(InvalidOrderError, match="unknown heuristic 'magic'"):
        Heuristic(names=("magic",))
