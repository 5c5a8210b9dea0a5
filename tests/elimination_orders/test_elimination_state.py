"""Elimination itself: values, counts and costs against independent oracles."""

import random

import pytest
from hypothesis import given, strategies as st
from planner_graphs import (
    FloatAlgebra,
    MatrixShapeAlgebra,
    cost_by_sets,
    examples,
    jacobian_by_paths,
    numeric_graph,
    small_graphs,
)

from elimination_orders import (
    EliminationGraph,
    EliminationState,
    InvalidOrderError,
    elimination_cost,
    elimination_trace,
)


@examples
@given(small_graphs(), st.integers(0, 1000))
def test_any_order_gives_the_jacobian(graph, seed):
    graph = numeric_graph(graph, seed)
    expected = jacobian_by_paths(graph)
    order = list(graph.eliminable)
    random.Random(seed).shuffle(order)
    state = EliminationState(graph)
    for vertex in order:
        state.eliminate(vertex)
    assert state.jacobian() == pytest.approx(expected)


@examples
@given(small_graphs(), st.integers(0, 1000))
def test_cost_is_that_of_plain_sets(graph, seed):
    order = list(graph.eliminable)
    random.Random(seed).shuffle(order)
    assert elimination_cost(graph, order) == cost_by_sets(graph, order)


@examples
@given(small_graphs(), st.integers(0, 1000))
def test_counters_agree_with_the_state(graph, seed):
    order = list(graph.eliminable)
    random.Random(seed).shuffle(order)
    state = EliminationState(graph)
    for vertex in order:
        before = {(u, w) for u, edges in state.succ.items() for w in edges}
        degree, cost = state.degree(vertex), state.cost(vertex)
        step = state.eliminate(vertex)
        after = {(u, w) for u, edges in state.succ.items() for w in edges}
        assert after == {(u, w) for w, edges in state.pred.items() for u in edges}
        assert step.edges == state.n_edges == len(after)
        assert step.fill == len(after - before)
        assert step.additions == step.predecessors * step.successors - step.fill
        assert step.cost == cost == degree == len(step.updates)
        assert not state.succ[vertex]


@examples
@given(small_graphs(), st.integers(0, 1000))
def test_graph_is_not_changed(graph, seed):
    edges = graph.edges
    state = EliminationState(graph)
    twin = state.copy()
    for vertex in graph.eliminable:
        state.eliminate(vertex)
    assert graph.edges == edges
    assert tuple(twin.remaining) == graph.eliminable
    assert twin.n_edges == len(edges)


def test_edges_into_an_output_are_kept():
    graph = EliminationGraph(["x"], ["a", "y"], [("x", "a", 3.0), ("a", "y", 5.0)], FloatAlgebra())
    state = EliminationState(graph)
    step = state.eliminate("a")
    assert (step.predecessors, step.successors, step.fill, step.edges) == (1, 1, 1, 2)
    assert state.jacobian() == {("x", "a"): 3.0, ("x", "y"): 15.0}


def test_updates_say_what_was_multiplied_and_added():
    graph = EliminationGraph(
        ["x"],
        ["y"],
        [("x", "a", 2.0), ("a", "y", 3.0), ("x", "y", 1.0), ("a", "z", 5.0), ("z", "y", 7.0)],
        FloatAlgebra(),
    )
    step = EliminationState(graph).eliminate("a")
    merged, new = step.updates
    assert merged == ("x", "y", 2.0, 3.0, 6.0, 1.0, 7.0, 1.01)
    assert new == ("x", "z", 2.0, 5.0, 10.0, None, 10.0, 1)
    assert step.cost == pytest.approx(2.01)


def test_structural_zero_makes_no_edge():
    class Zero(FloatAlgebra):
        def compose(self, outer, inner):
            return None, 0

    graph = EliminationGraph(["x"], ["y"], [("x", "a", 1.0), ("a", "y", 1.0)], Zero())
    state = EliminationState(graph)
    step = state.eliminate("a")
    assert step.updates[0].result is None
    assert (step.fill, step.additions, step.edges) == (0, 0, 0)
    assert state.jacobian() == {}


def test_algebra_is_asked_once_per_question():
    class Counting(MatrixShapeAlgebra):
        calls = 0

        def compose(self, outer, inner):
            Counting.calls += 1
            return super().compose(outer, inner)

    edges = [(i, i + 1, (4, 4)) for i in range(10)]
    graph = EliminationGraph([0], [10], edges, Counting())
    assert elimination_cost(graph, graph.eliminable) == 9 * 64
    assert Counting.calls == 1


def test_costs_of_an_algebra():
    # A chain of matrices 5 <- 3 <- 2 <- 4: the classic case in which the order matters.
    edges = [("x", "a", (2, 4)), ("a", "b", (3, 2)), ("b", "y", (5, 3))]
    graph = EliminationGraph(["x"], ["y"], edges, MatrixShapeAlgebra())
    assert elimination_cost(graph, ["a", "b"]) == 3 * 2 * 4 + 5 * 3 * 4
    assert elimination_cost(graph, ["b", "a"]) == 5 * 3 * 2 + 5 * 2 * 4


def test_trace_is_in_order():
    graph = EliminationGraph(["x"], ["y"], [("x", 1), (1, 2), (2, "y")])
    assert [step.vertex for step in elimination_trace(graph, [2, 1])] == [2, 1]


def test_eliminating_twice_or_an_input_is_refused():
    graph = EliminationGraph(["x"], ["y"], [("x", "a"), ("a", "y")])
    state = EliminationState(graph)
    with pytest.raises(InvalidOrderError, match="'x' is not an eliminable vertex"):
        state.eliminate("x")
    state.eliminate("a")
    with pytest.raises(InvalidOrderError, match="already eliminated"):
        state.eliminate("a")
