"""Zeros known while planning: masks, zero taps of a kernel, identity and band matrices.

Where a constant array holds zeros, the terms that multiply by them are cut down to the other
entries, so a five-point kernel is five shifted diagonals, and a product with an identity matrix is
a diagonal. Only *where* a floating-point constant is zero is used: its other values may change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..edges.draft import Draft
from ..edges.maps import IndexMap, constant, from_values
from ..edges.masks import MAX_MASK, Mask, pattern_mask
from ..graph.listing import Listing
from .site import Known, Piece, Primal, Reference

__all__ = ["known_support", "without_zeros"]

#: Largest box of labels (assignments) that is searched for zeros.
MAX_BOX = 1 << 20
#: Most terms that one factor is split into: entries of a window, or diagonals of a matrix.
MAX_SPLIT = 16
#: Up to so many entries a matrix whose diagonals are shorter than they are many stays whole: one
#: product costs less than to take it apart, entry by entry, and to put the result together again.
SMALL = 256
#: Up to so many entries a factor of a product of matrices does so too where its diagonals lie
#: apart, and are not joined to a band again: with two of them on both sides, as a state's
#: transition has them, the product is four terms, and so is all that is multiplied by it.
SMALL_APART = 64
#: Up to so many entries a matrix that is multiplied, of which one entry in FILLED is not zero,
#: stays whole too where it is no band: a product with a dense matrix is then one kernel, and not a
#: number for each entry and each column, added by position.
LARGE = 1 << 14
FILLED = 16
#: A row of data with zeros at no regular places, as labels of two classes are, stays whole where
#: more than one entry in so many is not zero: entries picked out are put back one by one.
MANY_LEFT = 16


def without_zeros(piece: Piece, listing: Listing) -> list[Piece]:
    """The piece cut down to the entries at which none of its factors is known to be zero."""
    for reference in piece.references:
        if known_support(reference, listing) is not None:
            break
    else:
        return [piece]
    supports = [known_support(reference, listing) for reference in piece.references]
    for position, support in enumerate(supports):
        if support is None or support.shape != piece.term.factors[position].shape:
            continue
        parts = _split(piece, position, support, _known(piece.references[position], listing))
        if parts is not None:
            return [whole for part in parts for whole in without_zeros(part, listing)]
    return [_limited(piece, supports)]


def _limited(piece: Piece, supports: Sequence[np.ndarray | None]) -> Piece:
    """The piece that knows where it is zero by the zeros that stay in its factors."""
    masks = []
    for support, factor in zip(supports, piece.term.factors, strict=True):
        if support is None or support.shape != factor.shape or support.size > MAX_MASK:
            continue
        if not support.all() and factor.labels <= piece.term.position_labels:
            masks.append(Mask(factor.axes, pattern_mask(support).marks))
    if not masks:
        return piece
    return Piece(replace(piece.term, limits=(*piece.term.limits, *masks)), piece.references)


def known_support(reference: Reference, listing: Listing) -> np.ndarray | None:
    """Where an array that does not move is not zero; None where that is not known."""
    if isinstance(reference, Known):
        return reference.value != 0
    if not isinstance(reference, Primal) or not (listing.known or listing.support):
        return None
    variable = reference.variable
    if variable in listing.known:
        return None if _moves(reference, listing) else listing.known[variable] != 0
    support = listing.support.get(variable)
    return None if support is None or _moves(reference, listing) else support


def _moves(reference: Primal, listing: Listing) -> bool:
    """Whether a value has a derivative, by a rule of its own: zero now is not zero nearby."""
    return listing.moving_vertex(reference.variable) is not None


def _known(reference: Reference, listing: Listing) -> np.ndarray | None:
    if isinstance(reference, Primal):
        return None if _moves(reference, listing) else listing.known.get(reference.variable)
    return reference.value if isinstance(reference, Known) else None


def _split(
    piece: Piece, position: int, support: np.ndarray, value: np.ndarray | None
) -> list[Piece] | None:
    """Pieces without the zeros of one factor; None where it has none, or they stay in."""
    term = piece.term
    factor = term.factors[position]
    sizes = dict(enumerate(term.sizes))
    names = sorted(factor.labels)
    box = [sizes[name] for name in names]
    if factor.opaque or math.prod(box) > MAX_BOX:
        return None
    places = tuple(axis.evaluate(names, sizes) for axis in factor.axes)
    if any((p < 0).any() or (p >= n).any() for p, n in zip(places, factor.shape, strict=True)):
        return None
    mask = np.broadcast_to(support[places], box)
    if mask.all():
        return None
    varying = [k for k in range(len(box)) if (mask != mask.take([0], axis=k)).any()]
    shared = tuple(slice(None) if k in varying else 0 for k in range(len(box)))
    points = np.nonzero(mask[shared]) if varying else ()
    if not mask.any():
        return []
    labels = [names[k] for k in varying]
    return [
        made
        for expressions, size in _pieces_of(labels, points, piece)
        for made in _restricted(
            piece, position, dict(zip(labels, expressions, strict=True)), size, value
        )
    ] or None


def _pieces_of(
    labels: list[int], points: Sequence[np.ndarray], piece: Piece
) -> list[tuple[list[IndexMap], int]]:
    """How the labels run over the points: for each part, an expression in a new label each."""
    term = piece.term
    new = len(term.sizes)
    count = len(points[0])
    joint = [from_values(new, values) for values in points]
    if all(expression.is_affine for expression in joint):
        return [(joint, count)]
    alone = {a.labels[0] for a in (*term.out, *term.into) if len(a.labels) == 1}
    if not alone & set(labels) and count <= MAX_SPLIT:
        return [([constant(int(p)) for p in point], 1) for point in zip(*points, strict=True)]
    if len(labels) == 2:
        shifts = np.unique(points[1] - points[0])
        diagonals = [
            [values[points[1] - points[0] == shift] for values in points] for shift in shifts
        ]
        size = math.prod(term.sizes[name] for name in labels)
        apart = len(shifts) > 1 and np.diff(shifts).min() > 1 and len(term.sizes) > len(labels)
        whole = len(shifts) ** 2 > count or (size <= SMALL_APART and apart)
        if len(shifts) <= MAX_SPLIT and (size > SMALL or not whole):
            return [
                ([from_values(new, values) for values in pair], len(pair[0])) for pair in diagonals
            ]
        multiplied = not ({n for a in term.out for n in a.labels} & set(labels)) & {
            n for a in term.into for n in a.labels
        }
        if size <= SMALL or (multiplied and size <= min(LARGE, FILLED * count)):
            return []
    size = math.prod(term.sizes[name] for name in labels)
    left = MANY_LEFT if len(labels) == 1 else 2
    return [(joint, count)] if left * count <= size else []


def _restricted(
    piece: Piece,
    position: int,
    expressions: dict[int, IndexMap],
    size: int,
    value: np.ndarray | None,
) -> list[Piece]:
    """The piece with labels replaced, and its factor a number where it then is a known one."""
    term, references = piece.term, list(piece.references)
    draft = Draft.of(term, list(range(len(references))))
    draft.sizes[len(term.sizes)] = size
    for name, expression in expressions.items():
        if not draft.bind(name, expression):
            raise AssertionError("an expression of one label can always be put in")
    if value is not None and not np.iscomplexobj(value):
        factor = draft.factors[position].factor
        names = sorted(factor.labels)
        chosen = value[tuple(axis.evaluate(names, draft.sizes) for axis in factor.axes)]
        if (chosen == chosen.flat[0]).all():
            number = float(chosen.flat[0])
            draft.coefficient = draft.coefficient * (int(number) if number.is_integer() else number)
            del draft.factors[position]
    finished = draft.finish()
    if finished is None:
        return []
    made, operands = finished
    return [Piece(made, tuple(references[k] for k in operands))]
