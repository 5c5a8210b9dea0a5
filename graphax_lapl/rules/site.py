"""What a rule sees of an equation, and what it says of it.

A rule answers one question: what is the local partial of output `k` with respect to input `i`? It
answers with a list of `Piece`s: terms over *references*, which say where the factors' values will
come from once the program runs. No array exists while rules run, except those known statically.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from jax import dtypes

from ..edges.draft import Draft, DraftFactor
from ..edges.maps import IndexMap, constant, label
from ..edges.masks import Limit, Mask
from ..edges.terms import Factor, Number, Opaque, Term
from ..edges.values import lazy
from ..errors import InternalError
from ..graph.listing import Atom, Constant, Equation, Listing
from .possible_values import MAX_INTEGERS, Possible, PossibleValues
from .references import Known, Local, OpaqueMap, Piece, Primal, Reference

__all__ = [
    "Integers",
    "Known",
    "Local",
    "OpaqueMap",
    "Piece",
    "Primal",
    "Reference",
    "Site",
    "aligned",
    "axes_of",
    "not_before",
    "shape_of",
]


def not_before(dimension: int, other: int) -> IndexMap:
    """The limit that a position along one dimension is not below that along another."""
    return label(dimension).plus(label(other, -1), {})


def axes_of(count: int, first: int = 0) -> list[IndexMap]:
    """Plain index maps of labels `first, ..., first + count - 1`."""
    return [label(first + k) for k in range(count)]


def aligned(shape: tuple[int, ...]) -> list[IndexMap]:
    """Maps of an operand that the output repeats: a scalar, or dimensions of size one."""
    return [constant(0) if size == 1 else label(d) for d, size in enumerate(shape)]


#: Bounds of integer inputs by position: the position, its shape, and the bytes of both bounds.
Integers = tuple[tuple[int, tuple[int, ...], bytes, bytes], ...]


class Site:
    """An equation as its rule sees it."""

    def __init__(self, listing: Listing, equation: Equation, values: PossibleValues):
        """Look at `equation` of `listing`, of whose integers `values` knows more."""
        self.listing = listing
        self.equation = equation
        self.values = values
        self.params = equation.params
        self.inputs = [listing.type_of(atom) for atom in equation.inputs]
        self.outputs = [listing.variables[variable] for variable in equation.outputs]

    @property
    def name(self) -> str:
        """Name of the primitive."""
        return self.equation.name

    def shape(self, position: int) -> tuple[int, ...]:
        """Shape of an input."""
        return self.inputs[position].shape

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the first output."""
        return self.outputs[0].shape

    def known(self, position: int) -> np.ndarray | None:
        """An input's value, where it is known while planning."""
        return self.listing.known_value(self.equation.inputs[position])

    def possible(self, position: int) -> Possible | None:
        """What values an input of integers may take; None where nothing is known."""
        return self.values.of(self.equation.inputs[position])

    def settled(self, position: int) -> np.ndarray | None:
        """An input's value, where it is known or only one is possible."""
        known = self.known(position)
        if known is not None:
            return known
        possible = self.possible(position)
        if possible is None or not possible.low.size or (possible.low != possible.high).any():
            return None
        return possible.low

    @lazy
    def integers(self) -> Integers:
        """What the integer operands may be, where that is known."""
        found = []
        for position, type_ in enumerate(self.inputs):
            if type_.differentiable or math.prod(type_.shape) > MAX_INTEGERS:
                continue
            possible = self.possible(position)
            if possible is not None and possible.low.size:
                low, high = map(np.ascontiguousarray, (possible.low, possible.high))
                found.append((position, type_.shape, low.tobytes(), high.tobytes()))
        return tuple(found)

    def value(self, position: int) -> Reference:
        """Reference to the value of an input."""
        return self._reference(self.equation.inputs[position])

    def out(self, position: int = 0) -> Reference:
        """Reference to the value of an output."""
        return self._reference(self.equation.outputs[position])

    def _reference(self, atom: Atom) -> Reference:
        held = self.listing.value(atom)
        if held is None:
            raise InternalError(
                f"The rule of '{self.name}' asks for the value of a tangent, so it is not linear "
                f"in it ({self.equation.source})."
            )
        if isinstance(held, Constant):
            return Known(np.asarray(held.value))
        known = self.listing.known.get(held)
        return Primal(held) if known is None else Known(known)

    @lazy
    def _references(self) -> tuple[Reference | None, ...]:
        """To the values of all inputs; None for a tangent."""
        return tuple(
            None if self.listing.value(atom) is None else self._reference(atom)
            for atom in self.equation.inputs
        )

    def uniform(self, position: int) -> Number | None:
        """The number that an input consists of, where that is known."""
        atom: Atom | None = self.equation.inputs[position]
        while True:
            atom = self.listing.value(atom) if atom is not None else None
            if isinstance(atom, int) and atom in self.listing.broadcasts:
                atom = self.listing.broadcasts[atom][0]
                continue
            break
        if isinstance(atom, Constant) and atom.shape == ():
            return _number(atom.value)
        return None

    def factor(
        self, reference: Reference, axes: Sequence[IndexMap], shape: Sequence[int]
    ) -> tuple[Reference, Factor]:
        """A factor; one that repeats a smaller array reads that array instead."""
        axes, shape = list(axes), tuple(shape)
        while isinstance(reference, Primal) and reference.variable in self.listing.broadcasts:
            atom, dimensions = self.listing.broadcasts[reference.variable]
            source = self.listing.type_of(atom).shape
            held = self.listing.value(atom)
            if held is None:
                break
            axes = [
                axes[dimension] if source[k] != 1 or shape[dimension] == 1 else label(0, 0)
                for k, dimension in enumerate(dimensions)
            ]
            shape = source
            reference = (
                Known(np.asarray(held.value)) if isinstance(held, Constant) else Primal(held)
            )
        return reference, Factor(tuple(axes), shape)

    def local(
        self, name: str, fun: Callable[..., Any], *arguments: Reference, shape: Sequence[int]
    ) -> Reference:
        """A local partial computed from references; `fun` should be a module-level function."""
        return Local(name, fun, arguments, tuple(shape))

    def piece(
        self,
        sizes: Sequence[int],
        out: Sequence[IndexMap],
        into: Sequence[IndexMap],
        factors: Sequence[tuple[Reference, Factor]] = (),
        coefficient: Number = 1,
        conj: bool = False,
        limits: Sequence[Limit] = (),
    ) -> list[Piece]:
        """A term with labels `range(len(sizes))`; empty where it is structurally zero."""
        finished = _finished(
            tuple(sizes),
            tuple(out),
            tuple(into),
            tuple([factor for _, factor in factors]),
            coefficient,
            conj,
            tuple(limits),
        )
        if finished is None:
            return []
        term, operands = finished
        return [Piece(term, tuple([factors[k][0] for k in operands]))]

    def diagonal(
        self,
        position: int,
        reference: Reference | None = None,
        coefficient: Number = 1,
        conj: bool = False,
    ) -> list[Piece]:
        """The partial of an elementwise function: a diagonal, or a column for a scalar operand."""
        shape, source = self.outputs[0].shape, self.inputs[position].shape
        own = None if reference is None else shape_of(reference, self.listing)
        for operand in (source, own):
            if operand and len(operand) != len(shape):
                raise InternalError(f"'{self.name}' joins shapes {operand} and {shape}.")
        if isinstance(reference, Primal) and reference.variable in self.listing.broadcasts:
            assert own is not None
            factor = self.factor(reference, aligned(own), own)
            axes = axes_of(len(shape))
            return self.piece(shape, axes, aligned(source), [factor], coefficient, conj)
        finished = _diagonal(shape, source, own, coefficient, conj)
        if finished is None:
            return []
        term, operands = finished
        return [Piece(term, (reference,) if reference is not None and operands else ())]

    def note(self, reason: str) -> None:
        """Note that the equation has no rule of its own here, and why."""
        self.listing.fallbacks[self.equation.outputs[0]] = reason

    def of_tangents(self, i: int) -> bool:
        """Whether input `i` is a tangent of a derivative rule: the equation is linear in it."""
        return self.listing.value(self.equation.inputs[i]) is None

    def opaque(
        self,
        i: int,
        k: int,
        batch_in: Sequence[int] = (),
        batch_out: Sequence[int] = (),
        forward: bool = True,
        reverse: bool = True,
        work: int | None = None,
        slot: str = "",
        limits: Sequence[Limit] = (),
        rows_at_par: bool = False,
        rows_for_columns: int | None = None,
    ) -> list[Piece]:
        """The partial as an opaque linear map, diagonal along the given pairs of dimensions.

        Entries where one of `limits` is negative are zero. Their labels stand for dimensions, those
        of the output counted first, then those of the input; see `not_before`.

        With `slot`, the map is the equation itself with the tangent as input `i`: the others as
        they are ("each": linear in every input), or zero ("joint": linear in all of them together).
        With `rows_at_par`, rows are pulled where they are as many as columns; all columns,
        pushed at once, take as long as so many `rows_for_columns`.
        """
        complex_in, complex_out = self.inputs[i].is_complex, self.outputs[k].is_complex
        halves: tuple[bool | None, ...] = (None,)
        if complex_in and complex_out and not is_holomorphic(self.equation):
            halves = (False, True)
        # JAX pushes real tangents into a complex output, and pulls real cotangents back to a
        # complex input, with the meaning that terms have; not the other way round.
        real = forward and reverse and complex_in != complex_out
        forward = forward and (complex_out or not complex_in)
        reverse = reverse and (complex_in or not complex_out)
        shape_in, shape_out = self.shape(i), self.outputs[k].shape
        shared = {d: n for n, d in enumerate(batch_in)}
        shared_out = {d: n for n, d in enumerate(batch_out)}
        sizes = [shape_in[d] for d in batch_in]
        core_out = [d for d in range(len(shape_out)) if d not in shared_out]
        core_in = [d for d in range(len(shape_in)) if d not in shared]
        names_out = {**shared_out, **{d: len(sizes) + n for n, d in enumerate(core_out)}}
        sizes += [shape_out[d] for d in core_out]
        names_in = {**shared, **{d: len(sizes) + n for n, d in enumerate(core_in)}}
        sizes += [shape_in[d] for d in core_in]
        names = [
            *(names_out[d] for d in range(len(shape_out))),
            *(names_in[d] for d in range(len(shape_in))),
        ]
        limits = _limits_of_labels(limits, names, sizes)
        opaque = Opaque(
            len(batch_in),
            len(core_out),
            forward,
            reverse,
            work,
            rows_at_par,
            rows_for_columns,
            real,
        )
        arguments = self._references
        if slot:
            zero = range(len(arguments)) if slot == "joint" else (i,)
            arguments = tuple(None if n in zero else own for n, own in enumerate(arguments))
        factor = Factor(tuple(axes_of(len(sizes))), tuple(sizes), opaque=opaque)
        pieces = []
        for conjugate in halves:
            reference = OpaqueMap(
                self.equation,
                i,
                k,
                opaque,
                tuple(batch_in),
                tuple(batch_out),
                arguments,
                bool(slot),
                conjugate,
            )
            pieces += self.piece(
                sizes,
                [label(names_out[d]) for d in range(len(shape_out))],
                [label(names_in[d]) for d in range(len(shape_in))],
                [(reference, factor)],
                conj=bool(conjugate),
                limits=limits,
            )
        return pieces


@lru_cache(maxsize=1 << 12, typed=True)
def _diagonal(
    shape: tuple[int, ...],
    source: tuple[int, ...],
    own: tuple[int, ...] | None,
    coefficient: Number,
    conj: bool,
) -> tuple[Term, list[int]] | None:
    """`_finished` for an elementwise function, by the shapes of output, input and factor."""
    factors = () if own is None else (Factor(tuple(aligned(own)), own),)
    out, into = tuple(axes_of(len(shape))), tuple(aligned(source))
    return _finished(shape, out, into, factors, coefficient, conj, ())


@lru_cache(maxsize=1 << 12, typed=True)
def _finished(
    sizes: tuple[int, ...],
    out: tuple[IndexMap, ...],
    into: tuple[IndexMap, ...],
    factors: tuple[Factor, ...],
    coefficient: Number,
    conj: bool,
    limits: tuple[Limit, ...],
) -> tuple[Term, list[int]] | None:
    """The canonical term and which factors it keeps, in order; None for a structural zero.

    Most equations of a function are of a few kinds on arrays of a few shapes.
    """
    draft = Draft(
        dict(enumerate(sizes)),
        list(out),
        list(into),
        [DraftFactor(k, factor) for k, factor in enumerate(factors)],
        coefficient,
        conj,
        limits=list(limits),
    )
    return draft.finish()


def _limits_of_labels(
    limits: Sequence[Limit], names: Sequence[int], sizes: Sequence[int]
) -> list[Limit]:
    """Limits over dimensions as limits over labels, of which two dimensions may have one.

    Those that hold everywhere are left out.
    """
    found: list[Limit] = []
    extents = dict(enumerate(sizes))
    for limit in limits if all(sizes) else ():
        if isinstance(limit, Mask):
            found.append(limit.renamed(dict(enumerate(names))))
            continue
        total = constant(limit.offset)
        for dimension, part in limit.parts:
            total = total.plus(IndexMap(0, ((names[dimension], part),)), extents)
        if total.bounds(extents)[0] < 0:
            found.append(total)
    return found


#: Primitives that turn a holomorphic function of their inputs into one.
HOLOMORPHIC = frozenset(
    {
        *("add", "add_any", "sub", "neg", "mul", "div", "integer_pow", "square", "dot_general"),
        *("exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "logistic"),
        *("sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh"),
        *("reduce_sum", "reduce_prod", "cumsum", "cumprod", "conv_general_dilated", "fft"),
        *("broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "rev", "copy"),
        *("concatenate", "pad", "slice", "split", "select_n", "dynamic_slice", "gather", "copy_p"),
        *("convert_element_type", "reduce_precision", "add_jaxvals"),
        *("dynamic_update_slice", "scatter", "scatter-add", "scatter-mul", "scatter_mul"),
        *("lu", "triangular_solve"),
        *("scan", "while", "cond", "jit", "pjit", "closed_call", "remat", "checkpoint"),
        *("custom_linear_solve", "custom_jvp_call"),
    }
)
#: Primitives through which no derivative flows, whatever they are given.
CONSTANT = frozenset({"stop_gradient"})


def is_holomorphic(equation: Equation) -> bool:
    """Whether an equation is a holomorphic function of its complex inputs, as far as is known."""
    if equation.name not in HOLOMORPHIC or equation.params.get("conjugate_a", False):
        return False
    stack: list[Any] = list(equation.params.values())
    while stack:
        value = stack.pop()
        if isinstance(value, tuple | list):
            stack.extend(value)
        for inner in getattr(getattr(value, "jaxpr", value), "eqns", ()):
            if not any(_is_complex(atom.aval) for atom in inner.invars):
                continue
            moved = [v.aval for v in inner.outvars if _is_inexact(v.aval)]
            if not moved or inner.primitive.name in CONSTANT:
                continue
            if not all(map(_is_complex, moved)) or inner.primitive.name not in HOLOMORPHIC:
                return False
            if inner.params.get("conjugate_a", False):
                return False
            stack.extend(inner.params.values())
    return True


def _is_complex(aval: Any) -> bool:
    return bool(dtypes.issubdtype(getattr(aval, "dtype", np.bool_), np.complexfloating))


def _is_inexact(aval: Any) -> bool:
    return bool(dtypes.issubdtype(getattr(aval, "dtype", np.bool_), np.inexact))


def shape_of(reference: Reference, listing: Listing) -> tuple[int, ...]:
    """Shape of the array that a reference stands for."""
    if isinstance(reference, Primal):
        return listing.variables[reference.variable].shape
    if isinstance(reference, Known):
        return reference.value.shape
    if isinstance(reference, Local):
        return reference.shape
    raise InternalError("An opaque map has no value.")


def _number(value: Any) -> Number:
    array = np.asarray(value)
    if np.iscomplexobj(array):
        return complex(array)
    number = float(array)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
