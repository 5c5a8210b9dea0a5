"""Colourings against their definitions, by brute force, and against published numbers."""

import itertools

import networkx as nx
import numpy as np
import pytest

from graphax_lapl import InvalidArgumentError
from graphax_lapl.coloring import (
    Coloring,
    Pattern,
    acyclic_coloring,
    bicoloring,
    color_columns,
    color_rows,
    star_coloring,
    substitution,
)
from graphax_lapl.coloring.orderings import DYNAMIC, STATIC
from tests.coloring.patterns import (
    arrowhead,
    diagonals,
    five_points,
    random_matrix,
    random_pattern,
    random_symmetric,
    two_species,
)

ORDERINGS = (None, *((name,) for name in (*STATIC, *DYNAMIC)))
RECTANGULAR = [
    random_pattern(seed, m, n, density)
    for seed, (m, n, density) in enumerate(
        itertools.product((1, 7, 12), (1, 5, 14), (0.0, 0.15, 0.4, 1.0))
    )
]
SYMMETRIC = [
    random_symmetric(seed, n, density)
    for seed, (n, density, _) in enumerate(
        itertools.product((1, 5, 8, 11), (0.0, 0.1, 0.25, 0.5), range(2))
    )
]


def exact(coloring: Coloring, seed: int = 0) -> bool:
    """Whether the entries of a random matrix come back."""
    matrix = random_matrix(seed, coloring.pattern, coloring.symmetric)
    entries = coloring.decompress(coloring.compress(matrix))
    expected = matrix[coloring.pattern.rows, coloring.pattern.cols]
    return bool(np.array_equal(entries, expected))


def share_no_row(mask: np.ndarray, colors: np.ndarray) -> bool:
    """Structural orthogonality, pair by pair."""
    pairs = itertools.combinations(range(mask.shape[1]), 2)
    return not any(colors[a] == colors[b] and (mask[:, a] & mask[:, b]).any() for a, b in pairs)


def mask_of(pattern: Pattern) -> np.ndarray:
    mask = np.zeros(pattern.shape, bool)
    mask[pattern.rows, pattern.cols] = True
    return mask


def paths_on_four(graph: nx.Graph) -> list[tuple[int, ...]]:
    """Every path on four vertices, from its middle edge."""
    return [
        (a, b, c, d)
        for b, c in graph.edges
        for a in graph[b]
        for d in graph[c]
        if len({a, b, c, d}) == 4
    ]


def adjacency(pattern: Pattern) -> nx.Graph:
    off = pattern.rows != pattern.cols
    return nx.Graph(zip(pattern.rows[off].tolist(), pattern.cols[off].tolist(), strict=True))


@pytest.mark.parametrize("orderings", ORDERINGS, ids=str)
def test_columns_and_rows_are_structurally_orthogonal(orderings):
    for pattern in RECTANGULAR:
        mask = mask_of(pattern)
        columns, rows = color_columns(pattern, orderings), color_rows(pattern, orderings)
        assert share_no_row(mask, columns.column_colors)
        assert share_no_row(mask.T, rows.row_colors)
        assert columns.lower_bound == mask.sum(1).max(initial=0) <= columns.count
        assert rows.lower_bound == mask.sum(0).max(initial=0) <= rows.count
        assert exact(columns)
        assert exact(rows)


@pytest.mark.parametrize("weight", [0.5, 1.0, 2.0])
def test_bicoloring_is_exact_and_never_dearer_than_one_side(weight):
    for pattern in [*RECTANGULAR, *SYMMETRIC, arrowhead(9)]:
        both = bicoloring(pattern, weight)
        cost = both.columns + weight * both.rows
        assert cost <= min(color_columns(pattern).count, weight * color_rows(pattern).count)
        assert exact(both)


@pytest.mark.parametrize("seed", range(30))
def test_bicoloring_with_full_rows_and_columns(seed):
    """The star property over rows and columns, wherever both sides have colours."""
    random = np.random.default_rng(seed)
    mask = random.random((14, 12)) < 0.12
    mask[random.integers(14, size=seed % 3)] = True
    mask[:, random.integers(12, size=seed % 2)] = True
    pattern = Pattern.of_mask(mask)
    coloring = bicoloring(pattern)
    assert exact(coloring, seed)
    columns = {("c", j): int(k) for j, k in enumerate(coloring.column_colors)}
    rows = {("r", i): int(k) for i, k in enumerate(coloring.row_colors)}
    graph = nx.Graph((("r", i), ("c", j)) for i, j in zip(pattern.rows, pattern.cols, strict=True))
    if coloring.rows == 0 or coloring.columns == 0:
        return
    color = {v: (v[0], k) for v, k in (columns | rows).items()}
    for u, v in graph.edges:
        assert color[u][1] >= 0 or color[v][1] >= 0
    for v in graph:
        if color[v][1] < 0:
            around = [color[w] for w in graph[v]]
            assert len(set(around)) == len(around)
    for path in paths_on_four(graph):
        if all(color[v][1] >= 0 for v in path):
            assert len({color[v] for v in path}) >= 3


def test_every_path_on_four_vertices_has_three_colors():
    for seed, pattern in enumerate(SYMMETRIC):
        coloring, graph = star_coloring(pattern), adjacency(pattern)
        color = coloring.column_colors
        assert all(color[a] != color[b] for a, b in graph.edges)
        assert all(len({*color[list(path)]}) >= 3 for path in paths_on_four(graph))
        assert coloring.lower_bound <= coloring.count
        assert exact(coloring, seed)


def test_every_cycle_has_three_colors():
    for seed, pattern in enumerate(SYMMETRIC):
        coloring, graph = acyclic_coloring(pattern), adjacency(pattern)
        color = coloring.column_colors
        assert all(color[a] != color[b] for a, b in graph.edges)
        cycles = itertools.islice(nx.simple_cycles(graph), 5000)
        assert all(len({*color[cycle]}) >= 3 for cycle in cycles)
        matrix = random_matrix(seed, pattern, symmetric=True)
        entries = substitution(coloring).solve(coloring, coloring.compress(matrix))
        assert np.array_equal(entries, matrix[pattern.rows, pattern.cols])


def test_a_cycle_of_two_colors_cannot_be_solved():
    square = Pattern.of([0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3], (4, 4))
    colors = np.array([0, 1, 0, 1])
    two = Coloring(square, colors, np.full(4, -1), square.rows, 2, "by hand", symmetric=True)
    with pytest.raises(InvalidArgumentError, match="not acyclic"):
        substitution(two)


@pytest.mark.parametrize(
    ("pattern", "color", "most"),
    [
        pytest.param(diagonals(1000, (-1, 0, 1)), color_columns, 3, id="Burgers"),
        pytest.param(diagonals(1000, (-1, 0, 1)), star_coloring, 3, id="Burgers, star"),
        pytest.param(diagonals(1000, (-1, 0, 1)), acyclic_coloring, 2, id="Burgers, acyclic"),
        pytest.param(diagonals(1000, (-2, -1, 0, 1), True), color_columns, 4, id="Lorenz-96"),
        pytest.param(five_points(64, True), color_columns, 9, id="heat, periodic"),
        pytest.param(five_points(64, False), color_columns, 5, id="heat"),
        pytest.param(two_species(64), color_columns, 11, id="Brusselator"),
        pytest.param(arrowhead(1000), color_columns, 1000, id="arrowhead, columns"),
        pytest.param(arrowhead(1000), bicoloring, 3, id="arrowhead, both"),
        pytest.param(arrowhead(1000), star_coloring, 2, id="arrowhead, star"),
    ],
)
def test_known_numbers_of_colors(pattern, color, most):
    coloring = color(pattern)
    assert coloring.lower_bound <= coloring.count <= most
    again = color(Pattern.of(pattern.rows[::-1], pattern.cols[::-1], pattern.shape))
    assert np.array_equal(again.column_colors, coloring.column_colors)
    assert str(coloring.count if not coloring.rows else coloring.columns) in repr(coloring)


def test_pattern_sorts_and_drops_repetitions():
    pattern = Pattern.of([1, 0, 1, 1], [0, 2, 0, 1], (2, 3))
    assert pattern.rows.tolist() == [0, 1, 1]
    assert pattern.cols.tolist() == [2, 0, 1]
    assert pattern.transposed.transposed.cols.tolist() == pattern.cols.tolist()
    assert pattern.intersection(Pattern.of_mask(np.eye(2, 3))).nse == 1
    assert not pattern.is_symmetric
    assert "nse=3" in repr(pattern)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pattern.of([0], [0, 1], (2, 2)), "same length"),
        (lambda: Pattern.of([2], [0], (2, 2)), "rows must lie in 0..1"),
        (lambda: Pattern.of([0], [-1], (2, 2)), "cols must lie in"),
        (lambda: Pattern.of([0.5], [0], (2, 2)), "integers"),
        (lambda: Pattern.of_mask(np.ones(3)), "must be a matrix"),
        (lambda: star_coloring(Pattern.of([0], [1], (2, 2))), "need a symmetric pattern"),
        (lambda: acyclic_coloring(Pattern.of([0], [0], (1, 2))), "need a symmetric pattern"),
    ],
)
def test_bad_patterns_are_refused(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()
