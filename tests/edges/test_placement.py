"""Products with identities, and with those of a part of an array, need no equations."""

import itertools

import pytest

from graphax_lapl.edges import algebra
from graphax_lapl.edges.maps import IndexMap, constant, from_values, label
from graphax_lapl.edges.placement import placed
from graphax_lapl.edges.terms import Factor, Term, intern_structure

A, B = label(0), label(1)
#: Not negative on and below the diagonal.
BELOW = IndexMap(0, ((0, 1), (1, -1)))


def structure(shape_out, shape_in, *terms, **kinds):
    given = intern_structure(shape_out, shape_in, terms, **kinds)
    return algebra.accumulate((given,)).result


def dense(*shape):
    axes = tuple(label(n) for n in range(len(shape)))
    return Factor(axes, shape)


VECTOR = {
    "dense": structure((3,), (3,), Term((3, 3), (A,), (B,), (dense(3, 3),), -2)),
    "shifted": structure((3,), (3,), Term((2,), (A,), (label(0, 1, 1),), (dense(2),))),
    "column": structure((3,), (3,), Term((3,), (A,), (constant(2),), (dense(3),))),
    "reversed": structure((3,), (3,), Term((3,), (A,), (label(0, -1, 2),))),
    "sum": structure(
        (3,), (3,), Term((3,), (A,), (A,), (dense(3),)), Term((3, 3), (A,), (B,), (dense(3),), 3)
    ),
    "outer product": structure(
        (3,), (3,), Term((3, 3), (A,), (B,), (Factor((A,), (3,)), Factor((B,), (3,))), 0.5)
    ),
}
PLACES = {
    "negated": structure((3,), (3,), Term((3,), (A,), (A,), (), -1)),
    "concatenated": structure((8,), (3,), Term((3,), (label(0, 1, 4),), (A,), (), 2)),
    "row of a matrix": structure((4, 3), (3,), Term((3,), (constant(1), A), (A,))),
    "entry of a vector": structure((5,), (), Term((), (constant(3),), (), (), 4)),
    "vector of one": structure((1, 3), (3,), Term((3,), (constant(0), A), (A,))),
}


def transposed(given):
    return algebra.transpose(given).result


def meetings():
    scalar = structure((), (3,), Term((3,), (), (A,), (dense(3),)))
    for place in PLACES.values():
        others = [scalar] if place.in_shape == () else VECTOR.values()
        for other in others:
            yield place, other
            yield transposed(other), transposed(place)
    identities = [PLACES["negated"], PLACES["concatenated"], PLACES["row of a matrix"]]
    for outer, inner in itertools.product(identities, identities):
        yield outer, transposed(inner)


def test_products_are_those_of_solved_equations(monkeypatch):
    compose = algebra.compose.__wrapped__
    pairs = list(meetings())
    monkeypatch.setattr(algebra, "_composed", None)
    short = [compose(outer, inner) for outer, inner in pairs]
    monkeypatch.undo()
    monkeypatch.setattr(algebra, "placed", lambda *_: None)
    for (outer, inner), recipe in zip(pairs, short, strict=True):
        assert recipe == compose(outer, inner), (outer, inner)


NEGATED, SHIFTED, DENSE = PLACES["negated"], VECTOR["shifted"], VECTOR["dense"]


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (DENSE, DENSE),
        (VECTOR["reversed"], DENSE),
        (structure((3,), (3,), Term((2,), (A,), (label(0, 1, 1),))), DENSE),
        (structure((3,), (3,), Term((2,), (A,), (A,))), DENSE),
        (structure((6,), (3,), Term((3,), (label(0, 2),), (A,))), DENSE),
        (structure((4,), (3,), Term((3,), (label(0, 1, 2),), (A,))), DENSE),
        (NEGATED, structure((3,), (3,), Term((3,), (A,), (label(0, 1, 1),), (dense(3),)))),
        (NEGATED, structure((3,), (3,), Term((3, 3), (A,), (B,), (dense(3, 3),), limits=(BELOW,)))),
        (NEGATED, structure((3,), (3,), Term((3,), (from_values(0, [2, 0, 1]),), (A,)))),
        (structure((3,), (3,), *NEGATED.terms, complex_in=True, complex_out=True), DENSE),
        (NEGATED, structure((3,), (3,), *DENSE.terms, complex_in=True)),
    ],
    ids=range(11),
)
def test_all_else_is_left_to_equations(outer, inner):
    assert placed(outer, inner) is None


def test_one_label_along_two_dimensions_and_other_orders_are_no_identity():
    matrix = structure((2, 2), (2, 2), Term((2, 2), (A, B), (A, B), (dense(2, 2),)))
    diagonal = structure((2,), (2, 2), Term((2,), (A,), (A, A)))
    turned = structure((2, 2), (2, 2), Term((2, 2), (A, B), (B, A)))
    assert placed(diagonal, matrix) is None
    assert placed(matrix, transposed(diagonal)) is None
    assert placed(turned, matrix) is None
    assert placed(structure((2, 2), (2, 2), Term((2, 2), (A, B), (A, B))), matrix) is not None
