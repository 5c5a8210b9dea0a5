"""Terms whose labels meet one to one are joined as solving equations would join them."""

import itertools

import pytest

from graphax_lapl.edges import algebra, products
from graphax_lapl.edges.maps import IndexMap, constant, label
from graphax_lapl.edges.terms import Factor, Term, intern_structure

A, B, C = label(0), label(1), label(2)


def structure(shape_out, shape_in, *terms):
    return intern_structure(shape_out, shape_in, terms)


def dense(rows, columns, coefficient=1):
    return Term((rows, columns), (A,), (B,), (Factor((B, A), (columns, rows)),), coefficient)


def diagonal(size, coefficient=1, shift=0):
    moved = label(0, 1, shift)
    return Term((size,), (A,), (moved,), (Factor((A,), (size,)),), coefficient)


#: Maps between vectors of four numbers: lazy products, sums, shifts, single columns, strides.
SQUARE = {
    "diagonal": structure((4,), (4,), diagonal(4, -2)),
    "dense": structure((4,), (4,), dense(4, 4)),
    "outer": structure(
        (4,), (4,), Term((4, 4), (A,), (B,), (Factor((A,), (4,)), Factor((B,), (4,))))
    ),
    "sum": structure((4,), (4,), diagonal(4), dense(4, 4, 3)),
    "shifted": structure((4,), (4,), Term((3,), (A,), (label(0, 1, 1),), (Factor((A,), (3,)),))),
    "beyond": structure((4,), (4,), Term((4,), (A,), (label(0, 1, 1),), (Factor((A,), (4,)),))),
    "reversed": structure((4,), (4,), Term((4,), (A,), (label(0, -1, 3),))),
    "column": structure((4,), (4,), Term((4,), (A,), (constant(2),), (Factor((A,), (4,)),))),
    "strided": structure(
        (4,), (4,), Term((2,), (label(0, 2),), (label(0, 2),), (Factor((A,), (2,)),))
    ),
}
#: From a 2 x 2 matrix, whose positions are told by two labels or by one twice.
PAIRS = {
    "rows": structure((2, 2), (2, 2), Term((2, 2), (A, B), (A, B), (Factor((A,), (2,)),))),
    "transposed": structure(
        (2, 2), (2, 2), Term((2, 2), (A, B), (B, A), (Factor((A, B), (2, 2)),))
    ),
    "trace": structure((2, 2), (2, 2), Term((2, 2), (A, A), (B, B), (Factor((A, B), (2, 2)),))),
    "summed": structure(
        (2, 2), (2, 2), Term((2, 2, 2), (A, B), (A, C), (Factor((A, B, C), (2, 2, 2)),))
    ),
    "flat": structure((2, 2), (2, 2), Term((2,), (A, A), (A, A), (Factor((A,), (2,)),))),
}


@pytest.mark.parametrize("maps", [SQUARE, PAIRS], ids=["vectors", "matrices"])
def test_products_are_those_of_solved_equations(maps, monkeypatch):
    compose = algebra.compose.__wrapped__
    monkeypatch.setattr(products, "_product", products._product.__wrapped__)
    pairs = list(itertools.product(maps.values(), repeat=2))
    met = [compose(outer, inner) for outer, inner in pairs]
    monkeypatch.setattr(products, "_met", lambda *_: None)
    for (outer, inner), recipe in zip(pairs, met, strict=True):
        assert recipe == compose(outer, inner), (outer, inner)


def test_labels_at_one_place_and_positions_outside_are_left_to_equations():
    def met(outer, inner, shape):
        extents = (*outer.out_shape, *inner.in_shape)
        return products._met(outer.terms[0], inner.terms[0], shape, extents)

    assert met(SQUARE["diagonal"], SQUARE["dense"], (4,)) == (0, 2)
    assert met(SQUARE["dense"], SQUARE["diagonal"], (4,)) == (1,)
    assert met(SQUARE["column"], SQUARE["diagonal"], (4,)) is None
    assert met(SQUARE["diagonal"], SQUARE["beyond"], (4,)) is None
    assert met(PAIRS["rows"], PAIRS["trace"], (2, 2)) is None
    twice = structure((2,), (2, 2), Term((2,), (A,), (A, A)))
    spread = structure((2, 2), (4,), Term((2, 2), (A, B), (IndexMap(0, ((0, 2), (1, 1))),)))
    assert met(twice, spread, (2, 2)) is None
