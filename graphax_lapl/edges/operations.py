"""The array operations that an edge composition consists of, and their counted cost.

An operation is structure only: it says how operand arrays are read and what comes out, for any
operands of the right shapes. A `Recipe` is a list of operations on numbered operands; the program
builder replays it on the slots of two concrete edges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from .maps import IndexMap
from .terms import Number, Opaque, Structure
from .values import immutable, lazy

__all__ = [
    "EVALUATION",
    "ApplyOpaque",
    "Assemble",
    "Combine",
    "Cost",
    "Einsum",
    "MaterializeOpaque",
    "Operation",
    "Overlay",
    "Patch",
    "Read",
    "Recipe",
    "RecipeWriter",
    "Steps",
    "canonical",
]


#: Products of up to so many multiplications that are summed over so few entries are written out.
FEW_TERMS = 4
WRITTEN_OUT = 1 << 10
#: So many entries where many matrices are multiplied, each by its own: a library is called for
#: each, and takes as long as for a hundred times the work. Multiples of `TILE` it is made for.
FEW_TERMS_OF_MANY, TILE = 8, 8
#: What evaluating an opaque map takes beside what it computes, in multiplications.
EVALUATION = 400


@immutable
class Cost:
    """Counted cost of a piece of a program.

    Attributes:
        ad: multiplications in the convention of the elimination literature: every pair of entries
            that meet costs one, whatever their values.
        muls: multiplications that are really emitted (known ones and minus ones are free).
        adds: additions and subtractions that are emitted.
        elements: array elements read and written (times the item size: bytes).
    """

    ad: int = 0
    muls: int = 0
    adds: int = 0
    elements: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost.total((self, other))

    @staticmethod
    def total(costs: Iterable[Cost]) -> Cost:
        """The sum of several costs."""
        ad = muls = adds = elements = 0
        for cost in costs:
            ad += cost.ad
            muls += cost.muls
            adds += cost.adds
            elements += cost.elements
        return Cost(ad, muls, adds, elements)


@immutable
class Read:
    """How an operand is read inside an einsum: one index map per axis, perhaps conjugated."""

    axes: tuple[IndexMap, ...]
    conj: bool = False

    @lazy
    def labels(self) -> frozenset[int]:
        """Labels that the read depends on."""
        return frozenset([name for axis in self.axes for name in axis.labels])

    @lazy
    def plain_labels(self) -> tuple[int, ...] | None:
        """The labels of the axes of an operand that is read entry by entry."""
        if self.conj or not all([axis.is_label for axis in self.axes]):
            return None
        names = tuple([axis.parts[0][0] for axis in self.axes])
        return names if len({*names}) == len(names) else None


@immutable
class Einsum:
    """`out[output] = coefficient * sum(prod(reads))`, summed over all labels not in `output`.

    At most two reads. `sizes` gives the size of every label that occurs, as sorted pairs.
    With `real`, the real part of the result is taken; with `whole`, it is not written out; with
    `looped`, a product of matrices is a sum of products entry by entry. With `common`, the first
    operand is a matrix that is the same for all samples of a batch, and the product is made with it
    on the left.
    """

    reads: tuple[Read, ...]
    sizes: tuple[tuple[int, int], ...]
    output: tuple[int, ...]
    coefficient: Number = 1
    real: bool = False
    whole: bool = False
    common: bool = False
    looped: bool = False

    @lazy
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        sizes = dict(self.sizes)
        return tuple([sizes[name] for name in self.output])

    @lazy
    def summed(self) -> frozenset[int]:
        """Labels that the result lacks."""
        return frozenset([name for name, _ in self.sizes]).difference(self.output)

    @lazy
    def swapped(self) -> Einsum:
        """The product of two operands that are given the other way round."""
        return replace(self, reads=self.reads[::-1])

    @property
    def is_total(self) -> bool:
        """Whether it is a number, the sum of entries of one operand."""
        return len(self.reads) == 1 and not self.output and not self.real

    @lazy
    def written_out(self) -> bool:
        """Whether it is emitted as a few elementwise products instead of a product of matrices."""
        return not self.whole and (self._is_small_product or self.multiplies_many)

    @lazy
    def _is_small_product(self) -> bool:
        if not self._is_short_product:
            return False
        (name,), sizes = self.summed, dict(self.sizes)
        return math.prod(sizes.values()) <= WRITTEN_OUT and sizes[name] <= FEW_TERMS

    @lazy
    def multiplies_many(self) -> bool:
        """Whether many small matrices are multiplied, each by its own, in a large product."""
        if not self._is_short_product or self._is_small_product:
            return False
        (name,), sizes = self.summed, dict(self.sizes)
        first, second = (read.labels for read in self.reads)
        each = [size for label, size in sizes.items() if label not in first & second - {name}]
        tiled = all(size % TILE == 0 for size in each)
        return len(each) < len(sizes) and math.prod(each) <= WRITTEN_OUT and not tiled

    @lazy
    def _is_short_product(self) -> bool:
        """Whether two operands, each with labels of its own, are summed over one short label."""
        if len(self.reads) != 2 or len(self.summed) != 1:
            return False
        first, second = (read.labels for read in self.reads)
        (name,) = self.summed
        few = dict(self.sizes)[name] <= FEW_TERMS_OF_MANY
        return few and name in first & second and not (first <= second or second <= first)

    @lazy
    def cost(self) -> Cost:
        """Counted cost: one multiplication per assignment of the labels where two factors meet."""
        sizes = dict(self.sizes)
        read = [math.prod(sizes[n] for n in r.labels) for r in self.reads]
        out = math.prod(self.shape)
        joint = set().union(*(r.labels for r in self.reads))
        meetings = math.prod(sizes[n] for n in joint)
        scaling = 0 if abs(self.coefficient) == 1 else out
        return Cost(
            muls=(meetings if len(self.reads) == 2 else 0) + scaling,
            adds=meetings - out if meetings > out else 0,
            elements=sum(read) + out,
        )


@immutable
class Combine:
    """`out[output] = constant + sum(coefficient_k * operand_k)`, broadcast to the output labels.

    Attributes:
        operands: for each operand its coefficient and the labels of its axes.
        sizes: size of every label, as sorted pairs.
        output: labels of the result's axes.
        constant: a number added everywhere.
    """

    operands: tuple[tuple[Number, tuple[int, ...]], ...]
    sizes: tuple[tuple[int, int], ...]
    output: tuple[int, ...]
    constant: Number = 0

    @lazy
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        sizes = dict(self.sizes)
        return tuple([sizes[name] for name in self.output])

    @lazy
    def swapped(self) -> Combine:
        """The sum of two operands that are given the other way round."""
        return replace(self, operands=self.operands[::-1])

    @lazy
    def cost(self) -> Cost:
        """Counted cost."""
        sizes = dict(self.sizes)
        out = math.prod(self.shape)
        boxes = [math.prod(sizes[n] for n in labels) for _, labels in self.operands]
        return Cost(
            muls=sum(box for box, (c, _) in zip(boxes, self.operands, strict=True) if abs(c) != 1),
            adds=out * (len(self.operands) - 1 + (self.constant != 0)),
            elements=sum(boxes) + out,
        )


@immutable
class Patch:
    """Where one operand, or a number, goes in an `Overlay`.

    Attributes:
        coefficient: what the operand is multiplied by, or the number itself.
        labels: labels of the operand's axes; None for a number.
        starts: the patch's first position along each axis of the result.
        extents: its length along each axis.
    """

    coefficient: Number
    labels: tuple[int, ...] | None
    starts: tuple[int, ...]
    extents: tuple[int, ...]


@immutable
class Overlay:
    """A sum of arrays that each fill a box of the result and repeat along labels they lack.

    Attributes:
        patches: the boxes; those with labels take one operand each, in order.
        sizes: labels of the result's axes and their sizes, in order.
    """

    patches: tuple[Patch, ...]
    sizes: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(size for _, size in self.sizes)

    @lazy
    def cost(self) -> Cost:
        """Counted cost: an addition wherever two patches overlap."""
        names = [name for name, _ in self.sizes]
        read = [
            math.prod(e for name, e in zip(names, p.extents, strict=True) if name in p.labels)
            for p in self.patches
            if p.labels is not None
        ]
        scaled = [abs(p.coefficient) != 1 for p in self.patches if p.labels is not None]
        out = math.prod(self.shape)
        covered = sum(math.prod(p.extents) for p in self.patches)
        return Cost(
            muls=sum(count for count, times in zip(read, scaled, strict=True) if times),
            adds=max(0, covered - out),
            elements=sum(read) + out,
        )


@immutable
class Assemble:
    """The dense array of shape `out_shape + in_shape` of a structure, from its factors."""

    structure: Structure

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return (*self.structure.out_shape, *self.structure.in_shape)

    @lazy
    def cost(self) -> Cost:
        """Counted cost: products of lazy factors, one addition per further overlapping term."""
        muls = 0
        for term in self.structure.terms:
            count = max(0, len(term.factors) - 1) + (
                bool(term.factors) and abs(term.coefficient) != 1
            )
            muls += count * math.prod(
                term.sizes[n] for n in set().union(*(f.labels for f in term.factors))
            )
        return Cost(
            muls=muls,
            adds=sum(t.entries for t in self.structure.terms[1:]),
            elements=self.structure.stored + self.structure.size,
        )


@immutable
class ApplyOpaque:
    """Apply an opaque linear map to the rows (`reverse`) or columns (`forward`) of an array.

    The operands are the map and an array of shape `(*extra, *batch, *core)`; the result has shape
    `(*extra, *batch, *other core)`.
    """

    opaque: Opaque
    map_shape: tuple[int, ...]
    extra: tuple[int, ...]
    reverse: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        core = self.opaque.batch + self.opaque.outputs
        kept = self.map_shape[core:] if self.reverse else self.map_shape[self.opaque.batch : core]
        return (*self.extra, *self.map_shape[: self.opaque.batch], *kept)

    @lazy
    def cost(self) -> Cost:
        """A rough count: each application touches its input and its output once."""
        split = self.opaque.batch + self.opaque.outputs
        batch = math.prod(self.map_shape[: self.opaque.batch])
        out = batch * math.prod(self.map_shape[self.opaque.batch : split])
        into = batch * math.prod(self.map_shape[split:])
        touched = math.prod(self.extra) * (out + into)
        work = touched
        if self.opaque.work is not None:
            work = math.prod(self.extra) * out * self.opaque.work
        return Cost(muls=work, adds=work, elements=2 * touched)

    @property
    def work(self) -> int:
        """Multiplications, where a map that says nothing of its work has those of its matrix."""
        split = self.opaque.batch + self.opaque.outputs
        each = self.opaque.work or math.prod(self.map_shape[split:])
        return math.prod((*self.extra, *self.map_shape[:split], each))


@immutable
class MaterializeOpaque:
    """The array of an opaque linear map, by the cheaper of its columns and its rows.

    With `columns_first`, of one that is written by columns, its input axes are the first ones.
    """

    opaque: Opaque
    map_shape: tuple[int, ...]
    columns_first: bool = False

    @property
    def by_rows(self) -> bool:
        """Whether rows are pulled back: they are fewer or at par, or there is no `jvp`."""
        split = self.opaque.batch + self.opaque.outputs
        out = math.prod(self.map_shape[self.opaque.batch : split])
        into = math.prod(self.map_shape[split:])
        if not self.opaque.forward:
            return True
        if self.opaque.rows_for_columns is not None:
            return self.opaque.reverse and not self.opaque.pushes_sooner_than(out)
        return self.opaque.reverse and (out < into or (out == into and self.opaque.rows_at_par))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        if not self.columns_first:
            return self.map_shape
        split = self.opaque.batch + self.opaque.outputs
        return self.map_shape[split:] + self.map_shape[:split]

    @lazy
    def cost(self) -> Cost:
        """Cost of pushing the smaller identity through."""
        return self._applied.cost

    @property
    def work(self) -> int:
        """See `ApplyOpaque.work`."""
        return self._applied.work

    @property
    def _applied(self) -> ApplyOpaque:
        split = self.opaque.batch + self.opaque.outputs
        core = self.map_shape[self.opaque.batch : split] if self.by_rows else self.map_shape[split:]
        return ApplyOpaque(self.opaque, self.map_shape, core, self.by_rows)


Operation = Einsum | Combine | Overlay | Assemble | ApplyOpaque | MaterializeOpaque


def canonical(operation: Operation, inputs: tuple[int, ...]) -> tuple[Operation, tuple[int, ...]]:
    """The operation with factors and summands in the order of their slots: `b * a` is `a * b`."""
    if len(inputs) < 2:
        return operation, inputs
    if len(inputs) == 2:
        first, second = inputs
        if first <= second or not isinstance(operation, Einsum | Combine):
            return operation, inputs
        return operation.swapped, (second, first)
    slots = sorted(inputs)
    if slots == list(inputs) or not isinstance(operation, Einsum | Combine):
        return operation, inputs
    order = sorted(range(len(inputs)), key=inputs.__getitem__)
    return _reordered(operation, tuple(order)), tuple(slots)


@lru_cache(maxsize=1 << 12)
def _reordered(operation: Einsum | Combine, order: tuple[int, ...]) -> Operation:
    """The operation with its operands in another order."""
    if isinstance(operation, Einsum):
        return replace(operation, reads=tuple([operation.reads[k] for k in order]))
    return replace(operation, operands=tuple([operation.operands[k] for k in order]))


#: Operations with the operands they take; the result of each is one more operand.
Steps = tuple[tuple[Operation, tuple[int, ...]], ...]


@immutable
class Recipe:
    """What composing or adding two structures takes.

    Operands are numbered: first those of the given edges in order, then the results of `steps`.

    Attributes:
        result: the structure that comes out, None for a structural zero.
        operands: the operand that holds each factor of the result.
        steps: operations with the operands they take.
        ad: pairs of entries that meet, see `Cost`.
    """

    result: Structure | None
    operands: tuple[int, ...]
    steps: Steps
    ad: int

    @lazy
    def cost(self) -> Cost:
        """The total cost."""
        return Cost.total([Cost(ad=self.ad), *[operation.cost for operation, _ in self.steps]])

    @lazy
    def evaluations(self) -> int:
        """How often opaque maps are evaluated."""
        return sum(isinstance(step, ApplyOpaque | MaterializeOpaque) for step, _ in self.steps)

    @lazy
    def work(self) -> int:
        """Multiplications, where a map that says nothing of its work has those of its matrix."""
        return EVALUATION * self.evaluations + sum(
            step.work if isinstance(step, ApplyOpaque | MaterializeOpaque) else step.cost.muls
            for step, _ in self.steps
        )


@dataclass
class RecipeWriter:
    """Collects the steps of a recipe."""

    inputs: int
    steps: list[tuple[Operation, tuple[int, ...]]] = field(default_factory=list)
    ad: int = 0

    def add(self, operation: Operation, operands: Iterable[int]) -> int:
        """Append an operation and return the operand that holds its result."""
        self.steps.append((operation, tuple(operands)))
        return self.inputs + len(self.steps) - 1

    def replay(self, steps: Steps, operands: list[int]) -> list[int]:
        """Append steps on other operands; these, and those that hold the results."""
        if not steps:
            return operands
        slots = [*operands]
        for operation, positions in steps:
            slots.append(self.add(operation, [slots[position] for position in positions]))
        return slots

    def finish(self, result: Structure | None, operands: Iterable[int]) -> Recipe:
        """The finished recipe."""
        return Recipe(result, tuple(operands), tuple(self.steps), self.ad)
