"""Matrices of a few diagonals: stencils, oscillators and other coupled systems, in batches."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from graphax_lapl import hessve, jacve, make_plan
from graphax_lapl.edges.maps import IndexMap, from_values, label
from graphax_lapl.edges.terms import Factor, Structure, Term, intern_structure
from graphax_lapl.emit.assembly import assemble
from graphax_lapl.emit.diagonals import MANY, Diagonals, diagonals, masked_sum

Field = Callable[[Array], Array]


def excitable(x: Array) -> Array:
    """Neurons on a ring: one diagonal that is not known."""
    v, w = x[:9], x[9:]
    spread = jnp.roll(v, 1) - 2 * v + jnp.roll(v, -1)
    return jnp.concatenate([v - v**3 / 3 - w + spread, 0.08 * (v + 0.7 - 0.8 * w)])


def springs(x: Array) -> Array:
    """Masses on a ring with stiffening springs."""
    q, p = x[:9], x[9:]
    d = jnp.roll(q, -1) - q
    force = d + d**3 / 4
    return jnp.concatenate([p, force - jnp.roll(force, 1)])


def advected(x: Array) -> Array:
    """Neighbours at different distances, read along the rows and along the columns."""
    return (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x + 8


def residuals(x: Array) -> Array:
    """More results than inputs."""
    return jnp.concatenate([10 * (x[1:] - x[:-1] ** 2), 1 - x[:-1]])


def front(u: Array) -> Array:
    """A reaction on a grid, whose field has two axes."""
    v = jnp.pad(u, 1)
    return v[2:, 1:-1] + v[:-2, 1:-1] + v[1:-1, 2:] + v[1:-1, :-2] - 4 * u + u - u**3


def fourth(u: Array) -> Array:
    second = jnp.roll(u, -1) - 2 * u + jnp.roll(u, 1)
    slope = (jnp.roll(u, -1) - jnp.roll(u, 1)) / 2
    return -u * slope - second - (jnp.roll(second, -1) - 2 * second + jnp.roll(second, 1))


FIELDS: dict[str, tuple[Field, tuple[int, ...]]] = {
    "excitable": (excitable, (18,)),
    "springs": (springs, (18,)),
    "advected": (advected, (19,)),
    "residuals": (residuals, (13,)),
    "front": (front, (5, 4)),
    "fourth": (fourth, (18,)),
}


def points(shape: tuple[int, ...], samples: int, seed: int = 0) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(samples, *shape)))


@pytest.mark.slow
@pytest.mark.parametrize("samples", [2, 200])
@pytest.mark.parametrize("name", FIELDS)
def test_batches_of_coupled_systems(name: str, samples: int) -> None:
    field, shape = FIELDS[name]
    x = points(shape, samples)
    found = jax.vmap(jacve(field))(x)
    np.testing.assert_allclose(found, jax.vmap(jax.jacfwd(field))(x), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found[0], jacve(field)(x[0]), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_nested_batches_and_orders(order: str) -> None:
    x = points((18,), 6).reshape(2, 3, 18)
    found = jax.vmap(jax.vmap(jacve(excitable, order=order)))(x)
    expected = jax.vmap(jax.vmap(jax.jacrev(excitable)))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["advected", "front"])
def test_derivatives_of_batches(name: str) -> None:
    """Masks of bits are differentiated and transposed as selections."""
    field, shape = FIELDS[name]
    x = points(shape, 4)

    def loss(jacobian: Callable[[Field], Field]) -> Callable[[Array], Array]:
        return lambda x: jnp.sum(jnp.sin(jax.vmap(jacobian(field))(x)))

    expected = jax.grad(loss(jax.jacrev))(x)
    np.testing.assert_allclose(jax.grad(loss(jacve))(x), expected, rtol=1e-12, atol=1e-12)
    pushed = jax.jvp(loss(jacve), (x,), (jnp.cos(x),))[1]
    np.testing.assert_allclose(pushed, jnp.vdot(expected, jnp.cos(x)), rtol=1e-12)


@pytest.mark.slow
def test_hessian_of_a_chain() -> None:
    def energy(x: Array) -> Array:
        return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    x = points((18,), 300)
    found = jax.vmap(hessve(energy))(x)
    np.testing.assert_allclose(found, jax.vmap(jax.hessian(energy))(x), rtol=1e-10, atol=1e-10)


def test_infinite_slopes_stay_at_their_places() -> None:
    def roots(x: Array) -> Array:
        return jnp.sqrt(x) + jnp.roll(x, 1)

    x = jnp.abs(points((20,), 3)).at[:, 4].set(0.0)
    found = np.array(jax.vmap(jacve(roots))(x))
    assert np.isinf(found[:, 4, 4]).all()
    found[:, 4, 4] = 0
    expected = np.zeros_like(found)
    each = np.arange(20)
    expected[:, each, each - 1] = 1
    slopes = np.where(each == 4, 0, 0.5 / np.sqrt(np.where(each == 4, 1, x)))
    expected[:, each, each] = slopes
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def form_of(field: Field, shape: tuple[int, ...]) -> Diagonals:
    """The form of the only matrix of a Jacobian."""
    block = make_plan(field, jnp.zeros(shape)).whole.blocks[0][0]
    assert block.structure is not None
    form = diagonals(block.structure, tuple(block.slots))
    assert form is not None
    return form


def test_what_reads_one_array_is_one_pass() -> None:
    """Neighbours on a ring are a diagonal and a corner; signs are a table."""
    form = form_of(advected, (19,))
    assert len(form.arrays) == 2
    assert len(form.known) == 1
    signs = [np.unique(coefficients) for _, _, coefficients in form.arrays]
    assert sorted(map(len, signs)) == [1, 2]
    assert not form.is_short


def test_known_entries_are_one_constant() -> None:
    form = form_of(excitable, (18,))
    assert len(form.arrays) == 1
    assert len(form.known) == 7
    assert form.is_short
    assert form.suits(2)
    assert not form.suits(1)


def test_many_operations_need_many_samples() -> None:
    form = form_of(springs, (18,))
    assert not form.is_short
    assert not form.suits(MANY // 324)
    assert form.suits(MANY // 324 + 1)


def diagonal(shift: int, count: int, coefficient: complex = 1) -> Term:
    """`f[k]` at `(k, k + shift)`, for all k, of a matrix with as many columns as it needs."""
    factor = Factor((label(0),), (count,))
    return Term((count,), (label(0),), (label(0).shifted(shift),), (factor,), coefficient)


def dense(structure: Structure, slots: tuple[int, ...], operands: list[Array]) -> Array:
    form = diagonals(structure, slots)
    assert form is not None
    return masked_sum(form, structure, operands, operands[0].dtype)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_diagonals(seed: int) -> None:
    """Shifted, permuted and known ones, sums at some places, against terms written one by one."""
    random = np.random.default_rng(seed)
    rows, columns = (int(n) for n in random.integers(17, 22, 2))
    terms, slots, operands = [], [], []
    arrays = [jnp.asarray(random.normal(size=24)) for _ in range(2)]
    for k in range(int(random.integers(2, 5))):
        count = int(random.integers(2, min(rows, columns)))
        into = from_values(0, random.permutation(columns)[:count])
        out = from_values(0, random.permutation(rows)[:count])
        if random.integers(2):
            start = int(random.integers(rows - count + 1))
            out = label(0).shifted(start)
        coefficient = float(random.choice([1, -1, 0.5]))
        reads: IndexMap = label(0).shifted(int(random.integers(24 - count + 1)))
        factors = (Factor((reads,), (24,)),) if k else ()
        terms.append(Term((count,), (out,), (into,), factors, coefficient))
        if factors:
            slots.append(int(random.integers(2)))
            operands.append(arrays[slots[-1]])
    structure = intern_structure((rows,), (columns,), tuple(terms))
    expected = assemble(structure, operands, arrays[0].dtype)
    found = dense(structure, tuple(slots), operands)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "complex64"])
def test_dtypes(dtype: str) -> None:
    values = jnp.asarray(np.random.default_rng(0).normal(size=10)).astype(dtype)
    structure = intern_structure((20,), (22,), (diagonal(0, 10), diagonal(2, 10, -1)))
    found = dense(structure, (5, 5), [values, values])
    assert found.dtype == values.dtype
    expected = np.zeros((20, 22), np.complex64)
    each = np.arange(10)
    expected[each, each], expected[each, each + 2] = np.asarray(values), -np.asarray(values)
    np.testing.assert_array_equal(np.asarray(found).astype(np.complex64), expected)


def test_imaginary_coefficients_stay_apart() -> None:
    values = jnp.arange(1.0, 11.0)
    structure = intern_structure((20,), (22,), (diagonal(0, 10), diagonal(2, 10, 1j)))
    form = diagonals(structure, (5, 5))
    assert form is not None
    assert len(form.arrays) == 2
    found = dense(structure, (5, 5), [values, values])
    expected = np.zeros((20, 22))
    expected[np.arange(10), np.arange(10)] = values
    np.testing.assert_array_equal(found, expected + 1j * np.roll(expected, 2, 1))


def weights(rows: int, columns: int) -> Term:
    """What a layer's weights have: the same columns for every output."""
    factor = Factor((label(1),), (columns,))
    return Term((rows, columns), (label(0),), (label(0), label(1)), (factor,))


def row(count: int) -> Term:
    """The gradient of a number."""
    factor = Factor((label(0),), (count,))
    return Term((count,), (), (label(0),), (factor,))


@pytest.mark.parametrize(
    ("structure", "slots"),
    [
        (intern_structure((8,), (8, 6), (weights(8, 6),)), (0,)),
        (
            intern_structure((20,), (20,), tuple(diagonal(0, 20) for _ in range(6))),
            (0, 1, 2, 3, 4, 5),
        ),
        (intern_structure((16,), (16,), (diagonal(0, 16),)), (0,)),
        (intern_structure((19,), (19,), (Term((9,), (label(0),), (label(0),), ()),)), ()),
        (intern_structure((), (300,), (row(300),)), (0,)),
        (intern_structure((200,), (200,), (diagonal(0, 200),)), (0,)),
    ],
    ids=["weights", "six arrays", "small", "known only", "a full row", "large"],
)
def test_other_matrices_have_other_forms(structure: Structure, slots: tuple[int, ...]) -> None:
    assert diagonals(structure, slots) is None


def listed(rows: list[int], columns: list[int], reads: IndexMap, extent: int) -> Term:
    """Entries at listed places, of one array."""
    factor = Factor((reads,), (extent,))
    out, into = from_values(0, np.array(rows)), from_values(0, np.array(columns))
    return Term((len(rows),), (out,), (into,), (factor,))


#: Positions that two labels make together, one of them in two ways.
BOTH = IndexMap(0, ((0, 1), (1, 1)))


def test_one_array_twice_at_the_same_places() -> None:
    values = jnp.arange(1.0, 21.0)
    structure = intern_structure((20,), (20,), (diagonal(0, 20), diagonal(0, 20, 2)))
    np.testing.assert_array_equal(dense(structure, (3, 3), [values] * 2), 3 * jnp.diag(values))


def test_what_is_outside_of_an_array_is_zero() -> None:
    factor = Factor((label(0).shifted(-2),), (6,))
    term = Term((9,), (label(0),), (label(0).shifted(1),), (factor,))
    structure, values = intern_structure((19,), (20,), (term,)), jnp.arange(1.0, 7.0)
    expected = np.zeros((19, 20))
    expected[np.arange(2, 8), np.arange(3, 9)] = values
    np.testing.assert_array_equal(dense(structure, (0,), [values]), expected)


@pytest.mark.parametrize(
    "term",
    [
        listed([0, 0, 1], [0, 1, 0], label(0), 3),
        listed([0, 0, 1], [0, 1, 1], from_values(0, np.array([0, 1, 0])), 3),
        Term((2, 2), (BOTH,), (BOTH,), (Factor((BOTH,), (3,)),)),
    ],
    ids=["all differ", "as many as positions", "a place twice"],
)
def test_other_lists_have_other_forms(term: Term) -> None:
    structure = intern_structure((19,), (19,), (term,))
    assert diagonals(structure, (0,)) is None
