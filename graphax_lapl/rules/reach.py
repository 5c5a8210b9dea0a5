"""What a gather can read, and a scatter write, where indices are known at run time only.

Two ways to say it. Few possible starts are a piece each, with a weight that is one where the start
is that one: a slice that begins at one of two places is two shifted diagonals with a number each.
Otherwise the map stays opaque, and *limits* say which entries are zero whatever the indices are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.maps import IndexMap, constant, from_values, label
from ..edges.terms import Factor
from .integer_ranges import FIXED, Possible
from .positions import separated
from .site import Local, Piece, Site

__all__ = ["MAX_LISTED", "Choices", "Slices", "box_choices", "row_choices", "weighted"]

#: So many possible starts are a piece each.
MAX_CHOICES = 4
#: Most values that the different ones are sought among.
MAX_VALUES = 64
#: Most entries (of all choices together) whose positions are listed.
MAX_LISTED = 1 << 18


@dataclass(frozen=True)
class Slices:
    """Slices of an array and where they may begin.

    Attributes:
        shape: of the array.
        sizes: of a slice, by dimension of the array.
        starts: for dimensions that have one, what each slice's start may be.
        dropped: whether a slice that would leave the array is left out, rather than moved inside.
        array: by dimension of the array the number of that dimension of the map.
        window: by dimension of the array that of the slices' dimension along it; None for none.
        batch: those of the dimensions that count the slices.
    """

    shape: tuple[int, ...]
    sizes: Sequence[int]
    starts: dict[int, Possible]
    dropped: bool
    array: Sequence[int]
    window: Sequence[int | None]
    batch: Sequence[int]

    def limits(self) -> list[IndexMap]:
        """Maps of the map's dimensions that are negative where no start reaches."""
        found = []
        for d, possible in self.starts.items():
            last = self.shape[d] - self.sizes[d]
            inside, along = label(self.array[d]), self.window[d]
            if along is not None:
                inside = inside.plus(label(along, -1), {})
            low, high = np.clip(possible.low, 0, last), np.clip(possible.high, 0, last)
            if self.dropped:
                low, high = np.maximum(possible.low, 0), np.minimum(possible.high, last)
            found.append(inside.plus(self._of_slices(low, np.min).scaled(-1), {}))
            found.append(self._of_slices(high, np.max).plus(inside.scaled(-1), {}))
            if possible.values is not None and self.shape[d] <= MAX_LISTED:
                found += self._gaps(d, possible.values, last)
        return found

    def _of_slices(self, numbers: np.ndarray, coarse: Callable[..., Any]) -> IndexMap:
        """A number for each slice, or one for all where that has no closed form."""
        exact = separated(numbers)
        if exact is None:
            return constant(int(coarse(numbers)))
        return exact.renamed(dict(enumerate(self.batch)))

    def _gaps(self, d: int, values: np.ndarray, last: int) -> list[IndexMap]:
        """Negative between slices, where none lies whichever they are."""
        starts = np.unique(values.astype(np.int64))
        if self.dropped:
            starts = starts[(starts >= 0) & (starts <= last)]
        starts = np.unique(np.clip(starts, 0, last))
        if not len(starts) or (np.diff(starts) <= self.sizes[d]).all():
            return []
        edges = np.zeros(self.shape[d] + 1, np.int64)
        edges[starts] += 1
        edges[starts + self.sizes[d]] -= 1
        covered = np.cumsum(edges[:-1]) > 0
        return [from_values(self.array[d], np.where(covered, 0, -1))]


@dataclass(frozen=True)
class Choices:
    """Few possible starts.

    Attributes:
        starts: shape `(count, *batch, numbers of a start)`.
        there: whether it is one, shape `(count, *batch)`; each is there once.
        weight: one where the start is that one, shape `(count, *batch)`.
    """

    starts: np.ndarray
    there: np.ndarray
    weight: Local


def row_choices(site: Site, position: int, dtype: Any) -> Choices | None:
    """The few possible starts that the last dimension of a traced operand holds; None for many.

    Args:
        site: the equation.
        position: of the operand with the starts.
        dtype: of the weights.
    """
    possible = site.possible(position)
    if possible is None or possible.values is None or possible.origin is None:
        return None
    values, origin = possible.values, possible.origin
    if len(values) > MAX_VALUES or not values.size:
        return None
    # Numbers of one start that come from different ones make more starts than are listed here.
    moving = np.where(origin == FIXED, origin.max(-1, keepdims=True), origin)
    if (moving != moving[..., :1]).any():
        return None
    fresh = np.ones(values.shape[:-1], bool)
    for k, other in itertools.combinations(range(len(values)), 2):
        fresh[other] &= (values[k] != values[other]).any(-1)
    count = int(fresh.sum(0).max())
    if count > MAX_CHOICES:
        return None
    order = np.argsort(~fresh, axis=0, kind="stable")[:count]
    starts = np.take_along_axis(values, order[..., None], 0)
    there = np.take_along_axis(fresh, order, 0)

    def weight(indices: Array) -> Array:
        same = lax.reduce_and(indices[None] == jnp.asarray(starts), (indices.ndim,))
        return lax.bitwise_and(same, jnp.asarray(there)).astype(dtype)

    local = Local("starts here", weight, (site.value(position),), there.shape, "constant", True)
    return Choices(starts, there, local)


def box_choices(site: Site, first: int, limits: Sequence[int], dtype: Any) -> Choices | None:
    """The few possible starts, moved inside the array, of a dynamic slice; None for many.

    Args:
        site: the equation; the numbers of the start are its operands from `first`.
        first: see there.
        limits: the last start inside the array, by dimension.
        dtype: of the weights.
    """
    sides: list[np.ndarray] = []
    for d, limit in enumerate(limits):
        possible = site.possible(first + d)
        if limit and (possible is None or possible.values is None):
            return None
        values = np.zeros(1, np.int64) if not limit else possible.values  # type: ignore[union-attr]
        assert values is not None
        sides.append(np.unique(np.clip(values.astype(np.int64), 0, limit)))
    if np.prod([len(side) for side in sides]) > MAX_CHOICES:
        return None
    starts = np.array(list(itertools.product(*sides)), np.int64).reshape(-1, len(sides))

    def weight(*numbers: Array) -> Array:
        same = jnp.ones(len(starts), bool)
        for d, (number, limit) in enumerate(zip(numbers, limits, strict=True)):
            if limit:
                kind = number.dtype
                own = jnp.asarray(starts[:, d].astype(kind))
                largest = min(limit, int(jnp.iinfo(kind).max))
                inside = lax.clamp(kind.type(0), number, kind.type(largest))
                same = lax.bitwise_and(same, inside == own)
        return same.astype(dtype)

    arguments = tuple(site.value(first + d) for d in range(len(limits)))
    local = Local("starts here", weight, arguments, (len(starts),), "constant", True)
    return Choices(starts, np.ones(len(starts), bool), local)


def weighted(
    pieces: Sequence[Piece], weight: Local, k: int, batch: Sequence[int], outwards: bool
) -> list[Piece]:
    """Pieces times the k-th weight of each slice.

    Args:
        pieces: without factors.
        weight: of shape `(count, *batch)`.
        k: which.
        batch: the dimensions of the output, or the input, that count the slices.
        outwards: whether they are those of the output.
    """
    made = []
    for piece in pieces:
        axes = piece.term.out if outwards else piece.term.into
        factor = Factor((constant(k), *(axes[d] for d in batch)), weight.shape)
        made.append(Piece(replace(piece.term, factors=(factor,)), (weight,)))
    return made
