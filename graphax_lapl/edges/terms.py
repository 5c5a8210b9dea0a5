"""Terms and edges: the structure of a local or accumulated partial Jacobian, without its values.

An edge is a linear map from an array of shape `I` to an array of shape `O`, kept as a sum of
terms. A term has labels (each with a size), one index map for every output and input dimension,
and a list of factors, which are arrays read through index maps of their own:

    J[o, i] = sum over labels of  coefficient * prod(factors) * [o == out(labels)] [i == in(labels)]

Positions outside a dimension are dropped. Example: the Jacobian of `y = x[1:] * w` with `w` and
`y` of length 3 is one term with a single label `a` of size 3, `out = a`, `in = a + 1` and the
factor `w[a]`: three numbers for a 3 x 4 matrix.

A term may also know where it is zero: where one of its `limits`, maps of the same kind or tables
(`masks.py`), is negative. A triangular block is `out = a`, `in = b` with the limit `a - b`. The
values there are zero anyhow, so limits change no number: they say which entries a sparse result
leaves out.

Complex numbers. A map into or out of a complex array is linear over the reals only. Between complex
arrays a term acts on the input (`conj=False`) or on its complex conjugate (`conj=True`); from
complex to real it stands for `Re(J x)`. Compositions keep track of both.

Structures hold no arrays: the values of the factors live in the slots of a program, one slot per
factor, in order. Structures are interned, so equal ones are the same object.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

from .maps import IndexMap, renamed
from .masks import Limit
from .values import immutable, lazy

__all__ = [
    "Factor",
    "Number",
    "Opaque",
    "Structure",
    "Term",
    "intern_structure",
    "product_of",
    "with_terms",
]

Number = int | float | complex

#: So many terms that differ in their coefficients alone are kept.
MAX_FAMILY = 1 << 10


def product_of(first: Number, second: Number) -> Number:
    """The product, leaving exact ones alone so that an infinite coefficient stays itself."""
    if first == 1:
        return second
    return first if second == 1 else first * second


@immutable
class Opaque:
    """What is known of a factor that is a linear map given only by its `jvp` and `vjp`.

    Attributes:
        batch: number of leading axes along which the map is diagonal.
        outputs: number of output axes that follow; the remaining axes are input axes.
        forward: whether it can be applied to tangents.
        reverse: whether it can be applied to cotangents.
        work: multiplications per output element of one application, where known.
        rows_at_par: whether rows are pulled where they are as many as columns.
        rows_for_columns: of a loop that carries few numbers, rows that take as long as the columns
            of all inputs, which are pushed through it at once; None elsewhere.
        real: of a map between real and complex arrays that has one of both modes only, whether the
            other one gives the real part of a product.
    """

    batch: int
    outputs: int
    forward: bool = True
    reverse: bool = True
    work: int | None = None
    rows_at_par: bool = False
    rows_for_columns: int | None = None
    real: bool = False

    def pushes_sooner_than(self, rows: int) -> bool:
        """Whether all columns take less than so many rows, which store every step of a loop."""
        return self.forward and self.rows_for_columns is not None and self.rows_for_columns <= rows


@immutable
class Factor:
    """An array of `shape`, read at position `axes[k](labels)` along axis k.

    Attributes:
        axes: one index map per axis of the array; outside the array it is zero.
        shape: the array's shape (batch, output and input axes for an opaque factor).
        conj: whether the complex conjugate of the array is meant.
        opaque: set where the array is not available, only its action on vectors.
    """

    axes: tuple[IndexMap, ...]
    shape: tuple[int, ...]
    conj: bool = False
    opaque: Opaque | None = None

    @lazy
    def labels(self) -> frozenset[int]:
        """Labels that the factor depends on."""
        return frozenset([name for axis in self.axes for name, _ in axis.parts])

    def read(self, axes: Iterable[IndexMap]) -> Factor:
        """The same array read through other maps."""
        return Factor(tuple(axes), self.shape, self.conj, self.opaque)


@immutable
class Term:
    """One unevaluated einsum with index maps; see the module's docstring.

    Attributes:
        sizes: size of each label; labels are `range(len(sizes))`.
        out: index maps of the output dimensions.
        into: index maps of the input dimensions.
        factors: the arrays that are multiplied.
        coefficient: a number known while planning.
        conj: whether the term acts on the conjugate of a complex input.
        limits: maps or masks of position labels; where one is negative, the product of the factors
            is zero.
    """

    sizes: tuple[int, ...]
    out: tuple[IndexMap, ...]
    into: tuple[IndexMap, ...]
    factors: tuple[Factor, ...] = ()
    coefficient: Number = 1
    conj: bool = False
    limits: tuple[Limit, ...] = ()

    @lazy
    def pattern(self) -> tuple[object, ...]:
        """What two terms must share for their values to be added elementwise."""
        positions = self.position_labels
        kept = tuple([s if n in positions else 0 for n, s in enumerate(self.sizes)])
        return (kept, self.out, self.into, self.conj)

    @property
    def labels(self) -> range:
        """All labels of the term."""
        return range(len(self.sizes))

    @lazy
    def position_labels(self) -> frozenset[int]:
        """Labels that occur in an output or input index map."""
        return frozenset([name for axis in (*self.out, *self.into) for name, _ in axis.parts])

    @lazy
    def value_labels(self) -> frozenset[int]:
        """Labels that its factors depend on."""
        return frozenset().union(*[factor.labels for factor in self.factors])

    @lazy
    def plain_labels(self) -> tuple[int, ...] | None:
        """Labels of the axes of its only factor, where that is an array with an axis for each.

        None where it has several, or one that is read in another way.
        """
        if len(self.factors) != 1:
            return None
        (factor,) = self.factors
        names = tuple([axis.parts[0][0] if axis.parts else -1 for axis in factor.axes])
        if factor.opaque or factor.conj or len({*names}) < len(names):
            return None
        plain = [
            axis.is_plain(n, self.sizes) for axis, n in zip(factor.axes, factor.shape, strict=True)
        ]
        return names if all(plain) else None

    @lazy
    def entries(self) -> int:
        """Number of values the term spreads over the matrix (coinciding ones counted apart)."""
        return math.prod([self.sizes[name] for name in self.position_labels])

    @lazy
    def stored(self) -> int:
        """Number of elements in its factors as they are read; at least one."""
        sizes = self.sizes
        return max(1, sum([math.prod([sizes[n] for n in f.labels]) for f in self.factors]))

    @lazy
    def is_affine(self) -> bool:
        """Whether no output or input index map holds a table."""
        return all([axis.is_affine for axis in (*self.out, *self.into)])

    @lazy
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Smallest and largest position along every output and input dimension."""
        return tuple([axis.bounds(self.sizes) for axis in (*self.out, *self.into)])

    @lazy
    def _moved(self) -> dict[tuple[int, ...], Term]:
        return {}

    def moved(self, names: tuple[int, ...]) -> Term:
        """The same maps and factors over other labels, `names[n]` in the place of label n."""
        found = self._moved.get(names)
        if found is None:
            new = dict(enumerate(names))
            found = self._moved[names] = Term(
                self.sizes,
                tuple(renamed(self.out, new)),
                tuple(renamed(self.into, new)),
                tuple([f.read(renamed(f.axes, new)) for f in self.factors]),
                self.coefficient,
                self.conj,
                tuple([limit.renamed(new) for limit in self.limits]),
            )
        return found

    @lazy
    def _family(self) -> dict[tuple[type, Number], Term]:
        """Terms that differ in their coefficients alone, this one included."""
        return {(type(self.coefficient), self.coefficient): self}

    def times(self, coefficient: Number) -> Term:
        """The same term with another coefficient, the same object when asked again."""
        if coefficient is self.coefficient:
            return self
        key = (type(coefficient), coefficient)
        family = self._family
        found = family.get(key)
        if found is None:
            # What is known of the term is kept, `copy` would take longer than all else here.
            found = object.__new__(Term)
            vars(found).update(vars(self), coefficient=coefficient, _hash=None, _moved={})
            if len(family) >= MAX_FAMILY:
                family.clear()
            found = family.setdefault(key, found)
        return found

    @property
    def unit(self) -> Term:
        """The same term with coefficient one."""
        return self if self.coefficient == 1 else self._unit

    @lazy
    def _unit(self) -> Term:
        return self.times(1)

    def holding(self, factor: Factor, coefficient: Number, limits: tuple[Limit, ...]) -> Term:
        """The same positions with the values of one factor."""
        made = Term(self.sizes, self.out, self.into, (factor,), coefficient, self.conj, limits)
        made.pattern, made.position_labels = self.pattern, self.position_labels
        return made

    def scaled(self, number: Number) -> Term:
        """The term times a number known while planning."""
        return replace(self, coefficient=number * self.coefficient)

    def __repr__(self) -> str:
        sizes = ",".join(f"l{n}<{s}" for n, s in enumerate(self.sizes))
        factors = " ".join(
            ("opaque" if f.opaque else "f") + f"[{', '.join(map(repr, f.axes))}]"
            for f in self.factors
        )
        return (
            f"({sizes}) {self.coefficient:g} {factors} "
            f"out[{', '.join(map(repr, self.out))}] in[{', '.join(map(repr, self.into))}]"
            + "".join(f" where {limit!r} >= 0" for limit in self.limits)
        )


class Structure:
    """A sum of terms: the structure of an edge. Made by `intern_structure` only.

    Attributes:
        out_shape: shape of the output array.
        in_shape: shape of the input array.
        terms: the terms; an empty tuple is the zero map (never kept in a graph).
        complex_out: whether the output array is complex.
        complex_in: whether the input array is complex.
        factors: the factors of all terms in order: one slot each.
    """

    __slots__ = (
        "__weakref__",
        "complex_in",
        "complex_out",
        "factors",
        "in_shape",
        "out_shape",
        "terms",
    )

    def __init__(
        self,
        out_shape: tuple[int, ...],
        in_shape: tuple[int, ...],
        terms: tuple[Term, ...],
        complex_out: bool,
        complex_in: bool,
    ):
        """Store the fields; `intern_structure` guarantees that equal ones are identical."""
        self.out_shape = out_shape
        self.in_shape = in_shape
        self.terms = terms
        self.complex_out = complex_out
        self.complex_in = complex_in
        self.factors: Final = tuple([factor for term in terms for factor in term.factors])

    @property
    def size(self) -> int:
        """Number of elements of the dense matrix."""
        return math.prod(self.out_shape) * math.prod(self.in_shape)

    @property
    def stored(self) -> int:
        """Number of elements that its factors hold."""
        return sum(term.stored for term in self.terms)

    @property
    def is_unit(self) -> bool:
        """Whether every value is a known number of magnitude one."""
        return all(not t.factors and abs(t.coefficient) == 1 for t in self.terms)

    @property
    def is_constant(self) -> bool:
        """Whether every value is known while planning."""
        return all(not term.factors for term in self.terms)

    def __repr__(self) -> str:
        terms = " + ".join(map(repr, self.terms)) or "0"
        return f"Structure({self.out_shape} <- {self.in_shape}: {terms})"


_Key = tuple[tuple[int, ...], tuple[int, ...], tuple[Term, ...], bool, bool]
#: Forgets what nothing else holds. What is alive must stay: it is compared by identity.
_interned: WeakValueDictionary[_Key, Structure] = WeakValueDictionary()


def intern_structure(
    out_shape: Sequence[int],
    in_shape: Sequence[int],
    terms: Iterable[Term],
    complex_out: bool = False,
    complex_in: bool = False,
) -> Structure:
    """Return the one structure with these fields."""
    key = (tuple(out_shape), tuple(in_shape), tuple(terms), complex_out, complex_in)
    found = _interned.get(key)
    return _interned.setdefault(key, Structure(*key)) if found is None else found


def with_terms(structure: Structure, terms: Iterable[Term]) -> Structure:
    """The structure between the same spaces that has other terms."""
    return intern_structure(
        structure.out_shape,
        structure.in_shape,
        terms,
        structure.complex_out,
        structure.complex_in,
    )
