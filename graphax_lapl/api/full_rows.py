"""Where seeds of zeros meet slopes that may be infinite, and where they never do.

A product with a seed matrix multiplies zeros with every slope; a zero times an infinite slope is
NaN where elimination, which knows that no path leads there, leaves an entry out. What depends on
all inputs has no such zeros: where its slope is infinite, no entry of its row is a finite number,
whoever computes it. The same holds for rows, of what all outputs depend on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from ..coloring import Coloring
from ..edges.layout import term_positions
from ..edges.terms import Structure
from ..graph.computational_graph import ComputationalGraph, VertexName
from ..graph.listing import Equation
from ..rules.elementwise import INFINITE_SLOPES
from .guarded import GuardedFunction

__all__ = ["guarded_function", "zeros_meet_finite_slopes"]

#: Largest matrix of an array's entries and inputs, or entries of a local partial.
MAX_ENTRIES = 2**16
#: What is smaller than this is the rest of a sum that cancels.
NOTHING = 1e-9


def zeros_meet_finite_slopes(
    graph: ComputationalGraph, equations: Iterable[Equation], columns: bool, rows: bool
) -> bool:
    """Whether no zero of a seed meets a slope of these equations where that may be infinite.

    Args:
        graph: the graph.
        equations: elementwise ones, of those that move.
        columns: whether tangents are pushed.
        rows: whether cotangents are pulled.
    """
    found = list(equations)
    if any(equation.name not in INFINITE_SLOPES for equation in found):
        return False
    if any(_size(graph, a) * _size(graph, b) > MAX_ENTRIES for a, b in graph.arrows):
        return False
    listing = graph.listing
    names = {vertex.variable: vertex.name for vertex in reversed(graph.vertices)}

    def at(variable: object) -> VertexName | None:
        return names.get(listing.vertex(variable)) if isinstance(variable, int) else None

    if columns:
        # The slope of a quotient is infinite, in whatever operand, where the divisor is zero.
        read = [
            at(atom)
            for e in found
            for k, (atom, active) in enumerate(zip(e.inputs, e.active, strict=True))
            if active and (e.name != "div" or k == 1)
        ]
        if not _are_full(graph, read, graph.inputs, pushed=True):
            return False
    written = [at(variable) for e in found for variable in e.outputs]
    ends = [name for name in graph.outputs if name is not None]
    return not rows or _are_full(graph, written, ends, pushed=False)


def guarded_function(
    graph: ComputationalGraph, equations: Iterable[Equation], coloring: Coloring
) -> GuardedFunction | None:
    """The function with guards where zeros of pushed seeds would meet these equations' slopes.

    Args:
        graph: the graph.
        equations: elementwise ones, of those that move.
        coloring: which inputs each seed holds; it has columns only.

    Returns:
        The function; None where rules of the user's or of JAX's are inlined, which its equations
        would not follow, or where it is too large.
    """
    listing, found = graph.listing, list(equations)
    if listing.value_of or listing.vertex_of or listing.moves_with or listing.disagrees:
        return None
    if coloring.rows or any(e.name not in INFINITE_SLOPES or e.known_as for e in found):
        return None
    if any(e.effects for e in listing.equations):
        return None
    if any(_size(graph, a) * _size(graph, b) > MAX_ENTRIES for a, b in graph.arrows):
        return None
    names = {vertex.variable: vertex.name for vertex in reversed(graph.vertices)}
    known = _reached(graph, graph.inputs, pushed=True)
    if known is None:
        return None
    seeds = np.arange(coloring.columns)[:, None] == coloring.column_colors
    places = {id(equation): place for place, equation in enumerate(listing.equations)}
    reached: dict[tuple[int, int], np.ndarray] = {}
    for equation in found:
        shape = listing.type_of(equation.outputs[0]).shape
        for k, (atom, active) in enumerate(zip(equation.inputs, equation.active, strict=True)):
            if not active or not isinstance(atom, int):
                continue
            if listing.type_of(atom).shape != shape or names.get(atom) not in known:
                return None
            paths = seeds.astype(int) @ (np.abs(known[names[atom]]) > NOTHING).T > 0
            if not paths.all():
                reached[places[id(equation)], k] = paths.reshape(-1, *shape)
    return GuardedFunction(listing, reached)


def _are_full(
    graph: ComputationalGraph,
    asked: Iterable[VertexName | None],
    ends: Iterable[VertexName],
    pushed: bool,
) -> bool:
    """Whether all entries of some arrays depend on all of the ends, or these on them."""
    wanted = set(asked)
    known = None if None in wanted else _reached(graph, ends, pushed)
    return known is not None and all(_is_full(known, name) for name in wanted)


def _reached(
    graph: ComputationalGraph, ends: Iterable[VertexName], pushed: bool
) -> dict[VertexName, np.ndarray] | None:
    """For the arrays that depend on some of the ends, or these on them, which entries on which.

    Derivatives in general position are accumulated: known coefficients as they are, so that what
    cancels is seen, and random numbers for all that is not known while planning.
    """
    ends = list(dict.fromkeys(ends))
    count = sum(_size(graph, end) for end in ends)
    if max(_size(graph, v.name) for v in graph.vertices) * count > MAX_ENTRIES:
        return None
    random = np.random.default_rng(0)
    seeds = np.split(np.eye(count), np.cumsum([_size(graph, end) for end in ends])[:-1])
    known: dict[VertexName, np.ndarray] = dict(zip(ends, seeds, strict=True))
    neighbours: dict[VertexName, list[tuple[VertexName, Structure]]] = {}
    for (start, end), arrow in graph.arrows.items():
        here, there = (end, start) if pushed else (start, end)
        neighbours.setdefault(here, []).append((there, arrow.structure))
    for vertex in graph.vertices if pushed else reversed(graph.vertices):
        for other, structure in neighbours.get(vertex.name, ()):
            if other in known:
                slopes = _in_general_position(structure, random)
                added = (slopes if pushed else slopes.T) @ known[other]
                known[vertex.name] = known.get(vertex.name, 0.0) + added
    return known


def _is_full(known: Mapping[VertexName, np.ndarray], name: VertexName | None) -> bool:
    return name is not None and name in known and bool((np.abs(known[name]) > NOTHING).all())


def _in_general_position(structure: Structure, random: np.random.Generator) -> np.ndarray:
    """A matrix with the structure of a local partial."""
    shape = (*structure.out_shape, *structure.in_shape)
    matrix = np.zeros(math.prod(shape))
    for term in structure.terms:
        flat, valid = term_positions(term, shape)
        summed = set(term.labels) - term.position_labels
        number = abs(term.coefficient) if term.factors else term.coefficient
        values = number * math.prod(term.sizes[label] for label in summed) * np.ones(len(flat))
        if term.factors:
            values = values * random.uniform(0.5, 1.5, len(flat))
        np.add.at(matrix, flat[valid], values[valid].real)
    return matrix.reshape(math.prod(structure.out_shape), -1)


def _size(graph: ComputationalGraph, name: VertexName) -> int:
    return math.prod(graph.by_name[name].shape)
