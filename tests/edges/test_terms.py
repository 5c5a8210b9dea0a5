"""What is known of terms without drafts is what drafts say; what repeats is made once."""

import gc
import itertools
import weakref

import pytest

from graphax_lapl.edges import consolidate as consolidation, merge as merging
from graphax_lapl.edges.algebra import add
from graphax_lapl.edges.draft import Draft, storage_order
from graphax_lapl.edges.maps import IndexMap, Table, constant, label, renamed
from graphax_lapl.edges.operations import RecipeWriter
from graphax_lapl.edges.terms import MAX_FAMILY, Factor, Opaque, Term, intern_structure

A, B = label(0), label(1)
FLIPPED = label(0, -1, 2)
LOOKED_UP = IndexMap(0, ((0, Table([2, 0, 1])),))

#: Terms of one factor over labels of sizes 3 and 4, whose array is read in different ways.
FACTORS = {
    "number": Factor((), ()),
    "vector": Factor((A,), (3,)),
    "matrix": Factor((A, B), (3, 4)),
    "transposed": Factor((B, A), (4, 3)),
    "diagonal": Factor((A, A), (3, 3)),
    "reversed": Factor((FLIPPED,), (3,)),
    "part": Factor((A,), (5,)),
    "entry": Factor((A, constant(1)), (3, 2)),
    "table": Factor((LOOKED_UP,), (3,)),
    "conjugate": Factor((A,), (3,), conj=True),
}


@pytest.mark.parametrize("name", FACTORS)
def test_arrays_that_are_read_as_they_are_are_told(name):
    term = Term((3, 4), (A,), (B,), (FACTORS[name],))
    writer = RecipeWriter(1)
    operand, labels = merging.plain_value(Draft.of(term, [0]), writer)
    assert term.plain_labels == (labels if operand == 0 else None)


def test_products_and_opaque_factors_have_no_array_of_their_own():
    both = Term((3, 4), (A,), (B,), (FACTORS["vector"], FACTORS["matrix"]))
    opaque = Term((3,), (A,), (A,), (Factor((A,), (3,), opaque=Opaque(1, 0)),))
    assert both.plain_labels is None
    assert opaque.plain_labels is None
    assert Term((3,), (A,), (A,)).plain_labels is None


def test_axes_stand_with_those_of_both_sides_first_then_inputs_then_outputs():
    out, into = [label(2), label(0), label(5)], [label(4), label(0), label(3)]
    every = (0, 4, 3, 2, 5)
    for count in range(len(every) + 1):
        for labels in itertools.combinations(every, count):
            assert storage_order(out, into, labels[::-1]) == labels
    assert storage_order(out, into, {7, 5, 6, 0}) == (0, 5, 6, 7)
    assert storage_order([label(0).plus(label(1, 4), {})], [], {0, 1}) == (1, 0)


def test_maps_are_renamed_together_as_alone():
    names = {0: 5, 1: 0, 2: 2}
    maps = [A, FLIPPED, LOOKED_UP, constant(3), label(7), label(2, 3), A.plus(label(1, 2), {})]
    together = renamed(maps, names)
    assert together == [axis.renamed(names) for axis in maps]
    assert together[:2] == [label(5), label(5, -1, 2)]
    assert together[2].parts[0] == (5, LOOKED_UP.parts[0][1])
    assert together[3] is maps[3]
    assert together[4] is maps[4]
    assert together[6].parts == ((0, 2), (5, 1))


def test_a_term_with_another_coefficient_is_made_once():
    term = Term((3,), (A,), (A,), (FACTORS["vector"],), 2.5)
    doubled = term.times(5.0)
    assert doubled == Term((3,), (A,), (A,), (FACTORS["vector"],), 5.0)
    assert term.times(5.0) is doubled
    assert doubled.times(2.5) is term
    assert term.unit is doubled.unit
    assert term.unit.coefficient == 1
    assert type(term.times(5).coefficient) is int
    assert doubled.moved((4,)).coefficient == 5.0


def test_terms_of_many_coefficients_are_not_all_kept():
    term = Term((3,), (A,), (A,), (FACTORS["vector"],))
    for number in range(2, 3 * MAX_FAMILY):
        assert term.times(number).coefficient == number
    assert len(term._family) <= MAX_FAMILY
    assert term.times(2) == Term((3,), (A,), (A,), (FACTORS["vector"],), 2)


def test_a_sum_knows_the_positions_of_its_terms():
    first = Term((3, 4), (A,), (B,), (FACTORS["matrix"],), 2)
    made = first.holding(FACTORS["transposed"], 3, ())
    plain = Term((3, 4), (A,), (B,), (FACTORS["transposed"],), 3)
    assert made == plain
    assert made.pattern == plain.pattern
    assert made.position_labels == plain.position_labels


def test_terms_on_lines_of_their_own_are_not_boxed(monkeypatch):
    def placed(*rows):
        terms = [Term((4,), (constant(row),), (A,), (Factor((A,), (4,)),)) for row in rows]
        return intern_structure((9,), (4,), terms)

    boxed = []
    box = consolidation._box
    monkeypatch.setattr(consolidation, "_box", lambda *args: boxed.append(args) or box(*args))
    sum_ = add.__wrapped__(placed(1, 5), placed(3))
    assert [repr(term.out) for term in sum_.result.terms] == ["(1,)", "(5,)", "(3,)"]
    assert not sum_.steps
    assert not boxed
    shifted = intern_structure((8,), (8,), [Term((4,), (A,), (A,), (Factor((A,), (4,)),))])
    beside = intern_structure(
        (8,), (8,), [Term((4,), (label(0, 1, 2),), (label(0, 1, 2),), (Factor((A,), (4,)),))]
    )
    joined = add.__wrapped__(shifted, beside)
    assert [term.sizes for term in joined.result.terms] == [(6,)]
    assert len(boxed) == 2


def test_structures_that_nothing_holds_are_forgotten():
    axes = (label(0),)
    term = Term((4799,), axes, axes, coefficient=0.125)  # no other test has it
    first = intern_structure((4799,), (4799,), [term])
    assert intern_structure((4799,), (4799,), [term]) is first
    held = weakref.ref(first)
    del first
    gc.collect()
    assert held() is None
