"""Entries of one term that stand at the same position are added before anything reads them.

A gather along the edges of a graph that meets a scatter along the same edges yields one entry per
pair of edges, although there are only as many positions as pairs of nodes: a node with three
neighbours is found three times. Every later product would be taken three times.
Several factors that hold the pairs are multiplied and summed by position at once, where that is
smaller than they are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np

from .contract import simplify
from .draft import Draft, DraftFactor
from .maps import IndexMap, from_values, label
from .masks import MAX_MASK, Limit, pattern_mask
from .merge import Item
from .operations import Einsum, Read, RecipeWriter
from .terms import Factor, Term

__all__ = ["add_repeats"]

#: Entries are added where at most this share of them remains.
WORTHWHILE = 0.5
#: Largest size, compared with what is read, to which unequal groups are filled up with zeros.
FILLED = 1.5
#: The same where at most this share of a vector's numbers remains, as of what is summed along the
#: columns of a triangle. Of arrays that have other axes too (twelve by twelve, at 4,096 samples)
#: reading them filled up took 1.5 of a scatter.
FILLED_WHERE_FEW, FEW = 2.0, 0.25


def add_repeats(item: Item, writer: RecipeWriter) -> Item:
    """The same term with at most one entry per position along labels that tables repeat."""
    term, operands = item
    if term.is_affine:
        return item
    for name in sorted(term.position_labels):
        maps = [axis for axis in (*term.out, *term.into) if name in axis.labels]
        holders = [n for n, factor in enumerate(term.factors) if name in factor.labels]
        if not holders or any(len(axis.parts) > 1 or axis.is_affine for axis in maps):
            continue
        places = [_place(term.factors[n], name) for n in holders]
        vector = all(set(term.factors[n].labels) == {name} for n in holders)
        found = None if None in places else _groups(tuple(maps), name, term.sizes[name], vector)
        if found is None:
            continue
        unique, group, longest = found
        if len(holders) > 1 and not _smaller(term, holders, name, len(unique)):
            continue
        draft = Draft.of(term, operands)
        new, member = draft.fresh(len(unique)), draft.fresh(longest)
        for n, place in zip(holders, places, strict=True):
            assert place is not None
            held = draft.factors[n]
            draft.factors[n] = _grouped(
                draft, held, place, name, group, (new, member), len(holders) == 1, writer
            )
        for axes in (draft.out, draft.into):
            for k, axis in enumerate(axes):
                if name in axis.labels:
                    column = next(n for n, other in enumerate(maps) if other == axis)
                    axes[k] = from_values(new, unique[:, column])
        known = _limits_of_groups(draft, name, new, group)
        draft.forget(name)
        draft.limits += known
        if len(holders) == 1:
            draft.forget(member)
        else:
            simplify(draft, writer)
        finished = draft.finish()
        assert finished is not None
        return add_repeats(finished, writer)
    return item


@lru_cache(maxsize=4096)
def _groups(
    maps: tuple[IndexMap, ...], name: int, size: int, vector: bool
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
    filled = FILLED_WHERE_FEW if vector and count <= FEW * size else FILLED
    if count > WORTHWHILE * size or count * longest > filled * size:
        return None
    return positions[first], group.ravel(), longest


def _limits_of_groups(draft: Draft, name: int, new: int, group: np.ndarray) -> list[Limit]:
    """Where groups of a label's values have entries: where one of their members has."""
    held = [limit for limit in draft.limits if name in limit.labels]
    others = sorted({n for limit in held for n in limit.labels} - {name})
    rest = math.prod(draft.sizes[n] for n in others)
    if not held or rest * draft.sizes[name] > MAX_MASK:
        return []
    order = [name, *others]
    members = np.ones([draft.sizes[n] for n in order], bool)
    for limit in held:
        members &= limit.evaluate(order, draft.sizes) >= 0
    there = np.zeros((draft.sizes[new], *members.shape[1:]), bool)
    np.logical_or.at(there, group, members)
    if there.all():
        return []
    return [pattern_mask(there).renamed(dict(enumerate([new, *others])))]


def _place(factor: Factor, name: int) -> int | None:
    """The axis of a factor that a label runs along by itself."""
    places = [k for k, axis in enumerate(factor.axes) if name in axis.labels]
    if factor.opaque or len(places) != 1 or len(factor.axes[places[0]].parts) > 1:
        return None
    return places[0]


def _smaller(term: Term, holders: Sequence[int], name: int, count: int) -> bool:
    """Whether the product of several factors, summed by position, is less than what they hold."""
    boxes = [{*term.factors[n].labels} - {name} for n in holders]
    read = sum(term.sizes[name] * _numbers(term, box) for box in boxes)
    return count * _numbers(term, set().union(*boxes)) <= WORTHWHILE * read


def _numbers(term: Term, names: Collection[int]) -> int:
    return math.prod(term.sizes[n] for n in names)


def _grouped(
    draft: Draft,
    held: DraftFactor,
    place: int,
    name: int,
    group: np.ndarray,
    labels: tuple[int, int],
    alone: bool,
    writer: RecipeWriter,
) -> DraftFactor:
    """A factor whose entries along a label lie in groups, side by side.

    Args:
        draft: the term.
        held: the factor.
        place: the axis that the label runs along.
        name: the label.
        group: for every value of the label its group.
        labels: the labels of groups, and of the members of one, in the place of it.
        alone: whether no other factor holds the label: its groups are summed then.
        writer: of the operations.
    """
    factor = held.factor
    new, member = labels
    count, longest = draft.sizes[new], draft.sizes[member]
    first = factor.axes[place].evaluate([name], draft.sizes)
    order = np.argsort(group, kind="stable")
    within = np.arange(len(group)) - np.searchsorted(group[order], group[order])
    # What is missing is read from beyond the array, where it is zero.
    read = np.full((count, longest), factor.shape[place], np.int64)
    read[group[order], within] = first[order]
    sizes = {n: draft.sizes[n] for n in held.labels}
    sizes[name] = read.size
    kept = draft.storage_order(held.labels)
    axes: list[IndexMap] = list(factor.axes)
    axes[place] = from_values(name, read.ravel())
    sorted_ = Einsum(
        (Read(tuple(axes), factor.conj),), tuple(sorted((n, sizes[n]) for n in kept)), kept
    )
    operand = writer.add(sorted_, [held.operand])
    split = label(new, longest).plus(label(member), draft.sizes)
    shape = tuple(sizes[n] for n in kept)
    grouped = tuple(split if n == name else label(n) for n in kept)
    if not alone:
        return DraftFactor(operand, Factor(grouped, shape))
    output = tuple(new if n == name else n for n in kept)
    sizes = {**{n: sizes[n] for n in kept if n != name}, new: count, member: longest}
    summed = Einsum((Read(grouped),), tuple(sorted(sizes.items())), output)
    operand = writer.add(summed, [operand])
    return DraftFactor(operand, Factor(tuple(map(label, output)), tuple(sizes[n] for n in output)))
