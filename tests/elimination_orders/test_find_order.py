"""`find_order`, the names it knows, and the heuristics."""

import itertools
import threading

import pytest
from hypothesis import given
from planner_graphs import (
    TASKS,
    MatrixShapeAlgebra,
    examples,
    layered_graph,
    load_task,
    random_graph,
    small_graphs,
)

from elimination_orders import (
    ORDERS,
    Annealing,
    Beam,
    EdgeSearch,
    EliminationGraph,
    HyperPlanner,
    InvalidGraphError,
    InvalidObjectiveError,
    InvalidOrderError,
    WindowDP,
    elimination_cost,
    find_order,
    native,
)
from elimination_orders.search import Search

#: Names of orders of vertices.
NAMES = [name for name in ORDERS if name not in ("edges", "faces")]


@pytest.mark.parametrize("name", NAMES)
@examples
@given(graph=small_graphs())
def test_every_name_gives_an_order_with_its_cost(name, graph):
    result = find_order(graph, name)
    assert sorted(result.order) == list(graph.eliminable)
    assert result.cost == elimination_cost(graph, result.order)
    assert result.lower_bound <= result.cost
    assert result.history[-1].cost == result.cost
    assert result.evaluations >= 1
    assert find_order(graph, name).order == result.order


@examples
@given(graph=small_graphs())
def test_auto_is_never_worse_than_forward_and_reverse(graph):
    bound = min(find_order(graph, "forward").cost, find_order(graph, "reverse").cost)
    assert find_order(graph, "auto").cost <= bound


@pytest.mark.parametrize(
    ("task", "cost"), [("RobotArm_6DOF", 221), ("PropaneCombustion", 88), ("RoeFlux_1d", 344)]
)
def test_markowitz_with_ties_to_the_latest_vertex(task, cost):
    graph, _ = load_task(task)
    assert find_order(graph, "markowitz").cost == cost


@pytest.mark.parametrize("task", TASKS)
def test_auto_on_published_graphs(task):
    graph, data = load_task(task)
    assert find_order(graph, "auto").cost <= data["published"]["reverse"]


@pytest.mark.parametrize(
    ("alias", "name"),
    [("fwd", "forward"), ("rev", "reverse"), ("FORWARD", "forward"), ("Markowitz", "markowitz")],
)
def test_aliases(alias, name):
    graph, _ = load_task("PropaneCombustion")
    result = find_order(graph, alias)
    assert result.method == name
    assert result.order == find_order(graph, name).order
    assert ORDERS[alias] is ORDERS[name]


def test_explicit_order_callable_and_result():
    graph = EliminationGraph(["x"], ["y"], [("x", 1), (1, 2), (2, "y"), (1, "y")])
    assert find_order(graph, [2, 1]).order == (2, 1)
    assert find_order(graph, find_order(graph, "reverse")).order == (2, 1)
    by_hand = find_order(graph, lambda graph, objective: graph.eliminable[::-1])
    assert by_hand.order == (2, 1)


def test_unknown_name_lists_all_names():
    graph = EliminationGraph(["x"], ["y"], [("x", 1), (1, "y")])
    with pytest.raises(InvalidOrderError) as caught:
        find_order(graph, "fastest")
    for name in ("'fastest'", "'auto'", "'forward'", "'fwd'", "'reverse'", "'rev'", "'markowitz'"):
        assert name in str(caught.value)


def test_wrong_type_of_order():
    graph = EliminationGraph(["x"], ["y"], [("x", 1), (1, "y")])
    with pytest.raises(InvalidOrderError, match="got int"):
        find_order(graph, 3)


def test_order_of_another_graph_is_refused():
    graph = EliminationGraph(["x"], ["y"], [("x", 1), (1, "y")])
    with pytest.raises(InvalidOrderError, match="not a vertex of this graph"):
        find_order(graph, [7])


def test_registry_reads_like_a_mapping():
    assert {"auto", "forward", "reverse", "markowitz"} <= set(ORDERS)
    assert "fwd" in ORDERS
    assert "nonsense" not in ORDERS
    assert 3 not in ORDERS
    assert len(ORDERS) == len(list(ORDERS))
    assert "fwd" in repr(ORDERS)


def test_markowitz_of_a_tensor_graph_uses_composed_costs():
    # Eliminating b first costs 30, a first 24; by counts of neighbours both are equal, and the
    # tie would go to b.
    edges = [("x", "a", (2, 4)), ("a", "b", (3, 2)), ("b", "y", (5, 3))]
    graph = EliminationGraph(["x"], ["y"], edges, MatrixShapeAlgebra())
    assert find_order(graph, "markowitz").order == ("a", "b")
    assert find_order(graph, "auto").cost == 70


def test_graph_without_intermediate_vertices():
    graph = EliminationGraph(["x"], ["y"], [("x", "y")])
    result = find_order(graph, "auto")
    assert result.order == ()
    assert result.cost == 0
    assert len(result) == 0


def test_result_shows_what_it_is():
    graph, _ = load_task("PropaneCombustion")
    assert repr(find_order(graph, "reverse")) == ("OrderResult(51 vertices, 90 muls, by reverse)")


# -- arguments that are wrong ----------------------------------------------------------------------


def small() -> EliminationGraph:
    return random_graph(3, 12, 2, 2, 0.3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: find_order(small(), "search", seed=1.5), "seed: expected an integer, got 1.5"),
        (lambda: find_order(small(), "edges", seed="a"), "seed: expected an integer, got 'a'"),
        (lambda: find_order({"inputs": []}), "graph: expected an EliminationGraph, got dict"),
        (lambda: find_order(small(), [[1], 2]), r"order: \[1\] at place 0 is not a vertex"),
        (lambda: find_order(small(), lambda graph, objective: None), "returned None"),
        (lambda: find_order(small(), objective=lambda step: None), "returned None for a step"),
        (lambda: find_order(small(), objective=lambda step: float("nan")), "returned nan"),
        (lambda: find_order(small(), cache=3), "cache: expected a PlanCache"),
        (lambda: EliminationGraph(None, ["y"], []), "inputs: expected several names"),
        (lambda: EliminationGraph([["x"]], ["y"], []), "inputs: expected several names"),
        (lambda: EliminationGraph(["x"], ["y"], None), "edges: expected"),
        (lambda: EliminationGraph(["x"], ["y"], [([1], "y")]), "cannot be hashed"),
        (lambda: HyperPlanner(parallel=0), "parallel: expected an integer of at least 1, got 0"),
        (lambda: WindowDP(width=40), "width: expected an integer of at least 2 and at most 22"),
        (lambda: Beam(width=0), "width: expected an integer of at least 1, got 0"),
        (lambda: Annealing(hot=0), "hot: expected a number above 0, got 0"),
        (lambda: Annealing(starts=("quickest",)), "starts: unknown heuristic 'quickest'"),
        (lambda: EdgeSearch(cold=-1.0), "cold: expected a number above 0"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(
        (InvalidGraphError, InvalidOrderError, InvalidObjectiveError), match=message
    ):
        call()


@pytest.mark.slow
@pytest.mark.parametrize("order", ["search", "edges", HyperPlanner(parallel=2)], ids=str)
def test_an_interrupt_returns_the_best_order_so_far(order, monkeypatch):
    graph = layered_graph(1, 8, 5)
    calls = itertools.count()
    is_over = Search.is_over

    def interrupted(search):
        if next(calls) == 40 and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return is_over(search)

    monkeypatch.setattr(Search, "is_over", interrupted)
    result = find_order(graph, order, max_time=2 if order == "edges" else None)
    monkeypatch.undo()
    assert result.cost <= find_order(graph, "reverse").cost


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_no_obstacle(monkeypatch, tmp_path):
    obstacle = tmp_path / "file"
    obstacle.write_text("")
    monkeypatch.setenv("ELIMINATION_ORDERS_CACHE", str(obstacle))
    native._library.cache_clear()
    try:
        assert find_order(small(), "search", cache=True).cost == find_order(small()).cost
        with_compiler = native._library() is not None
    finally:
        monkeypatch.undo()
        native._library.cache_clear()
    assert with_compiler == native.kernel_available()
