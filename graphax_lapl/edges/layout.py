"""Where the entries of a structure stand: positions, their number, coordinate form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .terms import Structure, Term

__all__ = [
    "CoordinateLayout",
    "coordinate_layout",
    "structural_nonzeros",
    "term_positions",
]


@dataclass(frozen=True, eq=False)
class CoordinateLayout:
    """Coordinate form of a structure.

    Attributes:
        indices: sorted, unique positions, shape `(nse, number of dimensions)`.
        source: for every value of the concatenated terms the entry that it adds to.
        chosen: which of those values lie within the matrix (None: all).
        is_permutation: whether every entry has exactly one value, so that nothing is added up.
    """

    indices: np.ndarray
    source: np.ndarray
    chosen: np.ndarray | None
    is_permutation: bool


def term_positions(term: Term, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Flat position of each value of a term, and whether it lies within the matrix."""
    sizes = dict(enumerate(term.sizes))
    labels = sorted(term.position_labels)
    box = tuple(sizes[name] for name in labels)
    flat = np.zeros(box, np.int64)
    valid = np.ones(box, bool)
    for axis, extent in zip((*term.out, *term.into), shape, strict=True):
        position = axis.evaluate(labels, sizes)
        valid &= (position >= 0) & (position < extent)
        flat = flat * extent + position
    return flat.ravel(), valid.ravel()


@lru_cache(maxsize=256)
def coordinate_layout(structure: Structure) -> CoordinateLayout:
    """Sorted, unique positions of a structure and how its terms' values map to them.

    Takes time and memory in proportion to the number of entries; planning never calls it.
    """
    shape = (*structure.out_shape, *structure.in_shape)
    found = [term_positions(term, shape) for term in structure.terms]
    empty = np.zeros(0, np.int64)
    flat = np.concatenate([f for f, _ in found]) if found else empty
    valid = np.concatenate([v for _, v in found]) if found else empty.astype(bool)
    chosen = None
    if not valid.all():
        chosen = np.flatnonzero(valid)
        flat = flat[chosen]
    unique, source = np.unique(flat, return_inverse=True)
    indices = (
        np.stack(np.unravel_index(unique, shape), axis=1) if shape else np.zeros((len(unique), 0))
    )
    return CoordinateLayout(
        indices.astype(np.int32), source.ravel(), chosen, len(unique) == len(flat)
    )


@lru_cache(maxsize=1024)
def structural_nonzeros(structure: Structure) -> int:
    """Number of distinct positions.

    In closed form where terms provably do not overlap (they differ by a constant shift, or lie in
    different boxes), by enumeration otherwise.
    """
    if all(_is_injective(term, structure) for term in structure.terms) and all(
        _disjoint(a, b) for k, a in enumerate(structure.terms) for b in structure.terms[k + 1 :]
    ):
        return sum(term.entries for term in structure.terms)
    return len(coordinate_layout(structure).indices)


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
