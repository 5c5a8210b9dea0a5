"""Dense results that are mostly zero: made of their entries, not written term by term."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve
from graphax_lapl.edges.maps import constant, label
from graphax_lapl.edges.terms import Factor, Term, intern_structure
from graphax_lapl.emit.assembly import assemble
from graphax_lapl.emit.coordinates import MAX_GATHERED
from graphax_lapl.emit.tables import are_many_runs
from tests.checks import assert_same, primitives
from tests.edges.structures import dense

N = 160


def stencil(x):
    return jnp.roll(x, 1) * jnp.roll(x, -2) * jnp.sin(x) + x[::-1] ** 2


def test_entries_of_a_large_sparse_matrix_are_set():
    assert N * N > MAX_GATHERED
    x = np.random.default_rng(0).normal(size=(2, N))
    found = jax.vmap(jacve(stencil))(x)
    wanted = jax.jit(jax.vmap(jax.jacfwd(stencil)))(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    assert " = scatter[" in str(jax.make_jaxpr(jacve(stencil))(x[0]))


def test_their_derivatives_are_exact():
    x, v = np.random.default_rng(1).normal(size=(2, N))

    def squares(jacobian):
        return jax.jit(jax.grad(lambda x: jnp.sum(jacobian(stencil)(x) ** 2 * v)))(x)

    np.testing.assert_allclose(squares(jacve), squares(jax.jacfwd), rtol=1e-11, atol=1e-11)


def numbers(x):
    """Eleven functions of four numbers, of which most depend on two."""
    a, b, c, d = x
    products = [a * b, b * c, jnp.sin(c) * d, a / d, d * d, b - c, a * jnp.exp(b)]
    return jnp.stack([*products, c, a * b * c * d, b / a, jnp.tanh(d)])


def bordered(x):
    """A diagonal, and numbers on it and beside it."""
    return jnp.stack([x[0] * x[3], *(x[k] * x[k + 1] for k in range(6)), x[0]]) + x**2


@pytest.mark.parametrize(("fun", "count"), [(numbers, 4), (bordered, 8)])
@pytest.mark.parametrize("batch", [None, 5, 300])
def test_single_numbers_side_by_side(fun, count, batch):
    x = np.random.default_rng(2).uniform(0.5, 1.5, (*([batch] if batch else []), count))

    def both(jacobian):
        return (jax.vmap if batch else lambda f: f)(jacobian)

    assert_same(both(jacve(fun))(x), jax.jit(both(jax.jacfwd(fun)))(x))
    if batch != 300:
        ways = (jax.jacfwd(jacve(fun)), jax.hessian(fun))
        assert_same(*jax.jit(lambda x: [both(way)(x) for way in ways])(x))


def test_single_numbers_are_one_kernel():
    """XLA fuses few operands: those of a longer concatenation would be a kernel each."""
    text = jax.jit(jacve(bordered)).lower(np.ones(8)).as_text()
    operands = [line.count("%") - 1 for line in re.findall(r".*stablehlo\.concatenate.*", text)]
    assert operands
    assert max(operands) <= 8


TIMES = np.linspace(0.0, 3.0, 12)
"""Its first entry is zero: so is that of a derivative along a rate."""


def two_decays(p):
    return p[0] * jnp.exp(-p[1] * TIMES) + p[2] * jnp.exp(-p[3] * TIMES[::-1]) + p[4]


def peak_on_a_line(p):
    return p[0] * jnp.exp(-(((TIMES - p[1]) / p[2]) ** 2)) + p[3] + p[4] * TIMES


def planes(p):
    """Columns along two dimensions, of which one lacks the ends of both."""
    rows = np.pad(np.ones((8, 9)), 1)
    return jnp.sin(p[0] * rows) + p[1] * p[2] * np.arange(11.0) + p[2] * p[3] * TIMES[:10, None]


def polynomial_and_decay(p):
    """One column of a sample's own beside those of the grid."""
    return p[0] + p[1] * TIMES + p[2] * TIMES**2 + p[3] * TIMES**3 + jnp.exp(-p[4] * TIMES)


@pytest.mark.slow
@pytest.mark.parametrize("fun", [two_decays, peak_on_a_line, planes, polynomial_and_decay])
@pytest.mark.parametrize("batch", [1, 3, 300])
def test_columns_that_lack_a_few_entries_are_written_with_the_others(fun, batch):
    p = np.random.default_rng(7).uniform(0.5, 1.5, (batch, 5))
    ours, wanted = (jax.vmap(f(fun)) for f in (jacve, jax.jacfwd))
    if batch == 1:
        ours, wanted, p = jacve(fun), jax.jacfwd(fun), p[0]
    assert_same(jax.jit(ours)(p), wanted(p), tolerance=1e-12)
    seeds = jax.jit(jax.grad(lambda p: jnp.sum(jnp.sin(ours(p)))))
    assert_same(seeds(p), jax.grad(lambda p: jnp.sum(jnp.sin(wanted(p))))(p), tolerance=1e-12)


@pytest.mark.parametrize("fun", [two_decays, peak_on_a_line])
def test_no_column_passes_over_the_whole_matrix(fun):
    p = np.random.default_rng(8).uniform(0.5, 1.5, (16, 5))
    program = jax.make_jaxpr(jax.vmap(jacve(fun)))(p).jaxpr
    assert primitives(program, ("select_n",)).total() == 4  # among five columns, by halves
    assert not primitives(program, ("add", "pad"))[16, 12, 5]


def test_a_column_of_its_own_beside_shared_ones():
    """It is selected, and the others are put together once for all samples, whatever it holds."""
    p = np.random.default_rng(9).uniform(0.5, 1.5, (16, 5))
    closed = jax.make_jaxpr(jax.vmap(jacve(polynomial_and_decay)))(p)
    selected = primitives(closed.jaxpr, ("select_n",))
    assert selected == {(16, 12, 5): 1, (12, 4): 3}
    p[3, 4] = -np.inf
    found = jax.vmap(jacve(polynomial_and_decay))(p)
    powers = np.stack([TIMES**k for k in range(4)], -1)
    np.testing.assert_allclose(found[..., :4], np.stack([powers] * 16), rtol=1e-13)
    assert jnp.isfinite(found[np.arange(16) != 3]).all()


MANY = 100


def product_of_many(x):
    """Multiplied by halves, odd ones by odd ones: runs of a few entries on many diagonals."""
    return jnp.prod(jnp.cos(x / 16) + x**2)


def hessian_of_many(x):
    return jacve(jax.grad(product_of_many), order="markowitz")(x)


@pytest.mark.parametrize("batch", [None, 3])
def test_many_short_diagonals_are_set_number_by_number(batch):
    x = np.random.default_rng(6).uniform(0.1, 0.4, (*([batch] if batch else []), MANY))
    both = (lambda hessian: hessian) if batch is None else jax.vmap
    assert_same(jax.jit(both(hessian_of_many))(x), jax.jit(both(jax.hessian(product_of_many)))(x))
    assert " = scatter-add[" in str(jax.make_jaxpr(both(hessian_of_many))(x))


@pytest.mark.slow
def test_their_entries_are_differentiated():
    x, v = (np.random.default_rng(k).uniform(0.1, 0.4, MANY) for k in (6, 7))

    def along(hessian):
        return jax.jit(lambda x: jax.jvp(hessian, (x,), (v,)))(x)

    assert_same(along(hessian_of_many), along(jax.hessian(product_of_many)))


@pytest.mark.parametrize("seed", range(8))
def test_runs_of_many_terms_may_overlap_and_leave_the_matrix(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, size=80)
    terms, values = [], []
    for k, size in enumerate(sizes.tolist()):
        step, (row, column) = int(rng.choice([-1, 0, 1])), rng.integers(-2, 60, size=2).tolist()
        into = label(0, 1, column)
        out = label(0, step, row) if step else constant(row)
        factors = (Factor((label(0),), (size,)),) if k % 7 else ()
        terms.append(Term((size,), (out,), (into,), factors, int(rng.integers(1, 4))))
        values += [rng.normal(size=size)] * len(factors)
    structure = intern_structure((60,), (60,), terms)
    assert are_many_runs(structure.terms, (60, 60))

    def placed(arrays):
        return assemble(structure, arrays, np.dtype(np.float64))

    assert_same(jax.jit(placed)(values), dense(structure, values), tolerance=1e-13)
    rows = [np.stack([value, -value]) for value in values]
    wanted = np.stack([dense(structure, [sign * v for v in values]) for sign in (1, -1)])
    assert_same(jax.jit(jax.vmap(placed))(rows), wanted, tolerance=1e-13)
