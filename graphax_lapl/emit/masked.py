"""Entries that are read from a static table of the matrix' own shape: constants and masks.

Entries that are known while planning, as the weights of a difference stencil, are one constant.
Comparing positions for each diagonal of them takes up to seven times as long in small matrices.

Where tables place entries, what stands at a position may be read by that position. The Jacobian of
`s * cumsum(x)` has `s[i]` at all `(i, j)` with `j <= i`: a table lists the positions, but the
factor is read by the row alone. Repeated along the columns and selected by a mask it is one fused
expression, where a scatter writes number by number.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.layout import term_positions
from ..edges.maps import IndexMap
from ..edges.terms import Term
from .arrays import promoted, promoted_dtype, scaled

__all__ = ["MaskedGroup", "known_entries", "masked_groups", "read_by_position", "spread_and_masked"]

#: Matrices of up to so many entries keep those that are known as one constant.
MAX_KNOWN = 1 << 14
#: A matrix is selected by a mask where it has at most so many times as many places as entries.
MAX_PLACES = 32
#: Masks of more places are not kept in a program.
MAX_MASK = 1 << 16
#: Most diagonals that are told by their distance from the main one.
MAX_DIAGONALS = 4

#: For every factor the dimension of the matrix that each of its axes runs along.
Along = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=1 << 12)
def read_by_position(term: Term, shape: tuple[int, ...]) -> Along | None:
    """How the factors of a term are read by positions; None where they are not.

    Args:
        term: the term.
        shape: of the matrix, (output..., input...).
    """
    maps = (*term.out, *term.into)
    affine = all(axis.is_affine for axis in maps)
    size = math.prod(shape)
    if size > MAX_MASK or not (affine or size <= MAX_PLACES * term.entries):
        return None
    if not term.factors or len(term.position_labels) < len(term.sizes):
        return None
    along = []
    for factor in term.factors:
        found = [
            _dimension(axis, extent, maps, shape)
            for axis, extent in zip(factor.axes, factor.shape, strict=True)
        ]
        places = tuple([place for place in found if place is not None])
        if factor.opaque is not None or len(set(places)) < len(found):
            return None
        along.append(places)
    flat, valid = term_positions(term, shape)
    # Several entries at one position would have to be counted.
    once = len(np.unique(flat[valid])) == np.count_nonzero(valid)
    return tuple(along) if once else None


def _dimension(
    axis: IndexMap, extent: int, maps: Sequence[IndexMap], shape: tuple[int, ...]
) -> int | None:
    """The dimension along which an axis of a factor is read."""
    pairs = enumerate(zip(maps, shape, strict=True))
    return next((d for d, pair in pairs if pair == (axis, extent)), None)


@dataclass
class MaskedGroup:
    """Terms that read the same; changed while terms are added.

    Attributes:
        operands: the arrays of the factors of each of them.
        along: how these are read.
        terms: the terms.
        positions: where they stand, through the flat matrix.
    """

    operands: Sequence[Array]
    along: Along
    terms: list[Term] = field(default_factory=list)
    positions: set[int] = field(default_factory=set)


def masked_groups(
    items: Sequence[tuple[Term, Sequence[Array]]], shape: tuple[int, ...]
) -> tuple[list[MaskedGroup], list[int]]:
    """Terms that are read by positions, those together that read the same at different positions.

    The neighbours of a periodic stencil are a diagonal and its wrapped corner, which read one array
    by the row. Of one whose input is read twice, `cumsum(x.at[3].set(x[0]))`, entries would have to
    be counted: a term that stands where another one of its group does is in a group of its own.

    Args:
        items: the terms with their operands.
        shape: of the matrix, (output..., input...).

    Returns:
        The groups, and which terms are in none.
    """
    groups: dict[object, list[MaskedGroup]] = {}
    rest = []
    for number, (term, operands) in enumerate(items):
        split = len(term.out)
        flat = _is_flat(shape[:split]) and _is_flat(shape[split:])
        along = read_by_position(term, shape) if flat else None
        if along is None:
            rest.append(number)
            continue
        conj = tuple(factor.conj for factor in term.factors)
        same = groups.setdefault((tuple(map(id, operands)), conj, along, term.coefficient), [])
        positions = _positions(term, shape)
        group = next((group for group in same if group.positions.isdisjoint(positions)), None)
        if group is None:
            same.append(group := MaskedGroup(operands, along))
        group.terms.append(term)
        group.positions |= positions
    return [group for same in groups.values() for group in same], rest


def _positions(term: Term, shape: tuple[int, ...]) -> set[int]:
    """Where a term stands, through the flat matrix."""
    flat, valid = term_positions(term, shape)
    return set(flat[valid].tolist())


def spread_and_masked(
    terms: Sequence[Term], operands: Sequence[Array], shape: tuple[int, ...], along: Along
) -> Array:
    """Terms that read the same as a dense array.

    Args:
        terms: the terms; none of them stands where another one does.
        operands: the arrays of the factors of each of them.
        shape: of the matrix.
        along: what `read_by_position` says.
    """
    there = np.zeros(math.prod(shape), bool)
    for term in terms:
        flat, valid = term_positions(term, shape)
        there[flat[valid]] = True
    split = len(terms[0].out)
    if _is_flat(shape[:split]) and _is_flat(shape[split:]):
        condition = _compared(there.reshape(math.prod(shape[:split]), -1))
    else:
        condition = None if there.all() else _broadcast(there.reshape(shape))
    whole = []
    for value, factor, places in zip(
        promoted(list(operands)), terms[0].factors, along, strict=True
    ):
        order = sorted(range(len(places)), key=places.__getitem__)
        value = lax.conj(value) if factor.conj and jnp.iscomplexobj(value) else value
        value = value if order == list(range(len(order))) else lax.transpose(value, order)
        whole.append(lax.broadcast_in_dim(value, shape, sorted(places)))
    total = whole[0]
    for value in whole[1:]:
        total = lax.mul(total, value)
    total = scaled(total, terms[0].coefficient)
    if condition is None:
        return total
    mask = lax.reshape(condition, shape)
    return lax.select(mask, total, lax.full_like(total, 0))


def _broadcast(there: np.ndarray) -> Array:
    """A mask, repeated along the dimensions that it is the same along."""
    kept = [k for k in range(there.ndim) if (there != there.take([0], k)).any()]
    least = there[tuple(slice(None) if k in kept else 0 for k in range(there.ndim))]
    return lax.broadcast_in_dim(jnp.asarray(least), there.shape, kept)


def _is_flat(extents: Sequence[int]) -> bool:
    """Whether at most one dimension is longer than one."""
    return sum(extent > 1 for extent in extents) <= 1


def _compared(there: np.ndarray) -> Array | None:
    """A mask as comparisons of positions where that is possible; None for one that is full.

    Loops over sixteen to forty columns take two to three times as long where they read a table of
    booleans, and a half of the rest where they read none of positions.
    """
    if there.all():
        return None
    rows = lax.broadcasted_iota(np.int32, there.shape, 0)
    columns = lax.broadcasted_iota(np.int32, there.shape, 1)
    shift = np.arange(there.shape[1]) - np.arange(there.shape[0])[:, None]
    found = np.unique(shift[there])
    if len(found) and (np.isin(shift, found) == there).all():
        below = lax.sub(columns, rows)
        low, high = int(found[0]), int(found[-1])
        if len(found) == high - low + 1 and len(found) > 1:  # a band, or a triangle
            checks = []
            if low > shift.min():
                checks.append(lax.ge(below, lax.full_like(below, low)))
            if high < shift.max():
                checks.append(lax.le(below, lax.full_like(below, high)))
            return functools.reduce(lax.bitwise_and, checks)
        if len(found) <= MAX_DIAGONALS:
            return functools.reduce(
                lax.bitwise_or, [lax.eq(below, lax.full_like(below, int(d))) for d in found]
            )
    stretches = _stretches(there)
    if stretches is None:
        return jnp.asarray(there)
    first, last = (
        lax.broadcast_in_dim(jnp.asarray(bound.astype(np.int32)), there.shape, (0,))
        for bound in stretches
    )
    if (stretches[0] == stretches[1])[there.any(1)].all():
        return lax.eq(columns, first)  # a row without an entry has a column beyond the last one
    return lax.bitwise_and(lax.ge(columns, first), lax.le(columns, last))


def _stretches(there: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The first and last column of each row, where there is nothing else between; else None."""
    columns = there.shape[1]
    first = np.where(there.any(1), there.argmax(1), columns)
    last = np.where(there.any(1), columns - 1 - np.flip(there, 1).argmax(1), -1)
    count = np.count_nonzero(there, 1)
    return (first, last) if (count == np.maximum(last - first + 1, 0)).all() else None


def known_entries(terms: Sequence[Term], shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """The sum of terms without factors, as a constant.

    Args:
        terms: the terms.
        shape: of the matrix, (output..., input...).
        dtype: of the result, if the numbers are not complex where it is real.
    """
    numbers = np.asarray([term.coefficient for term in terms])
    total = np.zeros(math.prod(shape), np.result_type(numbers, np.float64))
    for term, number in zip(terms, numbers, strict=True):
        flat, valid = term_positions(term, shape)
        np.add.at(total, flat[valid], number)
    if np.iscomplexobj(total) and not jnp.issubdtype(dtype, jnp.complexfloating):
        dtype = promoted_dtype(dtype, np.dtype(np.complex64))
    return jnp.asarray(total.astype(dtype).reshape(shape))
