"""Tie sets, greedy orders and the reductions that come before every search."""

import itertools
import random

import pytest
from hypothesis import given
from planner_graphs import TASKS, examples, layered_graph, load_task, random_graph, small_graphs

from elimination_orders import OBJECTIVES, EliminationGraph, elimination_cost
from elimination_orders.bitgraph import BitState
from elimination_orders.heuristics import CRITERIA, HEURISTICS, greedy_order, tie_set
from elimination_orders.reductions import false_twins, independent_parts, reduce_problem
from elimination_orders.search.subset_dp import solve_by_subsets
from elimination_orders.segments import find_segments
from elimination_orders.tensorgraph import number_problem


def problem_of(graph, objective="muls"):
    return number_problem(graph, OBJECTIVES[objective])


@pytest.mark.parametrize("name", sorted(CRITERIA))
@given(graph=small_graphs(9))
@examples
def test_greedy_takes_the_latest_of_the_tie_set(name, graph):
    problem = problem_of(graph)
    for ties, pick in (("latest", max), ("earliest", min)):
        order = greedy_order(problem, [CRITERIA[name]], ties)
        state = problem.start()
        left = list(range(problem.n))
        for vertex in order:
            assert vertex == pick(tie_set(problem, state, [CRITERIA[name]], left))
            state.eliminate(vertex)
            left.remove(vertex)


def test_tie_sets_shrink_along_a_chain():
    # Both a and b have degree 1 * 2, but eliminating a adds no edge and eliminating b adds two.
    edges = [("x", "a"), ("a", "c"), ("a", "d"), ("w", "c"), ("w", "d"), ("c", "y"), ("d", "y")]
    edges += [("x", "b"), ("b", "y"), ("b", "z"), ("x", "c"), ("x", "d")]
    graph = EliminationGraph(["x", "w"], ["y", "z"], edges)
    problem = problem_of(graph)
    state = problem.start()
    names = [graph.eliminable[v] for v in (0, 1)]
    assert names == ["a", "b"]
    degree, fill = CRITERIA["markowitz"], CRITERIA["lowest_fill"]
    assert tie_set(problem, state, [degree], [0, 1]) == [0, 1]
    assert tie_set(problem, state, [degree, fill], [0, 1]) == [0]
    assert tie_set(problem, state, [fill, degree], [1]) == [1]
    assert tie_set(problem, state, [degree], []) == []


def test_scores_of_a_small_graph():
    # x1, x2 -> a -> b -> y1, y2 and a -> y1
    edges = [("x1", "a"), ("x2", "a"), ("a", "b"), ("b", "y1"), ("b", "y2"), ("a", "y1")]
    problem = problem_of(EliminationGraph(["x1", "x2"], ["y1", "y2"], edges))
    state = problem.start()

    def scores(name):
        score = CRITERIA[name].bind(problem)
        return [score(state, vertex) for vertex in (0, 1)]

    assert scores("markowitz") == [4, 2]
    assert scores("lrm") == [4 - 2 * 2, 2 - 2 * 2]
    assert scores("lowest_fill") == [4, 1]
    # Eliminating a gives b a second predecessor; eliminating b leaves the degree of a as it is.
    assert scores("damage") == [2, 0]
    assert scores("momr") == [2 - 4, 0 - 2]
    assert scores("greedy") == [4, 2]


@pytest.mark.parametrize(
    ("task", "name", "cost"),
    [
        ("RoeFlux_1d", "eliad", 304),
        ("RoeFlux_1d", "markowitz", 344),
        ("RobotArm_6DOF", "markowitz", 221),
        ("PropaneCombustion", "markowitz", 88),
    ],
)
def test_measured_heuristics(task, name, cost):
    problem = problem_of(load_task(task)[0])
    assert problem.evaluate(HEURISTICS[name](problem)) == cost


def test_ties_to_the_earliest_are_worse_on_the_published_graphs():
    costs = {}
    for task in TASKS:
        problem = problem_of(load_task(task)[0])
        order = greedy_order(problem, [CRITERIA["markowitz"]], "earliest")
        costs[task] = problem.evaluate(order)
    assert costs["RobotArm_6DOF"] == 288
    assert costs["PropaneCombustion"] == 111


def test_a_greedy_order_can_be_given_up():
    problem = problem_of(layered_graph(1, 10, 10))
    assert greedy_order(problem, [CRITERIA["markowitz"]], max_work=120) is None


def optimum_after_reduction(problem, **options):
    reduction = reduce_problem(problem, **options)
    solved = [solve_by_subsets(s.problem) for s in reduction.sections if s.problem is not None]
    cost = reduction.cost + sum(best for best, _ in solved)
    return cost, reduction.join([order for _, order in solved])


@pytest.mark.parametrize("chains", [False, True])
@given(graph=small_graphs(10))
@examples
def test_reductions_keep_the_optimum(chains, graph):
    problem = problem_of(graph)
    cost, order = optimum_after_reduction(problem, chains=chains)
    assert sorted(order) == list(range(problem.n))
    assert cost == problem.evaluate(order) == solve_by_subsets(problem)[0]


@pytest.mark.parametrize("seed", range(30))
def test_reductions_keep_the_optimum_of_sparse_graphs(seed):
    problem = problem_of(random_graph(seed, 13, 3, 3, 0.12))
    assert optimum_after_reduction(problem)[0] == solve_by_subsets(problem)[0]


@pytest.mark.parametrize("objective", ["unit_muls", "flops", "adds"])
@given(graph=small_graphs(8, ("unit", "constant", "variable")))
@examples
def test_parts_keep_the_optimum_of_other_objectives(objective, graph):
    problem = problem_of(graph, objective)
    _, order = optimum_after_reduction(problem)
    assert problem.evaluate(order) == solve_by_subsets(problem)[0]


def block_graph(seed):
    """Blocks behind each other, of which many end in one vertex; some vertices bypass a block."""
    rng = random.Random(seed)
    inputs = [f"x{i}" for i in range(rng.randint(1, 4))]
    front, known, edges = inputs, list(inputs), []
    n = rng.randint(4, 13)
    while len(known) < n + len(inputs):
        block: list = []
        sources = front if rng.random() < 0.5 else rng.sample(known, min(len(known), 3))
        for _ in range(rng.randint(1, 4)):
            pool = [*sources, *block]
            vertex = len(known)
            edges += [(u, vertex) for u in rng.sample(pool, min(len(pool), rng.randint(1, 2)))]
            block.append(vertex)
            known.append(vertex)
        front = block[-1:] if rng.random() < 0.5 else block
    outputs = [f"y{i}" for i in range(rng.randint(1, 3))]
    for output in outputs:
        edges += [(u, output) for u in rng.sample(front, min(len(front), rng.randint(1, 2)))]
    extra = [vertex for vertex in known[len(inputs) :] if rng.random() < 0.05]
    return EliminationGraph(inputs, [*outputs, *extra], edges)


@pytest.mark.parametrize("seed", range(80))
def test_segments_keep_the_optimum(seed):
    problem = problem_of(block_graph(seed))
    cost, order = optimum_after_reduction(problem)
    assert sorted(order) == list(range(problem.n))
    assert cost == problem.evaluate(order) == solve_by_subsets(problem)[0]


def test_a_segment_is_a_section_of_its_own():
    # x0, x1 -> a, b -> c => d => e, f -> y0, y1, with two diamonds in a row between c and d.
    edges = [("x0", 1), ("x0", 2), ("x1", 1), ("x1", 2), (1, 3), (2, 3)]
    edges += [(3, 4), (3, 5), (4, 6), (5, 6), (4, 7), (5, 7), (6, 8), (7, 8)]
    edges += [(8, 9), (8, 10), (9, "y0"), (10, "y0"), (9, "y1"), (10, "y1")]
    graph = EliminationGraph(["x0", "x1"], ["y0", "y1"], edges)
    segments = find_segments(BitState(problem_of(graph)), range(10), 10)
    assert segments == [(3, 4, 5, 6)]


def test_the_ends_of_a_chain_may_not_come_first():
    # 30 with a and b before c, 24 with c first: no segments, because both ends are wide.
    edges = [(f"x{i}", "a" if i < 5 else "b") for i in range(10)]
    edges += [("a", "c"), ("b", "c"), ("c", "y0"), ("c", "y1")]
    graph = EliminationGraph([f"x{i}" for i in range(10)], ["y0", "y1"], edges)
    assert elimination_cost(graph, ["a", "b", "c"]) == 30
    assert elimination_cost(graph, ["c", "a", "b"]) == 24
    assert find_segments(BitState(problem_of(graph)), range(3), 3) == []
    assert optimum_after_reduction(problem_of(graph))[0] == 24


def test_propane_reduces_to_nothing():
    problem = problem_of(load_task("PropaneCombustion")[0])
    reduction = reduce_problem(problem)
    assert reduction.n_left == 0
    assert reduction.cost == 88
    assert reduction.lossless
    assert not reduce_problem(problem, chains=True).lossless


def test_parts_of_a_graph_that_falls_apart():
    edges = [("x", 1), (1, 2), (2, "y"), ("x", 3), (3, "y"), ("x", 4), (4, 5), (5, "y")]
    problem = problem_of(EliminationGraph(["x"], ["y"], edges))
    parts = independent_parts(problem.start(), range(problem.n))
    assert parts == [(0, 1), (3, 4), (2,)]


def test_twins():
    edges = [("x", 1), ("x", 2), ("x", 3), (1, "y"), (2, "y"), (3, "y"), (3, "z"), ("x", 4)]
    graph = EliminationGraph(["x"], ["y", "z", 4], [*edges, (4, "y")])
    assert false_twins(problem_of(graph)) == [(0, 1), (2,), (3,)]


@given(graph=small_graphs(6))
@examples
def test_twins_may_be_eliminated_together(graph):
    problem = problem_of(graph)
    best = solve_by_subsets(problem)[0]
    groups = [group for group in false_twins(problem) if len(group) == 2]
    for u, v in groups:
        # One of the two follows the other at once in some optimal order.
        together = min(
            problem.evaluate(order)
            for order in itertools.permutations(range(problem.n))
            if abs(order.index(u) - order.index(v)) == 1
        )
        assert together == best


def test_order_cost_agrees_for_vertices_and_numbers():
    graph, _ = load_task("g")
    problem = problem_of(graph)
    numbers = HEURISTICS["lmmd"](problem)
    order = [graph.eliminable[i] for i in numbers]
    assert problem.evaluate(numbers) == elimination_cost(graph, order)
