"""Vertices that all columns of a second derivative pass through."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ..rules.lowering import closure

__all__ = ["narrow_cuts"]


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
    arrows = list(arrows)
    dominators = _dominators(arrows, inputs)
    forward: dict[int, list[int]] = {}
    for u, v in arrows:
        forward.setdefault(u, []).append(v)
    columns = sum(sizes.get(v, 0) for v in inputs)
    found = []
    for cut in {d for d in dominators.values() if d is not None}.difference(inputs):
        if sizes.get(cut, columns) >= columns:
            continue
        behind = closure([cut], forward)
        sides = [group & behind for group in groups]
        whole = all(not side or side == group for side, group in zip(sides, groups, strict=True))
        later = set().union(*sides)
        if later and whole and all(_passes(dominators, cut, v) for v in later):
            found.append((sizes[cut], cut))
    return [cut for _, cut in sorted(found)]


def _dominators(arrows: Iterable[tuple[int, int]], inputs: Sequence[int]) -> dict[int, int | None]:
    """The nearest vertex that all paths from the inputs to a vertex pass through (None: none).

    Vertices are numbered along the arrows, so the one that dominates a vertex is where those of its
    predecessors meet.
    """
    sources: dict[int, list[int]] = {}
    for u, v in arrows:
        sources.setdefault(v, []).append(u)
    nearest: dict[int, int | None] = dict.fromkeys(inputs)
    depth = dict.fromkeys(inputs, 1)

    def meet(a: int | None, b: int | None) -> int | None:
        while a != b:
            if a is not None and (b is None or depth[a] >= depth[b]):
                a = nearest[a]
            elif b is not None:
                b = nearest[b]
        return a

    for v in sorted(sources):
        reached = [u for u in sources[v] if u in nearest]
        if not reached or v in nearest:
            continue
        common: int | None = reached[0]
        for u in reached[1:]:
            common = meet(common, u)
        nearest[v] = common
        depth[v] = 1 if common is None else depth[common] + 1
    return nearest


def _passes(dominators: Mapping[int, int | None], cut: int, vertex: int) -> bool:
    """Whether all paths to a vertex pass through the cut."""
    at: int | None = vertex
    while at is not None and at != cut:
        at = dominators.get(at)
    return at == cut
