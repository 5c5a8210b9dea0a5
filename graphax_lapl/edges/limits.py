"""What a sum of terms keeps of their limits: how far two positions are apart at least."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from .draft import Draft
from .maps import IndexMap
from .terms import Term

__all__ = ["common_limits"]


def common_limits(draft: Draft, parts: Sequence[Term]) -> list[IndexMap]:
    """Limits of a draft that is the sum of some terms.

    They are those that say of an output and an input dimension which of two positions is the
    larger, and by how much: a triangle plus a diagonal is a triangle.

    Args:
        draft: the sum, with its maps.
        parts: the terms.
    """
    if not any(term.limits for term in parts):
        return []
    found = []
    for (d, row), (e, column) in itertools.product(enumerate(draft.out), enumerate(draft.into)):
        apart = row.plus(column.scaled(-1), draft.sizes)
        for sign in (1, -1):
            low = min(_difference(term, d, e, sign) for term in parts)
            found.append(apart.scaled(sign).shifted(-low))
    return found


def _difference(term: Term, d: int, e: int, sign: int) -> int:
    """A lower bound of `sign * (out[d] - into[e])` where a term is not zero."""
    sizes = dict(enumerate(term.sizes))
    apart = term.out[d].plus(term.into[e].scaled(-1), sizes).scaled(sign)
    limits = (limit for limit in term.limits if limit.parts == apart.parts)
    return max([apart.bounds(sizes)[0], *(apart.offset - limit.offset for limit in limits)])
