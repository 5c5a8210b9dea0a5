"""Determinants: recognised under `vmap`, and accurate where matrices are nearly singular."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import (
    computational_graph,
    hessve,
    jacve,
    laplacian_ve,
    local_kinetic_energy,
    make_plan,
    value_and_jacve,
)
from graphax_lapl.edges.operations import Einsum
from tests.checks import assert_same
from tests.second_order.checks import check_second_order

CONDITION = 1e8
SEEDS = 64


def log_sum(weights: Any, r: Any) -> Any:
    """The logarithm of a sum of determinants, with a factor for every pair of particles.

    Args:
        weights: shape (determinants, 3 n, n).
        r: n positions, shape (n, 3).
    """
    features = jnp.concatenate([jnp.sin(r), jnp.cos(r), jnp.tanh(r)] * (len(r) // 3), 1)
    features = jnp.concatenate([features, r[:, :1] * features**2], 1)[:, : 3 * len(r)]
    sign, size = jax.vmap(lambda w: jnp.linalg.slogdet(features @ w))(weights)  # mapped along 1
    largest = jax.lax.stop_gradient(jnp.max(size))
    first, second = np.triu_indices(len(r), 1)
    distances = jnp.sqrt(jnp.sum((r[first] - r[second]) ** 2, -1))
    terms = sign * jnp.exp(size - largest)
    return jnp.log(jnp.abs(jnp.sum(terms))) + largest + jnp.sum(distances / (1 + distances))


def nearly_singular(seed: int, n: int, determinants: int, complex_: bool) -> tuple[Any, Any]:
    """Weights for which the matrices have the condition number `CONDITION`, and positions."""
    rng = np.random.default_rng(seed)
    r = rng.normal(size=(n, 3))
    features = np.concatenate([np.sin(r), np.cos(r), np.tanh(r)] * (n // 3), 1)
    features = np.concatenate([features, r[:, :1] * features**2], 1)[:, : 3 * n]
    scales = CONDITION ** -np.linspace(0.0, 1.0, n)
    weights = []
    for _ in range(determinants):
        made = [rng.normal(size=(n, n)) for _ in range(2)]
        if complex_:
            made = [matrix + 1j * rng.normal(size=(n, n)) for matrix in made]
        left, right = (np.linalg.qr(matrix)[0] for matrix in made)
        weights.append(np.linalg.pinv(features) @ (left * scales) @ right)
    return np.stack(weights), r


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize(
    ("n", "complex_"),
    [(3, False), pytest.param(8, False, marks=pytest.mark.conformance), (6, False), (4, True)],
    ids=str,
)
def test_error_in_single_precision_is_no_larger_than_that_of_jax(n: int, complex_: bool) -> None:
    """At the same numbers of 32 bits, against 64 bits, over many seeds.

    Where a factor is singular in 32 bits JAX's result is no number: those seeds are left out. Ours
    is far from JAX's in the median, and its largest error, which is that of one matrix, is no
    larger than JAX's largest one.
    """
    made = [nearly_singular(seed, n, 2, complex_) for seed in range(SEEDS)]
    weights, r = (np.stack([pair[k] for pair in made]) for k in (0, 1))
    single = [jnp.asarray(weights, np.complex64 if complex_ else np.float32), jnp.float32(r)]
    double = [array.astype(np.promote_types(array.dtype, np.float64)) for array in single]

    def trace(hessian: Any) -> Any:
        return jnp.trace(jnp.reshape(hessian, (3 * n, 3 * n)))

    def reference(weights: Any, r: Any) -> Any:
        slope = jax.grad(log_sum, 1)(weights, r)
        laplacian = trace(jax.jit(jax.hessian(log_sum, 1))(weights, r))
        return {"laplacian": laplacian, "kinetic": -0.5 * (laplacian + jnp.sum(slope**2))}

    def ours(weights: Any, r: Any) -> Any:
        laplacian = laplacian_ve(log_sum, argnums=1)(weights, r)
        kinetic = local_kinetic_energy(log_sum, argnums=1)(weights, r)
        return {"laplacian": laplacian, "kinetic": kinetic}

    def hessian(weights: Any, r: Any) -> Any:
        return {"laplacian": trace(hessve(log_sum, argnums=1)(weights, r))}

    exact = jax.jit(jax.vmap(reference))(*double)
    ways = jax.jit(lambda *args: [jax.vmap(way)(*args) for way in (reference, ours, hessian)])
    theirs, *found = ways(*single)
    for results in found:
        for name, result in results.items():
            error, allowed = (
                np.abs(np.asarray(value, np.float64) - exact[name])
                for value in (result, theirs[name])
            )
            finite = np.isfinite(allowed)
            assert result.dtype == jnp.float32
            assert np.mean(finite) > 0.5
            assert np.isfinite(error[finite]).all()
            assert np.median(error[finite]) <= 1e-3 * np.median(allowed[finite])
            assert np.max(error[finite]) <= np.max(allowed[finite])


@pytest.mark.parametrize("axes", [(), (0,), (1,), (2,), (1, 0), (3, 1)], ids=str)
def test_under_vmap(axes: tuple[int, ...]) -> None:
    """The program of a mapped `slogdet` is another one than that of a batch of matrices."""
    shape = (3, 2)[: len(axes)]

    def fun(x: Any) -> Any:
        batch = jnp.reshape(jnp.arange(1.0, 1.0 + np.prod(shape, dtype=int)), shape)
        matrix = jnp.sin(jnp.outer(x, jnp.arange(1.0, 4.0))) + 2.0 * jnp.eye(3)
        matrices = jnp.cos(batch[..., None, None] * matrix)
        function: Any = jnp.linalg.slogdet
        for axis in reversed(axes):  # the outermost map is undone last
            function = jax.vmap(function, axis)
        for n, axis in reversed(list(enumerate(axes))):
            matrices = jnp.moveaxis(matrices, n, n + axis)
        return function(matrices)[1]

    x = np.array([0.3, -0.8, 1.1])
    assert "slogdet" in {vertex.primitive for vertex in computational_graph(fun, x).vertices}
    check_second_order(fun, x, orders=("forward", "reverse"))


def polynomial(a: Any) -> Any:
    """The determinant of two or three rows, by Leibniz."""
    if a.shape[-1] == 2:
        return a[..., 0, 0] * a[..., 1, 1] - a[..., 0, 1] * a[..., 1, 0]
    return jnp.sum(a[..., 0, :] * jnp.cross(a[..., 1, :], a[..., 2, :]), axis=-1)


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.parametrize("n", [2, 3])
def test_small_determinants_are_polynomials(n: int) -> None:
    """At regular and singular matrices, in a batch and mapped, with a diagonal along it."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, n, 4))  # mapped along the last axis
    x[-1, :, 1] = 2 * x[0, :, 1]
    x[..., 2] = 0.0

    def energy(det: Any) -> Any:
        mapped = lambda x: jax.vmap(det, -1)(x)  # noqa: E731
        batch = lambda x: det(jnp.moveaxis(x, -1, 0))  # noqa: E731
        return lambda x: jnp.sum(jnp.sin(mapped(x)) + batch(x) ** 2)

    ours, exact = energy(jnp.linalg.det), energy(polynomial)
    sparse = jax.jit(hessve(ours, sparse_representation=True, strict=True))(x)
    assert sparse.nse == 4 * n**4
    assert_same(sparse.todense(), jax.jit(jax.hessian(exact))(x))
    assert_same(jacve(ours)(x), jax.jit(jax.jacrev(exact))(x))
    slope = jax.grad(lambda x: laplacian_ve(ours)(x))(x)
    trace = lambda x: jnp.trace(jax.jit(jax.hessian(exact))(x).reshape(x.size, x.size))  # noqa: E731
    assert_same(slope, jax.grad(trace)(jnp.asarray(x)))


def by_minors(a: Any) -> Any:
    """The determinant of four rows, by Laplace along the first two."""
    columns = np.array(list(itertools.combinations(range(4), 2)))
    signs = (-1.0) ** (columns.sum(1) + 1)

    def minors(rows: Any) -> Any:
        left, right = rows[..., columns[:, 0]], rows[..., columns[:, 1]]
        return left[..., 0, :] * right[..., 1, :] - left[..., 1, :] * right[..., 0, :]

    return jnp.sum(signs * minors(a[..., :2, :]) * minors(a[..., 2:, :])[..., ::-1], -1)


@pytest.mark.slow
def test_larger_determinants_have_cofactors() -> None:
    """At regular, nearly singular and singular matrices, mapped and in a batch of their size."""
    x = np.random.default_rng(0).standard_normal((4, 4, 4))  # mapped along the last axis
    x[3, :, 1] = x[0, :, 1] + x[1, :, 1]
    x[3, :, 2] = (1 + 1e-9) * x[0, :, 2] + 1e-9
    x[2, :, 3] = 0.0

    def energy(det: Any) -> Any:
        return lambda x: jnp.sum(jnp.sin(jax.vmap(det, -1)(x)) + det(jnp.moveaxis(x, -1, 0)) ** 2)

    ours, exact = energy(jnp.linalg.det), energy(by_minors)
    hessian = jnp.reshape(jax.jit(jax.hessian(exact))(x), (x.size, x.size))
    sparse, found = jax.jit(
        lambda x: (hessve(ours, sparse_representation=True, strict=True)(x), laplacian_ve(ours)(x))
    )(x)
    assert sparse.nse == 4 * 4**4
    assert_same(jnp.reshape(sparse.todense(), hessian.shape), hessian)
    assert_same(found, jnp.trace(hessian))


@pytest.mark.slow
def test_larger_determinants_in_a_training_step() -> None:
    """The derivative of a Laplacian and of a Jacobian, at a singular matrix too."""
    x = jnp.asarray(np.random.default_rng(1).standard_normal((4, 4)))
    fun = lambda det: lambda x: jnp.sin(det(x + 0.3 * x @ x))  # noqa: E731
    trace = lambda x: jnp.trace(jax.hessian(fun(by_minors))(x).reshape(x.size, x.size))  # noqa: E731
    step, expected = (jax.jit(jax.grad(f)) for f in (laplacian_ve(fun(jnp.linalg.det)), trace))
    assert_same(step(x), expected(x))
    singular = x.at[3].set(x[0])
    size = lambda jacobian: lambda x: jnp.sum(jnp.sin(jacobian(x)))  # noqa: E731
    for matrix in (x, singular):
        once, slope = (jax.grad(size(f)) for f in (jacve(jnp.linalg.det), jax.grad(by_minors)))
        assert_same(once(matrix), slope(matrix))
    assert_same(step(singular), expected(singular))


COLUMNS: dict[str, Callable[[Any], Any]] = {
    "no first": lambda x: x.at[:, 0].set(0.0),
    "no third": lambda x: x.at[:, 2].set(0.0),
    "equal": lambda x: x.at[:, 1].set(x[:, 0]),
    "nearly equal": lambda x: x.at[:, 1].set((1 + 1e-14) * x[:, 0]),
    "dependent": lambda x: x.at[:, 1].set(x[:, 0] - 2.0 * x[:, 2]),
    "all but equal rows too": lambda x: x.at[:, 3].set(x[:, 1]).at[2].set(x[0]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_determinants_of_dependent_columns(name: str) -> None:
    """A pivot that vanishes is not the last one: JAX's second derivative has other numbers."""
    x = COLUMNS[name](jnp.asarray(np.random.default_rng(4).standard_normal((4, 4))))
    turned = jnp.asarray(np.random.default_rng(5).standard_normal((3, 4, 4)))

    def along(det: Any) -> Any:
        return lambda t, x: det(x + jnp.tensordot(t, turned, 1))

    trace = lambda t, x: jnp.trace(jax.hessian(along(by_minors))(t, x))  # noqa: E731
    both = [jax.value_and_grad(f, 1) for f in (laplacian_ve(along(jnp.linalg.det)), trace)]
    found, expected = jax.jit(lambda t, x: [f(t, x) for f in both])(jnp.zeros(3), x)
    assert_same(found, expected)


LOW_RANKS: dict[str, Any] = {
    "zeros": jnp.zeros((4, 4)),
    "ones": jnp.ones((4, 4)),
    "rank two": jnp.diag(jnp.array([0.0, 0.0, 1.0, 2.0])),
    "rank two, last": jnp.diag(jnp.array([1e3, 2.0, 0.0, 0.0])),
    "all pivots zero": jnp.diag(jnp.array([1.0, 2.0, 3.0]), 1),
    "integers": jnp.arange(16.0).reshape(4, 4),
    "a pivot of rounding errors": jnp.array(
        [[2.0, 0.0, -1.0, -1.0], [4.0, 4.0, -7.0, -8.0], [-2.0, 4.0, -4.0, -2.0], [0.0] * 4]
    ),
}
RANK_ELSEWHERE = ("all pivots zero", "a pivot of rounding errors")
"""Matrices whose rank is that of columns without a pivot."""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_cofactors_of_singular_matrices(order: str) -> None:
    """JAX divides by all pivots but the last, and has zeros where another one vanishes."""
    x = jnp.asarray(np.random.default_rng(4).standard_normal((4, 4)))
    batch = jnp.stack([*(change(x) for change in COLUMNS.values()), *LOW_RANKS.values(), x])
    values, found = jax.vmap(value_and_jacve(jnp.linalg.det, order))(batch)
    assert_same(values, by_minors(batch), tolerance=1e-13)
    for name, ours, exact in zip(
        [*COLUMNS, *LOW_RANKS, "regular"],
        found,
        jax.vmap(jax.grad(by_minors))(batch),
        strict=True,
    ):
        assert_same(ours, exact, tolerance=1e-12, context=name)
    single = jnp.float32(batch[:, :3, :3])
    larger = jnp.zeros((len(batch), 5, 5), np.float32).at[:, 1:4, 1:4].set(single)
    larger = larger.at[:, 0, 4].set(2.0).at[:, 4, 0].set(3.0)
    exact = jax.vmap(jax.grad(polynomial))(jnp.float64(single))
    ours = jax.jit(jax.vmap(jacve(jnp.linalg.det, order)))(larger)
    assert ours.dtype == np.float32
    assert_same(np.float64(ours)[:, 1:4, 1:4], -6.0 * exact, tolerance=1e-5)


@pytest.mark.slow
def test_second_derivatives_of_matrices_of_any_rank() -> None:
    """Where two pivots vanish the second derivative does not; JAX has zeros or NaN there.

    Of ranks that pivots do not show there is NaN, and no number that is wrong.
    """
    batch = jnp.stack([*LOW_RANKS.values()])
    hessians = jax.vmap(jax.hessian(by_minors))(batch)
    traced = jnp.einsum("nijij->n", hessians)
    mixed = lambda det: lambda x: det(x + 0.5 * x.T)  # noqa: E731
    turned = jax.vmap(lambda x: jnp.trace(jax.hessian(mixed(by_minors))(x).reshape(16, 16)))(batch)
    slope = lambda jacobian: jax.grad(lambda x: jnp.sum(jacobian(x) * jnp.cos(x)))  # noqa: E731
    pairs = [
        (hessve(jnp.linalg.det), hessians),
        (laplacian_ve(jnp.linalg.det), traced),
        (laplacian_ve(mixed(jnp.linalg.det)), turned),
        (laplacian_ve(mixed(jnp.linalg.det), "reverse"), turned),
        (slope(jacve(jnp.linalg.det)), jax.vmap(slope(jax.grad(by_minors)))(batch)),
    ]
    for operator, expected in pairs:
        found = jax.jit(jax.vmap(operator))(batch)
        for name, ours, exact in zip(LOW_RANKS, found, expected, strict=True):
            if name not in RANK_ELSEWHERE or not jnp.isnan(ours).any():
                assert_same(ours, exact, tolerance=1e-12, context=name)


def test_cofactors_of_determinants_beyond_the_range_of_a_dtype() -> None:
    """The determinant is too small or too large in single precision, its cofactors are not."""
    x = np.random.default_rng(8).standard_normal((8, 8))
    exact = jax.grad(jnp.linalg.det)(x)
    for scale in (1e-5, 3e4):
        small = np.float32(scale * x)
        found = np.float64(jacve(jnp.linalg.det)(small)) / scale**7
        assert_same(found, np.asarray(exact), tolerance=1e-5)


@pytest.mark.parametrize("scale", [1e-8, 1e4, 1e9])
def test_determinants_of_scaled_matrices(scale: float) -> None:
    """Scaling a matrix, one row or one column loses no digits, in units of that scale."""
    x = jnp.asarray(np.random.default_rng(7).standard_normal((4, 4)))
    expected = jax.jit(jax.hessian(by_minors))(x)
    hessian = jax.jit(hessve(jnp.linalg.det))
    for units in (jnp.ones((4, 4)), jnp.ones((4, 4)).at[1].set(1e-6).at[:, 2].multiply(1e6)):
        unit = scale * units
        found = hessian(unit * x) * unit[..., None, None] * unit / jnp.prod(jnp.diagonal(unit))
        assert_same(found, expected, tolerance=1e-12)


def test_determinants_of_no_rows() -> None:
    """One, whatever is around them; JAX raises an IndexError where it is differentiated."""
    empty = jnp.zeros((2, 0, 0))
    assert_same(laplacian_ve(jnp.linalg.det)(empty), jnp.zeros(2))
    assert_same(jacve(jnp.linalg.det)(empty), jnp.zeros((2, 2, 0, 0)))
    assert_same(hessve(jnp.linalg.det)(empty), jnp.zeros((2, 2, 0, 0, 2, 0, 0)))


@pytest.mark.parametrize("name", ["slogdet", "det"])
def test_columns_meet_every_factor_once(name: str) -> None:
    """`tr(B dA B dA)` and `det A tr(R dA R dA)` have one product of matrices for each column."""
    weights = np.random.default_rng(2).standard_normal((5, 16))

    def fun(x: Any) -> Any:
        found = getattr(jnp.linalg, name)(jnp.tanh(x @ weights).reshape(4, 4))
        return found[1] if name == "slogdet" else found

    program = make_plan(fun, np.ones(5), kind="laplacian").program
    operations = [getattr(i, "operation", None) for i in program.instructions]
    sizes = [math.prod(dict(o.sizes).values()) for o in operations if isinstance(o, Einsum)]
    assert sizes.count(4**3 * 5) == 1
    columns = [o for o in operations if isinstance(o, Einsum) and o.shape == (5,)]
    traces = [o for o in columns if len(o.output) < len(o.sizes)]
    assert len(traces) == (0 if name == "slogdet" else 2)


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("n", [3, 5])
def test_complex_determinants_are_their_cofactors_too(n: int) -> None:
    rng = np.random.default_rng(n)
    waves, x = rng.normal(size=(3, n)), rng.normal(size=(n, 3))

    def log_abs(x: Any) -> Any:
        orbitals = jnp.exp(1j * (x @ waves)) + 0.3 * (x @ waves)
        return jnp.log(jnp.abs(jnp.linalg.det(orbitals)))

    check_second_order(log_abs, x)
    graph = computational_graph(log_abs, x, kind="laplacian")
    assert not {"lu", "custom_linear_solve"} & {vertex.primitive for vertex in graph.vertices}


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("n", [1, 2, 3])
def test_sign_and_logarithm_of_complex_determinants(n: int) -> None:
    """Both, of a batch that is mapped along its last axis, and in a training step."""
    rng = np.random.default_rng(n)
    waves, x = jnp.asarray(rng.normal(size=(3, n))), jnp.asarray(rng.normal(size=(n, 3)))

    def parts(waves: Any, x: Any) -> Any:
        orbitals = [jnp.exp(1j * (x @ w)) + 0.3 * (x @ w) for w in (waves, 0.6 * waves)]
        pair = jnp.stack([orbitals[0], orbitals[1].T], 2)
        sign, size = jax.vmap(jnp.linalg.slogdet, in_axes=2)(pair)
        total = jnp.sum(sign * jnp.exp(size))
        return jnp.stack([*size, *sign.real, *sign.imag, total.real, total.imag])

    check_second_order(lambda x: parts(waves, x), x, orders=("forward", "reverse"))
    weights = jnp.asarray(rng.normal(size=8))

    def reference(waves: Any) -> Any:
        hessian = jax.jit(jax.hessian(parts, 1))(waves, x)
        return weights @ jnp.trace(jnp.reshape(hessian, (8, 3 * n, 3 * n)), axis1=1, axis2=2)

    def ours(waves: Any) -> Any:
        return weights @ laplacian_ve(parts, argnums=1)(waves, x)

    slopes = jax.jit(lambda waves: (jax.grad(ours)(waves), jax.grad(reference)(waves)))(waves)
    assert_same(*slopes)
    graph = computational_graph(parts, waves, x, argnums=1, kind="laplacian")
    names = {vertex.primitive for vertex in graph.vertices}
    assert ("slogdet" in names) == (n > 2)
    assert not {"lu", "custom_linear_solve"} & names


@pytest.mark.usefixtures("standard_promotion")
def test_sign_and_logarithm_of_a_singular_complex_matrix() -> None:
    """Values are those of JAX, a sign of zero and an infinite logarithm."""
    for n in (2, 3):  # written as a polynomial, and by its logarithm
        matrix = jnp.ones((n, n), complex)

        def parts(t: Any, matrix: Any = matrix) -> Any:
            sign, size = jnp.linalg.slogdet(matrix * t)
            return jnp.abs(sign), size

        (sign, size), _ = value_and_jacve(parts)(1.0)
        assert sign == 0.0
        assert size == -np.inf
