"""Random structures with random values, and what they mean, written out with numpy loops."""

from itertools import product

import jax
import numpy as np

from graphax_lapl.edges.draft import Draft, DraftFactor
from graphax_lapl.edges.maps import IndexMap, constant, from_values, label
from graphax_lapl.edges.masks import Limit, Mask
from graphax_lapl.edges.operations import (
    ApplyOpaque,
    Assemble,
    Combine,
    Einsum,
    Operation,
    Overlay,
    Recipe,
)
from graphax_lapl.edges.terms import Factor, Structure, Term, intern_structure
from graphax_lapl.emit.arrays import combine, einsum
from graphax_lapl.emit.assembly import assemble
from graphax_lapl.emit.overlay import overlay


def dense(structure: Structure, values: list[np.ndarray]) -> np.ndarray:
    """The matrix of a structure by its definition, one assignment of the labels at a time."""
    shape = (*structure.out_shape, *structure.in_shape)
    kind = complex if any(np.iscomplexobj(v) for v in values) else float
    if any(isinstance(term.coefficient, complex) for term in structure.terms):
        kind = complex
    total = np.zeros(shape, kind)
    start = 0
    for term in structure.terms:
        own = values[start : start + len(term.factors)]
        start += len(term.factors)
        for labels in product(*(range(size) for size in term.sizes)):
            position = tuple(at(axis, labels) for axis in (*term.out, *term.into))
            if not all(0 <= p < n for p, n in zip(position, shape, strict=True)):
                continue
            number = term.coefficient
            for factor, value in zip(term.factors, own, strict=True):
                entry = value[tuple(at(axis, labels) for axis in factor.axes)]
                number = number * (np.conj(entry) if factor.conj else entry)
            total[position] += number
    return total


def at(axis: Limit, labels: tuple[int, ...]) -> int:
    if isinstance(axis, Mask):
        place = tuple(at(own, labels) for own in axis.axes)
        table = axis.marks.values
        inside = all(0 <= p < n for p, n in zip(place, table.shape, strict=True))
        return 0 if inside and table[place] else -1
    total = axis.offset
    for name, part in axis.parts:
        total += part * labels[name] if isinstance(part, int) else int(part.values[labels[name]])
    return total


def replay(recipe: Recipe, operands: list[np.ndarray]) -> list[np.ndarray]:
    """Run a recipe on arrays; the factors of its result."""

    @jax.jit
    def every_step(values: list[jax.Array]) -> list[jax.Array]:
        for operation, positions in recipe.steps:
            values = [*values, _carried_out(operation, [values[p] for p in positions])]
            assert values[-1].shape == operation.shape
        return values

    values = every_step(operands) if recipe.steps else operands
    return [np.asarray(values[p]) for p in recipe.operands]


def _carried_out(operation: Operation, arrays: list[jax.Array]) -> jax.Array:
    if isinstance(operation, Einsum):
        return einsum(operation, arrays)
    if isinstance(operation, Combine):
        return combine(operation, arrays)
    if isinstance(operation, Overlay):
        return overlay(operation, arrays, np.dtype(np.float64))
    assert isinstance(operation, Assemble), operation
    assert not isinstance(operation, ApplyOpaque)
    return assemble(operation.structure, arrays, np.dtype(np.float64))


class Generator:
    """Draws structures; the same seed draws the same."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def shape(self) -> tuple[int, ...]:
        return tuple(self.integer(1, 4) for _ in range(self.integer(0, 2)))

    def structure(self, out_shape, in_shape) -> tuple[Structure, list[np.ndarray]]:
        terms, values = [], []
        for _ in range(self.integer(1, 3)):
            finished = None
            while finished is None:
                finished = self.term(out_shape, in_shape)
            term, own = finished
            terms.append(term)
            values += own
        return intern_structure(out_shape, in_shape, terms), values

    def term(self, out_shape, in_shape) -> tuple[Term, list[np.ndarray]] | None:
        sizes = [self.integer(1, 4) for _ in range(self.integer(1, 4))]
        out = [self.index_map(n, sizes) for n in out_shape]
        into = [self.index_map(n, sizes) for n in in_shape]
        used = {name for axis in (*out, *into) for name in axis.labels}
        factors, values = [], []
        for _ in range(self.integer(0, 2)):
            # Labels in a factor only would be summed: that is what simplification removes.
            labels = [n for n in sorted(used) if self.integer(0, 1)]
            axes = tuple(label(n) for n in labels)
            shape = tuple(sizes[n] for n in labels)
            factors.append(DraftFactor(len(values), Factor(axes, shape)))
            values.append(self.rng.normal(size=shape))
        coefficient = [1, -1, 2, -0.5][self.integer(0, 3)]
        finished = Draft(dict(enumerate(sizes)), out, into, factors, coefficient).finish()
        if finished is None:
            return None
        term, operands = finished
        return term, [values[k] for k in operands]

    def index_map(self, extent: int, sizes: list[int]) -> IndexMap:
        """A map that may leave the dimension, except along single labels."""
        kind = self.integer(0, 5)
        name = self.integer(0, len(sizes) - 1)
        if kind == 0:
            return constant(self.integer(0, extent - 1))
        if kind == 1:
            return from_values(name, self.rng.integers(0, extent, size=sizes[name]))
        if kind == 2 and len(sizes) > 1:
            other = (name + 1) % len(sizes)
            parts = {name: self.integer(1, 3), other: self.integer(1, 2)}
            return IndexMap(self.integer(-1, 1), tuple(sorted(parts.items())))
        stride = -1 if kind == 3 else 1
        reach = stride * (sizes[name] - 1)
        low = -min(reach, 0)
        offset = self.integer(low, max(low, extent - 1 - max(reach, 0)))
        return label(name, stride, offset)
