"""Entries that are read from a static table of the matrix' own shape: constants and masks.

Entries that are known while planning, as the weights of a difference stencil, are one constant.
Comparing positions for each diagonal of them takes up to seven times as long in small matrices.

Where tables place entries, what stands at a position may be read by that position. The Jacobian of
`s * cumsum(x)` has `s[i]` at all `(i, j)` with `j <= i`: a table lists the positions, but the
factor is read by the row alone. Repeated along the columns and selected by a mask it is one fused
expression, where a scatter writes number by number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.layout import term_positions
from ..edges.maps import IndexMap
from ..edges.terms import Term
from .arrays import promoted, promoted_dtype, scaled

__all__ = ["known_entries", "read_by_position", "spread_and_masked"]

#: Matrices of up to so many entries keep those that are known as one constant.
MAX_KNOWN = 1 << 14
#: A matrix is selected by a mask where it has at most so many times as many places as entries.
MAX_PLACES = 8
#: Masks of more places are not kept in a program.
MAX_MASK = 1 << 16

#: For every factor the dimension of the matrix that each of its axes runs along.
Along = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=1 << 12)
def read_by_position(term: Term, shape: tuple[int, ...]) -> Along | None:
    """How the factors of a term that tables place are read by positions; None where they are not.

    Args:
        term: the term.
        shape: of the matrix, (output..., input...).
    """
    maps = (*term.out, *term.into)
    size = math.prod(shape)
    if all(axis.is_affine for axis in maps) or size > min(MAX_MASK, MAX_PLACES * term.entries):
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
    return next((d for d, pair in pairs if axis.parts and pair == (axis, extent)), None)


def spread_and_masked(
    term: Term, operands: Sequence[Array], shape: tuple[int, ...], along: Along
) -> Array:
    """The term as a dense array.

    Args:
        term: the term.
        operands: the arrays of its factors.
        shape: of the matrix.
        along: what `read_by_position` says.
    """
    flat, valid = term_positions(term, shape)
    there = np.zeros(math.prod(shape), bool)
    there[flat[valid]] = True
    whole = []
    for value, factor, places in zip(promoted(list(operands)), term.factors, along, strict=True):
        order = sorted(range(len(places)), key=places.__getitem__)
        value = lax.conj(value) if factor.conj and jnp.iscomplexobj(value) else value
        value = value if order == list(range(len(order))) else lax.transpose(value, order)
        whole.append(lax.broadcast_in_dim(value, shape, sorted(places)))
    total = whole[0]
    for value in whole[1:]:
        total = lax.mul(total, value)
    total = scaled(total, term.coefficient)
    return lax.select(jnp.asarray(there.reshape(shape)), total, lax.full_like(total, 0))


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
