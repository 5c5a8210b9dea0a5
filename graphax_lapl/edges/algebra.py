"""The edge algebra: compose, add, transpose, trace and densify structures.

Every operation maps structures to a `Recipe`: the resulting structure, the array operations that
compute its factors, and their cost. Results are remembered by structure, so asking twice is a
lookup; this is what lets a planner try thousands of orders.

Example, the chain rule through `y = tanh(W x)` with `W` of shape (4, 3): the edge of `tanh` is one
diagonal term with a factor `d[a]`, the edge of the product is one dense term `W[a, b]`; composing
them unifies the labels and yields one dense term, at 12 multiplications.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from .consolidate import consolidate
from .contract import materialize_all, simplify
from .draft import Draft, DraftFactor
from .limits import common_limits
from .maps import label
from .merge import Item, merge, terms_with_operands
from .operations import Assemble, Recipe, RecipeWriter
from .placement import placed
from .products import equate, finished_items, products
from .repeats import add_repeats
from .terms import Factor, Structure, Term, intern_structure, with_terms
from .unify import Unsolvable, solve

__all__ = [
    "accumulate",
    "add",
    "compose",
    "dense_structure",
    "densify",
    "is_nearly_dense",
    "terms_everywhere",
    "trace",
    "transpose",
    "without_opaque",
]

#: Sums of more terms than this become dense where that is not much larger.
MAX_TERMS = 64
#: A matrix in which tables place entries at this part of its positions is written out where these
#: would repeat positions of a product, up to so many of them.
FILLED, MAX_FILLED = 0.5, 1 << 12
#: A sum that stands everywhere is nearly dense where its factors hold this part of the numbers.
NEARLY_DENSE = 0.75


@lru_cache(maxsize=1 << 16)
def compose(outer: Structure, inner: Structure) -> Recipe:
    """The product `outer @ inner` (apply `inner` first).

    Operands of the recipe: the factors of `outer`, then those of `inner`. Its result is None where
    the product is structurally zero.
    """
    recipe = placed(outer, inner)
    if recipe is not None:
        return recipe
    recipe = _composed(outer, inner)
    if recipe.evaluations < 2:
        return recipe
    # A map that several terms meet is evaluated for each of them. It is so once where it is written
    # out, and where they are one column (or row) and it has several.
    sides = ((0, outer), (1, inner))
    opaque = [side for side, s in sides if any(factor.opaque for factor in s.factors)]
    once = [_composed(outer, inner, written=side) for side in opaque]
    ends = math.prod(outer.out_shape), math.prod(inner.in_shape)
    if len(opaque) == 1 and ends[1 - opaque[0]] == 1:
        once.append(_composed(outer, inner, together=1 - opaque[0]))
    return min(recipe, *once, key=lambda found: found.work)


def _composed(
    outer: Structure, inner: Structure, written: int | None = None, together: int | None = None
) -> Recipe:
    """The product of two structures.

    Args:
        outer: the structure on the left.
        inner: the one on the right.
        written: the side (0 or 1) whose opaque factors are written out first, if any.
        together: the side whose terms are made one array first, if any.
    """
    writer = RecipeWriter(len(outer.factors) + len(inner.factors))
    first = len(outer.factors)
    factors = [(outer, list(range(first))), (inner, list(range(first, writer.inputs)))]
    if written is not None:
        structure, operands = factors[written]
        arrays = without_opaque(structure)
        assert arrays.result is not None
        slots = writer.replay(arrays.steps, operands)
        factors[written] = arrays.result, [slots[place] for place in arrays.operands]
    if together is not None:
        factors[together] = densified(*factors[together], writer)
    left, right = factors
    while True:
        start = len(writer.steps)
        try:
            items = products(left, right, writer)
            if not _places_repeat(items, (*outer.out_shape, *inner.in_shape), writer):
                break
            filled = [_is_filled(structure) for structure, _ in (left, right)]
            if sum(filled) != 1:  # of two triangles few pairs meet
                break
            met = writer.ad
            del writer.steps[start:]
            left, right = (
                densified(*side, writer) if is_filled else side
                for side, is_filled in zip((left, right), filled, strict=True)
            )
            items = products(left, right, writer)
            writer.ad = met
            break
        except Unsolvable:
            # Correct first: write out the side whose matrix is smaller, and try again.
            dense_left, dense_right = _is_dense(left[0]), _is_dense(right[0])
            if not dense_left and (dense_right or left[0].size <= right[0].size):
                left = densified(*left, writer)
            else:
                right = densified(*right, writer)
    return sum_of_terms(
        items, outer.out_shape, inner.in_shape, outer.complex_out, inner.complex_in, writer
    )


def _places_repeat(items: list[Item], shape: tuple[int, ...], writer: RecipeWriter) -> bool:
    """Whether tables place more entries of one term than the matrix has positions.

    Entries that are added at once, as those of a row times a triangle, do not count.
    """
    size = math.prod(shape)
    repeated = [item for item in items if item[0].entries > size and not item[0].is_affine]
    apart = RecipeWriter(writer.inputs + len(writer.steps))
    return any(add_repeats(item, apart)[0].entries > size for item in repeated)


def _is_filled(structure: Structure) -> bool:
    """Whether tables place entries in a large part of a matrix, as those of a triangle.

    Its product with a dense matrix has a number for each entry and column, which are added by
    position; two dense matrices have a product of matrices.
    """
    terms = structure.terms
    if structure.size > MAX_FILLED or all(term.is_affine for term in terms):
        return False
    if any(factor.opaque for factor in structure.factors):
        return False
    return sum(term.entries for term in terms) >= FILLED * structure.size


@lru_cache(maxsize=1 << 16)
def add(first: Structure, second: Structure) -> Recipe:
    """The sum of two structures of the same shapes (parallel arrows)."""
    writer = RecipeWriter(len(first.factors) + len(second.factors))
    items = [
        *terms_with_operands(first, list(range(len(first.factors)))),
        *terms_with_operands(second, list(range(len(first.factors), writer.inputs))),
    ]
    return sum_of_terms(
        items, first.out_shape, first.in_shape, first.complex_out, first.complex_in, writer
    )


@lru_cache(maxsize=1 << 12)
def accumulate(structures: tuple[Structure, ...]) -> Recipe:
    """The normal form of several local partials between the same two arrays."""
    writer = RecipeWriter(sum(len(s.factors) for s in structures))
    items: list[Item] = []
    start = 0
    for structure in structures:
        for term, operands in terms_with_operands(
            structure, list(range(start, start + len(structure.factors)))
        ):
            draft = Draft.of(term, operands)
            simplify(draft, writer)
            items += finished_items(draft)
        start += len(structure.factors)
    head = structures[0]
    return sum_of_terms(
        items, head.out_shape, head.in_shape, head.complex_out, head.complex_in, writer
    )


@lru_cache(maxsize=1 << 12)
def transpose(structure: Structure) -> Recipe:
    """The transposed (not conjugated) map."""
    writer = RecipeWriter(len(structure.factors))
    items: list[Item] = []
    for draft in _arrays(structure, list(range(writer.inputs)), writer):
        draft.out, draft.into = draft.into, draft.out
        items += finished_items(draft)
    return sum_of_terms(
        items,
        structure.in_shape,
        structure.out_shape,
        structure.complex_in,
        structure.complex_out,
        writer,
    )


@lru_cache(maxsize=1 << 12)
def trace(structure: Structure) -> Recipe:
    """The trace of a map from an array to a like array; the matrix is not formed."""
    if structure.in_shape != structure.out_shape:
        raise ValueError(f"trace of a map {structure.in_shape} -> {structure.out_shape}")
    writer = RecipeWriter(len(structure.factors))
    source = (structure, list(range(writer.inputs)))
    while True:
        items: list[Item] = []
        try:
            for term, operands in terms_with_operands(*source):
                draft = Draft.of(term, operands)
                equate(draft, draft.out, draft.into, structure.out_shape)
                draft.out, draft.into = [], []
                for solved in solve(draft):
                    writer.ad += solved.box(set(solved.sizes))
                    simplify(solved, writer)
                    items += finished_items(solved)
            break
        except Unsolvable:
            source = densified(*source, writer)
    return sum_of_terms(items, (), (), structure.complex_out, False, writer)


@lru_cache(maxsize=1 << 12)
def densify(structure: Structure) -> Recipe:
    """The same map with one dense factor, axes (output..., input...)."""
    writer = RecipeWriter(len(structure.factors))
    dense, operands = densified(structure, list(range(writer.inputs)), writer)
    return writer.finish(dense, operands)


@lru_cache(maxsize=1 << 12)
def without_opaque(structure: Structure) -> Recipe:
    """The same map with the arrays of its opaque factors written out, positions as they are."""
    writer = RecipeWriter(len(structure.factors))
    items = [
        item
        for draft in _arrays(structure, list(range(writer.inputs)), writer)
        for item in finished_items(draft)
    ]
    return sum_of_terms(
        items,
        structure.out_shape,
        structure.in_shape,
        structure.complex_out,
        structure.complex_in,
        writer,
    )


def dense_structure(
    out_shape: tuple[int, ...],
    in_shape: tuple[int, ...],
    complex_out: bool = False,
    complex_in: bool = False,
    conj: bool = False,
    parts: Sequence[Term] = (),
) -> Structure:
    """The structure with a single dense factor, axes (input..., output...).

    The input's axes come first, as in all products (see `Draft.storage_order`). `parts` are the
    terms that it is the sum of, where it may keep limits of theirs.
    """
    sizes = (*in_shape, *out_shape)
    axes = [label(n) for n in range(len(sizes))]
    draft = Draft(
        dict(enumerate(sizes)),
        axes[len(in_shape) :],
        axes[: len(in_shape)],
        [DraftFactor(0, Factor(tuple(axes), sizes))],
        conj=conj,
    )
    draft.limits = common_limits(draft, parts, (*out_shape, *in_shape))
    finished = draft.finish()
    terms = [] if finished is None else [finished[0]]
    return intern_structure(out_shape, in_shape, terms, complex_out, complex_in)


def _arrays(structure: Structure, operands: list[int], writer: RecipeWriter) -> list[Draft]:
    """Drafts of all terms, with the arrays of opaque factors written out."""
    drafts = []
    for term, own in terms_with_operands(structure, operands):
        draft = Draft.of(term, own)
        materialize_all(draft, writer)
        drafts.append(draft)
    return drafts


def _is_dense(structure: Structure) -> bool:
    if any(term.limits for term in structure.terms):
        terms = [replace(term, limits=()) for term in structure.terms]
        structure = with_terms(structure, terms)
    return structure is dense_structure(
        structure.out_shape,
        structure.in_shape,
        structure.complex_out,
        structure.complex_in,
        bool(structure.terms) and structure.terms[0].conj,
    )


def densified(
    structure: Structure, operands: list[int], writer: RecipeWriter
) -> tuple[Structure, list[int]]:
    """The same map with one dense factor per kind of term, and its operands."""
    if _is_dense(structure) or not structure.terms:
        return structure, operands
    groups: dict[bool, tuple[list[Term], list[int]]] = {}
    for draft in _arrays(structure, operands, writer):
        draft.out, draft.into = draft.into, draft.out
        finished = draft.finish()
        if finished is not None:
            terms, together = groups.setdefault(draft.conj, ([], []))
            terms.append(finished[0])
            together.extend(finished[1])
    shapes = (structure.out_shape, structure.in_shape)
    kinds = (structure.complex_out, structure.complex_in)
    dense_terms: list[Term] = []
    dense_operands: list[int] = []
    for conj, (terms, together) in groups.items():
        part = intern_structure(shapes[1], shapes[0], terms, kinds[1], kinds[0])
        dense_operands.append(writer.add(Assemble(part), together))
        parts = [term for term in structure.terms if term.conj == conj]
        dense_terms += dense_structure(*shapes, *kinds, conj, parts).terms
    return intern_structure(*shapes, dense_terms, *kinds), dense_operands


def sum_of_terms(
    items: list[Item],
    out_shape: tuple[int, ...],
    in_shape: tuple[int, ...],
    complex_out: bool,
    complex_in: bool,
    writer: RecipeWriter,
) -> Recipe:
    """Merge terms of equal pattern and write the sum out where it is no longer sparse."""
    alone = [add_repeats(item, writer) for item in items]
    merged = consolidate(merge(alone, writer), (*out_shape, *in_shape), writer)
    structure = intern_structure(
        out_shape, in_shape, [term for term, _ in merged], complex_out, complex_in
    )
    operands = [operand for _, own in merged for operand in own]
    if _worth_writing_out(structure):
        structure, operands = densified(structure, operands, writer)
    return writer.finish(structure if structure.terms else None, operands)


def _worth_writing_out(structure: Structure) -> bool:
    terms = structure.terms
    if len(terms) < 2 or any(f.opaque for f in structure.factors):
        return False
    if _held(structure) >= structure.size:
        return True
    return len(terms) > MAX_TERMS and structure.size <= 2 * sum(t.entries for t in terms)


def is_nearly_dense(structure: Structure) -> bool:
    """Whether a sum has a term with an entry everywhere and factors about as large as the matrix.

    Written out it has no further entries and few more numbers, and it is one term: contracting a
    sum with itself takes a product for each pair of its terms.
    """
    terms = structure.terms
    if len(terms) < 2 or structure.complex_in or any(f.opaque for f in structure.factors):
        return False
    if not terms_everywhere(structure):
        return False
    return _held(structure) >= NEARLY_DENSE * structure.size


def terms_everywhere(structure: Structure) -> int:
    """Number of terms with an entry everywhere."""
    return sum(term.entries >= structure.size for term in structure.terms)


def _held(structure: Structure) -> int:
    """Numbers that the factors hold."""
    return sum(term.stored for term in structure.terms if term.factors)
