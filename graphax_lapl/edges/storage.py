"""Which arrays a sparse result keeps, and how its terms read them.

A number is stored once. A term whose values are one known number reads it from an array of all
such numbers; terms that read one slot (the two ends of a shifted diagonal, a column and its mirror
image) share an array; values that repeat along a label are stored without it. No arithmetic is put
off: a stored array holds entries, so what is done to all arrays alike (scaling, sums over a batch,
tangents) is done to the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from .layout import Placement, coordinate_layout, diagonal_placement, moved_placement
from .maps import constant, label
from .terms import Factor, Number, Structure, Term, with_terms
from .values import immutable

__all__ = ["Storage", "StoredArray", "full_storage", "storage_of", "stored_placement"]

#: Arrays of up to so many elements are stored whole, whatever part of them is read.
SMALL = 64
#: Arrays of one shape and up to so many elements are stacked: an output of its own costs more time.
MAX_STACKED = 1 << 13
#: All arrays of a result of up to so many elements are one vector, for the same reason.
MAX_JOINED = 1 << 10


@immutable
class StoredArray:
    """One array of a sparse result; exactly one of the first four is set.

    Attributes:
        parts: arrays of one shape, stacked along a new leading axis; or, where `joined`, of any
            shapes, raveled one after the other.
        numbers: known numbers, side by side.
        slot: a slot of the program, all of it, times the coefficient.
        term: the values of a term of the block, over `labels`.
        coefficient: see `slot`.
        labels: see `term`.
    """

    parts: tuple[StoredArray, ...] = ()
    numbers: tuple[Number, ...] = ()
    slot: int | None = None
    term: int | None = None
    coefficient: Number = 1
    labels: tuple[int, ...] = ()
    joined: bool = False


@immutable
class Storage:
    """How a block is stored.

    Attributes:
        structure: its positions; every term has one factor and the coefficient one.
        sources: for every term the array that its factor reads.
        arrays: the arrays.
    """

    structure: Structure
    sources: tuple[int, ...]
    arrays: tuple[StoredArray, ...]


def full_storage(structure: Structure) -> Storage:
    """An array of its own for every term of a structure as `value_structure` makes it."""
    count = len(structure.terms)
    arrays = tuple(
        StoredArray(term=k, labels=tuple(term.labels)) for k, term in enumerate(structure.terms)
    )
    return Storage(structure, tuple(range(count)), arrays)


@lru_cache(maxsize=1024)
def storage_of(structure: Structure, slots: tuple[int, ...], direct: frozenset[int]) -> Storage:
    """How a block of a program is stored.

    Args:
        structure: of the block.
        slots: the slot of each factor.
        direct: slots whose elements are numbers of the block's dtype.
    """
    owned, start = [], 0
    for term in structure.terms:
        owned.append(slots[start : start + len(term.factors)])
        start += len(term.factors)
    pairs = list(zip(structure.terms, owned, strict=True))
    numbers = tuple(dict.fromkeys(term.coefficient for term, own in pairs if not own))
    whole = _worth_storing(pairs, direct)
    arrays: dict[Hashable, StoredArray] = {}
    keys: list[Hashable] = []
    terms = []
    for k, (term, own) in enumerate(pairs):
        names = {n: j for j, n in enumerate(sorted(term.position_labels))}
        if not own:
            key: Hashable = "numbers"
            made = StoredArray(numbers=numbers)
            factor = Factor((constant(numbers.index(term.coefficient)),), (len(numbers),))
        elif (own[0], term.coefficient) in whole and _is_read(term, own, direct):
            key = (own[0], term.coefficient)
            made = StoredArray(slot=own[0], coefficient=term.coefficient)
            axes = tuple(axis.renamed(names) for axis in term.factors[0].axes)
            factor = Factor(axes, term.factors[0].shape)
        else:
            used = frozenset().union(*(f.labels for f in term.factors)) & term.position_labels
            labels = tuple(sorted(used))
            key = _content(term, own, labels)
            made = StoredArray(term=k, labels=labels)
            factor = Factor(
                tuple(label(names[n]) for n in labels), tuple(term.sizes[n] for n in labels)
            )
        arrays.setdefault(key, made)
        keys.append(key)
        terms.append(
            Term(
                tuple(term.sizes[n] for n in names),
                tuple(axis.renamed(names) for axis in term.out),
                tuple(axis.renamed(names) for axis in term.into),
                (factor,),
                limits=tuple(limit.renamed(names) for limit in term.limits),
            )
        )
    shapes = {key: term.factors[0].shape for key, term in zip(keys, terms, strict=True)}
    total = sum(math.prod(shape) for shape in shapes.values())
    if len(arrays) > 1 and total <= MAX_JOINED and len({*shapes.values()}) > 1:
        starts, begin = {}, 0
        for key in arrays:
            starts[key] = begin
            begin += math.prod(shapes[key])
        joined = [_in_vector(t, starts[k], total) for k, t in zip(keys, terms, strict=True)]
        whole_vector = StoredArray(parts=tuple(arrays.values()), joined=True)
        return Storage(with_terms(structure, joined), (0,) * len(terms), (whole_vector,))
    stacks: dict[Hashable, list[Hashable]] = {}
    for key, shape in shapes.items():
        stacked = key != "numbers" and math.prod(shape) <= MAX_STACKED
        stacks.setdefault(("stack", shape) if stacked else key, []).append(key)
    kept: list[StoredArray] = []
    places: dict[Hashable, tuple[int, int | None]] = {}
    for group in stacks.values():
        for j, key in enumerate(group):
            places[key] = len(kept), j if len(group) > 1 else None
        parts = tuple(arrays[key] for key in group)
        kept.append(StoredArray(parts=parts) if len(parts) > 1 else parts[0])
    sizes = [len(array.parts) for array in kept]
    terms = [_in_stack(term, *places[key], sizes) for key, term in zip(keys, terms, strict=True)]
    sources = tuple(places[key][0] for key in keys)
    return Storage(with_terms(structure, terms), sources, tuple(kept))


def _in_vector(term: Term, start: int, total: int) -> Term:
    """The term, reading its array raveled into a vector of so many elements."""
    (factor,) = term.factors
    sizes = dict(enumerate(term.sizes))
    place = constant(0)
    for axis, extent in zip(factor.axes, factor.shape, strict=True):
        place = place.scaled(extent).plus(axis, sizes)
    return replace(term, factors=(Factor((place.shifted(start),), (total,)),))


def _in_stack(term: Term, source: int, part: int | None, sizes: Sequence[int]) -> Term:
    """The term, reading its array as a part of a stack of so many."""
    if part is None:
        return term
    (factor,) = term.factors
    whole = Factor((constant(part), *factor.axes), (sizes[source], *factor.shape))
    return replace(term, factors=(whole,))


def _worth_storing(
    pairs: Sequence[tuple[Term, tuple[int, ...]]], direct: Collection[int]
) -> frozenset[tuple[int, Number]]:
    """Slots, with coefficients, of which the terms together read at least one half."""
    reads: dict[tuple[int, Number], dict[Hashable, int]] = {}
    sizes: dict[tuple[int, Number], int] = {}
    for term, own in pairs:
        if _is_read(term, own, direct):
            factor = term.factors[0]
            key = (own[0], term.coefficient)
            sizes[key] = math.prod(factor.shape)
            labels = sorted(factor.labels)
            order = {n: k for k, n in enumerate(labels)}
            box = tuple(term.sizes[n] for n in labels)
            view = (box, tuple(axis.renamed(order) for axis in factor.axes))
            reads.setdefault(key, {})[view] = math.prod(box)
    return frozenset(
        key for key, size in sizes.items() if size <= SMALL or 2 * sum(reads[key].values()) >= size
    )


def _is_read(term: Term, own: tuple[int, ...], direct: Collection[int]) -> bool:
    """Whether the term's values are elements of one slot times a real number."""
    if len(own) != 1 or own[0] not in direct or isinstance(term.coefficient, complex):
        return False
    (factor,) = term.factors
    if factor.conj or not factor.labels <= term.position_labels or 0 in term.sizes:
        return False
    sizes = dict(enumerate(term.sizes))
    bounds = [axis.bounds(sizes) for axis in factor.axes]
    return all(
        low >= 0 and high < extent for (low, high), extent in zip(bounds, factor.shape, strict=True)
    )


def _content(term: Term, own: tuple[int, ...], labels: tuple[int, ...]) -> Hashable:
    """Equal for terms whose values over `labels` are equal."""
    summed = sorted({n for f in term.factors for n in f.labels} - {*labels})
    order = {n: k for k, n in enumerate((*labels, *summed))}
    reads = tuple(
        (slot, tuple(axis.renamed(order) for axis in factor.axes), factor.conj)
        for slot, factor in zip(own, term.factors, strict=True)
    )
    return term.coefficient, reads, tuple(term.sizes[n] for n in order), len(labels)


@lru_cache(maxsize=256)
def stored_placement(
    structure: Structure, sources: tuple[int, ...], diagonal: bool = False
) -> Placement | None:
    """The entries in coordinate order, or the main diagonal, as reads from the arrays.

    Args:
        structure: of the result.
        sources: for every term the array that it reads.
        diagonal: of the flattened matrix, instead of all entries.

    Returns:
        A placement that counts the elements of all arrays one after the other; None where a term
        does more than read an array.
    """
    reads = _stored_positions(structure, sources)
    if reads is None:
        return None
    how = diagonal_placement(structure) if diagonal else coordinate_layout(structure).placement
    return moved_placement(how, reads)


def _stored_positions(structure: Structure, sources: tuple[int, ...]) -> np.ndarray | None:
    """For each value of each term its position in the arrays, raveled one after the other."""
    starts: dict[int, int] = {}
    shapes = {s: term.factors[0].shape for s, term in zip(sources, structure.terms, strict=True)}
    total = 0
    for source in sorted(shapes):
        starts[source] = total
        total += math.prod(shapes[source])
    found = []
    for source, term in zip(sources, structure.terms, strict=True):
        (factor,) = term.factors
        if term.coefficient != 1 or not _is_read(term, (0,), (0,)):
            if 0 not in term.sizes:
                return None
            continue
        labels = sorted(term.position_labels)
        sizes = dict(enumerate(term.sizes))
        flat = np.zeros(tuple(sizes[n] for n in labels), np.int64)
        for axis, extent in zip(factor.axes, factor.shape, strict=True):
            flat = flat * extent + axis.evaluate(labels, sizes)
        found.append(flat.ravel() + starts[source])
    if not found:
        return np.zeros(0, np.int64)
    return np.concatenate(found)
