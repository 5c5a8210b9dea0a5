"""From a listing to the computational graph: ask the rules, prune, number."""

from __future__ import annotations

from collections.abc import Sequence

from ..edges.algebra import accumulate
from ..edges.maps import label
from ..edges.operations import Recipe
from ..edges.terms import Structure, Term, intern_structure
from ..errors import InvalidTypeError
from ..graph.computational_graph import Arrow, ComputationalGraph, Vertex, VertexName
from ..graph.listing import Equation, Listing
from .opaque import fallback
from .possible_values import PossibleValues
from .registry import find_rule
from .site import Piece, Site
from .still_entries import StillEntries, keep_still
from .zeros import without_zeros

__all__ = [
    "check_holomorphic",
    "closure",
    "identity_structure",
    "local_partials",
    "lower",
    "pieces_of",
]


def lower(
    listing: Listing, differentiated: Sequence[bool], active_outputs: Sequence[bool], name: str
) -> ComputationalGraph:
    """Build the graph between the differentiated inputs and the active outputs.

    Args:
        listing: the flat program; its first `len(active_outputs)` outputs are differentiated.
        differentiated: for each input of the listing whether it is differentiated.
        active_outputs: for each of those outputs whether it depends on them.
        name: the function's name.
    """
    arrows, makers, _ = local_partials(listing)
    moving = [v for v, moves in zip(listing.inputs, differentiated, strict=True) if moves]
    ends: list[int | None] = []
    for atom, active in zip(listing.outputs, active_outputs, strict=False):
        ends.append(listing.vertex(atom) if active and isinstance(atom, int) else None)

    forward: dict[int, list[int]] = {}
    backward: dict[int, list[int]] = {}
    for u, v in arrows:
        forward.setdefault(u, []).append(v)
        backward.setdefault(v, []).append(u)
    reached = closure(moving, forward)
    needed = closure([end for end in ends if end is not None], backward)
    alive = reached & needed

    names: dict[int, VertexName] = {variable: f"x{k}" for k, variable in enumerate(moving)}
    outputs: dict[int, VertexName] = {}
    own: list[int] = []
    for end in ends:
        if end is None or end not in alive or end in outputs:
            continue
        outputs[end] = f"y{len(outputs)}"
        if end in names or any(w in alive for w in forward.get(end, ())):
            own.append(end)  # it feeds something else too: an arrow to an output of its own
        else:
            names[end] = outputs[end]
    count = 0
    for variable in sorted(alive):
        if variable not in names:
            count += 1
            names[variable] = count

    graph = ComputationalGraph(name, listing)
    for variable in (*moving, *sorted(alive - set(moving))):
        graph.vertices.append(_vertex(listing, variable, names[variable], makers.get(variable)))
    for (u, v), arrow in arrows.items():
        if u in alive and v in alive:
            graph.arrows[names[u], names[v]] = arrow
    for variable in own:
        kind = _vertex(listing, variable, outputs[variable], makers.get(variable))
        graph.vertices.append(kind)
        identity = Arrow(accumulate((identity_structure(listing, variable),)), ())
        if identity.recipe.result is not None:  # None for an array of size zero
            graph.arrows[names[variable], outputs[variable]] = identity
    graph.inputs = [names[variable] for variable in moving]
    graph.outputs = [outputs.get(end) if end is not None else None for end in ends]
    return graph


def local_partials(
    listing: Listing, values: PossibleValues | None = None
) -> tuple[dict[tuple[int, int], Arrow], dict[int, Equation], StillEntries]:
    """All local partials by (from, to), the equation of each vertex, and entries that stay.

    Args:
        listing: the flat program.
        values: what is known of its integers; by default what follows from the program alone.
    """
    pieces: dict[tuple[int, int], list[Piece]] = {}
    makers: dict[int, Equation] = {}
    values = PossibleValues(listing) if values is None else values
    for equation in listing.equations:
        if True not in equation.active:
            continue
        for output in equation.outputs:
            if output in listing.active:
                makers[output] = equation
        for arrow, found in pieces_of(listing, equation, values).items():
            before = pieces.setdefault(arrow, found)
            if before is not found:
                before.extend(found)
    still = keep_still(pieces, makers, listing)
    arrows: dict[tuple[int, int], Arrow] = {}
    # Most arrows are of a few kinds: terms and types of arrays that they share are one object.
    recipes: dict[tuple[int, ...], Recipe] = {}
    types = listing.variables
    for (u, v), parts in pieces.items():
        kind = (id(types[u]), id(types[v]), *[id(piece.term) for piece in parts])
        recipe = recipes.get(kind)
        if recipe is None:
            structure = _structure(listing, u, v, [piece.term for piece in parts])
            recipe = recipes[kind] = accumulate((structure,))
        if recipe.result is not None:
            one = len(parts) == 1
            references = (
                parts[0].references if one else tuple([r for p in parts for r in p.references])
            )
            arrows[u, v] = Arrow(recipe, references)
    return arrows, makers, still


def pieces_of(
    listing: Listing, equation: Equation, values: PossibleValues
) -> dict[tuple[int, int], list[Piece]]:
    """What an equation's rule says of it, by (from, to)."""
    pieces: dict[tuple[int, int], list[Piece]] = {}
    site = Site(listing, equation, values)
    rule = find_rule(equation) or fallback
    for k, output in enumerate(equation.outputs):
        if output not in listing.active:
            continue
        for i, atom in enumerate(equation.inputs):
            if not equation.active[i] or not isinstance(atom, int):
                continue
            found = [whole for piece in rule(site, i, k) for whole in without_zeros(piece, listing)]
            if found:
                arrow = (listing.vertex(atom), output)
                pieces[arrow] = pieces[arrow] + found if arrow in pieces else found
    return pieces


def _structure(listing: Listing, u: int, v: int, terms: list[Term]) -> Structure:
    source, target = listing.variables[u], listing.variables[v]
    return intern_structure(target.shape, source.shape, terms, target.is_complex, source.is_complex)


def identity_structure(listing: Listing, variable: int) -> Structure:
    """The identity on a variable's array."""
    shape = listing.variables[variable].shape
    kept = [n for n in range(len(shape)) if shape[n] != 1]
    names = {old: new for new, old in enumerate(kept)}
    axes = tuple(label(names[n]) if n in names else label(0, 0) for n in range(len(shape)))
    term = Term(tuple(shape[n] for n in kept), axes, axes)
    return _structure(listing, variable, variable, [term])


def closure(starts: Sequence[int], successors: dict[int, list[int]]) -> set[int]:
    """What can be reached from `starts`, themselves included."""
    seen = set(starts)
    stack = list(starts)
    while stack:
        for other in successors.get(stack.pop(), ()):
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return seen


def _vertex(listing: Listing, variable: int, name: VertexName, maker: Equation | None) -> Vertex:
    kind = "intermediate"
    if isinstance(name, str):
        kind = "input" if name.startswith("x") else "output"
    type_ = listing.variables[variable]
    return Vertex(name, kind, type_.shape, type_.dtype, variable, maker)


def check_holomorphic(structure: Structure, function: str) -> None:
    """Refuse a Jacobian between complex arrays that is not complex-linear."""
    if structure.complex_in and structure.complex_out and any(t.conj for t in structure.terms):
        raise InvalidTypeError(
            f"{function} maps complex inputs to complex outputs but is not holomorphic, so it has "
            "no complex Jacobian. Differentiate its real and imaginary parts separately."
        )
