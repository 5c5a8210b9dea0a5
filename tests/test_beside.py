"""Parts of a matrix beside each other: written part by part where something reads the matrix."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import hessve, jacve
from graphax_lapl.edges.maps import label
from graphax_lapl.edges.terms import Factor, Term, intern_structure
from graphax_lapl.emit.assembly import assemble
from graphax_lapl.emit.beside import MAX_PARTS
from tests.checks import assert_same

RNG = np.random.default_rng(11)
HEIGHT = 5


def placed(starts, extent, rows=3):
    """Blocks of some rows from `starts` on: as `assemble` writes them, and as NumPy does."""
    terms = [
        Term((rows, HEIGHT), (label(0, 1, start),), (label(1),), (_factor(rows),))
        for start in starts
    ]
    blocks = RNG.normal(size=(len(terms), rows, HEIGHT))
    wide = np.zeros((extent + 2 * rows, HEIGHT))
    for start, block in zip(starts, blocks, strict=True):
        wide[start + rows : start + 2 * rows] += block
    structure = intern_structure((extent,), (HEIGHT,), tuple(terms))

    def fun(operands):
        return assemble(structure, operands, np.dtype(float))

    return fun, [jnp.asarray(block) for block in blocks], wide[rows:-rows]


def _factor(rows):
    return Factor((label(0), label(1)), (rows, HEIGHT))


@pytest.mark.every_case
@pytest.mark.parametrize("starts", list(itertools.permutations([0, 3, 6])))
def test_in_any_order(starts):
    fun, operands, wanted = placed(starts, 9)
    assert_same(fun(operands), wanted)
    names = [equation.primitive.name for equation in jax.make_jaxpr(fun)(operands).jaxpr.eqns]
    assert names == ["concatenate"]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("starts", "extent"),
    [
        ([1, 7], 12),  # zeros before, between and behind
        ([0, 2, 6], 9),  # two that overlap
        ([2, 0, 1], 5),  # one part
        ([3 * k for k in range(MAX_PARTS + 1)], 3 * MAX_PARTS + 3),  # too many
        ([-1, 4], 7),  # one that is cut off
    ],
)
def test_gaps_and_overlaps(starts, extent):
    fun, operands, wanted = placed(starts, extent)
    assert_same(fun(operands), wanted)


def mixture(x):
    """Peaks whose heights, places and widths are packed into one vector."""
    times = jnp.linspace(0.0, 1.0, 16)
    height, place, width = x[:3, None], x[3:6, None], x[6:9, None]
    return jnp.sum(height * jnp.exp(-((times - place) ** 2) / (0.1 + width**2)), 0)


@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("samples", [None, 3, 300])
def test_packed_parameters(order, samples):
    x = RNG.uniform(0.2, 1.0, size=(9,) if samples is None else (samples, 9))
    ours, theirs = jacve(mixture, order), jax.jacfwd(mixture)
    if samples is not None:
        ours, theirs = jax.vmap(ours), jax.vmap(theirs)
    assert_same(jax.jit(ours)(x), jax.jit(theirs)(x))


def test_derivatives_of_parts():
    x, v = RNG.uniform(0.2, 1.0, size=9), RNG.normal(size=(16, 9))

    def weighted(jacobian):
        return jax.grad(lambda x: jnp.sum(jacobian(mixture)(x) ** 2 * v))(x)

    assert_same(weighted(jacve), weighted(jax.jacfwd))

    def squares(x):
        return jnp.sum(mixture(x) ** 2)

    assert_same(hessve(squares)(x), jax.hessian(squares)(x))
