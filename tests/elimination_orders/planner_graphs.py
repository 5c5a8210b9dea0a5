"""Graphs, algebras and brute-force oracles shared by the tests of the planner."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

from hypothesis import settings, strategies as st

from elimination_orders import EliminationGraph

DATA = Path(__file__).resolve().parent.parent / "data" / "elimination_tasks"
#: Settings of the property tests: no clock, the same examples on every run.
examples = settings(deadline=None, derandomize=True, max_examples=60)

TASKS = ("RoeFlux_1d", "RobotArm_6DOF", "PropaneCombustion", "g")


def load_task(name: str) -> tuple[EliminationGraph, dict]:
    """A published graph and the figures that come with it."""
    data = json.loads((DATA / f"{name}.json").read_text())
    return EliminationGraph.from_dict(data), data


def random_graph(
    seed: int,
    n_vertices: int,
    n_inputs: int = 2,
    n_outputs: int = 2,
    density: float = 0.3,
    kinds: tuple[str, ...] = ("variable",),
) -> EliminationGraph:
    """A random graph in which some outputs may have successors and some vertices may be dead."""
    rng = random.Random(seed)
    inputs = [f"x{i}" for i in range(n_inputs)]
    inner = list(range(n_vertices))
    names = [*inputs, *inner]
    edges = []
    for place, target in enumerate(inner, start=n_inputs):
        sources = [name for name in names[:place] if rng.random() < density]
        sources = sources or [rng.choice(names[:place])]
        edges.extend((source, target, rng.choice(kinds)) for source in sources)
    outputs = rng.sample(inner, min(n_outputs, n_vertices))
    return EliminationGraph(inputs, outputs, edges)


def layered_graph(
    seed: int, layers: int, width: int, fan_in: int = 2, reach: int = 2
) -> EliminationGraph:
    """A random layered graph: every vertex takes `fan_in` vertices of the `reach` layers before."""
    rng = random.Random(seed)
    rows = [list(range(width))]
    edges = []
    for layer in range(1, layers + 1):
        rows.append([layer * width + i for i in range(width)])
        pool = [vertex for row in rows[max(0, layer - reach) : layer] for vertex in row]
        for vertex in rows[-1]:
            edges.extend((source, vertex) for source in rng.sample(pool, min(fan_in, len(pool))))
    return EliminationGraph(rows[0], rows[-1], edges)


@st.composite
def small_graphs(draw, max_vertices: int = 7, kinds: tuple[str, ...] = ("variable",)):
    """Small random graphs with outputs that have successors and with dead vertices."""
    return random_graph(
        seed=draw(st.integers(0, 10**6)),
        n_vertices=draw(st.integers(1, max_vertices)),
        n_inputs=draw(st.integers(1, 3)),
        n_outputs=draw(st.integers(1, 3)),
        density=draw(st.sampled_from([0.2, 0.35, 0.6])),
        kinds=kinds,
    )


class FloatAlgebra:
    """Partials that are numbers; a product costs one, a sum a hundredth."""

    def compose(self, outer: float, inner: float) -> tuple[float, float]:
        return outer * inner, 1

    def merge(self, a: float, b: float) -> tuple[float, float]:
        return a + b, 0.01


class MatrixShapeAlgebra:
    """Edges are (rows, columns) of dense matrices: a stand-in for a tensor algebra."""

    def compose(self, outer: tuple, inner: tuple) -> tuple[tuple, int]:
        assert outer[1] == inner[0]
        return (outer[0], inner[1]), outer[0] * outer[1] * inner[1]

    def merge(self, a: tuple, b: tuple) -> tuple[tuple, int]:
        assert a == b
        return a, 0


def numeric_graph(graph: EliminationGraph, seed: int) -> EliminationGraph:
    """`graph` with a random number on every edge."""
    rng = random.Random(seed)
    triples = [(u, v, rng.uniform(0.5, 1.5)) for u, v in graph.edges]
    return EliminationGraph(
        graph.inputs, graph.outputs, triples, FloatAlgebra(), vertices=graph.vertices
    )


def jacobian_by_paths(graph: EliminationGraph) -> dict:
    """Sum over all paths of the product of the partials along them (Bauer's formula)."""
    result: dict = {}

    def walk(source, vertex, value):
        if graph.is_output(vertex) and vertex != source:
            result[source, vertex] = result.get((source, vertex), 0.0) + value
        for successor in graph.successors(vertex):
            walk(source, successor, value * graph.edges[vertex, successor])

    for source in graph.inputs:
        walk(source, source, 1.0)
    return result


def cost_by_sets(graph: EliminationGraph, order) -> int:
    """Multiplications of an order, counted with plain sets of pairs; no kinds, no algebra."""
    pairs = set(graph.edges)
    total = 0
    for vertex in order:
        before = {u for u, v in pairs if v == vertex}
        after = {v for u, v in pairs if u == vertex}
        total += len(before) * len(after)
        pairs |= {(u, v) for u in before for v in after}
        pairs = {(u, v) for u, v in pairs if u != vertex}
        if not graph.is_output(vertex):
            pairs = {(u, v) for u, v in pairs if v != vertex}
    return total


def brute_force_optimum(graph: EliminationGraph, cost) -> float:
    """The least cost over all permutations."""
    return min(cost(order) for order in itertools.permutations(graph.eliminable))
