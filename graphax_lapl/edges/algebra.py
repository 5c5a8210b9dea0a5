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
from .maps import IndexMap, label, renamed
from .merge import Item, merge
from .operations import Assemble, Recipe, RecipeWriter, Steps
from .placement import placed
from .repeats import add_repeats
from .terms import Factor, Number, Structure, Term, intern_structure, product_of, with_terms
from .unify import Unsolvable, solve
from .values import record

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
    recipe = _composed(outer, inner, ())
    if recipe.evaluations < 2:
        return recipe
    # A map that several terms meet is evaluated for each of them. Written out, it is so once.
    sides = ((0, outer), (1, inner))
    opaque = [(side,) for side, s in sides if any(factor.opaque for factor in s.factors)]
    written = [_composed(outer, inner, side) for side in opaque]
    return min(recipe, *written, key=lambda found: found.work)


def _composed(outer: Structure, inner: Structure, written: Sequence[int]) -> Recipe:
    """The product, where the opaque factors of the sides in `written` are written out first."""
    writer = RecipeWriter(len(outer.factors) + len(inner.factors))
    first = len(outer.factors)
    factors = [(outer, list(range(first))), (inner, list(range(first, writer.inputs)))]
    for side in written:
        structure, operands = factors[side]
        arrays = without_opaque(structure)
        assert arrays.result is not None
        slots = writer.replay(arrays.steps, operands)
        factors[side] = arrays.result, [slots[place] for place in arrays.operands]
    left, right = factors
    while True:
        start = len(writer.steps)
        try:
            items = _products(left, right, writer)
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
            items = _products(left, right, writer)
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


def terms_with_operands(structure: Structure, operands: list[int]) -> list[Item]:
    """Terms with their shares of the operands."""
    items, start = [], 0
    for term in structure.terms:
        items.append((term, operands[start : start + len(term.factors)]))
        start += len(term.factors)
    return items


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


def equate(
    draft: Draft, first: list[IndexMap], second: list[IndexMap], shape: tuple[int, ...]
) -> None:
    """Ask that two lists of maps select the same position, within the array."""
    for left, right, size in zip(first, second, shape, strict=True):
        bounded = False
        for side in (left, right):
            low, high = side.bounds(draft.sizes)
            bounded |= low >= 0 and high < size
        if bounded:
            draft.equations.append(left.plus(right.scaled(-1), draft.sizes))
            continue
        position = draft.fresh(size)
        for side in (left, right):
            draft.equations.append(side.plus(label(position, -1), draft.sizes))


def _products(
    left: tuple[Structure, list[int]], right: tuple[Structure, list[int]], writer: RecipeWriter
) -> list[Item]:
    """All products of a term of `left` with a term of `right`, simplified."""
    outer, inner = left[0], right[0]
    kinds = (outer.complex_out, outer.complex_in, inner.complex_in)
    shapes = (outer.in_shape, (*outer.out_shape, *inner.in_shape))
    # One plain product, see `_complex_rule`: coefficients are multiplied, whatever they are.
    plain = not outer.complex_in and not (outer.complex_out and inner.complex_in)
    inner_terms = [(t.unit if plain else t, t, own) for t, own in terms_with_operands(*right)]
    found: list[tuple[Product, list[int], Number]] = []
    for term, own in terms_with_operands(*left):
        first = term.unit if plain else term
        for second, other, operands in inner_terms:
            product = _product(first, second, kinds, *shapes)
            scale = product_of(term.coefficient, other.coefficient) if plain else 1
            found.append((product, own + operands, scale))
    items: list[Item] = []
    for product, operands, scale in found:
        writer.ad += product.ad
        slots = writer.replay(product.steps, operands)
        for made, places in product.items:
            coefficient = product_of(scale, made.coefficient)
            if coefficient != 0:
                items.append((made.times(coefficient), [slots[place] for place in places]))
    return items


@record
class Product:
    """The product of two terms: what comes out, by which steps, and how many pairs meet in it.

    Operands are the factors of the outer term, those of the inner one, then the steps' results.
    """

    items: tuple[Item, ...]
    steps: Steps
    ad: int


@lru_cache(maxsize=1 << 15)
def _product(
    outer_term: Term,
    inner_term: Term,
    kinds: tuple[bool, bool, bool],
    middle_shape: tuple[int, ...],
    extents: tuple[int, ...],
) -> Product:
    """The product of two terms, simplified.

    Args:
        outer_term: the term on the left.
        inner_term: the term on the right.
        kinds: whether the outer term's output, the array between them and the inner term's input
            are complex.
        middle_shape: shape of the array between them.
        extents: those of the product (output..., input...).
    """
    first = len(outer_term.factors)
    writer = RecipeWriter(first + len(inner_term.factors))
    outer_operands, inner_operands = list(range(first)), list(range(first, writer.inputs))
    items: list[Item] = []
    plain = not kinds[1] and not (kinds[0] and kinds[2])
    names = _met(outer_term, inner_term, middle_shape, extents) if plain else None
    if names is not None:
        draft = _joined(outer_term, outer_operands, inner_term, inner_operands, names)
        writer.ad = math.prod(draft.sizes.values())
        simplify(draft, writer)
        items += finished_items(draft)
    elif 0 not in outer_term.sizes and 0 not in inner_term.sizes:
        outer = Draft.of(outer_term, outer_operands)
        inner = Draft.of(inner_term, inner_operands, len(outer_term.sizes))
        joined = _complex_rule(kinds, outer, inner)
        for draft, real in joined:
            draft.extents = extents
            equate(draft, outer.into, inner.out, middle_shape)
            for solved in solve(draft):
                if not solved.trim():
                    continue
                if draft is joined[0][0]:
                    writer.ad += solved.box(set(solved.sizes))
                simplify(solved, writer, real)
                items += finished_items(solved)
    return Product(tuple(items), tuple(writer.steps), writer.ad)


def _met(
    outer: Term, inner: Term, shape: tuple[int, ...], extents: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Labels for a term whose labels run as those of the other term do in the array between them.

    There is nothing to solve or to cut then: equal labels are named alike. None where it is not so.
    """
    if outer.limits or inner.limits or 0 in outer.sizes or 0 in inner.sizes:
        return None
    rank_out, rank_middle = len(outer.out), len(shape)
    inside = (*outer.bounds[:rank_out], *inner.bounds[rank_middle:])
    for (low, high), extent in zip(inside, extents, strict=True):
        if low < 0 or high >= extent:
            return None
    first = len(outer.sizes)
    names: dict[int, int] = {}
    between = zip(outer.into, inner.out, outer.bounds[rank_out:], shape, strict=True)
    for left, right, (low, high), extent in between:
        if left.offset != right.offset or low < 0 or high >= extent:
            return None
        if not left.parts and not right.parts:
            continue
        if len(left.parts) != 1 or len(right.parts) != 1:
            return None
        ((name, stride),), ((other, other_stride),) = left.parts, right.parts
        if (
            not isinstance(stride, int)
            or stride != other_stride
            or outer.sizes[name] != inner.sizes[other]
            or names.setdefault(other, name) != name
        ):
            return None
    if len({*names.values()}) < len(names):
        return None
    return tuple([names.get(n, first + n) for n in inner.labels])


def _joined(
    outer: Term,
    outer_operands: list[int],
    inner: Term,
    inner_operands: list[int],
    names: tuple[int, ...],
) -> Draft:
    """The product of two terms, those labels of the inner one that have the same name joined."""
    moved = dict(enumerate(names))
    sizes = dict(enumerate(outer.sizes)) | dict(zip(names, inner.sizes, strict=True))
    factors = [DraftFactor(k, f) for k, f in zip(outer_operands, outer.factors, strict=True)]
    for operand, factor in zip(inner_operands, inner.factors, strict=True):
        own = factor.read(renamed(factor.axes, moved))
        factors.append(DraftFactor(operand, own))
    return Draft(
        sizes,
        [*outer.out],
        renamed(inner.into, moved),
        factors,
        product_of(outer.coefficient, inner.coefficient),
    )


def _join(outer: Draft, inner: Draft, conj: bool, scale: Number = 1) -> Draft:
    return Draft(
        {**outer.sizes, **inner.sizes},
        outer.out,
        inner.into,
        [*outer.factors, *inner.factors],
        product_of(scale, product_of(outer.coefficient, inner.coefficient)),
        conj,
        limits=[*outer.limits, *inner.limits],
    )


def conjugated(draft: Draft) -> Draft:
    """The term with its numbers conjugated, about an input that is not."""
    coefficient = draft.coefficient
    return Draft(
        draft.sizes,
        draft.out,
        draft.into,
        [DraftFactor(f.operand, replace(f.factor, conj=not f.factor.conj)) for f in draft.factors],
        coefficient.conjugate() if isinstance(coefficient, complex) else coefficient,
        limits=draft.limits,
    )


def _complex_rule(
    kinds: tuple[bool, bool, bool], outer: Draft, inner: Draft
) -> list[tuple[Draft, bool]]:
    """The joined drafts, to be summed, each with whether its real part is meant.

    `kinds` says of output, middle and input whether they are complex.

    With `J dz` for a term on the input and `K conj(dz)` for one on its conjugate (Wirtinger), and
    `Re(w dz)` for a map from complex to real, the chain rule of every combination follows.
    """
    complex_out, complex_middle, complex_in = kinds
    if not complex_middle:
        if complex_out and complex_in:  # a Re(w dz) = (a w dz + a conj(w) conj(dz)) / 2
            return [
                (_join(outer, inner, False, 0.5), False),
                (_join(outer, conjugated(inner), True, 0.5), False),
            ]
        return [(_join(outer, inner, False), False)]
    if complex_out:
        if outer.conj:
            return [(_join(outer, conjugated(inner), complex_in and not inner.conj), False)]
        return [(_join(outer, inner, inner.conj), False)]
    if complex_in:
        if inner.conj:  # Re(w K conj(dz)) = Re(conj(w K) dz)
            return [(_join(conjugated(outer), conjugated(inner), False), False)]
        return [(_join(outer, inner, False), False)]
    return [(_join(outer, inner, False), True)]


def finished_items(draft: Draft) -> list[Item]:
    """The canonical term of a draft in a list, empty where it is structurally zero."""
    finished = draft.finish()
    return [] if finished is None else [finished]


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
