"""Elimination of edges and faces: values against paths, costs against vertex elimination."""

import random

import pytest
from planner_graphs import jacobian_by_paths, numeric_graph

from elimination_orders import (
    EdgeStep,
    EliminationGraph,
    FaceStep,
    InvalidOrderError,
    find_edge_order,
    find_face_order,
    find_order,
    replay_edges,
    replay_faces,
)


def tiny_graph(seed: int) -> EliminationGraph:
    rng = random.Random(seed)
    inputs = [f"x{i}" for i in range(rng.randint(1, 2))]
    outputs = [f"y{i}" for i in range(rng.randint(1, 2))]
    inner = list(range(rng.randint(2, 3)))
    edges = []
    for place, vertex in enumerate(inner):
        pool = [*inputs, *inner[:place]]
        edges += [(u, vertex) for u in pool if rng.random() < 0.4] or [(pool[0], vertex)]
    for output in outputs:
        edges += [(u, output) for u in inner if rng.random() < 0.4] or [(inner[-1], output)]
    return EliminationGraph(inputs, outputs, edges)


@pytest.mark.parametrize("seed", range(25))
def test_replays_give_the_jacobian_at_the_cost_promised(seed):
    graph = tiny_graph(seed)
    vertices = find_order(graph, "optimal").cost
    edges, faces = find_edge_order(graph), find_face_order(graph)
    assert faces.cost <= edges.cost <= vertices
    numeric = numeric_graph(graph, seed)
    expected = jacobian_by_paths(numeric)
    for result, replay in ((edges, replay_edges), (faces, replay_faces)):
        jacobian, _ = replay(numeric, result.steps)
        assert jacobian == pytest.approx(expected)
        _, cost = replay(graph, result.steps)
        assert cost == result.cost


def chain() -> EliminationGraph:
    return EliminationGraph(["x"], ["y"], [("x", "a"), ("a", "b"), ("b", "y")])


def test_edges_of_a_chain():
    assert find_edge_order(chain()).cost == 2
    front = [EdgeStep("front", ("x", "a")), EdgeStep("front", ("x", "b"))]
    assert replay_edges(numeric_graph(chain(), 1), front)[0] == pytest.approx(
        jacobian_by_paths(numeric_graph(chain(), 1))
    )
    assert (
        replay_edges(chain(), [EdgeStep("back", ("b", "y")), EdgeStep("back", ("a", "y"))])[1] == 2
    )


def test_faces_of_a_chain():
    xa, ab, by = (frozenset({pair}) for pair in (("x", "a"), ("a", "b"), ("b", "y")))
    steps = [FaceStep(ab, by), FaceStep(xa, frozenset({("a", "b", "y")}))]
    assert replay_faces(chain(), steps) == ({("x", "y"): "variable"}, 2)


def test_steps_that_do_not_apply():
    with pytest.raises(InvalidOrderError, match="at place 0 does not apply"):
        replay_edges(chain(), [EdgeStep("back", ("x", "a"))])
    with pytest.raises(InvalidOrderError, match="leave intermediate vertices"):
        replay_edges(chain(), [])
    with pytest.raises(InvalidOrderError, match="leave faces"):
        replay_faces(chain(), [])
    with pytest.raises(InvalidOrderError, match="at place 0 does not apply"):
        replay_faces(chain(), [FaceStep(frozenset({("x", "a")}), frozenset({("b", "y")}))])


def test_limits_are_reported():
    graph = EliminationGraph(["x"], ["a", "y"], [("x", "a"), ("a", "y")])
    with pytest.raises(InvalidOrderError, match="output 'a' has successors"):
        find_edge_order(graph)
    with pytest.raises(InvalidOrderError, match="within 1 states"):
        find_face_order(chain(), max_states=1)


def test_edges_beat_vertices():
    # a first costs 2 * 2 + 2 * 4, b first 1 * 4 + 2 * 4.  Back elimination of b -> y2 takes one
    # multiplication and leaves 2 * 2 for a and 2 * 3 for b.
    edges = [("x0", "a"), ("x1", "a"), ("a", "b"), ("a", "y2")]
    edges += [("b", f"y{i}") for i in range(4)]
    graph = EliminationGraph(["x0", "x1"], [f"y{i}" for i in range(4)], edges)
    assert find_order(graph, "optimal").cost == 12
    result = find_edge_order(graph)
    assert result.cost == 11
    numeric = numeric_graph(graph, 3)
    assert replay_edges(numeric, result.steps)[0] == pytest.approx(jacobian_by_paths(numeric))
