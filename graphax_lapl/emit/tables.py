"""Placing entries of a dense array that only tables know the positions of, or that are few."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.layout import MAX_LAYERS
from ..edges.maps import IndexMap
from ..edges.terms import Term
from .arrays import broadcast_labels, promoted
from .gpu_batches import is_gpu
from .holding import held

__all__ = ["are_many_runs", "placed_by_tables", "scattered_runs"]

#: Windows are gathered where there are at most so many times as many places as entries.
MAX_PLACES = 16
#: The same where there are more than a few windows at some places, or windows are short; most that
#: stand at one place; numbers of long ones. With all pairs of 5 to 8 nodes, that is with 4 to 7
#: windows at every place, a scatter took three to eight times as long (256 samples).
MAX_FULL, MAX_DEPTH, LONG_WINDOW = 1.25, 16, 16
#: Numbers are on a GPU, in matrices of up to so many entries: 17 us instead of 175 where a hundred
#: thousand samples have 32 of 128 each (H100, H200).
MAX_NUMBERS = 1 << 14
#: Fewest runs of entries that are scattered, and how many entries of the matrix, times the runs,
#: there are then for each entry of theirs: selecting 150 diagonals of 12 numbers in a matrix of
#: 200 x 200 takes 7 to 18 times as long (1 and 16 samples).
MANY_RUNS, ROOM_OF_RUNS = 32, 400


def placed_by_tables(
    items: Sequence[tuple[Term, Array, tuple[int, ...]]], shape: tuple[int, ...]
) -> list[Array]:
    """Terms whose entries stand where static tables say, as dense arrays to be added up.

    The last dimensions, where a label of its own runs along each, are a window, which tables place
    as a whole: the features of a pair of nodes. Every place reads the few windows that stand there,
    those of all terms together: each node is the first one of some pairs and the second one of the
    rest. A scatter goes number by number on one core; it is what is left where there are many more
    places than windows, or where tables place numbers. A GPU reads small matrices of numbers, too.

    Args:
        items: the terms, the product of the factors of each, and the labels of the axes of that.
        shape: shape of the result.
    """
    parts: list[Array] = []
    groups: dict[int, list[_Windows]] = {}
    for term, values, names in items:
        windows = _Windows.of(term, values, names, shape)
        if term.is_affine:  # it slides along an axis, which is not put together with tables
            parts.append(windows.added_up())
        else:
            groups.setdefault(len(windows.places), []).append(windows)
    for found in groups.values():
        group = _added_where_equal(found)
        together = _Windows.together(group)
        if together.reads is not None:
            parts.append(together.added_up())
            continue
        parts += [own.added_up() for own in group if own.reads is not None]
        if rest := [own for own in group if own.reads is None]:
            parts.append(_Windows.together(rest).added_up())
    return [lax.reshape(part, shape) for part in parts]


def are_many_runs(terms: Sequence[Term], shape: tuple[int, ...]) -> bool:
    """Whether terms that stand along a line each are short and many, for a matrix of that shape."""
    entries = sum(term.sizes[name] for term in terms for name in term.position_labels)
    return len(terms) >= MANY_RUNS and len(terms) * math.prod(shape) >= ROOM_OF_RUNS * entries


def scattered_runs(
    items: Sequence[tuple[Term, Array, tuple[int, ...]]], shape: tuple[int, ...]
) -> Array:
    """Terms whose positions are known, as a dense array: number by number.

    Args:
        items: as of `placed_by_tables`.
        shape: shape of the result.
    """
    group = [_Windows.numbers(term, values, names, shape) for term, values, names in items]
    together = _Windows.together(_added_where_equal(group))
    return lax.reshape(together.scattered(together.rows), shape)


@dataclass(frozen=True)
class _Windows:
    """Windows and where they stand.

    Attributes:
        rows: windows, one after the other.
        chosen: those that are within the matrix.
        target: the place of each of these.
        places: lengths of the dimensions that places count through.
        there: which of the numbers of the windows may not be zero; None for all.
        several: whether they are those of several terms.
    """

    rows: Array
    chosen: np.ndarray
    target: np.ndarray
    places: tuple[int, ...]
    there: np.ndarray | None = None
    several: bool = False

    @classmethod
    def of(
        cls, term: Term, values: Array, names: tuple[int, ...], shape: tuple[int, ...]
    ) -> _Windows:
        """The windows of a term; the numbers of one that slides along axes and over an edge."""
        whole = cls._of(term, values, names, shape, _window(term, shape))
        if term.is_affine and len(whole.chosen) < len(whole.rows):
            return cls.numbers(term, values, names, shape)
        return whole

    @classmethod
    def numbers(
        cls, term: Term, values: Array, names: tuple[int, ...], shape: tuple[int, ...]
    ) -> _Windows:
        """The single numbers of a term."""
        return cls._of(term, values, names, shape, ())

    @classmethod
    def _of(
        cls,
        term: Term,
        values: Array,
        names: tuple[int, ...],
        shape: tuple[int, ...],
        window: tuple[int, ...],
    ) -> _Windows:
        kept = len(shape) - len(window)
        sizes = dict(enumerate(term.sizes))
        maps = (*term.out, *term.into)[:kept]
        counted = [name for axis in maps for name in axis.labels]
        labels = tuple(sorted({*counted}) if term.is_affine else dict.fromkeys(counted))
        target = np.zeros([sizes[name] for name in labels], np.int64)
        inside = np.ones(target.shape, bool)
        for axis, extent in zip(maps, shape[:kept], strict=True):
            position = axis.evaluate(labels, sizes)
            inside &= (position >= 0) & (position < extent)
            target = target * extent + position
        rows = broadcast_labels(values, names, (*labels, *window), sizes)
        rows = lax.reshape(rows, (target.size, *shape[kept:]))
        chosen = np.flatnonzero(inside)
        there = _within_limits(term, (*labels, *window)) if term.limits else None
        there = None if there is None else there.reshape(target.size, -1)
        return cls(rows, chosen, target.ravel()[chosen], shape[:kept], there)

    @classmethod
    def together(cls, group: Sequence[_Windows]) -> _Windows:
        """The windows of several terms, of the same dimensions."""
        if len(group) == 1:
            return group[0]
        starts = np.cumsum([0, *(len(own.rows) for own in group)])
        return cls(
            lax.concatenate(promoted([own.rows for own in group]), 0),
            np.concatenate([own.chosen + n for own, n in zip(group, starts, strict=False)]),
            np.concatenate([own.target for own in group]),
            group[0].places,
            _side_by_side(group),
            True,
        )

    @cached_property
    def reads(self) -> np.ndarray | None:
        """For some layers and every place the window that stands there, -1 where there is none.

        None where that is no matter of a few reads for each place.
        """
        target, count = self.target, math.prod(self.places)
        size = math.prod(self.rows.shape[1:])
        if size == 1 and not (is_gpu() and count <= MAX_NUMBERS):
            return None
        if not len(target) or count > MAX_PLACES * len(target):
            return None
        reads = _layers(target, self.chosen, count)
        depth = len(reads)
        sparse = depth <= MAX_LAYERS and (size >= LONG_WINDOW or is_gpu())
        if depth > MAX_DEPTH or count * depth > (MAX_PLACES if sparse else MAX_FULL) * len(target):
            return None
        return reads

    @cached_property
    def number_reads(self) -> np.ndarray | None:
        """The same for every number, where known zeros leave few at each place.

        A table of reactions has 34 numbers for 10 species and 16 reactions: in two layers instead
        of seven, which takes a third of a scatter.
        """
        if self.there is None or self.reads is not None or is_gpu():
            return None
        size = math.prod(self.rows.shape[1:])
        count, there = math.prod(self.places) * size, self.there[self.chosen]
        inner = np.arange(size)
        target, source = (n[:, None] * size + inner for n in (self.target, self.chosen))
        reads = _layers(target[there], source[there], count)
        few = len(reads) <= MAX_DEPTH and reads.size <= MAX_FULL * target.size
        return reads if few and len(reads) else None

    def added_up(self) -> Array:
        """The sum of the windows at every place."""
        if self.reads is None and self.number_reads is None:
            return self.scattered(self.rows)
        # Otherwise a place that reads one of several terms evaluates all of them.
        rows = held(self.rows) if self.several else self.rows
        result: Array = self.gathered(rows)
        return result

    @cached_property
    def gathered(self) -> Callable[[Array], Array]:
        """What every place reads; its derivative is a scatter, whose transpose reads rows."""
        by_windows = self.reads is not None
        reads = self.reads if by_windows else self.number_reads
        assert reads is not None

        @jax.custom_jvp
        def gathered(rows: Array) -> Array:
            values = rows if by_windows else lax.reshape(rows, (rows.size,))
            whole = functools.reduce(lax.add, [_layer(values, layer) for layer in reads])
            return lax.reshape(whole, (math.prod(self.places), *rows.shape[1:]))

        gathered.defjvp(lambda primals, tangents: (gathered(*primals), self.scattered(*tangents)))
        return gathered

    def scattered(self, rows: Array) -> Array:
        """All windows, added to what is at their places."""
        if len(self.chosen) < len(rows):
            rows = rows.at[self.chosen].get(mode="promise_in_bounds")
        dense = jnp.zeros((math.prod(self.places), *rows.shape[1:]), rows.dtype)
        unique = len(np.unique(self.target)) == len(self.target)
        # Unsigned: of a signed place a scatter asks whether it counts from the end.
        return dense.at[self.target.astype(np.uint32)].add(
            rows, mode="promise_in_bounds", unique_indices=unique
        )


def _layers(target: np.ndarray, source: np.ndarray, count: int) -> np.ndarray:
    """For some layers and each of so many targets one of its sources, -1 where there is none."""
    order = np.argsort(target, kind="stable")
    layer = np.arange(len(target)) - np.searchsorted(target[order], target[order])
    reads = np.full((int(layer.max(initial=-1)) + 1, count), -1)
    reads[layer, target[order]] = source[order]
    return reads


def _within_limits(term: Term, labels: tuple[int, ...]) -> np.ndarray:
    """Where a term's limits let it have entries, over a box of its labels."""
    sizes = dict(enumerate(term.sizes))
    there = np.ones([sizes[name] for name in labels], bool)
    for limit in term.limits:
        there &= limit.evaluate(labels, sizes) >= 0
    return there


def _side_by_side(group: Sequence[_Windows]) -> np.ndarray | None:
    """Which numbers of the windows of several terms may not be zero; None for all."""
    if all(own.there is None for own in group):
        return None
    parts = []
    for own in group:
        shape = (len(own.rows), math.prod(own.rows.shape[1:]))
        parts.append(np.ones(shape, bool) if own.there is None else own.there)
    return np.concatenate(parts)


def _added_where_equal(group: Sequence[_Windows]) -> list[_Windows]:
    """The windows of terms that stand at the same places, added up."""
    found: dict[object, _Windows] = {}
    for own in group:
        key = (own.target.tobytes(), own.chosen.tobytes(), own.rows.shape)
        if key in found:
            first = found[key]
            rows = lax.add(*promoted([first.rows, own.rows]))
            both = None if first.there is None or own.there is None else first.there | own.there
            found[key] = replace(first, rows=rows, there=both)
        else:
            found[key] = own
    return list(found.values())


def _window(term: Term, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Labels that run along the last dimensions from end to end, and along no other one."""
    maps: Sequence[IndexMap] = (*term.out, *term.into)
    found: tuple[int, ...] = ()
    for axis, extent in zip(reversed(maps), reversed(shape), strict=True):
        if extent == 1 or not axis.is_plain(extent, term.sizes):
            break
        (name,) = axis.labels
        if sum(name in other.labels for other in maps) > 1:
            break
        found = (name, *found)
    return found


def _layer(rows: Array, layer: np.ndarray) -> Array:
    # Unsigned, so that no kernel asks whether a place counts from the end.
    places = np.maximum(layer, 0).astype(np.uint32)
    found = rows.at[places].get(mode="promise_in_bounds")
    if (layer >= 0).all():
        return found
    there = lax.broadcast_in_dim(jnp.asarray(layer >= 0), found.shape, (0,))
    return lax.select(there, found, lax.full_like(found, 0))
