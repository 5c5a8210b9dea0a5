"""Star and acyclic colourings of the graph of a symmetric matrix.

Vertices are the rows (equally columns), edges the off-diagonal entries. Both colourings are proper.
Star: every path on four vertices has three colours or more, so that each edge lies in a
two-coloured star and its entry can be read off directly. Acyclic: every cycle has three colours or
more, so that the entries follow by substitution, with fewer colours.

Gebremedhin, Manne and Pothen, What color is your Jacobian? SIAM Review 47, 2005. Gebremedhin,
Tarafdar, Manne and Pothen, New acyclic and star coloring algorithms with application to computing
Hessians, SIAM J. Sci. Comput. 29, 2007.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import InvalidArgumentError
from .pattern import Pattern
from .recovery import Coloring, flat_sources
from .stars import StarPainter

__all__ = ["acyclic_coloring", "star_coloring"]


def star_coloring(pattern: Pattern) -> Coloring:
    """Colours of a symmetric matrix from which every entry is read off directly.

    Raises:
        InvalidArgumentError: for a pattern that is not symmetric.
    """
    colors = _best(pattern, _star, _cautious_star)
    m = pattern.shape[0]
    count = int(colors.max(initial=-1)) + 1
    # Entry (v, w) stands alone in the sum (v, colour of w), or else in (w, colour of v).
    key = pattern.rows * count + colors[pattern.cols]
    alone = np.bincount(key, minlength=m * count)[key] == 1
    direct = colors[pattern.cols] * m + pattern.rows
    mirrored = colors[pattern.rows] * m + pattern.cols
    return Coloring(
        pattern,
        colors,
        np.full(m, -1),
        np.where(alone, direct, mirrored),
        _bound(pattern),
        "star",
        symmetric=True,
    )


def acyclic_coloring(pattern: Pattern) -> Coloring:
    """Colours of a symmetric matrix from which the entries follow by `substitution`.

    Raises:
        InvalidArgumentError: for a pattern that is not symmetric.
    """
    colors = _best(pattern, _acyclic)
    none = np.full(pattern.shape[0], -1)
    source = flat_sources(pattern, colors, none, np.ones(pattern.nse, bool))
    return Coloring(pattern, colors, none, source, _bound(pattern), "acyclic", symmetric=True)


def _bound(pattern: Pattern) -> int:
    """One colour for a diagonal matrix, two where there is an edge."""
    off = bool((pattern.rows != pattern.cols).any())
    return 2 if off else min(1, pattern.nse)


def _best(
    pattern: Pattern, *paints: Callable[[list[list[int]], Sequence[int]], list[int]]
) -> np.ndarray:
    """The fewest colours over the orders natural and by degree; ties go to the first."""
    if not pattern.is_symmetric:
        raise InvalidArgumentError(
            f"pattern: star and acyclic colourings need a symmetric pattern, {pattern!r} is not. "
            "Use color_columns, color_rows or bicoloring."
        )
    n = pattern.shape[0]
    off = pattern.rows != pattern.cols
    graph = Pattern(pattern.rows[off], pattern.cols[off], pattern.shape)
    neighbours = graph.row_lists
    by_degree = np.argsort(-graph.row_counts, kind="stable").tolist()
    found = [paint(neighbours, order) for paint in paints for order in (range(n), by_degree)]
    best = np.array(min(found, key=lambda colors: max(colors, default=-1)), np.int64)
    best[pattern.row_counts == 0] = -1  # no entry, no product
    return best


def _star(neighbours: list[list[int]], order: Sequence[int], cautious: bool = False) -> list[int]:
    painter = StarPainter(neighbours, cautious=cautious)
    for vertex in order:
        painter.paint(vertex, proper=True)
    return painter.color


def _cautious_star(neighbours: list[list[int]], order: Sequence[int]) -> list[int]:
    return _star(neighbours, order, cautious=True)


def _acyclic(neighbours: list[list[int]], order: Sequence[int]) -> list[int]:
    """Greedy: a vertex avoids colours that would join two branches of one two-coloured tree.

    The tree through vertex w in the colours of w and k is the set that (w, k) belongs to.
    """
    count = len(neighbours)
    color = [-1] * count
    once, twice = [0] * count, [0] * count
    parent: dict[tuple[int, int], tuple[int, int]] = {}

    def find(node: tuple[int, int]) -> tuple[int, int]:
        root = node
        while (above := parent.setdefault(root, root)) != root:
            root = above
        while parent[node] != root:
            parent[node], node = root, parent[node]
        return root

    for v in order:
        forbidden = once[v]
        if twice[v]:
            met: set[tuple[int, tuple[int, int]]] = set()
            for w in neighbours[v]:
                if color[w] < 0 or not twice[v] >> color[w] & 1:
                    continue
                rest = once[w] & ~forbidden
                while rest:
                    bit = rest & -rest
                    rest ^= bit
                    k = bit.bit_length() - 1
                    tree = (color[w], find((w, k)))
                    if tree in met:
                        forbidden |= bit
                    met.add(tree)
        bit = ~forbidden & (forbidden + 1)
        k = color[v] = bit.bit_length() - 1
        for w in neighbours[v]:
            twice[w] |= once[w] & bit
            once[w] |= bit
            if color[w] >= 0:
                parent[find((v, color[w]))] = find((w, k))
    return color
