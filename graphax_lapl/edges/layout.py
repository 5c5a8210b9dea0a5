"""Where the entries of a structure stand: positions, their number, coordinate form."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from .maps import IndexMap
from .masks import Limit
from .runs import Run, runs
from .terms import Structure, Term
from .values import lazy, record

__all__ = [
    "CoordinateLayout",
    "Layer",
    "Placement",
    "coordinate_layout",
    "diagonal_placement",
    "moved_placement",
    "placement",
    "structural_nonzeros",
    "term_positions",
]


@record
class Layer:
    """One value for each of some entries.

    Attributes:
        reads: for each of them the position among the concatenated values, int32 or int64.
        entries: the entries, ascending; None where they are all entries.
        unique: whether no entry is named twice.
    """

    reads: np.ndarray
    entries: np.ndarray | None
    unique: bool = True

    @lazy
    def runs(self) -> tuple[Run, ...]:
        """Its entries as few stretches in which the reads repeat with a period; empty if none."""
        return runs(self.reads) if self.entries is None else ()


@record
class Placement:
    """How an array of entries is the sum of layers of values.

    Attributes:
        count: number of entries.
        layers: what is added up.
    """

    count: int
    layers: tuple[Layer, ...]


@record
class CoordinateLayout:
    """Coordinate form of a structure.

    Attributes:
        indices: sorted, unique positions, shape `(nse, number of dimensions)`, read-only.
        placement: how the values at those positions are made from the values of the terms.
    """

    indices: np.ndarray
    placement: Placement


#: Up to so many values per entry are added as one array each; more by one scatter-add.
MAX_LAYERS = 4


def term_positions(term: Term, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Flat position of each value of a term, and whether it lies within matrix and limits."""
    sizes = dict(enumerate(term.sizes))
    labels = sorted(term.position_labels)
    box = tuple(sizes[name] for name in labels)
    flat = np.zeros(box, np.int64)
    valid = np.ones(box, bool)
    for axis, extent in zip((*term.out, *term.into), shape, strict=True):
        position = axis.evaluate(labels, sizes)
        valid &= (position >= 0) & (position < extent)
        flat = flat * extent + position
    for limit in term.limits:
        valid &= limit.evaluate(labels, sizes) >= 0
    return flat.ravel(), valid.ravel()


@lru_cache(maxsize=256)
def coordinate_layout(structure: Structure) -> CoordinateLayout:
    """Sorted, unique positions of a structure and how its terms' values map to them.

    Takes time and memory in proportion to the number of entries; planning never calls it.
    """
    shape = (*structure.out_shape, *structure.in_shape)
    flat, valid = _all_positions(structure)
    kept = np.flatnonzero(valid)
    unique, entry = np.unique(flat[kept], return_inverse=True)
    if shape:
        indices = np.stack(np.unravel_index(unique, shape), axis=1)
    else:
        indices = np.zeros((len(unique), 0), np.int64)
    indices = indices.astype(np.int32)
    indices.setflags(write=False)
    return CoordinateLayout(indices, placement(kept, entry.ravel(), len(unique)))


def moved_placement(how: Placement, positions: np.ndarray) -> Placement:
    """The placement with its k-th value read at `positions[k]` instead."""
    moved = positions.astype(np.int32 if positions.max(initial=0) < 2**31 else np.int64)
    layers = tuple(replace(layer, reads=moved[layer.reads]) for layer in how.layers)
    return Placement(how.count, layers)


@lru_cache(maxsize=256)
def diagonal_placement(structure: Structure) -> Placement:
    """How the main diagonal of the flattened matrix is made from the values of the terms."""
    flat, valid = _all_positions(structure)
    rows, columns = (math.prod(s) for s in (structure.out_shape, structure.in_shape))
    row, column = np.divmod(flat, max(columns, 1))
    kept = np.flatnonzero(valid & (row == column))
    return placement(kept, row[kept], min(rows, columns))


def placement(reads: np.ndarray, entries: np.ndarray, count: int) -> Placement:
    """Sort values into layers: the k-th value of every entry stands in layer k.

    Adding up layers takes one pass of reads each and is vectorized, a scatter-add goes number by
    number; so few layers are kept apart, and many are one layer that names entries repeatedly.

    Args:
        reads: positions of the values.
        entries: for each the entry it adds to.
        count: number of entries.
    """
    order = np.argsort(entries, kind="stable")
    reads, entries = reads[order], entries[order]
    if len(reads) and reads.max() < np.iinfo(np.int32).max:
        reads = reads.astype(np.int32)
    if count < np.iinfo(np.int32).max:
        entries = entries.astype(np.int32)
    starts = np.flatnonzero(np.diff(entries, prepend=-1))
    rank = np.arange(len(entries)) - np.repeat(starts, np.diff(starts, append=len(entries)))
    depth = int(rank.max(initial=-1)) + 1
    layers = []
    for k in range(depth if depth <= MAX_LAYERS else 1):
        here = rank == k
        whole = int(here.sum()) == count
        layers.append(Layer(reads[here], None if whole else entries[here]))
    if depth > MAX_LAYERS:
        layers.append(Layer(reads[rank > 0], entries[rank > 0], unique=False))
    return Placement(count, tuple(layers))


def _all_positions(structure: Structure) -> tuple[np.ndarray, np.ndarray]:
    """`term_positions` of all terms, one after the other."""
    shape = (*structure.out_shape, *structure.in_shape)
    found = [term_positions(term, shape) for term in structure.terms]
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, bool)
    return np.concatenate([f for f, _ in found]), np.concatenate([v for _, v in found])


@lru_cache(maxsize=1024)
def structural_nonzeros(structure: Structure) -> int:
    """Number of distinct positions.

    In closed form where terms provably do not overlap (they differ by a constant shift, or lie in
    different boxes), by enumeration otherwise.
    """
    if all(_is_injective(term, structure) for term in structure.terms) and all(
        _disjoint(a, b) for k, a in enumerate(structure.terms) for b in structure.terms[k + 1 :]
    ):
        return sum(map(_count, structure.terms))
    return len(coordinate_layout(structure).indices)


def _count(term: Term) -> int:
    """Number of assignments of a term's position labels within its limits."""
    sizes = dict(enumerate(term.sizes))
    free, left, count = set(term.position_labels), list(term.limits), 1
    while left:
        names, group = set(left[0].labels), []
        while found := [limit for limit in left if names & {*limit.labels}]:
            group += found
            left = [limit for limit in left if limit not in found]
            names.update(*(limit.labels for limit in found))
        count *= _within(group, {n: sizes[n] for n in names})
        free -= names
    return count * math.prod(sizes[n] for n in free)


def _within(limits: list[Limit], sizes: dict[int, int]) -> int:
    """Number of assignments of some labels at which no limit is negative."""
    # Where limits are affine in a label, it runs over an interval for every choice of the others.
    affine = [n for n in sizes if all(limit.stride(n) is not None for limit in limits)]
    last = max(affine, key=lambda n: sizes[n], default=None)
    others = sorted(n for n in sizes if n != last)
    box = [sizes[n] for n in others]
    low, high = np.zeros(box, np.int64), np.full(box, 0 if last is None else sizes[last] - 1)
    for limit in limits:
        stride, rest = 0, limit
        if last is not None and isinstance(limit, IndexMap):
            stride = limit.stride(last) or 0
            rest = IndexMap(limit.offset, tuple(part for part in limit.parts if part[0] != last))
        values = rest.evaluate(others, sizes)
        if stride > 0:
            low = np.maximum(low, -(values // stride))
        elif stride < 0:
            high = np.minimum(high, values // -stride)
        else:
            high = np.where(values >= 0, high, -1)
    return int(np.maximum(high - low + 1, 0).sum())


def _is_injective(term: Term, structure: Structure) -> bool:
    """Whether different labels give different positions, all of them within the matrix."""
    sizes = dict(enumerate(term.sizes))
    alone = set()
    for axis, extent in zip(
        (*term.out, *term.into), (*structure.out_shape, *structure.in_shape), strict=True
    ):
        low, high = axis.bounds(sizes)
        if low < 0 or high >= extent or not axis.is_affine:
            return False
        if len(axis.parts) == 1:
            alone.add(axis.labels[0])
    return alone == term.position_labels


def _disjoint(first: Term, second: Term) -> bool:
    """Whether two affine terms provably share no position."""
    maps = list(zip((*first.out, *first.into), (*second.out, *second.into), strict=True))
    sizes = dict(enumerate(first.sizes)), dict(enumerate(second.sizes))
    for one, other in maps:
        (low, high), (other_low, other_high) = one.bounds(sizes[0]), other.bounds(sizes[1])
        if high < other_low or other_high < low:
            return True
    # The difference of two dimensions of stride one in the same label is constant on each term.
    shifts = [_shifts(term) for term in (first, second)]
    return any(shifts[0][pair] != shifts[1][pair] for pair in shifts[0].keys() & shifts[1].keys())


def _shifts(term: Term) -> dict[tuple[int, int], int]:
    """For pairs of dimensions that run along the same label with stride one their difference."""
    maps = (*term.out, *term.into)
    result: dict[tuple[int, int], int] = {}
    for a, one in enumerate(maps):
        for b in range(a + 1, len(maps)):
            other = maps[b]
            if one.parts == other.parts and all(p == 1 for _, p in one.parts):
                result[a, b] = other.offset - one.offset
    return result
