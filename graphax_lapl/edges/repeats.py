"""Entries of one term that stand at the same position are added before anything reads them.

A gather along the edges of a graph that meets a scatter along the same edges yields one entry per
pair of edges, although there are only as many positions as pairs of nodes: a node with three
neighbours is found three times. Every later product would be taken three times.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .draft import Draft, DraftFactor
from .maps import IndexMap, from_values, label
from .merge import Item
from .operations import Einsum, Read, RecipeWriter
from .terms import Factor

__all__ = ["add_repeats"]

#: Entries are added where at most this share of them remains.
WORTHWHILE = 0.5
#: Largest size, compared with what is read, to which unequal groups are filled up with zeros.
FILLED = 1.5


def add_repeats(item: Item, writer: RecipeWriter) -> Item:
    """The same term with at most one entry per position along labels that tables repeat."""
    term, operands = item
    if term.is_affine:
        return item
    for name in sorted(term.position_labels):
        maps = [axis for axis in (*term.out, *term.into) if name in axis.labels]
        holders = [n for n, factor in enumerate(term.factors) if name in factor.labels]
        if len(holders) != 1 or any(len(axis.parts) > 1 or axis.is_affine for axis in maps):
            continue
        factor = term.factors[holders[0]]
        places = [k for k, axis in enumerate(factor.axes) if name in axis.labels]
        if factor.opaque or len(places) != 1 or len(factor.axes[places[0]].parts) > 1:
            continue
        found = _groups(tuple(maps), name, term.sizes[name])
        if found is None:
            continue
        unique, group, longest = found
        draft = Draft.of(term, operands)
        _add(draft, draft.factors[holders[0]], places[0], name, group, longest, writer)
        new = draft.fresh(len(unique))
        for axes in (draft.out, draft.into):
            for k, axis in enumerate(axes):
                if name in axis.labels:
                    column = next(n for n, other in enumerate(maps) if other == axis)
                    axes[k] = from_values(new, unique[:, column])
        held = draft.factors[holders[0]]
        axes_of = tuple(a.renamed({name: new}) for a in held.factor.axes)
        draft.factors[holders[0]] = DraftFactor(held.operand, Factor(axes_of, held.factor.shape))
        draft.forget(name)
        finished = draft.finish()
        assert finished is not None
        return add_repeats(finished, writer)
    return item


@lru_cache(maxsize=4096)
def _groups(
    maps: tuple[IndexMap, ...], name: int, size: int
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """The positions that a label selects, each once, and which of them each of its values selects.

    Returns:
        Positions of shape (count, maps), in ascending order; for every value of the label its
        position's number; how often the most frequent one occurs. None where adding does not pay.
    """
    positions = np.stack([axis.evaluate([name], {name: size}) for axis in maps], axis=-1)
    if any((np.diff(column) > 0).all() for column in positions.T):
        return None
    group = np.zeros(size, np.int64)
    for column in positions.T:  # numbers of positions by rank: sorting rows takes ten times as long
        _, rank = np.unique(column, return_inverse=True)
        _, first, group = np.unique(
            group * size + rank.ravel(), return_index=True, return_inverse=True
        )
    count, longest = len(first), int(np.bincount(group.ravel()).max())
    if count > WORTHWHILE * size or count * longest > FILLED * size:
        return None
    return positions[first], group.ravel(), longest


def _add(
    draft: Draft,
    held: DraftFactor,
    place: int,
    name: int,
    group: np.ndarray,
    longest: int,
    writer: RecipeWriter,
) -> None:
    """Replace a factor by its sums over the groups of a label, which stay with the label's name."""
    count, factor = int(group.max()) + 1, held.factor
    first = factor.axes[place].evaluate([name], draft.sizes)
    order = np.argsort(group, kind="stable")
    within = np.arange(len(group)) - np.searchsorted(group[order], group[order])
    # Groups side by side; what is missing is read from beyond the array, where it is zero.
    read = np.full((count, longest), factor.shape[place], np.int64)
    read[group[order], within] = first[order]
    sizes = {n: draft.sizes[n] for n in held.labels}
    sizes[name] = read.size
    labels = draft.storage_order(held.labels)
    axes: list[IndexMap] = list(factor.axes)
    axes[place] = from_values(name, read.ravel())
    sorted_ = Einsum(
        (Read(tuple(axes), factor.conj),), tuple(sorted((n, sizes[n]) for n in labels)), labels
    )
    operand = writer.add(sorted_, [held.operand])
    member = max(draft.sizes) + 1
    sizes = {**sizes, name: count, member: longest}
    axis = label(name, longest).plus(label(member), sizes)
    grouped = tuple(axis if n == name else label(n) for n in labels)
    summed = Einsum((Read(grouped),), tuple(sorted(sizes.items())), labels)
    operand = writer.add(summed, [operand])
    position = draft.factors.index(held)
    shape = tuple(count if n == name else sizes[n] for n in labels)
    draft.factors[position] = DraftFactor(operand, Factor(tuple(map(label, labels)), shape))
