"""Second derivatives of solutions and factors, as those of the equations that they solve.

For `F(u, y) = b` with `dy = S (db - F_u du)`, differentiating once more gives

    d2y  =  -S F''[(du, dy), (du, dy)]

where F is a product in all that stands here: `A x = b`, `L L^T = A`. So a cotangent of y is pulled
back to b once, by the map that the first derivative is, and what it meets there is a bilinear map
without values: no second derivative solves anything (Giles, "Collected matrix derivative results
for forward and reverse mode algorithmic differentiation", 2008, differentiated once more).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend import core

from ..edges.algebra import accumulate
from ..edges.maps import label
from ..edges.terms import Factor, Term, intern_structure
from ..graph.computational_graph import Arrow
from ..graph.listing import Equation
from .registry import find_rule
from .second_derivatives import Curvature, ImplicitCurvature
from .site import Known, Piece, Site

__all__ = ["LOWER_IS_READ", "implicit_curvature"]

#: Whether JAX's derivative of `cholesky` reads the lower triangle only, as `cholesky` does.
LOWER_IS_READ = jax.__version_info__ >= (0, 12)


def implicit_curvature(site: Site) -> ImplicitCurvature | None:
    """The second derivative of an equation that solves another one; None where it is not known."""
    form = _FORMS.get(site.name)
    types = [*site.inputs, *site.outputs]
    if form is None or len(site.outputs) != 1 or any(type_.is_complex for type_ in types):
        return None
    return form(site)


def _cholesky(site: Site) -> ImplicitCurvature | None:
    """`L L^T = A`."""
    if not (LOWER_IS_READ or _is_symmetrised(site)):
        return None
    factor, shape = site.equation.outputs[0], site.out_shape
    end = site.listing.vertex(factor)
    if site.listing.moving_vertex(factor) != end:
        return None
    batch = len(shape) - 2
    leading, row, column, inner = _labels(batch, 3)
    term = Term(
        (*shape, shape[-1]),
        (*leading, row, column),
        (*leading, row, inner, *leading, column, inner),
        coefficient=-1,
    )
    return _curvature(site, 0, [_share(site, end, end, Piece(term, ()), True)])


def _is_symmetrised(site: Site) -> bool:
    """Whether a matrix is computed as the mean of one and its transpose.

    Up to JAX 0.11 the derivative of `cholesky` takes tangents for symmetric.
    """
    listing = site.listing
    makers = {v: equation for equation in listing.equations for v in equation.outputs}

    def maker(atom: Any, *names: str) -> Equation | None:
        found = makers.get(atom) if isinstance(atom, int) else None
        return found if found is not None and found.name in names else None

    half = maker(site.equation.inputs[0], "div", "mul")
    numbers = [] if half is None else [a for a in half.inputs if listing.type_of(a).shape == ()]
    if half is None or len(numbers) != 1:
        return False
    total = next((found for a in half.inputs if (found := maker(a, "add")) is not None), None)
    for one, other in () if total is None else (total.inputs, total.inputs[::-1]):
        turned = maker(other, "transpose")
        if turned is not None and turned.inputs == (one,):
            order = turned.params["permutation"]
            rank = len(order)
            return tuple(order) == (*range(rank - 2), rank - 1, rank - 2)
    return False


def _triangular_solve(site: Site) -> ImplicitCurvature | None:
    """`T X = B`, or `X T = B`, with the triangle of T that is used."""
    params, listing = site.params, site.listing
    triangle, solution = site.equation.inputs[0], site.equation.outputs[0]
    (size, _), shape = site.shape(0)[-2:], site.out_shape
    batch = len(shape) - 2
    leading, row, other, inner = _labels(batch, 3)
    left, turned = params["left_side"], params["transpose_a"]
    out = (row, other) if left else (other, row)
    of_solution = (*leading, inner, other) if left else (*leading, other, inner)
    at = (row, inner) if left != turned else (inner, row)
    take = np.tril if params["lower"] else np.triu
    offset = int(params["unit_diagonal"]) * (-1 if params["lower"] else 1)
    used = take(np.ones((size, size), listing.variables[solution].dtype), offset)
    mask, factor = Known(used), Factor(at, used.shape)
    sizes = (*shape[:-2], size, shape[-1] if left else shape[-2], size)

    def piece(first: Sequence[Any], second: Sequence[Any]) -> Piece:
        return Piece(Term(sizes, (*leading, *out), (*first, *second), (factor,), -1), (mask,))

    of_triangle = (*leading, *at)
    tangent = listing.vertex(triangle) if site.equation.active[0] else None  # type: ignore[arg-type]
    moving = listing.moving_vertex(triangle)
    end, moved = listing.vertex(solution), listing.moving_vertex(solution)
    straight, mirrored = piece(of_triangle, of_solution), piece(of_solution, of_triangle)
    if tangent is not None and tangent == moving and end == moved:
        return _curvature(site, 1, [_share(site, tangent, end, straight, True)])
    shares = []
    if tangent is not None and moved is not None:
        shares.append(_share(site, tangent, moved, straight))
    if moving is not None:
        shares.append(_share(site, end, moving, mirrored))
    return _curvature(site, 1, shares)


def _linear_solve(site: Site) -> ImplicitCurvature | None:
    """`A x = b`, linear in b as in the solve's own tangent, with a product of arrays for A."""
    equation, listing = site.equation, site.listing
    lengths = equation.params["const_lengths"]
    operands, matrices = sum(lengths), lengths.matvec
    if any(equation.active[:operands]) or len(equation.inputs) != operands + 1:
        return None
    if listing.moving_vertex(equation.inputs[operands]) is not None:
        return None
    moving = [k for k in range(matrices) if listing.moving_vertex(equation.inputs[k]) is not None]
    if not moving:  # what else moves, as factors of the matrix, is not differentiated
        return _curvature(site, operands, [])
    found = _product(equation.params["jaxprs"].matvec.jaxpr, matrices)
    if found is None or moving != [found.matrix]:
        return None
    end, matrix = listing.vertex(equation.outputs[0]), equation.inputs[found.matrix]
    vertex = listing.moving_vertex(matrix)
    assert vertex is not None
    term = Term(found.sizes, found.out, (*found.of_solution, *found.of_matrix), coefficient=-1)
    return _curvature(site, operands, [_share(site, end, vertex, Piece(term, ()))])


#: What a product of two arrays, with their axes in any order, is written with.
_OF_PRODUCTS = frozenset({"dot_general", "reduce_sum", "transpose"})


@dataclass(frozen=True)
class _Product:
    """A product of a matrix, which is constant `matrix`, and a solution, by labels."""

    matrix: int
    sizes: tuple[int, ...]
    out: tuple[Any, ...]
    of_matrix: tuple[Any, ...]
    of_solution: tuple[Any, ...]


def _product(jaxpr: Any, matrices: int) -> _Product | None:
    """What a jaxpr computes of constants and a solution, where that is one product of two arrays.

    Axes may be exchanged before and after it.
    """
    names: dict[Any, list[int]] = {}
    makers: dict[Any, int] = {}
    sizes: list[int] = []
    for k, variable in enumerate(jaxpr.invars):
        names[variable] = list(range(len(sizes), len(sizes) + len(variable.aval.shape)))
        makers[variable] = k
        sizes += variable.aval.shape
    same = list(range(len(sizes)))
    product: tuple[Any, Any] | None = None
    for equation in jaxpr.eqns:
        kind, params, operands = equation.primitive.name, equation.params, equation.invars
        if kind not in _OF_PRODUCTS or any(_is_unknown(operand, names) for operand in operands):
            return None
        (result,) = equation.outvars
        if kind == "transpose":
            own = names[operands[0]]
            names[result] = [own[d] for d in params["permutation"]]
        elif kind == "reduce_sum" and not params["axes"]:
            names[result] = names[operands[0]]
        elif kind == "dot_general" and product is None:
            left, right = (names[operand] for operand in operands)
            contracted, batch = params["dimension_numbers"]
            for one, other in (*zip(*contracted, strict=True), *zip(*batch, strict=True)):
                same[right[other]] = left[one]
            free = [d for d in range(len(left)) if d not in (*contracted[0], *batch[0])]
            free_right = [d for d in range(len(right)) if d not in (*contracted[1], *batch[1])]
            names[result] = [
                *(left[d] for d in batch[0]),
                *(left[d] for d in free),
                *(right[d] for d in free_right),
            ]
            product = makers.get(operands[0], -1), makers.get(operands[1], -1)
            makers[result] = -1
            continue
        else:
            return None
        makers[result] = makers.get(operands[0], -1)
    if product is None or matrices not in product:
        return None
    matrix = product[product.index(matrices) - 1]
    if not 0 <= matrix < matrices or _is_unknown(jaxpr.outvars[0], names):
        return None
    used = sorted({same[n] for v in (jaxpr.invars[matrix], jaxpr.invars[-1]) for n in names[v]})
    places = {name: n for n, name in enumerate(used)}

    def axes(variable: Any) -> tuple[Any, ...]:
        return tuple(label(places[same[n]]) for n in names[variable])

    return _Product(
        matrix,
        tuple(sizes[name] for name in used),
        axes(jaxpr.outvars[0]),
        axes(jaxpr.invars[matrix]),
        axes(jaxpr.invars[-1]),
    )


def _is_unknown(variable: Any, names: Mapping[Any, list[int]]) -> bool:
    return isinstance(variable, core.Literal) or variable not in names


def _labels(batch: int, more: int) -> Iterator[Any]:
    """Index maps of `batch` dimensions, together, then `more` single ones."""
    yield tuple(label(n) for n in range(batch))
    yield from (label(batch + n) for n in range(more))


def _share(site: Site, first: int, second: int, piece: Piece, symmetric: bool = False) -> Curvature:
    shapes = (site.listing.variables[v].shape for v in (first, second))
    arrow = _arrow(site.out_shape, tuple(itertools.chain(*shapes)), [piece])
    return Curvature(first, second, arrow, symmetric)


def _curvature(site: Site, place: int, shares: Sequence[Curvature]) -> ImplicitCurvature | None:
    """The curvature with the map along the right-hand side, which is input `place`."""
    rule = find_rule(site.equation)
    if rule is None:
        return None
    output = site.listing.vertex(site.equation.outputs[0])
    arrow = _arrow(site.out_shape, site.shape(place), rule(site, place, 0))
    return ImplicitCurvature(output, arrow, tuple(shares))


def _arrow(out: tuple[int, ...], into: tuple[int, ...], pieces: Sequence[Piece]) -> Arrow:
    recipe = accumulate((intern_structure(out, into, [piece.term for piece in pieces]),))
    return Arrow(recipe, tuple(r for piece in pieces for r in piece.references))


_FORMS: dict[str, Callable[[Site], ImplicitCurvature | None]] = {
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
    "custom_linear_solve": _linear_solve,
}
