"""What terms say of their zeros holds, whatever is done to them; functions that have triangles."""

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import hessve, jacve, laplacian_ve
from graphax_lapl.edges.algebra import add, compose, densify, transpose
from graphax_lapl.edges.layout import coordinate_layout, structural_nonzeros
from graphax_lapl.edges.maps import label
from graphax_lapl.edges.masks import pattern_mask
from graphax_lapl.edges.terms import Factor, Structure, Term, intern_structure
from tests.checks import assert_same
from tests.edges.structures import Generator, at, dense, replay


class LimitedGenerator(Generator):
    """Draws terms with a factor that is zero where one label is so much smaller than another.

    With `masks`, some are zero where a table over some labels says so, or both.
    """

    masks = False

    def term(self, out_shape, in_shape) -> tuple[Term, list[np.ndarray]] | None:
        finished = super().term(out_shape, in_shape)
        if finished is None or len(finished[0].position_labels) < 2:
            return finished
        term, values = finished
        first, second = self.rng.permutation(sorted(term.position_labels))[:2].tolist()
        limits = [label(first).plus(label(second, -1, self.integer(-1, 1)), {})]
        if self.masks:
            names = self.rng.permutation(sorted(term.position_labels))[: self.integer(1, 3)]
            table = self.rng.random([term.sizes[n] for n in names]) < 0.5
            mask = pattern_mask(table).renamed(dict(enumerate(names.tolist())))
            limits = [[mask], [mask, *limits], limits][self.integer(0, 2)]
        box = range(len(term.sizes)), dict(enumerate(term.sizes))
        inside = np.ones(term.sizes, bool)
        for limit in limits:
            inside &= limit.evaluate(*box) >= 0
        factor = Factor(tuple(label(n) for n in term.labels), term.sizes)
        weights = self.rng.uniform(1, 2, term.sizes) * inside
        return replace(term, factors=(*term.factors, factor), limits=tuple(limits)), [
            *values,
            weights,
        ]


def check(structure: Structure | None, values: list[np.ndarray], expected: np.ndarray) -> int:
    """Compare the matrix, and every term with its limits; how many entries these leave out."""
    if structure is None:
        assert not expected.any()
        return 0
    np.testing.assert_allclose(dense(structure, values), expected, rtol=1e-12, atol=1e-12)
    positions = coordinate_layout(structure).indices
    assert structural_nonzeros(structure) == len(positions)
    inside = np.zeros(expected.shape, bool)
    inside[tuple(positions.T)] = True
    assert not expected[~inside].any()
    start = left_out = 0
    for term in structure.terms:
        own = values[start : start + len(term.factors)]
        start += len(term.factors)
        for labels in product(*map(range, term.sizes)):
            place = [at(axis, labels) for axis in (*term.out, *term.into)]
            within = all(0 <= p < n for p, n in zip(place, expected.shape, strict=True))
            if within and any(at(limit, labels) < 0 for limit in term.limits):
                left_out += 1
                read = [
                    value[tuple(at(axis, labels) for axis in factor.axes)]
                    for factor, value in zip(term.factors, own, strict=True)
                ]
                assert np.prod(read) == 0
    return left_out


@pytest.mark.parametrize("seed", range(48))
def test_limits_hold_after_every_operation(seed):
    draw = LimitedGenerator(5000 + seed)
    draw.masks = seed >= 24
    out_shape, middle, in_shape = (3, 4)[: seed % 3], (4,), (3, 4)[: 1 + seed % 2]
    outer, outer_values = draw.structure(out_shape, middle)
    inner, inner_values = draw.structure(middle, in_shape)
    left, right = dense(outer, outer_values), dense(inner, inner_values)
    recipe = compose(outer, inner)
    expected = np.tensordot(left, right, axes=1)
    check(recipe.result, replay(recipe, outer_values + inner_values), expected)
    twin, twin_values = draw.structure(middle, in_shape)
    recipe = add(inner, twin)
    check(
        recipe.result, replay(recipe, inner_values + twin_values), right + dense(twin, twin_values)
    )
    recipe = transpose(inner)
    turned = np.moveaxis(right, 0, -1)
    check(recipe.result, replay(recipe, inner_values), turned)
    recipe = densify(inner)
    check(recipe.result, replay(recipe, inner_values), right)


def triangle(size: int, sign: int, offset: int = 0) -> Structure:
    """A dense matrix that is zero where `sign * (row - column) + offset` is negative."""
    axes = label(0), label(1)
    limit = axes[0].scaled(sign).plus(axes[1].scaled(-sign), {}).shifted(offset)
    term = Term((size, size), axes[:1], axes[1:], (Factor(axes, (size, size)),), limits=(limit,))
    return intern_structure((size,), (size,), [term])


@pytest.mark.parametrize(
    ("first", "second", "entries"),
    [
        (triangle(6, 1), triangle(6, 1), 21),
        (triangle(6, 1), triangle(6, 1, -1), 15),
        (triangle(6, 1, 1), triangle(6, 1, 1), 21 + 5 + 4),
        (triangle(6, 1), triangle(6, -1), 36),
    ],
)
def test_a_product_of_triangles(first, second, entries):
    result = compose(first, second).result
    assert result is not None
    assert structural_nonzeros(result) == len(coordinate_layout(result).indices) == entries


def test_entries_of_a_large_triangle_are_counted_without_listing_them():
    size = 10**5
    assert structural_nonzeros(triangle(size, 1)) == size * (size + 1) // 2


X = np.random.default_rng(3).uniform(0.5, 1.5, 20)
M = X.reshape(4, 5)
CUMULATIVE = (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp)


def recurrence(reverse: bool):
    def fun(x):
        step = lambda carry, entry: (jnp.sin(carry) + entry, carry * entry)  # noqa: E731
        return lax.scan(step, 0.3, x, reverse=reverse)[1]

    return fun


TRIANGULAR = {
    **{
        op.__name__: (lambda x, op=op, k=k: op(x**2, reverse=bool(k % 2)), X, 210)
        for k, op in enumerate(CUMULATIVE)
    },
    "in rows": (lambda x: lax.cumprod(x**2, axis=1), M, 4 * 15),
    "in columns, batched": (lambda x: jax.vmap(lax.cumlogsumexp, 1, 1)(x**2), M, 5 * 10),
    "in rows and columns": (lambda x: lax.cumprod(lax.cumlogsumexp(x, 1), 0), M, 15 * 10),
    "flattened": (lambda x: jnp.ravel(lax.cumprod(x, 1, reverse=True)) ** 2, M, 4 * 15),
    "a stretch": (lambda x: jnp.sin(lax.cumprod(x)[3:9]), X, 4 + 5 + 6 + 7 + 8 + 9),
    "flipped": (lambda x: lax.cumprod(x)[::-1], X, 210),
    "times the first": (lambda x: lax.cumprod(x) * x[0], X, 210),
    "a sum with a diagonal": (lambda x: lax.cumprod(x) + x**2, X, 210),
    "a sum with a shifted diagonal": (lambda x: lax.cumprod(x) + jnp.roll(x, -1), X, 210 + 19),
    "twice": (lambda x: lax.cumlogsumexp(lax.cumprod(x)), X, 210),
    "there and back": (lambda x: lax.cummax(lax.cumprod(x), reverse=True), X, 400),
    "recurrence": (recurrence(False), X, 210),
    "recurrence, reverse": (recurrence(True), X, 210),
}


@pytest.mark.parametrize("name", TRIANGULAR)
def test_functions_with_triangles(name):
    fun, x, entries = TRIANGULAR[name]

    @jax.jit
    def everything(x):
        orders = ("forward", "reverse")
        blocks = [jacve(fun, o, sparse_representation=True)(x) for o in orders]
        matrices = [(block.todense(), block.to_bcoo().todense()) for block in blocks]
        return blocks, matrices, jax.jit(jax.jacrev(fun))(x)

    blocks, matrices, expected = everything(jnp.asarray(x))
    for block, forms in zip(blocks, matrices, strict=True):
        assert block.nse == len(block.indices) == entries
        assert_same(forms, (expected, expected))


def test_hessian_through_a_triangle():
    def fun(x):
        return jnp.sum(jnp.sin(lax.cumsum(x)[2:7]) ** 2) + jnp.sum(x**3)

    @jax.jit
    def everything(x):
        return (
            hessve(fun, sparse_representation=True)(x),
            laplacian_ve(fun)(x),
            jax.jit(jax.hessian(fun))(x),
        )

    found, laplacian, expected = everything(jnp.asarray(X))
    assert_same(found.todense(), expected)
    assert_same(found.to_bcoo().todense(), expected)
    assert_same(laplacian, jnp.trace(expected))
    assert found.nse == 7 * 7 + 13
