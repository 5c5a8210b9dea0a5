"""Second derivatives of single equations, from the references of their first ones.

A local partial is a sum of terms over references: primal values, functions of them, numbers. Its
own derivative replaces one reference after the other by that reference' derivative, so nothing
about second order is written down per primitive: `x * y` has the partial `y` with respect to `x`,
whose derivative with respect to `y` is one. The result is a bilinear map of two arguments, a
`Structure` over the dimensions of both (see `edges/bilinear.py`).

What has no derivative of this kind (opaque maps, partials that are computed by a loop) is left to
`jvp` of `jvp` along the columns that are there, or to the equation that it solves (`implicit.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from ..edges.algebra import accumulate
from ..edges.bilinear import substituted
from ..edges.maps import constant, label
from ..edges.terms import Factor, Term, intern_structure
from ..edges.unify import Unsolvable
from ..graph.computational_graph import Arrow
from ..graph.listing import Listing
from .elementwise import PARTIALS_OF_PARTIALS
from .implicit import implicit_curvature
from .opaque import fallback
from .possible_values import PossibleValues
from .registry import find_rule
from .second_derivatives import Curvature, Curvatures, OpaqueCurvature
from .site import Known, Local, OpaqueMap, Piece, Primal, Reference, Site, shape_of

__all__ = ["curvatures"]


class _Unknown(Exception):
    """A reference whose derivative is not known in closed form."""


#: A derivative of a reference: the variable that it is along, and a term into that one's array.
Slope = tuple[int, Piece]


def curvatures(listing: Listing) -> Curvatures:
    """The second derivatives of all equations of a listing (traced for two orders)."""
    found, values = Curvatures({}, []), PossibleValues(listing)
    for equation in listing.equations:
        if not any(equation.active):
            continue
        site = Site(listing, equation, values)
        try:
            for output, shares in _closed_forms(site).items():
                found.local.setdefault(output, []).extend(shares)
        except (_Unknown, Unsolvable):
            found.opaque.append(_opaque(site))
    return found


def _opaque(site: Site) -> OpaqueCurvature:
    listing, equation = site.listing, site.equation
    tangents, moving = [], []
    for atom, active in zip(equation.inputs, equation.active, strict=True):
        tangents.append(listing.vertex(atom) if active and isinstance(atom, int) else None)
        moving.append(listing.moving_vertex(atom))
    solution = None
    if equation.name in SOLVES and len(equation.outputs) == 1 and not site.outputs[0].is_complex:
        solution = listing.vertex(equation.outputs[0])
    implicit = implicit_curvature(site)
    return OpaqueCurvature(equation, tuple(tangents), tuple(moving), solution, implicit)


def _closed_forms(site: Site) -> dict[int, list[Curvature]]:
    listing, equation = site.listing, site.equation
    rule = find_rule(equation) or fallback
    result: dict[int, list[Curvature]] = {}
    for k, output in enumerate(equation.outputs):
        if output not in listing.active:
            continue
        partials = {
            i: rule(site, i, k)
            for i, atom in enumerate(equation.inputs)
            if equation.active[i] and isinstance(atom, int)
        }
        if all(_is_fixed(r, listing) for ps in partials.values() for p in ps for r in p.references):
            continue
        slopes = _Slopes(site, k, partials)
        shares: dict[tuple[int, int], list[Piece]] = {}
        for i, pieces in partials.items():
            atom = equation.inputs[i]
            assert isinstance(atom, int)
            for piece in pieces:
                for position, reference in enumerate(piece.references):
                    for along, slope in slopes.of(reference):
                        key = (listing.vertex(atom), along)
                        shares.setdefault(key, []).extend(_replaced(piece, position, slope))
        result[output] = _joined(listing, output, shares)
    return result


def _is_fixed(reference: Reference | None, listing: Listing) -> bool:
    """Whether a reference does not move with the inputs."""
    if isinstance(reference, Primal):
        return listing.moving_vertex(reference.variable) is None
    if isinstance(reference, Local):
        return reference.slope == "constant" or all(
            _is_fixed(argument, listing) for argument in reference.arguments
        )
    if isinstance(reference, OpaqueMap):
        if reference.slot:
            return all(a is None or _is_fixed(a, listing) for a in reference.arguments)
        return reference.equation.name in LINEAR and all(
            _is_fixed(argument, listing)
            for place, argument in enumerate(reference.arguments)
            if not reference.equation.active[place]
        )
    return True


#: Solutions of linear equations, as functions of both sides.
SOLVES = frozenset({"custom_linear_solve", "triangular_solve"})

#: Opaque primitives that are linear in their differentiated inputs taken together (a convolution
#: is opaque with respect to its input only).
LINEAR = frozenset(
    {
        "conv_general_dilated",
        "cummax",
        "cummin",
        "cumsum",
        "dynamic_slice",
        "dynamic_update_slice",
        "fft",
        "gather",
        "reduce_window_max",
        "reduce_window_min",
        "scatter",
        "scatter-add",
        "select_and_gather_add",
        "select_and_scatter_add",
        "sort",
        "top_k",
        "approx_top_k",
    }
)


def _joined(
    listing: Listing, output: int, shares: dict[tuple[int, int], list[Piece]]
) -> list[Curvature]:
    result = []
    target = listing.variables[output]
    for (first, second), pieces in shares.items():
        # An equation's partials are symmetric; a tangent program's coefficients come once.
        mirrored = first != second and (second, first) in shares
        if mirrored and first > second:
            continue
        shape = (*listing.variables[first].shape, *listing.variables[second].shape)
        complex_in = any(listing.variables[v].is_complex for v in (first, second))
        if complex_in and not target.is_complex:
            raise _Unknown  # a real part of a product
        structure = intern_structure(
            target.shape, shape, [p.term for p in pieces], target.is_complex, complex_in
        )
        recipe = accumulate((structure,))
        if recipe.result is not None:
            references = tuple(r for piece in pieces for r in piece.references)
            result.append(Curvature(first, second, Arrow(recipe, references), mirrored))
    return result


def _replaced(piece: Piece, position: int, slope: Piece) -> list[Piece]:
    """The piece with one factor replaced by its derivative."""
    if piece.term.conj or slope.term.conj or piece.term.factors[position].conj:
        raise _Unknown
    references = (
        *piece.references[:position],
        *piece.references[position + 1 :],
        *slope.references,
    )
    offsets = [n for n in range(len(piece.references)) if n != position]
    offsets += range(len(piece.references), len(piece.references) + len(slope.references))
    places = {operand: n for n, operand in enumerate(offsets)}
    return [
        Piece(term, tuple(references[places[operand]] for operand in operands))
        for term, operands in substituted(piece.term, position, slope.term)
    ]


class _Slopes:
    """Derivatives of the references of one equation's output."""

    def __init__(self, site: Site, output: int, partials: dict[int, list[Piece]]):
        self.site = site
        self.output = site.equation.outputs[output]
        self.partials = partials

    def of(self, reference: Reference) -> list[Slope]:
        """The derivative of a reference, as terms out of the dimensions of its array."""
        if isinstance(reference, Known):
            return []
        if isinstance(reference, Primal):
            return self.of_primal(reference)
        if isinstance(reference, OpaqueMap):
            if _is_fixed(reference, self.site.listing):
                return []
            raise _Unknown
        if _is_fixed(reference, self.site.listing):
            return []
        if callable(reference.slope):
            inner = reference.slope(reference)
        elif reference.slope == "elementwise":
            inner = _elementwise(reference, self.site.listing)
        else:
            raise _Unknown
        result: list[Slope] = []
        for place, piece in inner:
            for along, slope in self.of(reference.arguments[place]):
                result += [(along, made) for made in _chained(piece, slope)]
        return result

    def of_primal(self, reference: Primal) -> list[Slope]:
        listing = self.site.listing
        if reference.variable == listing.value(self.output):
            # The result's own derivative, written through what the inputs' values move with.
            result = []
            for i, pieces in self.partials.items():
                atom = self.site.equation.inputs[i]
                assert isinstance(atom, int)
                moves = listing.moving_vertex(atom)
                if moves is not None:
                    result += [(moves, piece) for piece in pieces]
            return result
        along = listing.moving_vertex(reference.variable)
        if along is None:
            return []
        shape = listing.variables[reference.variable].shape
        return [(along, piece) for piece in _identity(shape)]


def _identity(shape: tuple[int, ...]) -> list[Piece]:
    return _diagonal(shape, shape, ())


def _diagonal(
    shape: tuple[int, ...], argument: tuple[int, ...], references: tuple[Reference, ...]
) -> list[Piece]:
    """An array's derivative along an argument that it repeats along dimensions of size one."""
    kept = [d for d, size in enumerate(shape) if size != 1]
    names = {d: n for n, d in enumerate(kept)}
    out = tuple(label(names[d]) if d in names else constant(0) for d in range(len(shape)))
    into = tuple(constant(0) if size == 1 else label(names[d]) for d, size in enumerate(argument))
    factors = tuple(Factor(out, shape) for _ in references)
    return [Piece(Term(tuple(shape[d] for d in kept), out, into, factors), references)]


def _chained(outer: Piece, inner: Piece) -> list[Piece]:
    """The product of two terms of references."""
    axes = outer.term.into
    carrier = Term(
        outer.term.sizes,
        outer.term.out,
        (),
        (*outer.term.factors, Factor(axes, _extents(outer.term, axes, inner))),
        outer.term.coefficient,
    )
    wrapped = Piece(carrier, (*outer.references, Known(None)))  # type: ignore[arg-type]
    return _replaced(wrapped, len(outer.references), inner)


def _extents(term: Term, axes: tuple[Any, ...], inner: Piece) -> tuple[int, ...]:
    """A shape that holds all positions of both sides."""
    sizes = dict(enumerate(term.sizes))
    inner_sizes = dict(enumerate(inner.term.sizes))
    return tuple(
        1 + max(a.bounds(sizes)[1], b.bounds(inner_sizes)[1])
        for a, b in zip(axes, inner.term.out, strict=True)
    )


def _elementwise(reference: Local, listing: Listing) -> list[tuple[int, Piece]]:
    """Derivatives of an elementwise function along each of its arguments."""
    result: list[tuple[int, Piece]] = []
    for place, argument in enumerate(reference.arguments):
        number, fun = PARTIALS_OF_PARTIALS.get(reference.fun) or (
            1,
            _derivative(reference.fun, place),
        )
        name = f"d({reference.name})"
        local = (
            argument
            if fun is None
            else Local(name, fun, reference.arguments, reference.shape, "elementwise")
        )
        pieces = _diagonal(reference.shape, shape_of(argument, listing), (local,))
        result += [(place, Piece(p.term.scaled(number), p.references)) for p in pieces]
    return result


@lru_cache(maxsize=4096)
def _derivative(fun: Callable[..., Array], place: int) -> Callable[..., Array]:
    """The derivative of an elementwise function along one argument, of their joint shape."""

    def derivative(*values: Array) -> Array:
        shape = np.broadcast_shapes(*(value.shape for value in values))
        full = [
            v
            if v.shape == shape
            else lax.broadcast_in_dim(v, shape, range(len(shape) - v.ndim, len(shape)))
            for v in values
        ]

        def along(x: Array) -> Array:
            return fun(*full[:place], x, *full[place + 1 :])

        return jax.jvp(along, (full[place],), (lax.full_like(full[place], 1),))[1]

    return derivative
