"""Products of terms: two terms meet in the array between them, and their labels are joined.

What a product of two terms is, with the steps that compute it, is remembered without their
coefficients, so that products that differ by a number are worked out once.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from .contract import simplify
from .draft import Draft, DraftFactor
from .maps import IndexMap, label, renamed
from .merge import Item, terms_with_operands
from .operations import RecipeWriter, Steps
from .terms import Number, Structure, Term, product_of
from .unify import solve
from .values import record

__all__ = ["conjugated", "equate", "finished_items", "products"]


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


def products(
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
