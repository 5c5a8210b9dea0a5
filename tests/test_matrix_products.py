"""Derivatives of products of matrices, in every order of transformations."""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import graphax_lapl.emit.products as emitted_products
from graphax_lapl import jacve, laplacian_ve, make_plan
from graphax_lapl.api.planning import clear_caches
from graphax_lapl.emit.products import matrix_product
from graphax_lapl.program import repetition

Params = tuple[Array, Array]


def network(params: Params, x: Array) -> Array:
    """Two layers on the rows of x: products of a matrix with shared weights."""
    hidden = jnp.tanh(x @ params[0])
    return jnp.sum(jnp.sin(hidden @ params[1]))


def trace(params: Params, x: Array) -> Array:
    """The Laplacian by JAX's Hessian."""
    hessian = jax.jit(jax.hessian(lambda flat: network(params, flat.reshape(x.shape))))(
        x.reshape(-1)
    )
    return jnp.trace(hessian)


def _arguments() -> tuple[Params, Array]:
    keys = jax.random.split(jax.random.key(3), 3)
    shapes = ((2, 4), (4, 5), (3, 3, 2))
    first, second, xs = (
        jax.random.normal(k, s, jnp.float64) for k, s in zip(keys, shapes, strict=True)
    )
    return (first, second), xs


Operator = Callable[[Params, Array], Array]


def _loss(operator: Operator, params: Params, xs: Array) -> Array:
    return jnp.mean(jax.vmap(operator, (None, 0))(params, xs) ** 2)


WAYS: dict[str, Callable[[Operator], Callable[..., Any]]] = {
    "gradient of a batch": lambda f: jax.grad(lambda p, xs: _loss(f, p, xs)),
    "gradient of a jitted operator": lambda f: jax.grad(lambda p, xs: _loss(jax.jit(f), p, xs)),
    "batch of gradients": lambda f: jax.vmap(jax.grad(f), (None, 0)),
    "batch of weights": lambda f: (
        lambda p, xs: jax.grad(
            lambda p: jnp.sum(jax.vmap(f, (0, None))(jax.tree.map(lambda w: w[None] * 2, p), xs[0]))
        )(p)
    ),
    "one gradient": lambda f: lambda p, xs: jax.grad(f)(p, xs[0]),
    "forward mode": lambda f: lambda p, xs: jax.jvp(lambda p: _loss(f, p, xs), (p,), (p,)),
    "forward over reverse": lambda f: (
        lambda p, xs: jax.jvp(jax.grad(lambda p: _loss(f, p, xs)), (p,), (p,))
    ),
    "with respect to x": lambda f: jax.grad(lambda p, xs: _loss(f, p, xs), 1),
    "batch of a batch": lambda f: jax.grad(
        lambda p, xs: jnp.sum(jax.vmap(lambda s: _loss(f, p, s * xs))(jnp.arange(1.0, 3.0)))
    ),
    "rematerialised": lambda f: jax.grad(jax.checkpoint(lambda p, xs: _loss(f, p, xs))),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_derivatives_of_a_laplacian(way: str) -> None:
    params, xs = _arguments()
    found = jax.jit(WAYS[way](laplacian_ve(network, argnums=1)))(params, xs)
    expected = WAYS[way](trace)(params, xs)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.allclose(one, other, rtol=1e-9, atol=1e-9)


def test_gradients_of_weights_are_contracted_over_one_axis() -> None:
    """Rows and batch are one axis, so that no cotangent is transposed."""
    params, xs = _arguments()
    step = jax.jit(WAYS["gradient of a batch"](laplacian_ve(network, argnums=1)))
    text = step.lower(params, xs).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    shared = [line for line in products if "batching_dims" not in line]
    axes = [re.findall(r"contracting_dims = \[(.*?)\]", line) for line in shared]
    assert ["0"] in axes  # the gradients
    assert all("," not in found for line in axes for found in line)


def gate(x: Array, first: Array, second: Array, third: Array) -> Array:
    """What two matrices of weights make of x, both scaled by numbers of the sample."""
    inner = jnp.tanh(first @ x) * x
    return jnp.sin(second @ inner) * jnp.exp(third @ x) + x


@pytest.mark.slow
@pytest.mark.parametrize("order", ["auto", "forward", "reverse", "markowitz"])
def test_products_with_shared_weights_have_no_batch(order: str) -> None:
    """For a batch all of them are single large products, with the batch first."""
    keys = jax.random.split(jax.random.key(7), 4)
    xs, *weights = (
        jax.random.normal(k, s, jnp.float64)
        for k, s in zip(keys, ((3, 6), (6, 6), (6, 6), (6, 6)), strict=True)
    )
    found = jax.vmap(jacve(gate, order=order), (0, None, None, None))
    expected = jax.vmap(jax.jacfwd(gate), (0, None, None, None))(xs, *weights)
    assert jnp.allclose(found(xs, *weights), expected, rtol=1e-12, atol=1e-12)
    text = str(jax.make_jaxpr(found)(xs, *weights))
    products = re.findall(r"f64\[([\d,]+)\] = dot_general\[\s*dimension_numbers=(.*)", text)
    assert len(products) >= 4
    assert all(numbers.startswith("(([") and "([], [])" in numbers for _, numbers in products)
    assert [shape for shape, _ in products].count("3,6") == 3


def test_a_vector_is_scaled_before_the_weights_where_it_stands_between() -> None:
    """`V diag(s) (W + ...)`: s belongs to the matrix on its right."""
    keys = jax.random.split(jax.random.key(8), 3)
    x, first, second = (
        jax.random.normal(k, s, jnp.float64)
        for k, s in zip(keys, ((5,), (7, 5), (9, 7)), strict=True)
    )

    def fun(x: Array) -> Array:
        return second @ jnp.tanh(first @ jnp.sin(x) + jnp.sum(x**3))

    for order in ("auto", "forward", "reverse", "markowitz"):
        found = jacve(fun, order=order)(x)
        assert jnp.allclose(found, jax.jit(jax.jacfwd(fun))(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "precision", [None, (jax.lax.Precision.HIGHEST, jax.lax.Precision.DEFAULT)]
)
def test_a_matrix_times_a_vector_is_the_same(precision: Any) -> None:
    """Its operands change places, what is said about them too."""
    numbers = (((0, 2), (1, 0)), ((), ()))

    def fun(w: Array, x: Array) -> Array:
        return jnp.sin(jax.lax.dot_general(w, x, numbers, precision=precision))

    keys = jax.random.split(jax.random.key(9), 2)
    w, x = (
        jax.random.normal(k, s, jnp.float64) for k, s in zip(keys, ((2, 4, 3), (3, 2)), strict=True)
    )
    for argnums in (0, 1):
        found = jacve(fun, argnums=argnums)(w, x)
        assert jnp.allclose(found, jax.jit(jax.jacrev(fun, argnums))(w, x), rtol=1e-12, atol=1e-12)


def narrow(x: Array, weights: list[Array]) -> Array:
    """To a few numbers and back: both halves are products of matrices."""
    for w in weights:
        x = jnp.tanh(w @ x)
    return x


def _narrow_arguments() -> tuple[Array, list[Array]]:
    keys = jax.random.split(jax.random.key(17), 5)
    shapes = ((12, 20), (5, 12), (12, 5), (22, 12))
    weights = [jax.random.normal(k, s, jnp.float64) for k, s in zip(keys, shapes, strict=False)]
    return jax.random.normal(keys[4], (3, 20), jnp.float64), weights


def test_products_for_a_single_input_transpose_nothing() -> None:
    """All products of matrices are rows times columns, of operands as they are stored."""
    xs, weights = _narrow_arguments()
    text = jax.jit(jacve(narrow)).lower(xs[0], weights).as_text()
    assert text.count("contracting_dims = [1] x [0]") == 3
    assert text.count("dot_general") == 7
    assert "stablehlo.transpose" not in text


def test_columns_of_a_single_input_pass_behind_weights() -> None:
    """From few numbers to more: weights come first, and nothing is transposed for a result."""
    keys = jax.random.split(jax.random.key(18), 4)
    shapes = ((12, 3), (14, 12), (8, 14))
    weights = [jax.random.normal(k, s, jnp.float64) for k, s in zip(keys, shapes, strict=False)]
    x = jax.random.normal(keys[3], (3,), jnp.float64)
    compiled = jax.jit(jacve(narrow)).lower(x, weights)
    text = compiled.as_text()
    assert text.count("contracting_dims = [1] x [0]") == 2
    assert "stablehlo.transpose" not in text
    expected = jax.jit(jax.jacfwd(narrow))(x, weights)
    assert jnp.allclose(compiled.compile()(x, weights), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_sums_of_columns_lie_as_their_product_reads_them() -> None:
    """Columns of a product of two layers are a sum: its metric contracts their last axis."""
    keys = jax.random.split(jax.random.key(23), 4)
    shapes = ((24, 6), (24, 6), (6, 32))
    weights = [
        0.2 * jax.random.normal(k, s, jnp.float64) for k, s in zip(keys, shapes, strict=False)
    ]
    xs = jax.random.normal(keys[3], (3, 24), jnp.float64)

    def gated(x: Array, weights: list[Array]) -> Array:
        first, second, last = weights
        return jnp.sum(jnp.tanh(jnp.sin(x @ first) * (x @ second) @ last))

    batched = jax.jit(jax.vmap(laplacian_ve(gated), (0, None)))
    text = batched.lower(xs, weights).as_text()
    assert "tensor<3x6x24xf64>" in text
    assert "tensor<3x24x6xf64>" not in text
    expected = jax.vmap(lambda x: jnp.trace(jax.jit(jax.hessian(gated))(x, weights)))(xs)
    assert jnp.allclose(batched(xs, weights), expected, rtol=1e-12, atol=1e-12)

    def loss(operator: Callable[..., Array], weights: list[Array]) -> Array:
        return jnp.mean(jax.vmap(operator, (0, None))(xs, weights) ** 2)

    found = jax.grad(lambda w: loss(laplacian_ve(gated), w))(weights)
    gradient = jax.grad(
        lambda w: loss(lambda x, w: jnp.trace(jax.jit(jax.hessian(gated))(x, w)), w)
    )(weights)
    for ours, other in zip(found, gradient, strict=True):
        assert jnp.allclose(ours, other, rtol=1e-10, atol=1e-10)


def test_a_transition_matrix_stays_whole_in_products() -> None:
    """Its two diagonals lie apart: on both sides they would be four terms."""
    step = np.eye(4) + 0.1 * np.eye(4, k=2)

    def moved(p: Array) -> Array:
        return step @ jnp.sin(p) @ step.T

    p = jax.random.normal(jax.random.key(19), (4, 4), jnp.float64)
    assert jnp.allclose(jacve(moved)(p), jax.jacfwd(moved)(p), rtol=1e-12, atol=1e-12)
    structure = make_plan(moved, p).structure()
    assert structure is not None
    assert len(structure.terms) == 1
    sparse = jacve(moved, sparse_representation=True)(p)
    assert sparse.nse == 36  # six entries of the one meet six of the other
    vector = make_plan(lambda v: step @ jnp.sin(v), p[0]).structure()
    assert vector is not None
    assert len(vector.terms) == 2


def test_a_table_of_reactions_is_multiplied_whole() -> None:
    """A random table of one entry in eight: no product is written entry by entry."""
    rng = np.random.RandomState(20)
    table = rng.randn(20, 24) * (rng.rand(20, 24) < 0.125)
    weights = jax.random.normal(jax.random.key(21), (16, 20), jnp.float64)
    xs = jax.random.normal(jax.random.key(22), (3, 24), jnp.float64)

    def rates(x: Array) -> Array:
        return weights @ jnp.exp(table @ jnp.sin(x))

    derivative = jax.jit(jax.vmap(jacve(rates)))
    assert jnp.allclose(
        derivative(xs), jax.jit(jax.vmap(jax.jacfwd(rates)))(xs), rtol=1e-12, atol=1e-12
    )
    text = derivative.lower(xs).as_text()
    assert "stablehlo.scatter" not in text
    assert "stablehlo.gather" not in text
    only = jacve(lambda x: table @ jnp.sin(x), sparse_representation=True)(xs[0])
    assert only.nse == np.count_nonzero(table)
    masked = jacve(lambda x: jnp.sin(x)[:20, None] * table, sparse_representation=True)(xs[0])
    assert masked.nse == np.count_nonzero(table)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["auto", "reverse", "markowitz"])
def test_a_single_input_and_a_batch_agree(order: str) -> None:
    """They are evaluated by two programs, and differentiated by one."""
    xs, weights = _narrow_arguments()
    found, wanted = jacve(narrow, order=order), jax.jacrev(narrow)
    expected = jax.vmap(wanted, (0, None))(xs, weights)
    for one, x in zip(expected, xs, strict=True):
        assert jnp.allclose(jax.jit(found)(x, weights), one, rtol=1e-12, atol=1e-12)
    assert jnp.allclose(jax.vmap(found, (0, None))(xs, weights), expected, rtol=1e-12, atol=1e-12)
    again, twice = (jax.jacrev(f, argnums=1)(xs[0], weights) for f in (found, wanted))
    for a, b in zip(again, twice, strict=True):
        assert jnp.allclose(a, b, rtol=1e-11, atol=1e-11)


def test_a_product_is_made_in_the_order_of_the_overlay_that_reads_it() -> None:
    keys = jax.random.split(jax.random.key(7), 5)
    a, b, c, d = (
        jax.random.normal(k, s, jnp.float64)
        for k, s in zip(keys, ((5, 4), (5, 4), (4, 5), (4,)), strict=False)
    )

    def rates(x: Array) -> Array:
        flow = c @ (jnp.exp(a @ jnp.log(x)) * jnp.sin(b @ x))
        return jnp.concatenate([flow, (-(d @ flow) / jnp.sum(x))[None]])

    xs = jax.random.uniform(keys[4], (3, 4), jnp.float64, 0.5, 1.0)
    derivative = jax.jit(jax.vmap(jacve(rates, order="markowitz")))
    assert jnp.allclose(
        derivative(xs), jax.jit(jax.vmap(jax.jacfwd(rates)))(xs), rtol=1e-12, atol=1e-12
    )
    text = derivative.lower(xs).as_text()
    assert "(tensor<3x4x5xf64>) -> tensor<3x5x4xf64>" not in text  # nothing is transposed behind


def mean_square_laplacian(laplacian: Callable[..., Any]) -> Callable[..., Array]:
    """A loss of the weights, by a Laplacian of functions of (weights, x)."""

    def fun(weights: list[Array], x: Array) -> Array:
        first, second, last = weights
        return jnp.sum(jax.nn.silu(jnp.tanh(x @ first) @ second) @ last)

    def loss(weights: list[Array], xs: Array) -> Array:
        return jnp.mean(jax.vmap(lambda x: laplacian(fun, weights, x))(xs) ** 2)

    return loss


@pytest.mark.slow
@pytest.mark.parametrize("stand", [False, True])
def test_training_through_repeated_operands(stand: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of products, with barriers that stand and without, and `W diag(s)`, with them."""
    monkeypatch.setattr(emitted_products, "BARRIERS_STAND", stand)
    monkeypatch.setattr(repetition, "LARGE", 1)
    clear_caches()
    keys = jax.random.split(jax.random.key(10), 4)
    *weights, xs = (
        jax.random.normal(k, s, jnp.float64)
        for k, s in zip(keys, ((3, 4), (4, 5), (5, 1), (2, 3)), strict=True)
    )
    ours = mean_square_laplacian(lambda f, w, x: laplacian_ve(f, argnums=1)(w, x))
    truth = mean_square_laplacian(lambda f, w, x: jnp.trace(jax.hessian(f, 1)(w, x)))
    found, expected = jax.jit(jax.grad(ours))(weights, xs), jax.jit(jax.grad(truth))(weights, xs)
    for one, other in zip(found, expected, strict=True):
        assert jnp.allclose(one, other, rtol=1e-10, atol=1e-12)
    text = str(jax.make_jaxpr(jax.grad(ours))(weights, xs))
    assert "optimization_barrier" in text  # of what is repeated
    assert "precision=(Precision.HIGHEST" not in text


def test_curvature_of_sigmoids_is_written_in_few_operations() -> None:
    """`-2 out (1 - out^2)`: no derivative of the slope along ones."""
    text = str(jax.make_jaxpr(laplacian_ve(lambda x: jnp.tanh(x)))(1.5))
    assert "neg" not in text
    assert text.count(" mul ") + text.count(" square ") <= 3


@pytest.mark.slow
@pytest.mark.parametrize("units", [(), (0,)])
@pytest.mark.parametrize("axis", [0, 1])
def test_products_of_a_first_axis(
    axis: int, units: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones, and small ones with an axis of length one in front."""
    if not units:
        monkeypatch.setattr(emitted_products, "SMALL_PRODUCT", 0)
    (_, weights), xs = _arguments()
    weights = weights[:3, :2] if axis == 0 else weights[:2, :3]
    numbers = (((len(units),), (axis,)), ((), ()))

    def operator(params: Params, x: Array) -> Array:
        rows = jnp.expand_dims(jnp.sin(x), units)
        found = matrix_product(rows, params[0], numbers, stored=True)
        return jnp.sum(jnp.cos(found) * params[1])

    def expected(params: Params, x: Array) -> Array:
        found = jnp.sin(x).T @ (params[0] if axis == 0 else params[0].T)
        return jnp.sum(jnp.cos(found) * params[1])

    params = (weights, jnp.asarray(1.5))
    for way in WAYS.values():
        leaves = jax.tree.leaves(jax.jit(way(operator))(params, xs))
        wanted = jax.tree.leaves(jax.jit(way(expected))(params, xs))
        for one, other in zip(leaves, wanted, strict=True):
            assert np.allclose(one, other, rtol=1e-12, atol=1e-12)
    # One product for each sample, in the value and for both of the loss' derivatives.
    gradient = WAYS["gradient of a batch"](operator)
    text = jax.jit(gradient).lower(params, xs).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 2
    assert all("batching_dims = [0] x [0]" in line for line in products)


def test_larger_matrices_are_not_repeated_for_samples() -> None:
    params, xs = jnp.ones((6, 7)), jnp.ones((5, 1, 6, 4))
    numbers = (((1,), (0,)), ((), ()))
    text = str(jax.make_jaxpr(jax.vmap(lambda x: matrix_product(x, params, numbers)))(xs))
    assert "f64[5,7,6]" not in text
    text = str(jax.make_jaxpr(jax.vmap(lambda x: matrix_product(x, params[:, :4], numbers)))(xs))
    assert "f64[5,4,6] = broadcast_in_dim" in text


@pytest.mark.slow
def test_columns_meet_a_metric_that_all_samples_share() -> None:
    """tr(A H) of two layers: one product with A for each sample, and its derivatives."""
    keys = jax.random.split(jax.random.key(5), 5)
    shapes = ((6, 6), (6, 8), (8, 7), (7,), (3, 6))
    *given, xs = (jax.random.normal(k, s, jnp.float64) for k, s in zip(keys, shapes, strict=True))

    def fun(params: list[Array], x: Array) -> Array:
        return jnp.tanh(jnp.tanh(x @ params[1]) @ params[2]) @ params[3]

    def operator(params: list[Array], x: Array) -> Array:
        weights = params[0] @ params[0].T
        return laplacian_ve(lambda x: fun(params, x), weights=weights)(x)

    def expected(params: list[Array], x: Array) -> Array:
        return jnp.sum(params[0] @ params[0].T * jax.jit(jax.hessian(lambda x: fun(params, x)))(x))

    def loss(operator: Callable[..., Array], params: list[Array]) -> Array:
        return jnp.mean(jax.vmap(operator, (None, 0))(params, xs) ** 2)

    found = jax.jit(jax.vmap(operator, (None, 0)))
    wanted = jax.jit(jax.vmap(expected, (None, 0)))(given, xs)
    assert np.allclose(found(given, xs), wanted, rtol=1e-12)
    ways = (operator, expected)
    gradients = jax.jit(lambda given: [jax.grad(functools.partial(loss, w))(given) for w in ways])
    for one, other in zip(*gradients(given), strict=True):
        assert np.allclose(one, other, rtol=1e-10, atol=1e-12)
    assert "batching_dims = [0] x [0]" in found.lower(given, xs).as_text()
