"""SparseJacobian as a linear map: products, transposes, conversions, against dense arrays."""

import importlib.util
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse as jax_sparse

from graphax_lapl import InvalidArgumentError, InvalidTypeError, SparseJacobian, hessve, jacve
from graphax_lapl.edges.layout import MAX_LAYERS, coordinate_layout, placement
from graphax_lapl.edges.maps import constant
from graphax_lapl.edges.sparse_form import value_structure
from graphax_lapl.edges.terms import Factor, Structure, Term, intern_structure
from graphax_lapl.emit.assembly import assemble
from graphax_lapl.emit.coordinates import placed
from graphax_lapl.emit.holding import HELD_SIZES, held
from tests.checks import assert_same
from tests.edges.structures import Generator, dense

SEEDS = range(24)
MIN_HELD = HELD_SIZES[0]


def drawn(seed: int, square: bool = False) -> tuple[SparseJacobian, np.ndarray]:
    """A random matrix and the same one written out by its definition."""
    draw = Generator(9000 + seed)
    out_shape = draw.shape()
    in_shape = out_shape if square else draw.shape()
    structure = value_structure(draw.structure(out_shape, in_shape)[0])
    values = [draw.rng.normal(size=term.sizes) for term in structure.terms]
    jacobian = SparseJacobian(structure, tuple(map(jnp.asarray, values)), np.float64)
    return jacobian, dense(structure, values)


def as_matrix(jacobian: SparseJacobian, array: np.ndarray) -> np.ndarray:
    return array.reshape(math.prod(jacobian.out_shape), math.prod(jacobian.in_shape))


@pytest.mark.parametrize("seed", SEEDS)
def test_coordinates_of_random_structures(seed: int) -> None:
    jacobian, expected = drawn(seed)
    flat = as_matrix(jacobian, expected)

    @jax.jit
    def in_other_forms(j: SparseJacobian) -> Any:
        bcoo = j.to_bcoo()
        matrices = j.to_bcoo(flat=True), j.to_bcsr(), j.matrix
        return bcoo.todense(), j.data, bcoo.data, [matrix.todense() for matrix in matrices]

    matrix, data, bcoo_data, matrices = in_other_forms(jacobian)
    assert_same(matrix, expected)
    assert_same(data, bcoo_data, tolerance=0)
    assert_same(matrices, [flat] * 3)
    matrix = jacobian.to_scipy()
    assert matrix.nnz == jacobian.nse == len(jacobian.indices)
    assert_same(matrix.toarray(), flat)
    assert jacobian.matrix.nse == jacobian.nse


@pytest.mark.parametrize("seed", SEEDS)
def test_products_of_random_structures(seed: int) -> None:
    jacobian, expected = drawn(seed)
    rng = np.random.default_rng(seed)
    flat = as_matrix(jacobian, expected)
    rests = [(), (2, 3)]
    right = [rng.normal(size=(*jacobian.in_shape, *rest)) for rest in rests]
    left = [rng.normal(size=(*rest, *jacobian.out_shape)) for rest in rests]

    @jax.jit
    def products(j: SparseJacobian, right: list, left: list) -> Any:
        combined = 2.0 * j - j / 4 + (-j)
        return [j @ v for v in right], [v @ j for v in left], j.T.todense(), combined.todense()

    wanted_right = [
        np.reshape(flat @ v.reshape(flat.shape[1], -1), (*jacobian.out_shape, *rest))
        for v, rest in zip(right, rests, strict=True)
    ]
    wanted_left = [
        np.reshape(v.reshape(-1, flat.shape[0]) @ flat, (*rest, *jacobian.in_shape))
        for v, rest in zip(left, rests, strict=True)
    ]
    axes = (*range(len(jacobian.out_shape), expected.ndim), *range(len(jacobian.out_shape)))
    wanted = (wanted_right, wanted_left, expected.transpose(axes), 0.75 * expected)
    assert_same(products(jacobian, right, left), wanted)
    assert jacobian.T.T.structure is jacobian.structure


@pytest.mark.parametrize("seed", SEEDS)
def test_products_of_two_random_structures(seed: int) -> None:
    """`J @ K` of two matrices of random shapes, and the normal matrix `J.T @ J`."""
    outer, first = drawn(seed)
    draw = Generator(9500 + seed)
    structure = value_structure(draw.structure(outer.in_shape, draw.shape())[0])
    values = [draw.rng.normal(size=term.sizes) for term in structure.terms]
    inner = SparseJacobian(structure, tuple(map(jnp.asarray, values)), np.float64)
    flat = as_matrix(outer, first)
    wanted = flat @ as_matrix(inner, dense(structure, values))

    @jax.jit
    def products(j: SparseJacobian, k: SparseJacobian) -> tuple[jax.Array, jax.Array]:
        product, normal = j @ k, j.T @ j
        assert product.shape == (*outer.out_shape, *inner.in_shape)
        return product.todense(), normal.matrix.todense()

    product, normal = products(outer, inner)
    assert_same(product, wanted.reshape(product.shape))
    assert_same(normal, flat.T @ flat)


def test_the_normal_matrix_of_a_stencil_has_five_diagonals() -> None:
    """Nothing dense is built: 10^5 unknowns, 10^10 entries."""
    size = 100_000
    x = np.linspace(0.0, 1.0, size)
    jacobian = jacve(lambda v: v[2:] * v[:-2] - v[1:-1], sparse_representation=True)(x)
    normal = jacobian.T @ jacobian
    by_scipy = jacobian.to_scipy().T @ jacobian.to_scipy()
    assert normal.nse <= 5 * size
    assert_same(normal.diagonal(), by_scipy.diagonal())
    assert_same(normal @ x, by_scipy @ x)


@pytest.mark.parametrize("seed", SEEDS)
def test_diagonal_and_sum_of_random_square_structures(seed: int) -> None:
    jacobian, expected = drawn(seed, square=True)
    diagonal = np.diagonal(as_matrix(jacobian, expected)).reshape(jacobian.out_shape)
    axes = (*range(len(jacobian.out_shape), expected.ndim), *range(len(jacobian.out_shape)))
    found = jax.jit(lambda j: (j.diagonal(), j.matrix.diagonal(), (j + j.T).todense()))(jacobian)
    assert_same(found, (diagonal, diagonal.reshape(-1), expected + expected.transpose(axes)))


@pytest.mark.parametrize("extents", [(3, 5), (5, 3)])
def test_diagonal_of_a_rectangle(extents: tuple[int, int]) -> None:
    weights = np.random.default_rng(0).normal(size=extents)
    jacobian = jacve(lambda x: jnp.tanh(weights @ x), sparse_representation=True)(
        np.ones(extents[1])
    )
    assert_same(jacobian.diagonal(), np.diagonal(jacobian.todense()))


# ---------------------------------------------------------------- one entry from several values


@pytest.mark.parametrize("depth", [1, 2, MAX_LAYERS, MAX_LAYERS + 3])
@pytest.mark.parametrize("count", [1, 7, 40])
def test_values_that_fall_on_one_entry_are_added(depth: int, count: int) -> None:
    """Layers over a part of the entries: contiguous, most of them, few of them."""
    rng = np.random.default_rng(depth * 100 + count)
    for share in (0.1, 0.5, 0.9, 1.0):
        entries = [np.arange(count)]
        for k in range(1, depth):
            chosen = np.flatnonzero(rng.uniform(size=count) < share)
            entries.append(np.arange(count // 3, count) if k % 2 else chosen)
        entry = np.concatenate(entries)
        shuffled = rng.permutation(len(entry))
        rows = entry[shuffled]
        values = rng.normal(size=len(rows))
        expected = np.zeros(count)
        np.add.at(expected, rows, values)
        how = placement(np.arange(len(rows)), rows, count)
        found = jax.jit(lambda values, how=how: placed(how, [values], np.float64))(values)
        assert_same(found, expected)


def test_entries_that_nothing_reaches_are_zero() -> None:
    x = np.arange(6.0) + 1.0
    jacobian = jacve(lambda x: jnp.roll(x, 1) ** 2, sparse_representation=True)(x)
    assert_same(jacobian.diagonal(), np.zeros(6))


@pytest.mark.slow
def test_large_shared_values_are_held_and_the_same() -> None:
    """Beyond the size from which arrays are written to memory first; also batched and derived."""

    def fun(x: jax.Array) -> jax.Array:
        c = jnp.cosh(x)
        return (jnp.roll(x, 1) - 2.0 * jnp.roll(x, -1)) * c + jnp.roll(c, 2)

    n = MIN_HELD + 3
    x = np.random.default_rng(0).uniform(-1.0, 1.0, n)
    jacobian = jax.jit(jacve(fun, sparse_representation=True))(x)
    expected = jax.jit(jax.jacfwd(fun))(x)
    program = str(jax.make_jaxpr(jacve(fun, sparse_representation=True))(x))
    assert "scatter" in program or "optimization_barrier" in program
    matrix = scipy.sparse.csr_array(np.asarray(expected))
    assert abs(jacobian.to_scipy() - matrix).max() < 1e-12
    v = np.random.default_rng(1).normal(size=n)
    assert_same(jacobian @ v, jax.jvp(fun, (x,), (v,))[1])
    assert_same(v @ jacobian, jax.vjp(fun, x)[1](v)[0])
    both = jax.vmap(jacve(fun, sparse_representation=True))(np.stack([x, -x]))
    assert_same(both.data[0], jacobian.data)


@pytest.mark.parametrize("shape", [(2 * MIN_HELD,), (3, MIN_HELD), (5,), ()])
def test_holding_changes_nothing(shape: tuple[int, ...]) -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape))
    assert_same(jax.jit(held)(x), x, tolerance=0)
    assert_same(jax.vmap(held)(jnp.stack([x, 2.0 * x])), jnp.stack([x, 2.0 * x]), tolerance=0)
    assert_same(jax.grad(lambda x: jnp.sum(held(x) ** 2))(x), 2.0 * x)


# ---------------------------------------------------------------- through jacve


V = np.random.default_rng(3).uniform(0.5, 1.5, 4)
M = np.random.default_rng(4).uniform(0.5, 1.5, (2, 3))

MAPS: dict[str, tuple[Callable[..., Any], Any]] = {
    "scalar to scalar": (jnp.sin, np.float64(0.3)),
    "vector to scalar": (lambda x: jnp.sum(x**2), V),
    "scalar to vector": (lambda x: jnp.stack([x, x**2]), np.float64(0.3)),
    "rank 1 to 2": (lambda x: x[:, None] * x[None, :], V),
    "rank 2 to 1": (lambda x: jnp.sin(x).sum(0), M),
    "rank 2 to 4": (lambda x: jnp.exp(x)[:, None, :, None] * jnp.ones((1, 2, 1, 2)), M),
    "rank 4 to 3": (lambda x: jnp.cos(x)[0], np.arange(24.0).reshape(1, 2, 3, 4)),
    "zero": (lambda x: jnp.ones((2, 3)), V),
    "constant": (lambda x: 2.0 * x[::-1], V),
    "empty output": (lambda x: jnp.sin(x[:0]), V),
    "empty input": (lambda x: jnp.sin(x), np.zeros((0, 3))),
    "single entry": (lambda x: x[1:2] ** 2, V),
    "complex": (lambda z: jnp.exp(1j * z) * z[::-1], V + 0.5j),
}


@pytest.mark.parametrize("name", MAPS)
def test_every_operation_on(name: str) -> None:
    fun, x = MAPS[name]
    holomorphic = np.iscomplexobj(x)
    expected = np.asarray(jax.jit(jax.jacfwd(fun, holomorphic=holomorphic))(x))
    jacobian = jacve(fun, sparse_representation=True)(x)
    flat = as_matrix(jacobian, expected)
    assert jacobian.shape == expected.shape
    assert jacobian.ndim == expected.ndim
    assert jacobian.dtype == expected.dtype
    assert_same(jacobian.todense(), expected)
    assert_same(jacobian.to_bcoo().todense(), expected)
    assert_same(jacobian.to_scipy().toarray(), flat)
    assert_same(jacobian.matrix.todense(), flat)
    assert_same((jacobian + jacobian).todense(), 2 * expected)
    tangent = np.asarray(x) + 1
    wanted = (flat @ tangent.reshape(-1)).reshape(jacobian.out_shape)
    assert_same(jacobian @ tangent, wanted)
    if tangent.ndim > 1:
        assert_same(jacobian @ tangent.reshape(-1), wanted.reshape(-1))
    cotangent = np.ones(jacobian.out_shape, expected.dtype)
    assert_same(cotangent @ jacobian, (cotangent.reshape(-1) @ flat).reshape(jacobian.in_shape))
    assert_same(jax.jit(lambda j, v: j.T.T @ v)(jacobian, tangent), wanted)
    assert_same(jacobian.astype(np.complex128).todense(), expected.astype(np.complex128))
    assert "SparseJacobian(" in repr(jacobian)


def test_one_block_per_pair_of_leaves() -> None:
    def fun(p: dict, y: jax.Array) -> tuple[jax.Array, dict]:
        return jnp.sin(p["a"]) * y, {"s": p["b"] @ y[:3], "t": p["a"][0] * 2.0}

    p, y = {"a": V, "b": M}, V[::-1].copy()
    found = jax.jit(jacve(fun, argnums=(1, 0), sparse_representation=True))(p, y)
    expected = jax.jit(jax.jacfwd(fun, (1, 0)))(p, y)
    is_block = lambda leaf: isinstance(leaf, SparseJacobian)  # noqa: E731
    assert_same(jax.tree.map(lambda block: block.todense(), found, is_leaf=is_block), expected)
    assert all(map(is_block, jax.tree.leaves(found, is_leaf=is_block)))


def test_indices_are_no_outputs_of_a_jitted_function() -> None:
    jacobian = jax.jit(jacve(lambda x: jnp.diff(x) ** 2, sparse_representation=True))
    compiled = jacobian.lower(V).compile()
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(compiled(V)))
    found = compiled(V)
    assert isinstance(found.indices, np.ndarray)
    assert found.indices.dtype == np.int32
    assert found.indptr.tolist() == [0, 2, 4, 6]
    with pytest.raises(ValueError, match="read-only"):
        found.indices[0] = 1


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("name", ["rank 2 to 1", "rank 1 to 2", "zero", "constant", "complex"])
def test_results_of_vmap(name: str) -> None:
    fun, x = MAPS[name]
    batch = np.stack([x, x + 0.5, x - 0.25])
    jacobian = jax.vmap(jacve(fun, sparse_representation=True))(batch)
    one = jacve(fun, sparse_representation=True)(x)
    expected = np.asarray(jax.jit(jax.vmap(jax.jacfwd(fun, holomorphic=np.iscomplexobj(x))))(batch))
    assert jacobian.batch_shape == (3,)
    assert jacobian.shape == one.shape
    assert jacobian.nse == one.nse
    assert jacobian.data.shape == (3, one.nse)
    assert_same(jacobian.todense(), expected)
    assert_same(jacobian.to_bcoo().todense(), expected)
    assert_same(jacobian.matrix.todense(), expected.reshape(3, *one.matrix.shape))
    assert_same((-jacobian + jacobian * 3.0).todense(), 2.0 * expected)
    inside = jax.vmap(lambda x: jacve(fun, sparse_representation=True)(x) @ x)(batch)
    assert_same(jax.vmap(lambda j, x: j @ x)(jacobian, batch), inside)
    if one.out_shape == one.in_shape:
        size = x.size
        flat = np.asarray(jacobian.todense()).reshape(3, size, size)
        diagonal = np.diagonal(flat, axis1=1, axis2=2).reshape(3, *x.shape)
        assert_same(jacobian.diagonal(), diagonal)
    for refused in (lambda: jacobian @ x, lambda: x @ jacobian, jacobian.to_scipy):
        with pytest.raises(InvalidArgumentError, match="batch"):
            refused()
    with pytest.raises(InvalidArgumentError, match="batch"):
        jacobian.to_bcsr()


def test_two_batch_axes() -> None:
    fun, x = MAPS["rank 2 to 1"]
    batch = np.stack([np.stack([x, 2 * x]), np.stack([x + 1, x + 2])])
    jacobian = jax.vmap(jax.vmap(jacve(fun, sparse_representation=True)))(batch)
    assert jacobian.batch_shape == (2, 2)
    assert_same(jacobian.todense(), jax.jit(jax.vmap(jax.vmap(jax.jacfwd(fun))))(batch))


def test_a_trailing_batch_axis_is_refused() -> None:
    batch = np.stack([V, V, V])
    trailing = jax.vmap(
        jacve(lambda x: jnp.sin(x) * x[0], sparse_representation=True), out_axes=-1
    )(batch)
    with pytest.raises(InvalidArgumentError, match="out_axes=0"):
        trailing.todense()


# ---------------------------------------------------------------- refusals, pictures


def square() -> SparseJacobian:
    return jacve(lambda x: jnp.sin(x), sparse_representation=True)(M)


def test_refusals_say_what_was_expected() -> None:
    jacobian = square()
    with pytest.raises(InvalidArgumentError, match=r"expected \(2, 3\)"):
        jacobian @ np.ones((3, 2))
    with pytest.raises(InvalidArgumentError, match=r"flat vector of 6"):
        np.ones(5) @ jacobian
    with pytest.raises(InvalidArgumentError, match=r"K gives one of shape \(6,\)"):
        jacobian @ jacobian.matrix
    with pytest.raises(InvalidArgumentError, match=r"jax\.vmap"):
        jax.vmap(lambda c: c * jacobian)(np.ones(2)) @ jacobian
    with pytest.raises(InvalidArgumentError, match="out_shape"):
        jacobian + jacobian.matrix
    with pytest.raises(InvalidArgumentError, match="csr"):
        jacobian.to_scipy("nope")
    with pytest.raises(InvalidTypeError, match="tracing"):
        jax.jit(lambda j: j.to_scipy())(jacobian)
    with pytest.raises(InvalidArgumentError, match="matrix"):
        jacve(lambda x: x[0], sparse_representation=True)(M).diagonal()
    for wrong in (lambda: jacobian * np.ones(3), lambda: jacobian + 1.0, lambda: jacobian / "a"):
        with pytest.raises(TypeError):
            wrong()


@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
def test_scipy_formats(format: str) -> None:
    matrix = square().to_scipy(format)
    assert matrix.format == format
    assert_same(matrix.toarray(), np.diag(np.cos(M).reshape(-1)))


def test_bcsr_is_one() -> None:
    assert isinstance(square().to_bcsr(), jax_sparse.BCSR)


def test_repr_draws_the_pattern() -> None:
    lines = repr(jacve(lambda x: jnp.sin(x), sparse_representation=True)(np.ones(8))).splitlines()
    assert lines[0].startswith("SparseJacobian(8 <- 8, float64, nse=8, sparsity=87.5%")
    assert lines[1:] == ["⠑⢄⠀⠀", "⠀⠀⠑⢄"]


@pytest.mark.parametrize(("rows", "columns"), list(itertools.product([1, 3, 1000], repeat=2)))
def test_pictures_are_small(rows: int, columns: int) -> None:
    jacobian = jacve(lambda x: jnp.zeros(rows).at[0].set(x[-1] ** 2), sparse_representation=True)
    lines = repr(jacobian(np.ones(columns))).splitlines()
    assert len(lines) <= 21
    assert max(map(len, lines[1:])) <= 40
    assert any(c != "⠀" for line in lines[1:] for c in line)


def test_large_matrices_have_no_picture() -> None:
    spec = jax.ShapeDtypeStruct((10**6,), np.float64)
    jacobian = jax.eval_shape(jacve(lambda x: jnp.diff(x) ** 2, sparse_representation=True), spec)
    assert len(repr(jacobian).splitlines()) == 1


def test_spy_returns_figure_and_axes() -> None:
    if importlib.util.find_spec("matplotlib") is None:  # an extra; the message says what to install
        with pytest.raises(ImportError, match="matplotlib"):
            square().spy()
        return
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    figure, axes = square().spy()
    assert axes.figure is figure
    assert len(axes.lines[0].get_xdata()) == 6
    again = square().spy(ax=axes)
    assert again == (figure, axes)
    plt.close(figure)


def test_single_numbers_beside_a_matrix_of_one_element_are_dropped() -> None:
    """A term whose only position lies outside is no part of the sum."""
    terms = [Term((), (constant(place),), (), (Factor((), ()),)) for place in (0, 3)]
    inside, outside = (intern_structure((1,), (), [term]) for term in terms)
    both = intern_structure((1,), (), terms)
    one, two = jnp.ones(()), jnp.full((), 2.0)
    assert_same(assemble(both, [one, two], np.float64), np.ones(1))
    assert_same(assemble(inside, [one], np.float64), np.ones(1))
    assert_same(assemble(outside, [two], np.float64), np.zeros(1))


def test_empty_structure_has_a_layout() -> None:
    empty: Structure = intern_structure((2,), (3,), [])
    assert coordinate_layout(empty).indices.shape == (0, 2)


@pytest.mark.parametrize(
    "positions",
    [
        np.arange(200),
        np.ravel(np.arange(300).reshape(3, 100).T),
        np.concatenate([[7, 3], np.ravel(np.arange(300).reshape(3, 100).T), [5]]),
        np.ravel(np.stack([np.arange(0, 300, 3), np.zeros(100, int), 299 - np.arange(100)], 1)),
        np.random.default_rng(0).permutation(300),
        np.array([4, 2]),
        # Columns that lie side by side: up to a piece's end, across it, all of what they are in.
        np.ravel([[k, k + 1, 299 - k] for k in range(0, 89, 3)] * 3),
        np.ravel(np.arange(88, 289)[::4, None] + np.array([0, 1, 2])),
        np.ravel(np.arange(91, 299).reshape(52, 4)[:, [2, 3, 0, 1]]),
    ],
    ids=[
        "plain",
        "interleaved",
        "with edges",
        "steps",
        "random",
        "short",
        "side by side",
        "across pieces",
        "halves",
    ],
)
def test_entries_that_repeat_with_a_period_are_read_in_order(positions):
    pieces = [np.arange(0.0, 90.0), np.arange(90.0, 91.0), np.arange(91.0, 300.0)]
    how = placement(positions, np.arange(len(positions)), len(positions))
    found = placed(how, [jnp.asarray(piece) for piece in pieces], np.float64)
    assert_same(found, positions.astype(float))
    covered = [k for run in how.layers[0].runs for k in range(run.first, run.last)]
    assert covered in ([], list(range(len(positions))))


def test_values_that_are_shared_or_uniform_are_read_from_where_they_are():
    def neighbours(x):
        return 3.0 * jnp.roll(x, 1) + 3.0 * jnp.roll(x, -2) + x[::-1] * x + x**2 * jnp.sum(x[:2])

    x = jnp.linspace(0.5, 2.0, 40)
    jacobian = jax.jit(lambda x: jacve(neighbours, sparse_representation=True)(x).data)(x)
    result = jacve(neighbours, sparse_representation=True)(x)
    dense = jax.jit(jax.jacfwd(neighbours))(x)
    expected = dense[tuple(result.indices.T)]
    for data in (jacobian, result.data, jax.tree.map(jnp.asarray, result).data):
        assert_same(data, expected)
    scaled = jax.tree.map(
        lambda value: value * jnp.arange(1.0, value.size + 1).reshape(value.shape), result
    )
    assert_same(scaled.todense()[tuple(result.indices.T)], scaled.data)
    assert_same(jacve(neighbours)(x), dense)


def test_what_is_not_done_with_arrays_says_what_to_do() -> None:
    """Numpy made an array of one object of it, and said something about concatenation."""
    jacobian = jacve(jnp.sin, sparse_representation=True)(jnp.ones(3))
    for call in (
        lambda: jacobian + jnp.eye(3),
        lambda: np.eye(3) + jacobian,
        lambda: jnp.eye(3) - jacobian,
        lambda: jacobian - np.eye(3),
        lambda: np.asarray(jacobian),
        lambda: jnp.asarray(jacobian),
        lambda: np.linalg.solve(jacobian, np.ones(3)),
    ):
        with pytest.raises(InvalidTypeError, match=r"todense\(\)"):
            call()
    for call in (
        lambda: jacobian * jnp.ones(3),
        lambda: np.ones(3) * jacobian,
        lambda: jnp.ones((3, 1)) * jacobian,
        lambda: jacobian / jnp.ones(3),
    ):
        with pytest.raises(InvalidTypeError, match=r"shape \(3.*scale \* fun\(x\)"):
            call()
    for call in (lambda: jacobian + "a", lambda: jacobian / "a"):
        with pytest.raises(TypeError, match="unsupported operand"):
            call()


def test_pattern_of_shapes_alone() -> None:
    """What stands where is known without values, for Hessians too."""

    def stencil(x: jax.Array) -> jax.Array:
        return x * jnp.roll(x, 1)

    x = jax.ShapeDtypeStruct((5,), jnp.float32)
    pattern = jax.eval_shape(jacve(stencil, sparse_representation=True), x)
    rows, columns = np.nonzero(jax.jit(jax.jacrev(stencil))(jnp.arange(1.0, 6.0)))
    np.testing.assert_array_equal(pattern.indices, np.stack([rows, columns], axis=1))
    assert pattern.nse == len(rows)
    hessian = jax.eval_shape(
        hessve(lambda x: jnp.sum(stencil(x) ** 2), sparse_representation=True), x
    )
    assert hessian.nse == 15


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation",
    [
        lambda J, x: J @ x,
        lambda J, x: x @ J,
        lambda J, x: J.T @ J,
        lambda J, x: J + J.T,
        lambda J, x: J.todense(),
        lambda J, x: J.diagonal(),
        lambda J, x: J.data,
        lambda J, x: J.values,
    ],
)
def test_operations_outside_of_jit_are_one_program(operation, caplog):
    def differences(x):
        return jnp.roll(x, 1) * x - jnp.roll(x, -1) ** 2

    x = jnp.linspace(0.0, 1.0, 37)
    jacobian = jax.jit(jacve(differences, sparse_representation=True))(x)
    jax.clear_caches()
    with jax.log_compiles(), caplog.at_level("WARNING"):
        operation(jacobian, x)
    compiled = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Compiling")]
    assert len(compiled) == 1, compiled
