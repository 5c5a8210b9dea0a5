"""Dominators of a graph against those that networkx finds."""

import networkx as nx
import numpy as np
import pytest

from graphax_lapl.program.cuts import _dominators


@pytest.mark.parametrize("seed", range(40))
def test_dominators(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, inputs = int(rng.integers(3, 25)), [0, 1][: int(rng.integers(1, 3))]
    arrows = [
        (u, v)
        for v in range(len(inputs), size)
        for u in range(v)
        if rng.random() < 1.5 / v + 0.05 * (v - u < 3)
    ]
    graph = nx.DiGraph(arrows)
    graph.add_edges_from((-1, v) for v in inputs)
    truth = dict(nx.immediate_dominators(graph, -1))
    truth.pop(-1, None)
    expected = {v: None if above in (None, -1) else above for v, above in truth.items()}
    assert _dominators(arrows, inputs) == expected
