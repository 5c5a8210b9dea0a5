"""Objectives and the kinds of scalar edges."""

import pytest
from planner_graphs import TASKS, load_task

from elimination_orders import (
    EliminationGraph,
    InvalidObjectiveError,
    LiteratureAlgebra,
    Objective,
    UnitAwareAlgebra,
    elimination_cost,
)


@pytest.mark.parametrize(
    ("inner", "outer", "kind", "cost"),
    [
        ("unit", "unit", "unit", 0),
        ("unit", "constant", "constant", 0),
        ("unit", "variable", "variable", 0),
        ("constant", "unit", "constant", 0),
        ("constant", "constant", "constant", 0),
        ("constant", "variable", "variable", 1),
        ("variable", "unit", "variable", 0),
        ("variable", "constant", "variable", 1),
        ("variable", "variable", "variable", 1),
    ],
)
def test_products_of_kinds(inner, outer, kind, cost):
    assert UnitAwareAlgebra().compose(outer, inner) == (kind, cost)
    assert LiteratureAlgebra().compose(outer, inner) == (kind, 1)
    assert UnitAwareAlgebra().merge(inner, outer) == ("variable", 0)


@pytest.mark.parametrize(
    ("task", "forward", "reverse"), [("RoeFlux_1d", 362, 234), ("PropaneCombustion", 26, 26)]
)
def test_published_unit_aware_counts(task, forward, reverse):
    graph, _ = load_task(task)
    assert elimination_cost(graph, graph.eliminable, "unit_muls") == forward
    assert elimination_cost(graph, graph.eliminable[::-1], "unit_muls") == reverse


@pytest.mark.parametrize("task", TASKS)
def test_published_counts(task):
    graph, data = load_task(task)
    assert elimination_cost(graph, graph.eliminable) == data["published"]["forward"]
    assert elimination_cost(graph, graph.eliminable[::-1]) == data["published"]["reverse"]


def ladder() -> EliminationGraph:
    # Eliminating b joins a -> b -> y with a -> y.
    return EliminationGraph(
        ["x"],
        ["y"],
        [("x", "a"), ("a", "b", "unit"), ("b", "y"), ("a", "y", "constant")],
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("muls", 2),
        ("unit_muls", 1),
        ("unit-aware", 1),
        ("adds", 1),
        ("flops", 2),
        ("edges_left", 1),
        ("scarcity", 1),
        ("peak_edges", 2),
    ],
)
def test_every_name(name, value):
    assert elimination_cost(ladder(), ["b", "a"], name) == value


def test_callable_objective_is_summed():
    assert elimination_cost(ladder(), ["b", "a"], lambda step: 10 * step.successors) == 20


def test_objective_object():
    widest = Objective("widest", lambda step: step.predecessors * step.successors, "max")
    assert elimination_cost(ladder(), ["a", "b"], widest) == 2


def test_unknown_objective_lists_the_names():
    with pytest.raises(InvalidObjectiveError, match=r"unknown name 'speed'.*'muls'.*'edges_left'"):
        elimination_cost(ladder(), ["b", "a"], "speed")
    with pytest.raises(InvalidObjectiveError, match="got int"):
        elimination_cost(ladder(), ["b", "a"], 3)
