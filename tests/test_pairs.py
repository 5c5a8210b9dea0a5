"""Functions of pairs of particles: what tables place meets weights, and is put into its place."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from graphax_lapl import hessve, jacve, laplacian_ve, make_plan
from graphax_lapl.edges.layout import term_positions
from graphax_lapl.edges.maps import IndexMap, Table, label
from graphax_lapl.edges.operations import Assemble, Einsum
from graphax_lapl.edges.terms import Factor, Structure, Term, intern_structure
from graphax_lapl.emit.assembly import assemble
from graphax_lapl.emit.grids import on_grid
from graphax_lapl.emit.run import run_program
from graphax_lapl.program.instructions import EdgeInstruction, Program, Slot
from graphax_lapl.program.placed_first import placed_at_once, placed_before_products

from .checks import assert_same
from .edges.structures import dense
from .test_rows_of_results import weights

SAMPLES = 4


def distances(x: Array) -> Array:
    """Distances of all pairs of particles, softened."""
    x = x.reshape(-1, 3)
    first, second = np.triu_indices(len(x), 1)
    return jnp.sqrt(((x[first] - x[second]) ** 2).sum(-1) + 0.01)


def features(p: Any, x: Array) -> Array:
    return p[0] @ jnp.exp(-distances(x))


def layers(p: Any, x: Array) -> Array:
    return p[1] @ jnp.tanh(features(p, x))


def energy(p: Any, x: Array) -> Array:
    return layers(p, x).sum()


def directed(p: Any, x: Array) -> Array:
    """A sum over the others of messages that the weights of one layer make."""
    x = x.reshape(-1, 3)
    first, second = np.nonzero(~np.eye(len(x), dtype=bool))
    messages = jnp.tanh((x[first] - x[second]) @ p[0][:3, :3])
    return jax.ops.segment_sum(messages, second, len(x)) @ p[0][:3, :5]


def case(particles: int, rows: int = 8) -> tuple[list[Array], Array]:
    """Weights of two layers, and a batch."""
    pairs = particles * (particles - 1) // 2
    xs = jnp.asarray(np.random.default_rng(particles).normal(size=(SAMPLES, 3 * particles)))
    return [weights(rows, max(pairs, 5)), weights(rows, rows, seed=1)], xs


def cut(fun: Callable[..., Array], particles: int) -> tuple[Callable[..., Array], Any, Array]:
    """A function, weights that fit, and a batch."""
    p, xs = case(particles)
    if fun is not directed:
        p[0] = p[0][:, : particles * (particles - 1) // 2]
    return fun, p, xs


@pytest.mark.slow
@pytest.mark.parametrize("particles", [2, 3, 5, 8])
@pytest.mark.parametrize("fun", [features, layers, directed])
def test_jacobians(fun: Callable[..., Array], particles: int) -> None:
    fun, p, xs = cut(fun, particles)
    reference = jax.jacrev(fun, argnums=1)
    for order in ("auto", "forward", "reverse"):
        ours = jacve(fun, argnums=1, order=order)
        assert_same(ours(p, xs[0]), reference(p, xs[0]), tolerance=1e-12)
        batched = [jax.vmap(f, in_axes=(None, 0))(p, xs) for f in (ours, reference)]
        assert_same(*batched, tolerance=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("particles", [3, 5])
def test_second_derivatives(particles: int) -> None:
    fun, p, xs = cut(energy, particles)
    reference = jax.vmap(jax.hessian(fun, argnums=1), in_axes=(None, 0))(p, xs)
    for ours in (hessve(fun, argnums=1), jacve(jax.grad(fun, argnums=1), argnums=1)):
        assert_same(jax.vmap(ours, in_axes=(None, 0))(p, xs), reference, tolerance=1e-11)
    traces = jax.vmap(laplacian_ve(fun, argnums=1), in_axes=(None, 0))(p, xs)
    assert_same(traces, jnp.trace(reference, axis1=1, axis2=2), tolerance=1e-11)


@pytest.mark.slow
def test_training_step() -> None:
    """The derivative of what is read by places, and of products after that."""
    fun, p, xs = cut(layers, 5)

    def loss(derivative: Callable[..., Array]) -> Callable[..., Array]:
        return lambda p: (jax.vmap(derivative, in_axes=(None, 0))(p, xs) ** 2).sum()

    ours, reference = (jax.grad(loss(d(fun, argnums=1))) for d in (jacve, jax.jacrev))
    assert_same(ours(p), reference(p), tolerance=1e-11)


def program_of(fun: Callable[..., Array], p: Any, x: Array) -> tuple[Program, set[int]]:
    """A plan's program, and the slots that do not depend on `x`."""
    program = make_plan(fun, p, x, argnums=1, order="forward").pruned(values=False)
    # The weights are all that is the same for all samples here.
    position = max(program.inputs, key=lambda slot: program.slots[slot].shape == x.shape)
    return program, program.unreached({position})


def products_placed(program: Program) -> list[Assemble]:
    """What places products by tables."""
    return [
        made.operation
        for made in program.instructions
        if isinstance(made, EdgeInstruction)
        and isinstance(made.operation, Assemble)
        and any(not t.is_affine and len(t.factors) > 1 for t in made.operation.structure.terms)
    ]


@pytest.mark.parametrize(
    ("particles", "rows", "moved"), [(5, 8, True), (8, 8, True), (30, 8, False), (5, 3, False)]
)
def test_which_products_come_last(particles: int, rows: int, moved: bool) -> None:
    """Not where the product of matrices is too large, nor where it has few rows."""
    p, xs = case(particles, rows)
    p[0] = p[0][:, : particles * (particles - 1) // 2]
    program, fixed = program_of(features, p, xs[0])
    assert products_placed(program)
    changed = placed_before_products(program, fixed)
    assert (changed is not program) == moved
    assert bool(products_placed(changed)) != moved
    products = [
        (made.inputs, made.operation)
        for made in changed.instructions
        if isinstance(made, EdgeInstruction) and isinstance(made.operation, Einsum)
    ]
    last = [operation for inputs, operation in products if {*inputs} & fixed]
    assert any(operation.summed and len(operation.shape) == 2 for operation in last) == moved


def assembled(program: Program) -> list[EdgeInstruction]:
    """What puts terms together."""
    edges = [i for i in program.instructions if isinstance(i, EdgeInstruction)]
    return [i for i in edges if isinstance(i.operation, Assemble)]


@pytest.mark.slow
def test_both_tables_of_pairs_are_in_one_sum() -> None:
    """The first and the second of a pair, and what does not come from pairs."""

    def electrons(p: Any, x: Array) -> Array:
        radii = jnp.sqrt(((x.reshape(-1, 1, 3) - jnp.eye(2, 3)) ** 2).sum(-1) + 0.01)
        return p[1][:3] @ jnp.tanh(p[0] @ jnp.exp(-distances(x)) + p[0] @ jnp.log(radii.ravel()))

    p, xs = case(5)
    program = make_plan(electrons, p, xs[0], argnums=1, order="forward").program
    once = placed_at_once(program)
    assert [len(made.operation.structure.terms) for made in assembled(program)] == [2, 3]
    assert [len(made.operation.structure.terms) for made in assembled(once)] == [4]
    ours = jax.vmap(jacve(electrons, argnums=1, order="forward"), in_axes=(None, 0))
    reference = jax.vmap(jax.jacrev(electrons, argnums=1), in_axes=(None, 0))
    assert_same(ours(p, xs), reference(p, xs), tolerance=1e-12)
    assert "stablehlo.scatter" not in jax.jit(ours).lower(p, xs).as_text()


def sum_of_sums(again: bool, scale: float) -> Program:
    """An array that tables place, and another one that it is a term of."""
    shapes = [(4, 3), (4, 3), (6, 3), (6, 3)]
    table = IndexMap(0, ((0, Table(np.array([0, 2, 2, 5]))),))
    placed = Term((4, 3), (table,), (label(1),), (Factor((label(0), label(1)), (4, 3)),), 2)
    moved = Term((4, 3), (table, label(1)), (), placed.factors)
    axes = (label(0), label(1))
    whole = Term((6, 3), axes, (), (Factor(axes, (6, 3)),), scale)
    inner = Assemble(intern_structure((6,), (3,), [placed]))
    outer = Assemble(intern_structure((6, 3), (), [moved, whole]))
    kind = np.dtype(np.float64)
    return Program(
        slots=[Slot(shape, kind) for shape in shapes],
        instructions=[
            EdgeInstruction(inner, (0,), (2,), kind),
            EdgeInstruction(outer, (1, 2), (3,), kind),
        ],
        inputs=[0, 1],
        values=[2, 3] if again else [3],
        blocks=[],
    )


@pytest.mark.parametrize("again", [False, True])
def test_sums_within_sums(again: bool) -> None:
    """One that is read elsewhere too stays; dimensions are those of the other one's output."""
    program = sum_of_sums(again, -0.5)
    once = placed_at_once(program)
    assert len(once.instructions) == (2 if again else 1)
    arrays = [jnp.asarray(np.random.default_rng(k).normal(size=(4, 3))) for k in range(2)]
    found, expected = (run_program(which, arrays)[3] for which in (once, program))
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_what_may_be_infinite_stays_in_the_terms() -> None:
    """Particles that coincide have a slope of their own; the others' is not touched by it."""

    def divided(p: Any, x: Array) -> Array:
        return (p[0] / x[0]) @ jnp.exp(-distances(x))

    p, xs = case(5)
    program, fixed = program_of(divided, p, xs[0])
    assert products_placed(program)
    assert placed_before_products(program, fixed) is program


def test_coinciding_particles() -> None:
    def singular(p: Any, x: Array) -> Array:
        x = x.reshape(-1, 3)
        first, second = np.triu_indices(len(x), 1)
        return p[0] @ jnp.linalg.norm(x[first] - x[second], axis=-1)

    p, xs = case(5)
    x = xs[0].at[3:6].set(xs[0, :3])
    found = np.asarray(jax.jit(jacve(singular, argnums=1))(p, x))
    expected = np.asarray(jax.jacrev(singular, argnums=1)(p, x))
    assert np.isnan(expected[:, :6]).all()
    assert np.isfinite(expected[:, 6:]).all()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("fun", [features, layers])
def test_nothing_is_scattered(fun: Callable[..., Array]) -> None:
    fun, p, xs = cut(fun, 5)
    for order in ("forward", "reverse"):
        ours = jax.vmap(jacve(fun, argnums=1, order=order), in_axes=(None, 0))
        assert "stablehlo.scatter" not in jax.jit(ours).lower(p, xs).as_text()


def grids() -> list[tuple[Term, tuple[int, ...], bool]]:
    """Terms, a shape, and whether tables divide dimensions of it into blocks."""
    pairs = np.array([[0, 0, 1], [1, 2, 2]])
    blocks = [IndexMap(0, ((0, 1), (1, Table(3 * particle)))) for particle in pairs]
    shifted = IndexMap(1, ((0, 1), (1, Table(3 * pairs[0]))))
    uneven = IndexMap(0, ((0, 1), (1, Table(3 * pairs[0] + 1))))
    later = IndexMap(3, ((0, 1), (1, Table(3 * pairs[0]))))
    strided = IndexMap(0, ((0, 1), (1, Table(3 * pairs[0])), (2, 9)))
    crossed = IndexMap(0, ((0, 1), (1, Table(3 * pairs[0])), (2, 4)))

    def term(*maps: IndexMap) -> Term:
        return Term((3, 3, 2), (maps[0],), tuple(maps[1:]))

    return [
        (term(blocks[0], label(1)), (9, 3), True),
        (term(blocks[0], blocks[1]), (9, 12), True),
        (term(label(1), later), (3, 12), True),
        (term(strided, label(1)), (18, 3), True),
        (term(crossed, label(1)), (18, 3), False),
        (term(blocks[0], label(1)), (10, 3), False),
        (term(shifted, label(1)), (12, 3), False),
        (term(uneven, label(1)), (12, 3), False),
        (term(label(0), label(1)), (3, 3), False),
    ]


@pytest.mark.parametrize(("term", "shape", "divided"), grids())
def test_grids(term: Term, shape: tuple[int, ...], divided: bool) -> None:
    """Entries stand at the same flat positions."""
    found = on_grid(term, shape)
    assert (found is not None) == divided
    if found is not None:
        made, extents = found
        assert len(extents) > len(shape)
        for ours, expected in zip(
            term_positions(made, extents), term_positions(term, shape), strict=True
        ):
            np.testing.assert_array_equal(ours, expected)


class Drawn:
    """Structures of several terms that tables place, some over an edge; a seed draws the same."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.entries, self.places = int(self.rng.integers(2, 7)), int(self.rng.integers(2, 5))
        self.block, self.columns = int(self.rng.integers(1, 4)), int(self.rng.integers(2, 20))

    def table(self) -> Table:
        return Table(self.block * self.rng.integers(-1, self.places + 1, self.entries))

    def structure(self) -> tuple[Structure, list[np.ndarray]]:
        """Blocks at places, or at pairs of places, with columns that run along."""
        sizes = (self.block, self.entries, self.columns)
        extent = self.block * self.places
        twice = bool(self.rng.integers(0, 2))
        shape = (extent, extent) if twice else (extent,)
        tables = [self.table() for _ in range(3)]
        terms, values = [], []
        for _ in range(int(self.rng.integers(1, 5))):
            names = [(0, 1, 2), (1, 2), (2, 1), (0, 1)][int(self.rng.integers(0, 4))]
            maps = []
            for _ in shape:
                table = tables[int(self.rng.integers(0, 3))]
                maps.append(IndexMap(0, ((0, 1), (1, table))))
            size = tuple(sizes[n] for n in names)
            factor = Factor(tuple(label(n) for n in names), size)
            coefficient = [1, -2][int(self.rng.integers(0, 2))]
            terms.append(Term(sizes, tuple(maps), (label(2),), (factor,), coefficient))
            values.append(self.rng.normal(size=size))
        return intern_structure(shape, (self.columns,), terms), values


@pytest.mark.parametrize("seed", range(60))
def test_tables_place_windows(seed: int) -> None:
    structure, values = Drawn(seed).structure()
    expected = dense(structure, values)

    def placed(arrays: list[Array]) -> Array:
        return assemble(structure, arrays, np.dtype(np.float64))

    arrays = [jnp.asarray(v) for v in values]
    np.testing.assert_allclose(placed(arrays), expected, rtol=1e-13, atol=1e-13)
    tangents = [jnp.cos(a) for a in arrays]
    moved = jax.jvp(placed, (arrays,), (tangents,))[1]
    np.testing.assert_allclose(moved, dense(structure, [np.cos(v) for v in values]), atol=1e-13)
    cotangent = np.sin(np.arange(expected.size)).reshape(expected.shape)
    pulled = jax.vjp(placed, arrays)[1](jnp.asarray(cotangent))[0]
    inner = sum(float((a * b).sum()) for a, b in zip(pulled, tangents, strict=True))
    assert inner == pytest.approx(float((cotangent * np.asarray(moved)).sum()), abs=1e-10)


def test_all_pairs_are_met() -> None:
    """Every place reads as many windows as there are other particles."""
    first, second = np.triu_indices(6, 1)
    factor = Factor((label(0), label(1)), (15, 4))
    terms = [
        Term((15, 4), (IndexMap(0, ((0, Table(table)),)),), (label(1),), (factor,), sign)
        for table, sign in ((first, 1), (second, -1))
    ]
    structure = intern_structure((6,), (4,), terms)
    values = [np.random.default_rng(k).normal(size=(15, 4)) for k in range(2)]
    expected = np.zeros((6, 4))
    for k, (a, b) in enumerate(zip(first, second, strict=True)):
        expected[a] += values[0][k]
        expected[b] -= values[1][k]

    def placed(arrays: list[Array]) -> Array:
        return assemble(structure, arrays, np.dtype(np.float64))

    np.testing.assert_allclose(placed([jnp.asarray(v) for v in values]), expected, atol=1e-13)
    assert "scatter" not in str(jax.make_jaxpr(placed)([jnp.asarray(v) for v in values]))
