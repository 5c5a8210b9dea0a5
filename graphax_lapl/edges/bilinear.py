"""Second order: bilinear maps, and what they do to pairs of Jacobians.

The second derivative of a vertex is a bilinear map, kept as a `Structure` whose input dimensions
are those of both arguments, one after the other:

    H[o, (i, j)] = sum over labels of
        coefficient * prod(factors) * [o == out] [i == first] [j == second]

Two operations are needed. `gram` contracts it with two Jacobians over the columns they share,

    q[o] = sum over i, j, d of  H[o, (i, j)] J[i, d] K[j, d]

which is the column that enters at a nonlinear vertex of a Laplacian. `pull_back` keeps both,

    B[o, (d, e)] = sum over i, j of  H[o, (i, j)] J[i, d] K[j, e]

which is that vertex' share of a Hessian. `columnwise` is between the two: the terms of `gram`,
column by column, which are that vertex' share of a Hessian's diagonal. The products are never
formed as matrices: all labels are unified at once, and sums are taken over the small factors first.
A pair distance, for instance, depends on few coordinates through one factor `f[p, c]`, so its
columns cost a sum over c.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from .algebra import densified, sum_of_terms
from .contract import simplify
from .draft import Draft
from .maps import IndexMap
from .merge import Item, terms_with_operands
from .operations import Recipe, RecipeWriter
from .products import conjugated, equate, finished_items
from .terms import Structure, Term, intern_structure
from .unify import Unsolvable, solve

__all__ = ["columnwise", "folded", "gram", "pull_back", "substituted", "swapped", "trace_product"]

Side = tuple[Structure, list[int]]


@lru_cache(maxsize=1 << 14)
def gram(curvature: Structure, first: Structure, second: Structure, equal: bool) -> Recipe:
    """The column `H[J, K]`, summed over the columns that `first` and `second` share.

    Args:
        curvature: H, from the dimensions of both arguments to those of the vertex.
        first: J, a map into the first argument.
        second: K, a map into the second argument, from the same columns.
        equal: whether J and K are the same map, so that mixed products are taken once.

    Returns:
        A recipe on the factors of H, J and K whose result maps a scalar to the vertex; its result
        is None for a structural zero.
    """
    return _contracted(curvature, first, second, equal, "summed")


@lru_cache(maxsize=1 << 14)
def columnwise(curvature: Structure, first: Structure, second: Structure, equal: bool) -> Recipe:
    """`H[J[:, d], K[:, d]]` for every column d; arguments and operands as for `gram`.

    Returns:
        A recipe whose result maps the columns to the vertex.
    """
    return _contracted(curvature, first, second, equal, "columnwise")


@lru_cache(maxsize=1 << 14)
def pull_back(curvature: Structure, first: Structure, second: Structure) -> Recipe:
    """The bilinear map `H[J, K]` of the columns of J and K; operands as in `gram`."""
    return _contracted(curvature, first, second, False, "pairs")


@lru_cache(maxsize=1 << 12)
def swapped(structure: Structure, split: int) -> Recipe:
    """The bilinear map with its arguments exchanged; the first one has `split` dimensions."""
    writer = RecipeWriter(len(structure.factors))
    items: list[Item] = []
    for term, operands in terms_with_operands(structure, list(range(writer.inputs))):
        draft = Draft.of(term, operands)
        draft.into = [*draft.into[split:], *draft.into[:split]]
        items += finished_items(draft)
    into = (*structure.in_shape[split:], *structure.in_shape[:split])
    kinds = (structure.complex_out, structure.complex_in)
    return sum_of_terms(items, structure.out_shape, into, *kinds, writer)


def folded(
    curvature: Structure, operands: Sequence[int], split: int
) -> tuple[Structure, tuple[int, ...]]:
    """A bilinear map that agrees with another one wherever both arguments are equal.

    Of two terms that are each other's mirror images one is left, doubled.

    Args:
        curvature: the map.
        operands: what holds its factors; equal numbers are the same array.
        split: number of dimensions of either argument.

    Returns:
        The map and what holds its factors.
    """
    if len(curvature.terms) < 2:
        return curvature, tuple(operands)
    left = [
        (item, _in_order(*item, split)) for item in terms_with_operands(curvature, list(operands))
    ]
    kept: list[Item] = []
    while left:
        (term, own), _ = left.pop(0)
        mirrored = _in_order(term, own, split, mirrored=True)
        twin = next((n for n, (_, other) in enumerate(left) if other == mirrored), None)
        if twin is not None:
            del left[twin]
            term = term.scaled(2)
        kept.append((term, own))
    if len(kept) == len(curvature.terms):
        return curvature, tuple(operands)
    terms = [term for term, _ in kept]
    kinds = (curvature.complex_out, curvature.complex_in)
    structure = intern_structure(curvature.out_shape, curvature.in_shape, terms, *kinds)
    return structure, tuple(operand for _, own in kept for operand in own)


def _in_order(
    term: Term, operands: Sequence[int], split: int, mirrored: bool = False
) -> list[Item]:
    """A term, or its mirror image, with its factors in the order of what holds them."""
    draft = Draft.of(term, list(operands))
    if mirrored:
        draft.into = [*draft.into[split:], *draft.into[:split]]
        for plain, own in finished_items(draft):
            draft = Draft.of(plain, own)
    draft.factors.sort(key=lambda f: (f.operand, [(a.offset, a.labels) for a in f.factor.axes]))
    return finished_items(draft)


@lru_cache(maxsize=1 << 12)
def trace_product(outer: Structure, inner: Structure) -> Recipe:
    """The trace of `outer @ inner`, without forming the product.

    Operands: the factors of `outer`, then those of `inner`.

    Raises:
        ValueError: where the product is not a map from an array to a like array.
    """
    if outer.out_shape != inner.in_shape:
        raise ValueError(f"trace of a map {inner.in_shape} -> {outer.out_shape}")
    writer = RecipeWriter(len(outer.factors) + len(inner.factors))
    left: Side = (outer, list(range(len(outer.factors))))
    right: Side = (inner, list(range(len(outer.factors), writer.inputs)))
    while True:
        steps, counted = len(writer.steps), writer.ad
        try:
            items: list[Item] = []
            for one, one_operands in terms_with_operands(*left):
                for two, two_operands in terms_with_operands(*right):
                    first = Draft.of(one, one_operands)
                    second = Draft.of(two, two_operands, len(one.sizes))
                    joined = _joined(first, second, [])
                    joined.out = []
                    if 0 in joined.sizes.values():
                        continue
                    equate(joined, first.into, second.out, inner.out_shape)
                    equate(joined, first.out, second.into, outer.out_shape)
                    for solved in solve(joined):
                        writer.ad += solved.box(set(solved.sizes))
                        simplify(solved, writer)
                        items += finished_items(solved)
            break
        except Unsolvable:
            del writer.steps[steps:]
            writer.ad = counted
            left, right = densified(*left, writer), densified(*right, writer)
    return sum_of_terms(items, (), (), outer.complex_out, False, writer)


def substituted(outer: Term, factor: int, inner: Term) -> list[tuple[Term, list[int]]]:
    """The term in whose place of `factor` the linear map `inner` stands.

    The input dimensions of `inner` are appended to those of `outer`. Returned with each term are
    its factors, as positions in `(*outer.factors, *inner.factors)`.

    Raises:
        Unsolvable: where the positions have no closed form.
    """
    count = len(outer.factors)
    target = outer.factors[factor]
    left = Draft.of(outer, list(range(count)))
    right = Draft.of(inner, list(range(count, count + len(inner.factors))), len(outer.sizes))
    axes = list(left.factors.pop(factor).factor.axes)
    joined = _joined(left, right, [*left.into, *right.into])
    equate(joined, axes, right.out, target.shape)
    return [item for solved in solve(joined) for item in finished_items(solved)]


def _joined(left: Draft, right: Draft, into: list[IndexMap]) -> Draft:
    return Draft(
        {**left.sizes, **right.sizes},
        left.out,
        into,
        [*left.factors, *right.factors],
        left.coefficient * right.coefficient,
        equations=[*left.equations, *right.equations],
        limits=[*left.limits, *right.limits],
    )


def _contracted(
    curvature: Structure, first: Structure, second: Structure, equal: bool, columns_are: str
) -> Recipe:
    """All of the above; `columns_are` "summed", kept "columnwise", or taken in "pairs"."""
    writer = RecipeWriter(len(curvature.factors) + len(first.factors) + len(second.factors))
    operands = list(range(writer.inputs))
    start, middle = len(curvature.factors), len(curvature.factors) + len(first.factors)
    weights: Side = (curvature, operands[:start])
    left: Side = (first, operands[start:middle])
    right: Side = left if equal else (second, operands[middle:])
    columns = first.in_shape
    split = len(first.out_shape)
    while True:
        steps, counted = len(writer.steps), writer.ad
        try:
            items = _all_products(weights, left, right, split, columns, columns_are, writer)
            break
        except Unsolvable:
            del writer.steps[steps:]
            writer.ad = counted
            # Correct first: write out a Jacobian, then the curvature.
            dense_left, dense_right = densified(*left, writer), densified(*right, writer)
            if dense_left[0] is left[0] and dense_right[0] is right[0]:
                weights = densified(*weights, writer)
            left, right = dense_left, dense_left if equal else dense_right
    into = {"summed": (), "columnwise": columns, "pairs": (*columns, *second.in_shape)}[columns_are]
    # Pairs of complex columns stay complex: a real part that is still to be taken is taken later.
    complex_in = columns_are == "pairs" and (first.complex_in or second.complex_in)
    return sum_of_terms(items, curvature.out_shape, into, curvature.complex_out, complex_in, writer)


def _all_products(
    weights: Side,
    left: Side,
    right: Side,
    split: int,
    columns: tuple[int, ...],
    columns_are: str,
    writer: RecipeWriter,
) -> list[Item]:
    """All products of a term of H with a term of J and one of K."""
    items: list[Item] = []
    joint = columns_are != "pairs"
    twins = left is right and joint
    complex_in = not joint and (left[0].complex_in or right[0].complex_in)
    extents = weights[0].out_shape
    if columns_are != "summed":
        extents = (*extents, *columns)
    if not joint:
        extents = (*extents, *right[0].in_shape)
    for weight, own in terms_with_operands(*weights):
        symmetric = twins and weight.into[:split] == weight.into[split:]
        for a, (one, one_operands) in enumerate(terms_with_operands(*left)):
            for b, (two, two_operands) in enumerate(terms_with_operands(*right)):
                if symmetric and b < a:
                    continue
                draft = Draft.of(weight, own)
                first = Draft.of(one, one_operands, len(weight.sizes))
                second = Draft.of(two, two_operands, len(weight.sizes) + len(one.sizes))
                if weight.conj:  # H[conj(du), conj(dw)]
                    first, second = conjugated(first), conjugated(second)
                into = [] if columns_are == "summed" else list(first.into)
                into += [] if joint else second.into
                joined = _joined(_joined(draft, first, into), second, into)
                if 0 in joined.sizes.values():
                    continue
                if symmetric and b > a:
                    joined.coefficient = 2 * joined.coefficient
                equate(joined, draft.into[:split], first.out, left[0].out_shape)
                equate(joined, draft.into[split:], second.out, right[0].out_shape)
                joined.extents = extents
                joined.conj = weight.conj and complex_in
                if joint:
                    equate(joined, first.into, second.into, columns)
                for solved in solve(joined):
                    if not solved.trim():
                        continue
                    writer.ad += solved.box(set(solved.sizes))
                    simplify(solved, writer)
                    items += finished_items(solved)
    return items
