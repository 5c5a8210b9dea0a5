"""What a sum of terms keeps of their limits: how far apart positions are, or which there are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from .draft import Draft
from .layout import term_positions
from .maps import IndexMap
from .masks import MAX_MASK, Limit, Mask, pattern_mask
from .terms import Term

__all__ = ["common_limits"]

#: Largest matrix that keeps the positions of a sum whose terms have no limits.
MAX_LISTED = 1 << 12


def common_limits(draft: Draft, parts: Sequence[Term], shape: tuple[int, ...]) -> list[Limit]:
    """Limits of a draft that is the sum of some terms.

    Those of inequalities say of an output and an input dimension which of two positions is the
    larger, and by how much: a triangle plus a diagonal is a triangle. Where a term has a mask, or
    the matrix is small, a mask holds the positions themselves.

    Args:
        draft: the sum, with its maps.
        parts: the terms.
        shape: of the matrix, (output..., input...).
    """
    found: list[Limit] = []
    if not parts:
        return found
    if any(term.limits for term in parts):
        for (d, row), (e, column) in itertools.product(enumerate(draft.out), enumerate(draft.into)):
            apart = row.plus(column.scaled(-1), draft.sizes)
            for sign in (1, -1):
                low = min(_difference(term, d, e, sign) for term in parts)
                found.append(apart.scaled(sign).shifted(-low))
    masked = any(isinstance(limit, Mask) for term in parts for limit in term.limits)
    if 0 < math.prod(shape) <= (MAX_MASK if masked else MAX_LISTED):
        found += _positions(draft, parts, shape)
    return found


def _positions(draft: Draft, parts: Sequence[Term], shape: tuple[int, ...]) -> list[Limit]:
    """The positions of some terms, as a mask of a draft's labels."""
    if any(not term.limits and term.entries >= math.prod(shape) for term in parts):
        return []
    there = np.zeros(math.prod(shape), bool)
    for term in parts:
        flat, valid = term_positions(term, shape)
        there[flat[valid]] = True
    if there.all() or not there.any():
        return []
    mask = pattern_mask(there.reshape(shape))
    return [Mask((*draft.out, *draft.into), mask.marks)]


def _difference(term: Term, d: int, e: int, sign: int) -> int:
    """A lower bound of `sign * (out[d] - into[e])` where a term is not zero."""
    sizes = dict(enumerate(term.sizes))
    apart = term.out[d].plus(term.into[e].scaled(-1), sizes).scaled(sign)
    limits = (
        limit for limit in term.limits if isinstance(limit, IndexMap) and limit.parts == apart.parts
    )
    return max([apart.bounds(sizes)[0], *(apart.offset - limit.offset for limit in limits)])
