"""Matrices of many samples that consist of a few diagonals: arrays under masks of bits.

In the Jacobian of a stencil or of a system of coupled variables most entries are zero or known. Of
the others every row, or every column, has one number of an array: repeated along the other
dimension and cut out by a mask it is one vectorised expression. A mask of bits is what a processor
does to sixteen numbers at once, whatever they are; loops over 15 to 40 columns that compare
positions take up to 2.8 times as long, and reading entry by entry 1.3 to 5 times.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.layout import term_positions
from ..edges.terms import Structure, Term
from ..program.fusion import UNBOUNDED
from .arrays import promoted, scaled
from .few_samples import Run
from .holding import HELD_SIZES, held
from .innermost import with_rule
from .masked import MAX_KNOWN, known_entries
from .numbers import PICKED
from .regular_reads import read_regularly

__all__ = ["Diagonals", "by_samples", "diagonals", "masked_sum"]

#: Most arrays; each is a pass over the matrix in registers, and reading entries one for all.
MAX_ARRAYS = 5
#: XLA's CPU compiler lets two threads share a loop of more operations than this for every entry,
#: however short it is; reading entry by entry is faster then up to so many entries of all samples.
SHARED, MANY = 4, 1 << 15
#: A diagonal is at most one in so many entries.
SPARSE = 4
#: Arrays of so many elements are in memory before they are read.
HELD = (HELD_SIZES[0] // 4, UNBOUNDED)
#: Integers of the width of a floating-point number.
INTEGERS = {2: np.int16, 4: np.int32, 8: np.int64}


@dataclass(frozen=True, eq=False)
class _Reads:
    """How the positions along one dimension read an array.

    Attributes:
        operand: which one of the operands.
        conj: whether its complex conjugate is meant.
        dimension: 0 for rows, 1 for columns.
        places: the flat place that is read at each position; -1 where none is.
    """

    operand: int
    conj: bool
    dimension: int
    places: np.ndarray

    @functools.cached_property
    def is_slice(self) -> bool:
        """Whether a stretch of positions reads a stretch of the array."""
        used = np.flatnonzero(self.places >= 0)
        counted = np.arange(len(used))
        first = self.places[used[0]]
        return bool(
            (used == used[0] + counted).all() and (self.places[used] == first + counted).all()
        )

    def repeated(self, operand: Array, shape: tuple[int, int]) -> Array:
        """The array over the whole matrix; anything where it is not read."""
        value = lax.reshape(operand, (math.prod(operand.shape),))
        value = lax.conj(value) if self.conj and jnp.iscomplexobj(value) else value
        used = np.flatnonzero(self.places >= 0)
        if self.is_slice:
            first, count = int(self.places[used[0]]), len(used)
            value = lax.slice(value, (first,), (first + count,))
            around = (int(used[0]), len(self.places) - int(used[-1]) - 1, 0)
            if around != (0, 0, 0):
                value = lax.pad(value, np.zeros((), value.dtype), [around])
        else:
            read = read_regularly(value, self.places)
            if read is None:
                places = np.maximum(self.places, 0).astype(np.uint32)
                read = value.at[places].get(mode="promise_in_bounds")
            value = read
        if self.dimension == 1 or not self.is_slice:
            # Otherwise every entry evaluates it: what rows read is evaluated before their loop.
            value = held(value, HELD)
        return lax.broadcast_in_dim(value, shape, (self.dimension,))


@dataclass(eq=False)
class _Group:
    """Terms that read the same at every row, or column; changed while terms are added.

    Attributes:
        operands: the numbers of their factors, and whether these are conjugated.
        mask: where they stand.
        coefficients: their own there, one elsewhere.
        places: for each factor what rows, and columns, read (see `_Reads`); None where entries of
            one differ.
    """

    operands: list[tuple[int, bool]]
    mask: np.ndarray
    coefficients: np.ndarray
    places: list[list[np.ndarray | None]]

    def take(self, other: _Group) -> bool:
        """Add another group, if that can be; whether it could."""
        if (self.mask & other.mask).any():
            return False
        merged = [
            [_merged(a, b) for a, b in zip(one, two, strict=True)]
            for one, two in zip(self.places, other.places, strict=True)
        ]
        if any(all(places is None for places in both) for both in merged):
            return False
        self.mask = self.mask | other.mask
        self.coefficients = np.where(other.mask, other.coefficients, self.coefficients)
        self.places = merged
        return True

    def reads(self) -> list[_Reads]:
        """How each factor is read: by a slice where one does, and by columns rather than rows.

        The innermost loop runs over columns: what they read takes 0.5 to 0.8 of the time.
        """
        found = []
        for (operand, conj), both in zip(self.operands, self.places, strict=True):
            order = ((d, both[d]) for d in (1, 0))
            each = [_Reads(operand, conj, d, p) for d, p in order if p is not None]
            found.append(next((reads for reads in each if reads.is_slice), each[0]))
        return found


@dataclass(frozen=True, eq=False)
class Diagonals:
    """A matrix as known numbers and arrays under masks.

    Attributes:
        known: the terms without factors.
        arrays: of the others the factors, where they stand, and the coefficients there.
        operations: for an entry.
    """

    known: tuple[Term, ...]
    arrays: list[tuple[list[_Reads], np.ndarray, np.ndarray]] = field(repr=False)
    operations: int

    @property
    def is_short(self) -> bool:
        """Whether loops over a few samples are not shared."""
        return self.operations <= SHARED

    def suits(self, samples: int) -> bool:
        """Whether that is the better form of so many samples."""
        entries = samples * self.arrays[0][1].size
        return samples > 1 and (self.is_short or entries >= MANY)


@lru_cache(maxsize=256)
def diagonals(structure: Structure, slots: tuple[int, ...]) -> Diagonals | None:
    """The form of a matrix that consists of a few diagonals; None of another one.

    Smaller ones are left to programs in numbers.

    Args:
        structure: its terms.
        slots: which array each factor reads; the same number is the same array.
    """
    shape = (math.prod(structure.out_shape), math.prod(structure.in_shape))
    if not PICKED < structure.size <= MAX_KNOWN or len(slots) != len(structure.factors):
        return None
    known: list[Term] = []
    groups: list[tuple[_Group, list[object]]] = []
    start = 0
    for term in structure.terms:
        if not term.factors:
            known.append(term)
            continue
        group = _group(term, structure, shape, start)
        if group is None:
            return None
        imaginary = term.coefficient if np.imag(term.coefficient) else None
        key: list[object] = [
            imaginary,
            *((slots[operand], conj) for operand, conj in group.operands),
        ]
        start += len(term.factors)
        if not any(name == key and other.take(group) for other, name in groups):
            groups.append((group, key))
            if len(groups) > MAX_ARRAYS:
                return None
    if not groups or any(SPARSE * group.mask.sum() > structure.size for group, _ in groups):
        return None
    arrays = [(group.reads(), group.mask, group.coefficients) for group, _ in groups]
    scaled_by_tables = sum(len(np.unique(c[mask])) > 1 for _, mask, c in arrays)
    passes = sum(len(reads) for reads, _, _ in arrays) + len(arrays) - 1
    operations = passes + scaled_by_tables + bool(known)
    return Diagonals(tuple(known), arrays, operations)


def by_samples(masked: Run, placed: Run, form: Diagonals, samples: int = 1) -> Run:
    """`masked` or `placed`, for whatever number of samples of `jax.vmap` they suit.

    A single input has the latter: for several samples `jax.vmap` alone says how many there are.

    Args:
        masked: the matrix of its operands, as `masked_sum`; it closes over no tracers.
        placed: the same, entry by entry.
        form: how the matrix is written.
        samples: how many one evaluation stands for.
    """

    def rule(size: Any, own: Any, inputs: Sequence[Any]) -> Any:
        axes = ([0 if moves else None for moves in own],)
        if not isinstance(size, int):  # `jax.export` knows symbols too
            return jax.vmap(masked, axes)(list(inputs))
        both = jax.vmap(masked, axes), jax.vmap(placed, axes)
        return by_samples(*both, form, samples * size)(list(inputs))

    return with_rule(masked if form.suits(samples) else placed, rule, masked)


def masked_sum(
    form: Diagonals, structure: Structure, operands: Sequence[Array], dtype: np.dtype
) -> Array:
    """The dense array, axes (output..., input...).

    Args:
        form: what `diagonals` says of the structure.
        structure: its terms.
        operands: the arrays of its factors.
        dtype: of the array where no factor says it.
    """
    whole = (*structure.out_shape, *structure.in_shape)
    shape = (math.prod(structure.out_shape), math.prod(structure.in_shape))
    parts = []
    for reads, mask, coefficients in form.arrays:
        factors = [own.repeated(operands[own.operand], shape) for own in reads]
        value = functools.reduce(lax.mul, promoted(factors))
        parts.append(_cut_out(_scaled(value, mask, coefficients), mask))
    if form.known:
        parts.append(lax.reshape(known_entries(form.known, whole, dtype), shape))
    return lax.reshape(functools.reduce(lax.add, promoted(parts)), whole)


def _group(term: Term, structure: Structure, shape: tuple[int, int], start: int) -> _Group | None:
    """A term by itself, its factors from operand `start` on; None where it has another form."""
    if len(term.position_labels) < len(term.sizes):
        return None
    flat, valid = term_positions(term, (*structure.out_shape, *structure.in_shape))
    sizes, labels = dict(enumerate(term.sizes)), sorted(term.position_labels)
    box = tuple(term.sizes[name] for name in labels)
    sources = []
    for factor in term.factors:
        if factor.opaque is not None:
            return None
        source = np.zeros(box, np.int64)
        for axis, extent in zip(factor.axes, factor.shape, strict=True):
            position = axis.evaluate(labels, sizes)
            valid = valid & np.broadcast_to((position >= 0) & (position < extent), box).ravel()
            source = source * extent + position
        sources.append(source.ravel())
    flat = flat[valid]
    if not len(flat) or len(np.unique(flat)) < len(flat):
        return None
    mask = np.zeros(math.prod(shape), bool)
    mask[flat] = True
    number = term.coefficient if np.imag(term.coefficient) else np.real(term.coefficient)
    coefficients = np.where(mask, number, 1.0).reshape(shape)
    positions = np.divmod(flat, shape[1])
    places = [
        [_read_at(p, n, source[valid]) for p, n in zip(positions, shape, strict=True)]
        for source in sources
    ]
    if any(all(each is None for each in both) for both in places):
        return None
    operands = [(start + k, factor.conj) for k, factor in enumerate(term.factors)]
    return _Group(operands, mask.reshape(shape), coefficients, places)


def _read_at(positions: np.ndarray, extent: int, source: np.ndarray) -> np.ndarray | None:
    """What is read at each position, -1 for nothing.

    None where entries at one position read differently, or several positions the same: weights of a
    layer have columns for each of its inputs and outputs, and stand better in blocks.
    """
    places = np.full(extent, -1)
    places[positions] = source
    if (places[positions] != source).any():
        return None
    used = np.count_nonzero(places >= 0)
    return places if len(np.unique(source)) == used else None


def _merged(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    """What both read together; None where they differ."""
    if one is None or other is None or ((one != other) & (one >= 0) & (other >= 0)).any():
        return None
    return np.maximum(one, other)


def _scaled(value: Array, mask: np.ndarray, coefficients: np.ndarray) -> Array:
    """The value times coefficients, none of which is zero: it may be infinite outside the mask."""
    own = np.unique(coefficients[mask])
    if len(own) == 1:
        return scaled(value, own[0].item())
    return lax.mul(value, jnp.asarray(coefficients.astype(value.dtype)))


def _cut_out(value: Array, mask: np.ndarray) -> Array:
    """The value under a mask, zeros elsewhere, whatever is there."""
    if mask.all():
        return value

    def select(value: Array) -> Array:
        return lax.select(jnp.asarray(mask), value, lax.full_like(value, 0))

    floating = jnp.issubdtype(value.dtype, jnp.floating)
    kind = INTEGERS.get(value.dtype.itemsize) if floating else None
    if kind is None or jax.default_backend() != "cpu":
        return select(value)

    @jax.custom_jvp
    def cut(value: Array) -> Array:
        bits = lax.bitcast_convert_type(value, kind)
        bits = lax.bitwise_and(bits, jnp.asarray(-mask.astype(kind)))
        return lax.bitcast_convert_type(bits, value.dtype)

    cut.defjvp(lambda primals, tangents: (cut(*primals), select(*tangents)))
    result: Array = cut(value)
    return result
