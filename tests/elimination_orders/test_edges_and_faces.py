"""Elimination of edges and faces: values against paths, costs against vertex elimination."""

import heapq
import itertools
import operator
import random

import numpy as np
import pytest
from planner_graphs import jacobian_by_paths, layered_graph, numeric_graph, random_graph

from elimination_orders import (
    EdgeSearch,
    EdgeStep,
    EliminationGraph,
    FaceSearch,
    FaceStep,
    InvalidObjectiveError,
    InvalidOrderError,
    find_edge_order,
    find_face_order,
    find_order,
    replay_edges,
    replay_faces,
)
from elimination_orders.beyond import _clean, _eliminate_face, _inner_faces, _line_graph
from elimination_orders.dual import VertexMove
from elimination_orders.program import moves_program


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
    wide = random_graph(0, 20, density=0.5)
    pure = [y for y in wide.vertices if not wide.successors(y)]
    wide = EliminationGraph(wide.inputs, pure, [(u, v) for u, v in wide.edges])
    for search in (find_edge_order, find_face_order):
        with pytest.raises(InvalidOrderError, match="at most 40 edges"):
            search(wide)


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


def bat() -> EliminationGraph:
    """Two inputs each to a and b, both of these to c and past it to an output of their own."""
    edges = [("x0", "a"), ("x1", "a"), ("x2", "b"), ("x3", "b"), ("a", "c"), ("b", "c")]
    edges += [("a", "y2"), ("b", "y3"), *(("c", f"y{i}") for i in range(4))]
    return EliminationGraph([f"x{i}" for i in range(4)], [f"y{i}" for i in range(4)], edges)


def test_faces_beat_edges_and_edges_beat_vertices():
    # The product of a -> c and c -> y2 is worth while alone, because a -> y2 is there to take it
    # in; so is b -> c -> y3.  Back elimination of c -> y2 would multiply it with b -> c as well,
    # front elimination of a -> c with all edges out of c.  Faces: 2 for these products, 2 * 2 at a
    # and b each, and 2 * 3 at c for the inputs of each.
    graph = bat()
    vertices, edges, faces = (
        find_order(graph, "optimal"),
        find_edge_order(graph),
        find_face_order(graph),
    )
    assert vertices.optimal
    assert (vertices.cost, edges.cost, faces.cost) == (24, 23, 22)
    for seed in range(3):
        numeric = numeric_graph(graph, seed)
        expected = jacobian_by_paths(numeric)
        assert len(expected) == 16
        for result, replay in ((edges, replay_edges), (faces, replay_faces)):
            assert replay(numeric, result.steps)[0] == pytest.approx(expected)
            values = dict(numeric.edges)
            jacobian = result.program.run(values, operator.mul, operator.add)
            assert jacobian == pytest.approx(expected)


# -- the searches against plain ones: every state, every name, no twins, no bound ------------------


def least_cost(start, moves, is_done):
    """Dijkstra's algorithm."""
    number = itertools.count()
    best = {start: 0}
    heap = [(0, next(number), start)]
    while True:
        cost, _, state = heapq.heappop(heap)
        if cost > best[state]:
            continue
        if is_done(state):
            return cost
        for extra, after in moves(state):
            if cost + extra < best.get(after, cost + extra + 1):
                best[after] = cost + extra
                heapq.heappush(heap, (cost + extra, next(number), after))


def plain_edge_cost(graph: EliminationGraph) -> int:
    middle = frozenset(graph.eliminable)

    def moves(edges):
        for u, v in edges:
            rest = edges - {(u, v)}
            if v in middle:
                new = {(u, w) for x, w in edges if x == v}
                yield len(new), _clean(rest | new, middle)
            if u in middle:
                new = {(t, v) for t, x in edges if x == u}
                yield len(new), _clean(rest | new, middle)

    return least_cost(
        _clean(frozenset(graph.edges), middle),
        moves,
        lambda edges: not any(middle & set(pair) for pair in edges),
    )


def plain_face_cost(graph: EliminationGraph) -> int:
    def moves(faces):
        for face in _inner_faces(faces):
            yield 1, _eliminate_face(faces, face)[0]

    return least_cost(_line_graph(graph), moves, lambda faces: not _inner_faces(faces))


@pytest.mark.parametrize("seed", range(40))
def test_searches_find_what_plain_searches_find(seed):
    graph = tiny_graph(seed)
    if len(graph.edges) <= 7:
        assert find_face_order(graph).cost == plain_face_cost(graph)
    # Twins of an input and of an output.
    edges = [(u, v) for u, v in graph.edges]
    edges += [("twin", v) for u, v in edges if u == "x0"]
    edges += [(u, "copy") for u, v in edges if v == "y0"]
    graph = EliminationGraph([*graph.inputs, "twin"], [*graph.outputs, "copy"], edges)
    if len(graph.edges) <= 9:
        assert find_edge_order(graph).cost == plain_edge_cost(graph)
    if len(graph.edges) <= 7:
        assert find_face_order(graph).cost == plain_face_cost(graph)


# -- programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(15))
def test_programs_run_on_matrices(seed):
    graph = tiny_graph(seed)
    rng = np.random.default_rng(seed)
    size = {vertex: int(rng.integers(1, 4)) for vertex in graph.vertices}
    values = {(u, v): rng.standard_normal((size[v], size[u])) for u, v in graph.edges}
    expected: dict = {(x, x): np.eye(size[x]) for x in graph.inputs}
    for v in graph.vertices:
        for u in graph.predecessors(v):
            for x in graph.inputs:
                if (x, u) in expected:
                    product = values[u, v] @ expected[x, u]
                    expected[x, v] = expected.get((x, v), 0) + product
    for result in (find_edge_order(graph), find_face_order(graph)):
        program = result.program
        jacobian = program.run(values, operator.matmul, operator.add)
        wanted = {(x, y) for x, y in expected if x in graph.inputs and y in graph.outputs}
        assert set(jacobian) == wanted
        for pair in wanted:
            np.testing.assert_allclose(jacobian[pair], expected[pair], atol=1e-12)
        assert program.multiplications == result.cost
        assert program.additions == len(program.steps) - result.cost
        assert len(str(program).splitlines()) == (
            len(program.partials) + len(program.steps) + len(program.results)
        )


@pytest.mark.parametrize("seed", range(15))
def test_slots_are_free_after_their_last_use(seed):
    graph = tiny_graph(seed)
    numeric = numeric_graph(graph, seed)
    program = find_face_order(graph).program
    slots = dict(enumerate(numeric.edges[pair] for pair in program.partials))
    last = program.last_uses()
    for place, step in enumerate(program.steps):
        left, right = slots[step.left], slots[step.right]
        slots[step.target] = left * right if step.kind == "multiply" else left + right
        for slot in {step.left, step.right}:
            if last.get(slot) == place:
                del slots[slot]
    jacobian = {pair: slots[slot] for pair, slot in program.results}
    assert jacobian == pytest.approx(jacobian_by_paths(numeric))


def test_structural_zeros_in_programs():
    graph = EliminationGraph(
        ["x"], ["y", "z"], [("x", "a"), ("a", "y"), ("x", "y"), ("a", "z"), ("x", "b"), ("b", "y")]
    )
    program = find_edge_order(graph).program
    values = dict.fromkeys(graph.edges, 3.0)
    values["x", "a"] = 0.0

    def multiply(outer, inner):
        return outer * inner or None

    assert program.run(values, multiply, operator.add) == {("x", "y"): 12.0}


# -- searches that are not exact -------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_found_programs_give_the_jacobian_and_cost_no_more_than_vertices(seed):
    # Outputs may have successors here.
    graph = random_graph(seed, 12, 3, 3, 0.25) if seed % 2 else layered_graph(seed, 4, 3)
    numeric = numeric_graph(graph, seed)
    expected = jacobian_by_paths(numeric)
    vertices = find_order(graph).cost
    for kind in (EdgeSearch(max_evaluations=150), FaceSearch(max_evaluations=150)):
        result = find_order(graph, kind, seed=seed)
        values = dict(numeric.edges)
        assert result.program.run(values, operator.mul, operator.add) == pytest.approx(expected)
        assert result.program.multiplications == result.cost <= result.vertex_cost == vertices


def linked_fans(n: int) -> EliminationGraph:
    """Copies of the graph on which edges beat vertices, one behind the other."""
    edges = [("x0", (0, "a")), ("x1", (0, "a"))]
    outputs = []
    for i in range(n):
        a, b = (i, "a"), (i, "b")
        ends = [(i, "y", k) for k in range(4)]
        edges += [(a, b), (a, ends[2]), *((b, end) for end in ends)]
        outputs += ends[:-1] if i < n - 1 else ends
        if i < n - 1:
            edges += [(ends[3], (i + 1, "a")), ("x1", (i + 1, "a"))]
    return EliminationGraph(["x0", "x1"], outputs, edges)


@pytest.mark.parametrize("name", ["edges", "faces"])
def test_searches_improve_on_the_best_order_of_vertices(name):
    graph = linked_fans(4)
    result = find_order(graph, name, seed=1)
    assert result.cost < result.vertex_cost == find_order(graph, "search").cost
    assert not result.optimal
    assert result.program.multiplications == result.cost
    assert find_order(graph, name, seed=1).steps == result.steps
    numeric = numeric_graph(graph, 0)
    values = dict(numeric.edges)
    assert result.program.run(values, operator.mul, operator.add) == pytest.approx(
        jacobian_by_paths(numeric)
    )


def test_small_graphs_are_solved_exactly():
    for name, cost in (("edges", 23), ("faces", 22)):
        result = find_order(bat(), name)
        assert result.cost == cost
        assert result.optimal
        assert result.vertex_cost == 24


@pytest.mark.parametrize("seed", range(8))
def test_programs_cost_what_the_algebra_says(seed):
    graph = numeric_graph(layered_graph(seed, 4, 3), seed)
    result = find_order(graph, EdgeSearch(max_evaluations=100))
    costs = []
    algebra = graph.algebra

    def multiply(outer, inner):
        product, cost = algebra.compose(outer, inner)
        costs.append(cost)
        return product

    def add(a, b):
        total, cost = algebra.merge(a, b)
        costs.append(cost)
        return total

    assert result.program.run(graph.edges, multiply, add) == pytest.approx(jacobian_by_paths(graph))
    assert sum(costs) == pytest.approx(result.cost)
    assert result.cost <= find_order(graph).cost


def test_moves_that_leave_something():
    with pytest.raises(InvalidOrderError, match="moves: leave faces"):
        moves_program(chain(), [VertexMove("a")])
    with pytest.raises(InvalidObjectiveError, match="edges are searched by"):
        find_order(chain(), "edges", objective="peak_edges")


@pytest.mark.parametrize("graph", [chain(), EliminationGraph(["x"], ["x"], []), bat()], ids=repr)
def test_graphs_with_little_to_eliminate(graph):
    for name in ("edges", "faces"):
        result = find_order(graph, name, max_time=0)
        assert result.cost <= find_order(graph).cost
