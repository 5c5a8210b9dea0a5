"""Vertices that all columns of a second derivative pass through."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["narrow_cuts"]

#: The vertex before all inputs.
_SOURCE = "source"


def narrow_cuts(
    arrows: Iterable[tuple[int, int]],
    sizes: Mapping[int, int],
    inputs: Sequence[int],
    groups: Collection[set[int]],
) -> list[int]:
    """Cuts of the graph that are narrower than its input.

    Args:
        arrows: arrows (from, to).
        sizes: number of elements of every vertex that may be a cut, and of the inputs.
        inputs: the inputs.
        groups: vertices whose columns are contracted with one another. A cut has each group
            either behind itself, with all paths to it passing through, or before.

    Returns:
        The cuts with at least one group behind them, narrowest first.
    """
    import networkx as nx  # takes long to import

    view = nx.DiGraph(list(arrows))
    view.add_edges_from((_SOURCE, v) for v in inputs)
    dominators = dict(nx.immediate_dominators(view, _SOURCE))
    columns = sum(sizes.get(v, 0) for v in inputs)
    found = []
    for cut in {d for d in dominators.values() if isinstance(d, int)}.difference(inputs):
        if sizes.get(cut, columns) >= columns:
            continue
        behind = {cut, *nx.descendants(view, cut)}
        sides = [group & behind for group in groups]
        whole = all(not side or side == group for side, group in zip(sides, groups, strict=True))
        later = set().union(*sides)
        if later and whole and all(_passes(dominators, cut, v) for v in later):
            found.append((sizes[cut], cut))
    return [cut for _, cut in sorted(found)]


def _passes(dominators: Mapping[Any, Any], cut: int, vertex: Any) -> bool:
    """Whether all paths to a vertex pass through the cut."""
    while vertex not in (cut, _SOURCE, None):
        vertex = dominators.get(vertex)
    return bool(vertex == cut)
