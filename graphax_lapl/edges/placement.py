"""Products in which one side only says where the other one stands.

The partials of sums, differences, multiples and concatenations are multiples of an identity, or of
one between an array and a part of a larger array; half of the products of a plan have such a side.
The terms of the other side stay what they are: nothing is joined, solved and made canonical.
"""

from __future__ import annotations

import math
from functools import lru_cache

from .maps import IndexMap, constant
from .operations import Recipe
from .terms import Number, Structure, Term, intern_structure, product_of
from .values import record

__all__ = ["placed"]


@record
class Placement:
    """A multiple of an identity between an array and a part of another one, or all of it.

    Attributes:
        places: for each dimension of the other array, the array's own one and where it starts, or
            None and a position.
        coefficient: the multiple.
        identity: whether both arrays are one.
    """

    places: tuple[tuple[int | None, int], ...]
    coefficient: Number
    identity: bool


def placed(outer: Structure, inner: Structure) -> Recipe | None:
    """The product where one side is such a multiple; None where it is not, or more is to be done.

    The recipe is what `compose` finds for terms in normal form.
    """
    if outer.complex_out or outer.complex_in or inner.complex_out or inner.complex_in:
        return None
    place, other = _placement(outer, True), inner
    outside = place is not None
    if place is None:
        place, other = _placement(inner, False), outer
        if place is None:
            return None
    shape = (*other.out_shape, *other.in_shape)
    terms: list[Term] = []
    for term in other.terms:
        moved = _moved(term, place, outside, shape)
        if moved is None:
            return None
        terms.append(moved)
    structure = intern_structure(outer.out_shape, inner.in_shape, terms)
    ad = sum([math.prod(term.sizes) for term in terms])
    return Recipe(structure, tuple(range(len(structure.factors))), (), ad)


@lru_cache(maxsize=1 << 14)
def _placement(structure: Structure, outside: bool) -> Placement | None:
    """The part of its output that it puts its input into.

    Not `outside`, the part of its input that it takes its output from.
    """
    if len(structure.terms) != 1:
        return None
    (term,) = structure.terms
    if term.factors or term.limits or term.conj:
        return None
    rank = len(term.out)
    sides = (
        (term.out, structure.out_shape, term.bounds[:rank]),
        (term.into, structure.in_shape, term.bounds[rank:]),
    )
    (whole, whole_shape, bounds), (own, shape, _) = sides if outside else sides[::-1]
    names: dict[int, int] = {}
    for k, (axis, size) in enumerate(zip(own, shape, strict=True)):
        if axis.is_plain(size, term.sizes):
            if names.setdefault(axis.labels[0], k) != k:
                return None
        elif size != 1 or axis.parts or axis.offset:
            return None
    if len(names) < len(term.sizes):
        return None
    places: list[tuple[int | None, int]] = []
    for axis, size, (low, high) in zip(whole, whole_shape, bounds, strict=True):
        if low < 0 or high >= size or [stride for _, stride in axis.parts] not in ([], [1]):
            return None
        places.append((names[axis.labels[0]] if axis.parts else None, axis.offset))
    # In another order labels would be numbered anew.
    if [k for k, _ in places if k is not None] != sorted(names.values()):
        return None
    return Placement(tuple(places), term.coefficient, whole == own)


def _moved(term: Term, place: Placement, outside: bool, shape: tuple[int, ...]) -> Term | None:
    """A term of the other side in that place, None where it may not stay as it is.

    Args:
        term: the term; its entries outside of its matrix would be dropped.
        place: where it goes.
        outside: whether its output dimensions go there, or those of its input.
        shape: its matrix, (output..., input...).
    """
    if term.limits or not term.is_affine:
        return None
    for (low, high), size in zip(term.bounds, shape, strict=True):
        if low < 0 or high >= size:
            return None
    coefficient = product_of(place.coefficient, term.coefficient)
    if coefficient == 0:
        return None
    if place.identity:
        return term.times(coefficient)
    axes = term.out if outside else term.into
    there = tuple([constant(by) if k is None else _shifted(axes[k], by) for k, by in place.places])
    out, into = (there, term.into) if outside else (term.out, there)
    return Term(term.sizes, out, into, term.factors, coefficient)


def _shifted(axis: IndexMap, by: int) -> IndexMap:
    return IndexMap(axis.offset + by, axis.parts) if by else axis
