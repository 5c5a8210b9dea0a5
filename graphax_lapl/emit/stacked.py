"""Terms that differ in single positions alone, written as one.

Points that a quaternion turns have a diagonal, or a column, for each component and number of the
quaternion: eighteen terms along the points, at as many of the twelve places. Each of them would
pass over the whole matrix. Their values are written side by side instead (`packing.py`), and stand
along the points as one term. Of residuals `y - a exp(-b t)` at times from zero on, the derivative
along b has no first entry: columns that lack a few are extended by zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jax import Array, lax

from ..edges.maps import IndexMap, label, renamed
from ..edges.terms import Factor, Structure, Term
from .arrays import broadcast_labels, promoted
from .packing import along_new_axis, by_digits

__all__ = ["is_stacked", "side_by_side", "stacked_groups"]

#: Fewest terms that are written side by side, and fewest of them that are computed: fewer are
#: selected in one vectorised loop.
MIN_TERMS, MIN_COMPUTED = 4, 2
#: Most places for each of them.
MAX_PLACES = 4
#: Most places along one dimension among which every entry selects its own; more are written as
#: numbers are, as are those along several.
MAX_SELECTED = 24
#: Positions of a dimension for each one that a term may leave out, and be extended by zeros.
EXTENDED = 4

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
    for number, given in enumerate(terms):
        if not given.position_labels:
            continue
        term = _extended(given, shape)[0]
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
        if len(numbers) >= MIN_TERMS
        and sum(1 for n in numbers if terms[n].factors) >= MIN_COMPUTED
        and math.prod(_box([terms[n] for n in numbers])[2]) <= MAX_PLACES * len(numbers)
    ]


def _extended(term: Term, shape: tuple[int, ...]) -> tuple[Term, dict[int, tuple[int, int]]]:
    """A term, extended to the whole of dimensions that it covers most of.

    Returns:
        Where the term stands then, and how many zeros come before and after, for every label of it
        that is extended.
    """
    maps = (*term.out, *term.into)
    zeros: dict[int, tuple[int, int]] = {}
    for d, axis in enumerate(maps):
        if not axis.parts:
            continue
        (name, stride), *more = axis.parts
        low, high = axis.offset, shape[d] - axis.offset - term.sizes[name]
        alone = not more and stride == 1 and sum(name in other.labels for other in maps) == 1
        if not alone or min(low, high) < 0 or EXTENDED * (low + high) > shape[d]:
            return term, {}
        if low or high:
            zeros[name] = low, high
    if not zeros:
        return term, {}
    sizes = tuple([size + sum(zeros.get(name, ())) for name, size in enumerate(term.sizes)])
    moved = [label(axis.labels[0]) if axis.parts else axis for axis in maps]
    split = len(term.out)
    return Term(sizes, tuple(moved[:split]), tuple(moved[split:]), conj=term.conj), zeros


def _box(terms: Sequence[Term]) -> Box:
    """Where the positions of terms stand that have the same labels along all other dimensions."""
    maps = [(*term.out, *term.into) for term in terms]
    dimensions = tuple([d for d, axis in enumerate(maps[0]) if not axis.parts])
    places = np.array([[axes[d].offset for d in dimensions] for axes in maps])
    first = places.min(axis=0)
    extents = places.max(axis=0) - first + 1
    return dimensions, tuple(first.tolist()), tuple(extents.tolist())


def side_by_side(
    terms: Sequence[Term],
    values: Sequence[tuple[Array, tuple[int, ...]]],
    shape: tuple[int, ...],
) -> tuple[Term, Array]:
    """One term for a group of them, and the array of its factor.

    Args:
        terms: the terms.
        values: their products of factors with the labels of the axes.
        shape: of the matrix, (output..., input...).
    """
    extended = [_extended(term, shape) for term in terms]
    values = [
        _filled(term, *given, zeros)
        for term, given, (_, zeros) in zip(terms, values, extended, strict=True)
    ]
    terms = [term for term, _ in extended]
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
    if count <= MAX_SELECTED and count in extents:
        rows = along_new_axis(found, count)
    else:
        rows = by_digits(tuple(places), count, [found[place] for place in places])
    # Labels are numbered one after the other, those of the box last.
    moved = {name: k for k, name in enumerate(labels)}
    maps = renamed(maps, moved)
    for k, (dimension, start) in enumerate(zip(dimensions, first, strict=True)):
        maps[dimension] = label(len(labels) + k).shifted(start)
    axes = [*(moved[name] for name in held), *range(len(labels), len(labels) + len(extents))]
    lengths = (*(sizes[name] for name in labels), *extents)
    extent = tuple(lengths[k] for k in axes)
    factor = Factor(tuple([label(k) for k in axes]), extent)
    split = len(head.out)
    term = Term(lengths, tuple(maps[:split]), tuple(maps[split:]), (factor,), 1, head.conj)
    return term, lax.reshape(rows, extent)


def _filled(
    term: Term, value: Array, names: tuple[int, ...], zeros: dict[int, tuple[int, int]]
) -> tuple[Array, tuple[int, ...]]:
    """The values of a term between zeros (see `_extended`), and the labels of their axes."""
    if not zeros:
        return value, names
    labels = tuple(sorted({*names, *zeros}))
    value = broadcast_labels(value, names, labels, dict(enumerate(term.sizes)))
    config = [(*zeros.get(name, (0, 0)), 0) for name in labels]
    return lax.pad(value, np.zeros((), value.dtype), config), labels
