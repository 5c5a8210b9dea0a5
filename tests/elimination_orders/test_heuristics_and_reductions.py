"""Tie sets, greedy orders and the reductions that come before every search."""

import itertools

import pytest
from hypothesis import given
from planner_graphs import TASKS, examples, layered_graph, load_task, random_graph, small_graphs

from elimination_orders import OBJECTIVES, EliminationGraph, elimination_cost
from elimination_orders.heuristics import CRITERIA, HEURISTICS, greedy_order, tie_set
from elimination_orders.reductions import false_twins, independent_parts, reduce_problem
from elimination_orders.search.subset_dp import solve_by_subsets
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
    cost = reduction.cost
    order = list(reduction.prefix)
    for part in reduction.parts:
        piece, _ = problem.window(reduction.state, part)
        best, inside = solve_by_subsets(piece)
        cost += best
        order += [part[i] for i in inside]
    return cost, order


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
