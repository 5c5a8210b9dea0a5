"""Chains of Jacobians: optima against all sequences of operations, programs against numpy."""

import functools
import itertools
import math
import random

import numpy as np
import pytest
from planner_graphs import MatrixShapeAlgebra, random_graph

from elimination_orders import (
    OBJECTIVES,
    ChainStage,
    EliminationGraph,
    InvalidGraphError,
    InvalidOrderError,
    chain_of,
    find_chain_order,
    find_order,
)
from elimination_orders.search.cuts import chain_order
from elimination_orders.tensorgraph import TensorProblem, number_problem


def random_chain(seed: int, length: int) -> list[ChainStage]:
    rng = random.Random(seed)
    sizes = [rng.randint(1, 6) for _ in range(length + 1)]
    stages = []
    for columns, rows in itertools.pairwise(sizes):
        matrix = rng.random() < 0.3
        tangent = rng.randint(1, 40) if rng.random() < 0.8 or not matrix else None
        adjoint = rng.randint(1, 40) if rng.random() < 0.8 else None
        stages.append(ChainStage(rows, columns, tangent, adjoint, rng.randint(1, 30), matrix))
    return stages


def cheapest_by_all_sequences(stages: list[ChainStage], limit: float) -> float:
    """Least cost over all sequences of operations on a row of stages, some of them accumulated."""

    @functools.cache
    def best(row: tuple[tuple[int, int, bool], ...]) -> float:
        if len(row) == 1 and row[0][2]:
            return 0
        costs = [math.inf]
        for place, (first, last, accumulated) in enumerate(row):
            before, after = row[:place], row[place + 1 :]
            stage = stages[first]
            tangent = math.inf if stage.tangent is None else stage.tangent
            adjoint = math.inf if stage.adjoint is None else stage.adjoint
            if stage.memory > limit:
                adjoint = math.inf
            if not accumulated:
                work = min(stage.columns * tangent, stage.rows * adjoint)
                work = 0 if stage.matrix else work
                costs.append(work + best((*before, (first, last, True), *after)))
                if before and before[-1][2]:
                    inner = before[-1]
                    work = stages[inner[0]].columns * tangent
                    costs.append(work + best((*before[:-1], (inner[0], last, True), *after)))
                if after and after[0][2]:
                    outer = after[0]
                    work = stages[outer[1]].rows * adjoint
                    costs.append(work + best((*before, (first, outer[1], True), *after[1:])))
            elif after and after[0][2]:
                outer = after[0]
                work = stages[outer[1]].rows * stages[last].rows * stage.columns
                costs.append(work + best((*before, (first, outer[1], True), *after[1:])))
        return min(costs)

    return best(tuple((k, k, False) for k in range(len(stages))))


@pytest.mark.parametrize("limit", [None, 15, 0])
@pytest.mark.parametrize("seed", range(40))
def test_cost_is_the_least_of_all_sequences(seed, limit):
    stages = random_chain(seed, 1 + seed % 5)
    expected = cheapest_by_all_sequences(stages, math.inf if limit is None else limit)
    result = find_chain_order(stages, limit)
    assert result.cost == expected
    assert result.cost == sum(step.cost for step in result.program)
    assert result.cost == result.lower[-1][0]
    assert result.peak_memory <= (math.inf if limit is None else limit)
    assert result.cost <= min(result.forward, result.reverse)


@pytest.mark.parametrize("limit", [None, 10])
@pytest.mark.parametrize("seed", range(20))
def test_program_gives_the_product(seed, limit):
    stages = random_chain(seed, 6)
    rng = np.random.default_rng(seed)
    matrices = [rng.standard_normal((stage.rows, stage.columns)) for stage in stages]

    def tangent(k, columns):
        assert stages[k].tangent is not None
        return matrices[k] @ columns

    def adjoint(k, rows):
        assert stages[k].adjoint is not None
        assert limit is None or stages[k].memory <= limit
        return rows @ matrices[k]

    def matrix(k):
        assert stages[k].matrix
        return matrices[k]

    def identity(k, mode):
        return np.eye(stages[k].columns if mode == "tangent" else stages[k].rows)

    jacobian = find_chain_order(stages, limit).replay(
        tangent=tangent, adjoint=adjoint, matrix=matrix, identity=identity
    )
    expected = functools.reduce(lambda product, m: m @ product, matrices)
    np.testing.assert_allclose(jacobian, expected, rtol=1e-10, atol=1e-12)


def test_narrow_middle():
    # 100 -> 2 -> 100: rows into the middle by adjoints, columns out of it by tangents.
    stages = [ChainStage(2, 100, 300, 300, 300), ChainStage(100, 2, 300, 300, 300)]
    result = find_chain_order(stages)
    assert [step.kind for step in result.program] == [
        "accumulate_adjoint",
        "accumulate_tangent",
        "multiply",
    ]
    assert result.cost == 2 * 300 + 2 * 300 + 100 * 2 * 100
    assert (result.forward, result.reverse) == (60_000, 60_000)
    limited = find_chain_order(stages, memory_limit=100)
    assert limited.peak_memory == 0
    assert limited.cost == 100 * 300 + 2 * 300 + 100 * 2 * 100
    assert "accumulate_adjoint  0..0" in str(result)


def test_matrices_alone_are_the_classic_problem():
    # Cormen et al., Introduction to Algorithms, sec. 15.2: 15,125 multiplications.
    sizes = [30, 35, 15, 5, 10, 20, 25]
    stages = [
        ChainStage(rows, columns, matrix=True)
        for columns, rows in zip(sizes[::-1], sizes[-2::-1], strict=False)
    ]
    assert find_chain_order(stages).cost == 15_125


def test_long_chains_do_not_recurse():
    stages = [ChainStage(1, 1, 1, 1, 1)] * 150
    assert find_chain_order(stages).cost == 150


def test_bad_chains():
    with pytest.raises(InvalidGraphError, match="nothing is known"):
        ChainStage(2, 3)
    with pytest.raises(InvalidGraphError, match="at least 1"):
        ChainStage(0, 3, 1)
    with pytest.raises(InvalidGraphError, match="tangent: expected"):
        ChainStage(1, 1, -1)
    with pytest.raises(InvalidGraphError, match="at least one stage"):
        find_chain_order([])
    with pytest.raises(InvalidGraphError, match="stage 0 has 2 rows, but stage 1 has 3"):
        find_chain_order([ChainStage(2, 1, 1), ChainStage(1, 3, 1)])
    with pytest.raises(InvalidOrderError, match=r"memory_limit: 4 .* stage 1 .* tape of 5"):
        find_chain_order([ChainStage(1, 1, 1), ChainStage(1, 1, None, 1, 5)], 4)
    with pytest.raises(InvalidOrderError, match="identity: the program needs it"):
        find_chain_order([ChainStage(1, 1, 1)]).replay()


def paths(graph: EliminationGraph) -> list[tuple]:
    found = []
    stack = [(x,) for x in graph.inputs]
    while stack:
        path = stack.pop()
        if path[-1] in graph.outputs:
            found.append(path)
        stack.extend((*path, w) for w in graph.successors(path[-1]))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_cuts_lie_on_every_path(seed):
    graph = random_graph(seed, 7, n_inputs=1 + seed % 3, n_outputs=1 + seed % 2, density=0.25)
    routes = paths(graph)
    stages = chain_of(graph)
    assert bool(stages) == bool(routes)
    on_all = [
        v
        for v in graph.vertices
        if v not in graph.inputs and v not in graph.outputs and all(v in path for path in routes)
    ]
    cuts = [stage.name.split(" -> ")[0] for stage in stages[1:]]
    assert cuts == (list(map(str, on_all)) if routes else [])
    edges = [pair for stage in stages for pair in stage.edges]
    used = {pair for path in routes for pair in itertools.pairwise(path)}
    assert len(edges) == len(set(edges))
    assert set(edges) == used
    for k, stage in enumerate(stages):
        assert stage.tangent == len(stage.edges)
        for u, w in stage.edges:
            # An edge of stage k lies between its two cuts on every path.
            for path in routes:
                if (u, w) in itertools.pairwise(path):
                    passed = sum(v in on_all for v in path[: path.index(w)])
                    assert passed == k


def test_chain_of_tensor_sizes():
    edges = [
        ("x", "h", "unit"),
        ("h", "g"),
        ("h", "k"),
        ("g", "z"),
        ("k", "z"),
        ("z", "y"),
    ]
    graph = EliminationGraph(["x"], ["y"], edges)
    sizes = {"x": 50, "h": 8, "g": 8, "k": 8, "z": 2, "y": 40}
    stages = chain_of(graph, sizes.__getitem__, lambda kind: 0 if kind == "unit" else 10)
    assert [(s.rows, s.columns, s.tangent) for s in stages] == [
        (8, 50, 0),
        (2, 8, 40),
        (40, 2, 10),
    ]
    assert find_chain_order(stages).cost < min(
        find_chain_order(stages).forward, find_chain_order(stages).reverse
    )


# -- orders of the vertices that everything runs through -------------------------------------------


def test_matrix_chains_are_bracketed_optimally():
    # Widths that jump about: no rule of thumb brackets such a product well.
    rng = random.Random(2)
    widths = [rng.choice([2, 5, 10, 40, 100]) for _ in range(31)]
    triples = [(i, i + 1, (widths[i + 1], widths[i])) for i in range(30)]
    graph = EliminationGraph([0], [30], triples, MatrixShapeAlgebra())
    stages = [
        ChainStage(rows, columns, matrix=True) for columns, rows in itertools.pairwise(widths)
    ]
    result = find_order(graph)
    assert result.cost == find_chain_order(stages).cost
    assert result.method == "auto: chain"


def test_blocks_of_a_chain():
    # Ten blocks with a branch each, of ten widths: 686,470 multiplications and additions when
    # heuristics and windows alone need 1,003,334.
    class Shapes(MatrixShapeAlgebra):
        def merge(self, a, b):
            return a, a[0] * a[1]

    rng = random.Random(3)
    widths = [rng.choice([2, 5, 10, 40, 100]) for _ in range(26)]
    triples = []
    for i, (old, new) in enumerate(itertools.pairwise(widths)):
        here, branch, sum_ = ("c", i), ("h", i), ("k", i)
        triples += [(here, branch, (old, old)), (branch, sum_, (old, old))]
        triples += [(here, sum_, (old, old)), (sum_, ("c", i + 1), (new, old))]
    graph = EliminationGraph([("c", 0)], [("c", 25)], triples, Shapes())
    result = find_order(graph)
    others = (find_order(graph, name).cost for name in ("forward", "reverse", "markowitz"))
    assert result.cost <= 686_470 < 0.7 * min(others)


@pytest.mark.parametrize("seed", range(30))
def test_chain_orders_are_orders(seed):
    graph = random_graph(seed, 14, n_inputs=1 + seed % 3, n_outputs=1 + seed % 2, density=0.12)
    for objective in ("muls", "unit_muls"):
        problem = number_problem(graph, OBJECTIVES[objective])
        order = chain_order(problem)
        tensor = chain_order(TensorProblem.from_graph(graph, OBJECTIVES[objective]))
        assert (order is None) == (tensor is None)
        if order is not None:
            assert sorted(order) == sorted(tensor) == list(range(problem.n))
        assert order is not None or len(chain_of(graph)) < 3


def test_chain_order_gives_up_on_slow_algebras():
    triples = [(i, i + 1, (2 + i % 7, 2 + (i + 6) % 7)) for i in range(20)]
    graph = EliminationGraph([0], [20], triples, MatrixShapeAlgebra())
    assert chain_order(number_problem(graph, OBJECTIVES["muls"]), max_questions=10) is None
