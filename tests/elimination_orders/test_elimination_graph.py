"""Construction and validation of elimination graphs."""

import pytest

from elimination_orders import EliminationGraph, InvalidGraphError, InvalidOrderError, PlannerError


def diamond() -> EliminationGraph:
    return EliminationGraph(
        ["x"], ["y"], [("x", "a"), ("a", "b"), ("a", "c"), ("b", "y"), ("c", "y")]
    )


def test_roles_of_vertices():
    graph = diamond()
    assert graph.vertices == ("x", "a", "b", "c", "y")
    assert graph.eliminable == ("a", "b", "c")
    assert len(graph) == 3
    assert graph.predecessors("y") == ("b", "c")
    assert graph.successors("a") == ("b", "c")
    assert graph.edges["x", "a"] == "variable"
    assert graph.is_scalar
    assert graph.is_output("y")
    assert not graph.is_eliminable("y")
    assert repr(graph) == "EliminationGraph(1 inputs, 1 outputs, 3 eliminable vertices, 5 edges)"


def test_output_with_successors_is_eliminable():
    graph = EliminationGraph(["x"], ["a", "y"], [("x", "a"), ("a", "y")])
    assert graph.eliminable == ("a",)


def test_names_of_several_types():
    graph = EliminationGraph(["x0"], ["y0"], [("x0", 2), (2, 1), (1, 10), (10, "y0")])
    assert graph.eliminable == (2, 1, 10)


def test_integer_names_decide_between_topological_orders():
    graph = EliminationGraph(["x"], ["y"], [("x", 10), ("x", 9), (9, "y"), (10, "y")])
    assert graph.eliminable == (9, 10)


def test_declared_vertices_decide_between_topological_orders():
    graph = EliminationGraph(
        ["x"], ["y"], [("x", 10), ("x", 9), (9, "y"), (10, "y")], vertices=["x", 10, 9, "y"]
    )
    assert graph.eliminable == (10, 9)


def test_names_that_cannot_be_compared():
    a, b = object(), object()
    graph = EliminationGraph(["x"], ["y"], [("x", b), ("x", a), (a, "y"), (b, "y")])
    assert graph.eliminable == (b, a)


def test_duplicate_edges_become_one_sum():
    graph = EliminationGraph(
        ["x"], ["y"], [("x", "a", "unit"), ("x", "a", "unit"), ("a", "y", "unit")]
    )
    assert graph.edges == {("x", "a"): "variable", ("a", "y"): "unit"}


def test_unused_input_and_repeated_output_are_ordinary():
    graph = EliminationGraph(["x", "unused"], ["y", "y"], [("x", "a"), ("a", "y")])
    assert graph.outputs == ("y",)
    assert "unused" in graph.vertices


def test_output_that_depends_on_nothing_can_be_declared():
    graph = EliminationGraph(["x"], ["y"], [], vertices=["x", "y"])
    assert graph.eliminable == ()


def test_with_algebra_keeps_the_vertices():
    graph = diamond()
    assert graph.with_algebra(None).vertices == graph.vertices


def test_edges_given_out_are_a_copy():
    graph = diamond()
    graph.edges.clear()
    assert len(graph.edges) == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            (["x"], ["y"], [("x", "a"), ("a", "b"), ("b", "a"), ("b", "y")]),
            "cycle 'a' -> 'b' -> 'a'",
        ),
        ((["x"], ["y"], [("x", "a"), ("a", "a"), ("a", "y")]), "from 'a' to itself"),
        ((["x"], ["z"], [("x", "y")]), "unknown vertex 'z'"),
        ((["x", "w"], ["y"], [("x", "w"), ("w", "y")]), "leads into an input"),
        ((["x", "x"], ["y"], [("x", "y")]), "'x' is named twice"),
        ((["x"], ["y"], [("x", "y", "weird")]), "unknown kind 'weird'"),
        ((["x"], ["y"], [("x",)]), "item 0 should be"),
        ((["x"], ["y"], ["xy"]), "item 0 should be"),
        ((["x"], ["y"], [("x", "y", 1)], object()), "compose and merge"),
    ],
)
def test_invalid_graphs(arguments, words):
    with pytest.raises(InvalidGraphError) as caught:
        EliminationGraph(*arguments)
    assert words in str(caught.value)
    assert isinstance(caught.value, PlannerError)
    assert isinstance(caught.value, ValueError)


def test_cycle_behind_a_stuck_tail_is_found():
    with pytest.raises(InvalidGraphError, match=r"cycle 'a' -> 'b' -> 'a'|cycle 'b' -> 'a' -> 'b'"):
        EliminationGraph(["x"], ["y"], [("a", "b"), ("b", "a"), ("b", "t"), ("t", "y"), ("x", "y")])


def test_undeclared_vertex():
    with pytest.raises(InvalidGraphError, match="does not list 'a'"):
        EliminationGraph(["x"], ["y"], [("x", "a"), ("a", "y")], vertices=["x", "y"])


def test_edge_without_object_under_an_algebra():
    from planner_graphs import FloatAlgebra

    with pytest.raises(InvalidGraphError, match="has no edge object"):
        EliminationGraph(["x"], ["y"], [("x", "y")], FloatAlgebra())


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (["a", "b", "q"], "'q' at place 2 is not a vertex"),
        (["a", "b", "x"], "is an input"),
        (["a", "b", "y"], "is an output without successors"),
        (["a", "b", "a"], "'a' stands twice, at place 0 and at place 2"),
        (["a", "b"], "1 of 3 eliminable vertices are missing: 'c'"),
    ],
)
def test_invalid_orders(order, words):
    with pytest.raises(InvalidOrderError) as caught:
        diamond().check_order(order)
    assert words in str(caught.value)
