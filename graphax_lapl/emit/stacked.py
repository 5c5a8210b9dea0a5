"""Terms that differ in single positions alone, written as one.

Points that a quaternion turns have a diagonal, or a column, for each component and number of the
quaternion: eighteen terms along the points, at as many of the twelve places. Each of them would
pass over the whole matrix. Their values are written side by side instead, as numbers are
(`packing.py`), and stand along the points as one term.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jax import Array, lax

from ..edges.maps import IndexMap, label, renamed
from ..edges.terms import Factor, Structure, Term
from .arrays import broadcast_labels, promoted
from .packing import by_digits

__all__ = ["is_stacked", "side_by_side", "stacked_groups"]

#: Fewest terms that are written side by side: fewer are selected in one vectorised loop.
MIN_TERMS = 4
#: Most places for each of them.
MAX_PLACES = 4

#: Dimensions, and the smallest box of their positions: first ones and extents.
Box = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def is_stacked(structure: Structure) -> bool:
    """Whether all terms with factors, single numbers apart, are one when written side by side."""
    shape = (*structure.out_shape, *structure.in_shape)
    moving = {n for n, term in enumerate(structure.terms) if term.position_labels and term.factors}
    groups = stacked_groups(structure.terms, shape)
    return len(groups) == 1 and moving <= {*groups[0]}


def stacked_groups(terms: Sequence[Term], shape: tuple[int, ...]) -> list[list[int]]:
    """Which terms are written side by side, by their numbers.

    Args:
        terms: the terms.
        shape: of the matrix, (output..., input...).
    """
    kinds: dict[object, list[int]] = {}
    for number, term in enumerate(terms):
        if not term.position_labels:
            continue
        maps = (*term.out, *term.into)
        moving = tuple([None if not axis.parts else axis for axis in maps])
        inside = all(
            axis.parts or 0 <= axis.offset < extent
            for axis, extent in zip(maps, shape, strict=True)
        )
        if inside and None in moving and all(axis is None or axis.is_affine for axis in moving):
            sizes = tuple([(name, term.sizes[name]) for name in sorted(term.position_labels)])
            kinds.setdefault((moving, sizes, term.conj), []).append(number)
    return [
        numbers
        for numbers in kinds.values()
        if sum(1 for n in numbers if terms[n].factors) >= MIN_TERMS
        and math.prod(_box([terms[n] for n in numbers])[2]) <= MAX_PLACES * len(numbers)
    ]


def _box(terms: Sequence[Term]) -> Box:
    """Where the positions of terms stand that have the same labels along all other dimensions."""
    maps = [(*term.out, *term.into) for term in terms]
    dimensions = tuple([d for d, axis in enumerate(maps[0]) if not axis.parts])
    places = np.array([[axes[d].offset for d in dimensions] for axes in maps])
    first = places.min(axis=0)
    extents = places.max(axis=0) - first + 1
    return dimensions, tuple(first.tolist()), tuple(extents.tolist())


def side_by_side(
    terms: Sequence[Term], values: Sequence[tuple[Array, tuple[int, ...]]]
) -> tuple[Term, Array]:
    """One term for a group of them, and the array of its factor.

    Args:
        terms: the terms.
        values: their products of factors with the labels of the axes.
    """
    dimensions, first, extents = _box(terms)
    head = terms[0]
    maps: list[IndexMap] = [*head.out, *head.into]
    sizes = dict(enumerate(head.sizes))
    labels = tuple(sorted(head.position_labels))
    held = tuple(sorted({name for _, names in values for name in names}))
    arrays = promoted([value for value, _ in values])
    found: dict[int, Array] = {}
    for term, array, (_, names) in zip(terms, arrays, values, strict=True):
        own = (*term.out, *term.into)
        place = [own[d].offset - start for d, start in zip(dimensions, first, strict=True)]
        flat = int(np.ravel_multi_index(place, extents))
        whole = broadcast_labels(array, names, held, sizes)
        found[flat] = lax.add(found[flat], whole) if flat in found else whole
    places = sorted(found)
    count = math.prod(extents)
    rows = by_digits(tuple(places), count, [found[place] for place in places])
    # Labels are numbered one after the other, those of the box last.
    moved = {name: k for k, name in enumerate(labels)}
    maps = renamed(maps, moved)
    for k, (dimension, start) in enumerate(zip(dimensions, first, strict=True)):
        maps[dimension] = label(len(labels) + k).shifted(start)
    axes = [*(moved[name] for name in held), *range(len(labels), len(labels) + len(extents))]
    lengths = (*(sizes[name] for name in labels), *extents)
    shape = tuple(lengths[k] for k in axes)
    factor = Factor(tuple([label(k) for k in axes]), shape)
    split = len(head.out)
    term = Term(lengths, tuple(maps[:split]), tuple(maps[split:]), (factor,), 1, head.conj)
    return term, lax.reshape(rows, shape)
