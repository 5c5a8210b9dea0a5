"""Every operation of the edge algebra against the definition, written out with loops."""

import numpy as np
import pytest

from graphax_lapl.edges.algebra import add, compose, densify, trace, transpose
from graphax_lapl.edges.layout import coordinate_layout, structural_nonzeros
from graphax_lapl.edges.maps import IndexMap, label
from graphax_lapl.edges.terms import Factor, Structure, Term, intern_structure
from tests.edges.structures import Generator, dense, replay

SEEDS = range(150)


def result(recipe, operands, shape) -> np.ndarray:
    if recipe.result is None:
        return np.zeros(shape)
    return dense(recipe.result, replay(recipe, operands))


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_compose_is_the_matrix_product(seed):
    draw = Generator(seed)
    out_shape, middle, in_shape = draw.shape(), draw.shape(), draw.shape()
    outer, outer_values = draw.structure(out_shape, middle)
    inner, inner_values = draw.structure(middle, in_shape)
    expected = np.tensordot(
        dense(outer, outer_values), dense(inner, inner_values), axes=len(middle)
    )
    recipe = compose(outer, inner)
    close(result(recipe, outer_values + inner_values, out_shape + in_shape), expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_add_is_the_sum(seed):
    draw = Generator(1000 + seed)
    out_shape, in_shape = draw.shape(), draw.shape()
    first, first_values = draw.structure(out_shape, in_shape)
    second, second_values = draw.structure(out_shape, in_shape)
    recipe = add(first, second)
    expected = dense(first, first_values) + dense(second, second_values)
    close(result(recipe, first_values + second_values, out_shape + in_shape), expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_transpose_trace_and_densify(seed):
    draw = Generator(2000 + seed)
    out_shape, in_shape = draw.shape(), draw.shape()
    structure, values = draw.structure(out_shape, in_shape)
    matrix = dense(structure, values)
    axes = (*range(len(out_shape), matrix.ndim), *range(len(out_shape)))
    close(result(transpose(structure), values, in_shape + out_shape), matrix.transpose(axes))
    close(result(densify(structure), values, out_shape + in_shape), matrix)
    square, square_values = draw.structure(out_shape, out_shape)
    size = int(np.prod(out_shape))
    expected = np.trace(dense(square, square_values).reshape(size, size))
    close(result(trace(square), square_values, ()), expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_layout_lists_every_position_once_in_order(seed):
    draw = Generator(3000 + seed)
    structure, _ = draw.structure(draw.shape(), draw.shape())
    expected = dense(ones(structure), values_of_ones(structure)) != 0
    layout = coordinate_layout(structure)
    np.testing.assert_array_equal(layout.indices, np.argwhere(expected))
    assert structural_nonzeros(structure) == expected.sum()


def ones(structure: Structure) -> Structure:
    """The same positions with positive values, so that nothing cancels."""
    terms = [
        Term(t.sizes, t.out, t.into, t.factors, abs(t.coefficient), t.conj) for t in structure.terms
    ]
    return intern_structure(structure.out_shape, structure.in_shape, terms)


def values_of_ones(structure: Structure) -> list[np.ndarray]:
    return [np.ones(factor.shape) for factor in structure.factors]


def test_equal_structures_are_one_object():
    draw, again = Generator(7), Generator(7)
    assert draw.structure((3,), (4,))[0] is again.structure((3,), (4,))[0]


def test_a_composition_is_asked_once():
    structure, _ = Generator(11).structure((3,), (3,))
    assert compose(structure, structure) is compose(structure, structure)


def diagonal(size: int, coefficient: float = 1, factors: tuple[Factor, ...] = ()) -> Structure:
    axis = (label(0),)
    return intern_structure((size,), (size,), [Term((size,), axis, axis, factors, coefficient)])


def test_known_numbers_stay_out_of_the_arithmetic():
    half, third = diagonal(5, 0.5), diagonal(5, 3)
    recipe = compose(half, third)
    assert recipe.steps == ()
    assert recipe.result is diagonal(5, 1.5)
    assert recipe.cost.muls == 0
    assert recipe.cost.ad == 5
    assert add(diagonal(5), diagonal(5, -1)).result is None


def test_outer_products_are_not_multiplied_out():
    left = Factor((label(0),), (40,))
    right = Factor((label(1),), (30,))
    column = intern_structure((40,), (), [Term((40,), (label(0),), (), (left,))])
    row = intern_structure((), (30,), [Term((30,), (), (label(0),), (Factor((label(0),), (30,)),))])
    product = compose(column, row)
    assert product.steps == ()
    assert product.result is not None
    assert product.result.terms[0].factors == (left, right)


def test_reshape_there_and_back_is_the_identity():
    flat = IndexMap(0, ((0, 4), (1, 1)))
    split = intern_structure((3, 4), (12,), [Term((3, 4), (label(0), label(1)), (flat,))])
    joined = intern_structure((12,), (3, 4), [Term((3, 4), (flat,), (label(0), label(1)))])
    assert compose(joined, split).result is diagonal(12)


def test_planning_cost_does_not_grow_with_the_array():
    def shifted(size: int) -> Structure:
        term = Term((size - 1,), (label(0),), (label(0, 1, 1),))
        return intern_structure((size,), (size,), [term])

    for size in (10, 10**7):
        recipe = compose(shifted(size), shifted(size))
        assert recipe.result is not None
        (term,) = recipe.result.terms
        assert term.sizes == (size - 2,)
        assert term.into == (label(0, 1, 2),)
