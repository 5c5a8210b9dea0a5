"""Arguments, pytrees, options and errors of the operators of second order and divergence."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from graphax_lapl import (
    FallbackError,
    GraphaxLaplError,
    HutchPlusPlus,
    InvalidArgumentError,
    InvalidOrderError,
    InvalidTypeError,
    SparseJacobian,
    compare_orders,
    computational_graph,
    count_ops,
    divergence_ve,
    forward_laplacian,
    hessian_diagonal,
    hessve,
    laplacian_ve,
    local_kinetic_energy,
    make_plan,
    second_order_operator,
    value_and_hessve,
)
from tests.checks import assert_same
from tests.second_order.checks import check_second_order

X = np.array([0.4, -0.3, 0.9])
M = np.array([[0.5, -0.2], [0.3, 0.8], [-0.6, 0.1]])


@jax.tree_util.register_dataclass
@dataclass
class Parameters:
    """A user's own container."""

    w: Any
    b: Any


def layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w) * x[0] ** 2


def scalar(x: Any) -> Any:
    return jnp.sum(jnp.sin(x) * x[::-1]) ** 2


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize("argnums", [0, 1, -1, -2, (0,), (0, 1), (1, 0), (-1, 0)], ids=str)
def test_argnums(argnums: Any) -> None:
    check_second_order(layer, X, M, argnums=argnums, orders=("forward", "reverse"))


TREES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "dict": (lambda p: jnp.sum(p["b"] ** 2 * p["a"]) * p["a"], {"b": X, "a": np.float64(0.3)}),
    "dataclass": (lambda p: jnp.sin(X @ p.w + p.b) * p.b, Parameters(M, X[:2])),
    "None": (lambda p: p[0] * p[2] ** 2, (X, None, X[::-1] * 1.0)),
    "nested": (
        lambda p: {"y": p["l"][0] * p["l"][1]["z"] ** 2, "s": jnp.sum(p["l"][0] ** 3)},
        {"l": [X, {"z": X * 0.5}], "empty": ()},
    ),
    "unused leaf": (lambda p: p["a"] ** 2, {"a": X, "z": M}),
    "zero-size leaf": (
        lambda p: p["a"] ** 2 * (1.0 + p["e"].sum()),
        {"a": X, "e": np.zeros((0, 2))},
    ),
    "scalar": (lambda x: x**3, np.float64(0.4)),
    "zero size": (lambda x: jnp.sum(x**2) + x**3, np.zeros((0,))),
    "zero-size result": (lambda x: x[:0] ** 2, X),
}


@pytest.mark.parametrize("name", TREES)
def test_pytrees(name: str) -> None:
    fun, argument = TREES[name]
    check_second_order(fun, argument, orders=("forward", "reverse"), context=name)


def test_several_pytree_arguments_in_another_order() -> None:
    def fun(p: Any, x: Any, q: Any) -> Any:
        return {"r": jnp.sum(p["a"] * q.w) * x, "s": (q.b**2, jnp.sin(p["a"]))}

    check_second_order(
        fun, {"a": X}, X[:2], Parameters(X**2, X[::-1] * 1.0), argnums=(2, 0), orders=("forward",)
    )


RESULTS: dict[str, Callable[[Any], Any]] = {
    "constant": lambda x: jnp.ones((2, 2)),
    "Python number": lambda x: 3.0,
    "linear": lambda x: jnp.asarray(M.T) @ x,
    "the input": lambda x: x,
    "input and more": lambda x: (x, x**2, x[0] ** 3),
    "twice the same": lambda x: (x**2,) * 2,
    "an intermediate too": lambda x: (lambda y: {"y": y, "z": jnp.sin(y) * y})(x**2),
    "other precision": lambda x: (x**2).astype(np.float32),
    "nothing": lambda x: (),
    "None inside": lambda x: {"a": x**2, "b": None},
    "stopped": lambda x: jax.lax.stop_gradient(x**2),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results(name: str) -> None:
    fun = RESULTS[name]
    tolerance = 1e-6 if name == "other precision" else 1e-10
    wrapped = lambda x: jax.tree.map(jnp.asarray, fun(x))  # noqa: E731
    check_second_order(wrapped, X, orders=("forward", "reverse"), tolerance=tolerance)
    for result in jax.tree.leaves(forward_laplacian(fun)(X), is_leaf=lambda r: hasattr(r, "x")):
        assert result.jacobian.dense_array.shape == (*result.x.shape, 3)
        assert result.laplacian.shape == result.x.shape
        assert result.laplacian.dtype == result.x.dtype == result.jacobian.dense_array.dtype


OPERATORS: dict[str, Callable[..., Any]] = {
    "laplacian": laplacian_ve,
    "forward laplacian": forward_laplacian,
    "hessian": hessve,
    "value and hessian": value_and_hessve,
    "divergence": divergence_ve,
}
at_every_operator = pytest.mark.parametrize("name", OPERATORS)


@pytest.mark.parametrize("name", ["laplacian", "hessian", "divergence"])
@pytest.mark.parametrize("transformed", [False, True])
def test_has_aux(name: str, transformed: bool) -> None:
    def fun(x: Any) -> Any:
        y = jnp.sin(x)
        return y * x, {"y": y, "n": jnp.arange(2), "text": "kept"} if not transformed else y

    operator = OPERATORS[name](fun, has_aux=True)
    result, aux = (jax.jit(operator) if transformed else operator)(X)
    assert_same(result, OPERATORS[name](lambda x: fun(x)[0])(X))
    assert_same(aux if transformed else aux["y"], np.sin(X))
    if not transformed:
        assert aux["text"] == "kept"
        assert aux["n"].dtype == np.int64


VALUED: dict[str, Callable[[Any], Any]] = {
    "one number": scalar,
    "pytree": lambda x: {"y": x**2 * x[0], "x": x, "b": None},
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) * x, x),
    "complex output": lambda x: jnp.exp(jax.lax.complex(scalar(-x), scalar(x))),
    "linear": lambda x: 2.0 * x,
}


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", VALUED)
def test_value_and_hessian(name: str, transform: Callable[..., Any]) -> None:
    fun = VALUED[name]
    value, hessian = transform(value_and_hessve(fun))(X)
    assert_same(value, fun(X))
    if name == "complex output":
        real, imag = (
            jax.jit(jax.hessian(lambda x, part=part: part(fun(x))))(X)
            for part in (jnp.real, jnp.imag)
        )
        assert_same(hessian, jax.lax.complex(real, imag))
    else:
        assert_same(hessian, jax.jit(jax.hessian(fun))(X))


@pytest.mark.parametrize("name", ["pytree", "loop"])
@pytest.mark.parametrize("order", ["auto", "compressed"])
def test_value_and_sparse_hessian_with_aux(name: str, order: str) -> None:
    operator = value_and_hessve(
        lambda x: (VALUED[name](x), {"cubes": x**3, "text": "kept"}),
        order=order,
        has_aux=True,
        sparse_representation=True,
    )
    (value, aux), hessian = operator(X)
    assert_same(value, VALUED[name](X))
    assert_same(aux["cubes"], X**3)
    assert aux["text"] == "kept"
    dense = jax.tree.map(
        lambda leaf: leaf.todense(), hessian, is_leaf=lambda leaf: isinstance(leaf, SparseJacobian)
    )
    assert_same(dense, jax.hessian(VALUED[name])(X))


@pytest.mark.slow
def test_value_and_hessian_of_a_batch_and_their_gradient() -> None:
    both = value_and_hessve(layer, argnums=(0, 1))
    batch = np.stack([X, 2.0 * X])
    value, hessian = jax.vmap(both, (0, None))(batch, M)
    assert_same(value, jax.vmap(layer, (0, None))(batch, M))
    assert_same(hessian, jax.jit(jax.vmap(jax.hessian(layer, (0, 1)), (0, None)))(batch, M))

    def loss(x: Any, pair: Callable[..., Any]) -> Any:
        value, second = pair(x)
        return value + jnp.sum(second**2)

    assert_same(
        jax.grad(loss)(X, value_and_hessve(scalar)),
        jax.grad(loss)(X, lambda x: (scalar(x), jax.jit(jax.hessian(scalar))(x))),
    )


@at_every_operator
def test_keyword_static_and_default_arguments(name: str) -> None:
    def fun(x: Any, power: int, scale: Any, *, shift: Any = 0.1, flag: bool = True) -> Any:
        assert isinstance(power, int)
        return (scale * x**power + shift * jnp.sin(x)) if flag else x

    result = jax.tree.leaves(OPERATORS[name](fun)(X, 3, 2.0, shift=X))
    expected = jax.tree.leaves(OPERATORS[name](lambda x: 2.0 * x**3 + X * jnp.sin(x))(X))
    for one, other in zip(result, expected, strict=True):
        assert_same(one, other)


@at_every_operator
@pytest.mark.leaks
def test_closure_over_tracers(name: str) -> None:
    def outer(x: Any, w: Any) -> Any:
        return jax.tree.leaves(OPERATORS[name](lambda y: jnp.sin(y * w) * w)(x))

    expected = outer(X, X + 1.0)
    assert_same(jax.jit(outer)(X, X + 1.0), expected)
    batched = jax.vmap(outer)(np.stack([X, X]), np.stack([X + 1.0, X]))
    assert_same([leaf[0] for leaf in batched], expected)


def test_name_and_signature_are_kept() -> None:
    for operator in OPERATORS.values():
        assert operator(layer).__name__ == "layer"


# ---------------------------------------------------------------- errors


@at_every_operator
@pytest.mark.parametrize("argument", [np.array([1, 2]), np.array([True]), 3], ids=str)
def test_integer_input(name: str, argument: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"int|bool"):
        OPERATORS[name](lambda x: x * 2)(argument)


@pytest.mark.parametrize("name", ["laplacian", "forward laplacian", "hessian", "value and hessian"])
def test_complex_input(name: str) -> None:
    with pytest.raises(InvalidTypeError, match="complex128"):
        OPERATORS[name](lambda x: x**2)(X + 1j)


@at_every_operator
def test_bad_calls(name: str) -> None:
    operator = OPERATORS[name]
    with pytest.raises(InvalidArgumentError, match="argnums"):
        operator(layer, argnums=2)(X, M)
    with pytest.raises(InvalidTypeError, match="argnums"):
        operator(layer, argnums="x")(X, M)
    with pytest.raises(InvalidTypeError, match="fun"):
        operator(3)
    with pytest.raises(InvalidOrderError, match="sideways"):
        operator(lambda x: jnp.sin(x) * x, order="sideways")(X)
    with pytest.raises(InvalidOrderError, match="77"):
        operator(lambda x: jnp.sin(x) * x, order=[77])(X)
    with pytest.raises(GraphaxLaplError):
        operator(lambda x: jnp.ones(3))({})


def test_integer_output() -> None:
    for operator in OPERATORS.values():
        with pytest.raises(InvalidTypeError, match="int"):
            operator(lambda x: x.astype(int))(X)


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 2), (2, 3), (3, 3, 1), (), (0,)], ids=str)
def test_weights_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="weights") as caught:
        laplacian_ve(scalar, weights=np.ones(shape))(X)
    assert "3" in str(caught.value)


@pytest.mark.parametrize("shape", [(3,), (3, 2), (1, 3, 3), (), (2, 4)], ids=str)
def test_seeds_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="seeds"):
        laplacian_ve(scalar, seeds=np.ones(shape))(X)


def test_weights_and_seeds_together() -> None:
    with pytest.raises(InvalidArgumentError, match="weights"):
        laplacian_ve(scalar, weights=np.ones(3), seeds=np.ones((1, 3)))


@pytest.mark.parametrize("bad", ["text", np.array([1j, 0, 0])], ids=["str", "complex"])
def test_weights_of_a_wrong_kind(bad: Any) -> None:
    with pytest.raises((InvalidArgumentError, InvalidTypeError), match="weights"):
        laplacian_ve(scalar, weights=bad)(X)


# ---------------------------------------------------------------- weights and seeds

RNG = np.random.default_rng(0)
INDEFINITE = np.array([1.0, -2.0, 0.5])
MATRIX = RNG.normal(size=(3, 3))


@pytest.mark.parametrize("order", ["forward", "reverse", "auto"])
def test_metrics(order: str) -> None:
    def fun(x: Any) -> Any:
        return jnp.tanh(jnp.asarray(M.T) @ x) * x[0], jnp.sum(x**2 * x[::-1])

    hessian = jax.jit(jax.hessian(fun))(X)
    seeds = RNG.normal(size=(2, 3))
    metrics: list[tuple[dict[str, Any], np.ndarray]] = [
        ({"weights": INDEFINITE}, np.diag(INDEFINITE)),
        ({"weights": MATRIX}, MATRIX),
        ({"weights": np.zeros((3, 3))}, np.zeros((3, 3))),
        ({"weights": INDEFINITE.astype(np.float32)}, np.diag(INDEFINITE)),
        ({"weights": np.array([1, -2, 3])}, np.diag([1.0, -2.0, 3.0])),
        ({"seeds": seeds}, seeds.T @ seeds),
        ({"seeds": seeds[:1]}, seeds[:1].T @ seeds[:1]),
        ({"seeds": np.zeros((0, 3))}, np.zeros((3, 3))),
    ]
    for options, metric in metrics:
        result = laplacian_ve(fun, order=order, **options)(X)
        expected = jax.tree.map(lambda h, a=metric: jnp.sum(h * a, (-2, -1)), hessian)
        assert_same(result, expected, context=str(options))


@pytest.mark.slow
@pytest.mark.parametrize("argnums", [(0, 1), (1, 0)], ids=str)
def test_metrics_of_several_arguments(argnums: tuple[int, ...]) -> None:
    """Rows and columns follow the order of argnums, and of leaves within an argument."""
    args = ({"b": X, "a": X[:2] ** 2}, M)

    def fun(p: Any, w: Any) -> Any:
        return jnp.sum(jnp.sin(p["b"] @ w) * p["a"]) * jnp.exp(w[0])

    chosen = tuple(args[n] for n in argnums)
    flat, unravel = ravel_pytree(chosen)

    def raveled(flat: Any) -> Any:
        parts = dict(zip(argnums, unravel(flat), strict=True))
        return fun(parts[0], parts[1])

    hessian = jax.jit(jax.hessian(raveled))(flat)
    matrix, diagonal = RNG.normal(size=(11, 11)), RNG.normal(size=11)
    seeds = RNG.normal(size=(3, 11))
    for options, metric in [
        ({"weights": matrix}, matrix),
        ({"weights": diagonal}, np.diag(diagonal)),
        ({"weights": unravel(jnp.asarray(diagonal))}, np.diag(diagonal)),
        ({"seeds": seeds}, seeds.T @ seeds),
    ]:
        result = laplacian_ve(fun, argnums=argnums, **options)(*args)
        assert_same(result, jnp.sum(hessian * metric, (-2, -1)))
    jacobian = forward_laplacian(fun, argnums=argnums)(*args).jacobian.dense_array
    assert_same(jacobian, jax.jit(jax.jacfwd(raveled))(flat))


@pytest.mark.slow
def test_metrics_where_jax_rules_are_followed() -> None:
    """A rule for cotangents only takes another way to the same sums."""

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))

    def fun(x: Any) -> Any:
        return jnp.sum(f(x) ** 2) * x

    hessian, seeds = jax.jit(jax.hessian(fun))(X), RNG.normal(size=(2, 3))
    for options, metric in [
        ({}, np.eye(3)),
        ({"weights": INDEFINITE}, np.diag(INDEFINITE)),
        ({"weights": MATRIX}, MATRIX),
        ({"seeds": seeds}, seeds.T @ seeds),
    ]:
        assert_same(laplacian_ve(fun, **options)(X), jnp.sum(hessian * metric, (-2, -1)))
    result = forward_laplacian(fun)(X)
    assert_same(result.jacobian.dense_array, jax.jit(jax.jacrev(fun))(X))
    assert_same(result.laplacian, jnp.trace(hessian, axis1=-2, axis2=-1))


def test_asymmetric_hessian_under_an_asymmetric_metric() -> None:
    """A rule's derivative need not be symmetric; A meets it as `jax.hessian` lays it out."""

    @jax.custom_jvp
    def f(x: Any) -> Any:
        return x[0] * x[1] + x[2]

    @f.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        return f(x), x[0] ** 2 * t[1] + x[2] * x[0] * t[2]

    hessian = jax.jit(jax.hessian(lambda x: f(x) ** 2))(X)
    assert not np.allclose(hessian, hessian.T)
    for order in ("forward", "reverse"):
        result = laplacian_ve(lambda x: f(x) ** 2, order=order, weights=MATRIX)(X)
        assert_same(result, jnp.sum(hessian * MATRIX))
    assert_same(hessve(lambda x: f(x) ** 2)(X), hessian)


def test_metric_may_be_traced_and_differentiated() -> None:
    def energy(w: Any) -> Any:
        return laplacian_ve(scalar, weights=w)(X)

    assert_same(jax.jit(jax.grad(energy))(INDEFINITE), jnp.diag(jax.jit(jax.hessian(scalar))(X)))
    batch = np.stack([INDEFINITE, X])
    assert_same(jax.vmap(energy)(batch), jnp.stack([energy(row) for row in batch]))


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return 2.0 * x


doubled.defvjp(lambda x: (doubled(x), None), lambda _, c: (2.0 * c,))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [False, True], ids=["closed form", "rule for cotangents"])
@pytest.mark.parametrize("argnums", [(0, 1), (1, 0)])
def test_forward_laplacian_with_weights_and_aux(argnums: Any, rule: bool) -> None:
    """The metric concerns the Laplacian only; aux comes beside it."""

    def fun(x: Any, w: Any) -> Any:
        x = doubled(x) if rule else 2.0 * x
        return {"y": layer(x, w), "s": jnp.sum(w**3) * x[1] ** 2}, {"aux": x[0]}

    args, size = (X, M), X.size + M.size
    generator = np.random.default_rng(5)
    seeds, matrix = generator.normal(size=(2, size)), generator.normal(size=(size, size))
    for options in ({"weights": matrix}, {"weights": np.arange(size) - 3.0}, {"seeds": seeds}):
        found, aux = forward_laplacian(fun, argnums=argnums, has_aux=True, **options)(*args)
        expected, _ = laplacian_ve(fun, argnums=argnums, has_aux=True, **options)(*args)
        jacobian = jax.jit(jax.jacrev(lambda *args: fun(*args)[0], argnums))(*args)
        assert_same(aux, fun(*args)[1])
        for name, value in fun(*args)[0].items():
            part = found[name]
            blocks = [jnp.reshape(block, (*value.shape, -1)) for block in jacobian[name]]
            assert_same(part.x, value)
            assert_same(part.laplacian, expected[name])
            assert_same(part.jacobian.dense_array, jnp.concatenate(blocks, -1))
    with pytest.raises(InvalidArgumentError, match="pass one of them"):
        forward_laplacian(fun, weights=matrix, seeds=seeds)


# ---------------------------------------------------------------- divergence


def test_divergence_of_pytrees() -> None:
    def fun(p: Any) -> Any:
        return {"a": jnp.sin(p["a"]) * p["b"].sum(), "b": p["b"] ** 2 @ jnp.eye(2) + p["a"].sum()}

    point = {"a": X, "b": M}
    jacobian = jax.jit(jax.jacrev(fun))(point)
    expected = sum(
        jnp.trace(jacobian[k][k].reshape(point[k].size, point[k].size)) for k in ("a", "b")
    )
    for order in ("forward", "reverse", "markowitz", "auto"):
        assert_same(divergence_ve(fun, order=order)(point), expected)


@pytest.mark.parametrize(
    "fun",
    [lambda x: x[:2], lambda x: x[None], jnp.sum, lambda x: (x, x), lambda x: x[0] * jnp.eye(3)],
    ids=["shorter", "other rank", "scalar", "two", "matrix"],
)
def test_divergence_of_other_shapes(fun: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="shape"):
        divergence_ve(fun)(X)


def test_divergence_of_leaves_in_another_order() -> None:
    """Position and velocity of equal shape, returned under names that sort differently."""
    point = {"v": X, "x": X + 1.0}
    with pytest.raises(InvalidArgumentError, match="dv"):
        divergence_ve(lambda s: {"dx": s["v"], "dv": -(s["x"] ** 2)})(point)
    assert_same(
        divergence_ve(lambda s: {"x": s["v"] * s["x"], "v": -(s["v"] ** 2)})(point), -X.sum()
    )


DIVERGENCES: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    "identity": (lambda x: x, X),
    "constant": (lambda x: jnp.ones(3), X),
    "linear": (lambda x: jnp.asarray(MATRIX) @ x, X),
    "permuted": (lambda x: x[::-1] ** 2, X),
    "gradient": (jax.grad(scalar), X),
    "network": (lambda x: jnp.asarray(M) @ jnp.tanh(jnp.asarray(M.T) @ x), X),
    "residual": (lambda x: x + jnp.asarray(M) @ jnp.tanh(jnp.asarray(M.T) @ x) * x, X),
    "scalar": (lambda x: x**2, np.float64(0.3)),
    "empty": (lambda x: x**2, np.zeros((0,))),
    "matrix": (lambda x: x @ x.T @ x, M),
    "solve": (lambda x: jnp.linalg.solve(jnp.asarray(MATRIX), jnp.sin(x)), X),
    "scan": (lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=3)[0], X),
}


@pytest.mark.parametrize("name", DIVERGENCES)
def test_divergence(name: str) -> None:
    fun, x = DIVERGENCES[name]
    expected = jnp.trace(jnp.reshape(jax.jit(jax.jacfwd(fun))(x), (x.size, x.size)))
    for order in ("forward", "reverse", "auto"):
        assert_same(divergence_ve(fun, order=order)(x), expected, context=order)


def test_divergence_of_complex_maps() -> None:
    z = X + 1j * X[::-1]
    result = divergence_ve(lambda z: z**2 * z.sum())(z)
    assert_same(
        result, jnp.trace(jax.jit(jax.jacfwd(lambda z: z**2 * z.sum(), holomorphic=True))(z))
    )


def test_divergence_of_several_arguments() -> None:
    def fun(x: Any, t: Any, y: Any) -> Any:
        return x * y * t, jnp.sin(y) * x.sum()

    expected = jnp.trace(jax.jit(jax.jacfwd(lambda x: fun(x, 2.0, X)[0]))(X))
    expected += jnp.trace(jax.jit(jax.jacfwd(lambda y: fun(X, 2.0, y)[1]))(X))
    assert_same(divergence_ve(fun, argnums=(0, 2))(X, 2.0, X), expected)


@pytest.mark.slow
@pytest.mark.parametrize("argnums", [(1, 0), (-1, 0)])
@pytest.mark.parametrize("size", [2, 3], ids=["other shapes", "same shapes"])
def test_divergence_of_arguments_in_another_order(argnums: Any, size: int) -> None:
    """The outputs stand in the order of argnums, not in that of the arguments."""

    def fun(y: Any, p: Any) -> Any:
        return {"a": p["a"] * jnp.sum(y) * p["b"][0], "b": p["b"] ** 2}, jnp.sin(y) * p["a"][0]

    y, p = jnp.cos(jnp.arange(float(size))), {"a": X, "b": X[:2]}
    expected = X.size * jnp.sum(y) * X[0] + 2 * jnp.sum(X[:2]) + jnp.sum(jnp.cos(y)) * X[0]
    for order in ("auto", "forward", "reverse"):
        assert_same(divergence_ve(fun, order=order, argnums=argnums)(y, p), expected)
    whole = HutchPlusPlus(3 * (size + X.size + 2))  # as many vectors as make it exact
    estimate = divergence_ve(fun, argnums=argnums, stochastic=whole)
    assert_same(estimate(y, p, key=jax.random.key(0)), expected)


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize("kind", ["jacobian", "laplacian", "hessian", "divergence"])
def test_plans_of_every_kind(kind: str) -> None:
    def fun(x: Any) -> Any:
        return jnp.sin(x) * jnp.sum(x**2)

    operators = {"laplacian": laplacian_ve, "hessian": hessve, "divergence": divergence_ve}
    expected = operators.get(kind, jax.jacrev)(fun)(X)
    for order in ("auto", "forward", "reverse"):
        plan = make_plan(fun, X, kind=kind, order=order)
        assert_same(plan.compile()(X), expected)
        assert plan.counts.muls >= 0
        assert plan.count("flops").flops > 0
        assert "fun" in str(plan)


def test_plans_of_operators_with_options() -> None:
    """Each against JAX's own derivatives; a plan of shapes alone is the same one."""

    def energy(x: Any) -> Any:
        return jnp.sum(jnp.sin(x) * x) * jnp.sum(x**2)

    weights = np.linspace(1.0, 2.0, X.size).reshape(X.shape)
    flat = weights.ravel()
    slope = np.ravel(jax.jit(jax.grad(energy))(X))
    diagonal = np.diag(np.asarray(jax.jit(jax.hessian(energy))(X)).reshape(X.size, X.size))
    cases: list[tuple[str, dict[str, Any], Any]] = [
        ("hessian_diagonal", {}, diagonal.reshape(X.shape)),
        ("laplacian", {"weights": weights, "compress": False}, flat @ diagonal),
        (
            "second_order_operator",
            {"a": 2.0, "b": lambda x: x},
            2 * diagonal.sum() + X.ravel() @ slope,
        ),
        ("local_kinetic_energy", {"weights": weights}, -0.5 * (flat @ diagonal + flat @ slope**2)),
        ("forward_laplacian", {"weights": weights}, flat @ diagonal),
    ]
    for kind, options, expected in cases:
        plan = make_plan(energy, X, kind=kind, options=options)
        found = plan.compile()(X)
        assert_same(found.laplacian if kind == "forward_laplacian" else found, expected)
        abstract = jax.ShapeDtypeStruct(X.shape, X.dtype)
        counts = count_ops(energy, abstract, kind=kind, options=options)
        assert counts.muls == plan.counts.muls > 0
        assert computational_graph(energy, X, kind=kind).fingerprint == plan.fingerprint
        orders = ("reverse", "auto")
        compared = compare_orders(energy, abstract, kind=kind, options=options, orders=orders)
        assert compared.rows[1].muls == counts.muls
        assert compared.vertices == len(plan.graph.eliminable)


def test_comparison_runs_operators_with_their_coefficients() -> None:
    """Weights, and functions of the arguments, are inputs of what is timed."""

    def energy(x: Any) -> Any:
        return jnp.sum(jnp.sin(x) * x) * jnp.sum(x**2)

    for kind, options in (
        ("laplacian", {"weights": np.linspace(1.0, 2.0, X.size)}),
        ("second_order_operator", {"a": 1.0, "b": lambda x: jnp.cos(x)}),
    ):
        orders = ("forward", "jax.loop") if kind == "laplacian" else ("forward", "reverse")
        compared = compare_orders(
            energy, X, kind=kind, options=options, orders=orders, measure=True
        )
        assert all(row.seconds is not None and row.seconds > 0 for row in compared.rows)
        assert compared.best in orders


def test_what_a_kind_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'weigths'.*'laplacian'.*'weights', 'seeds'"):
        make_plan(jnp.sum, X, kind="laplacian", options={"weigths": X})
    with pytest.raises(InvalidArgumentError, match=r"a, b and c are all None"):
        make_plan(jnp.sum, X, kind="second_order_operator")
    with pytest.raises(InvalidArgumentError, match=r"'hessian_diagonal'.*kind='jacobian'"):
        count_ops(jnp.sum, X, kind="hessian_vector_product")


def test_strict_operators() -> None:
    def looped(x: Any) -> Any:
        return jax.lax.fori_loop(0, 9, lambda _, y: jnp.sin(y) + y, jnp.sum(x))

    for operator in (
        hessian_diagonal(looped, strict=True),
        local_kinetic_energy(looped, strict=True),
        second_order_operator(looped, a=1.0, strict=True),
    ):
        with pytest.raises(FallbackError, match="test_interface"):
            operator(X)


LISTING = """
import jax.numpy as jnp, numpy as np
from graphax_lapl import make_plan
def fun(x, w):
    return jnp.sum(jnp.tanh(x @ w) * x[:2]) * jnp.exp(x), jnp.sort(x)
for kind in ("jacobian", "laplacian", "hessian"):
    plan = make_plan(fun, np.ones(3), np.ones((3, 2)), argnums=(0, 1), kind=kind)
    print(plan)
    for instruction in plan.program.instructions:
        print(instruction, instruction.inputs, instruction.outputs)
"""


@pytest.mark.slow
def test_the_same_plan_in_every_process() -> None:
    """Instructions do not depend on Python's random hashes."""
    texts = []
    for seed in ("1", "2"):
        environment = {
            "PYTHONHASHSEED": seed,
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": ":".join(sys.path),
        }
        found = subprocess.run(
            [sys.executable, "-c", LISTING], env=environment, capture_output=True, text=True
        )
        assert found.returncode == 0, found.stderr
        texts.append(found.stdout)
    assert texts[0] == texts[1]
    assert len(texts[0].splitlines()) > 50


# ---------------------------------------------------------------- sparse Hessians


@pytest.mark.slow
def test_sparse_hessian_keeps_structure() -> None:
    def chain(x: Any) -> Any:
        return jnp.sum((x[1:] - x[:-1] ** 2) ** 2)

    result = hessve(chain, sparse_representation=True)(np.linspace(0.1, 1.0, 12))
    assert isinstance(result, SparseJacobian)
    assert result.shape == (12, 12)
    assert result.nse <= 3 * 12
    entries = result.to_bcoo()
    assert len(np.unique(entries.indices, axis=0)) == result.nse
    assert_same(entries.todense(), jax.hessian(chain)(np.linspace(0.1, 1.0, 12)))


def test_nested_hessian_as_jax_has_it() -> None:
    def fun(p: Any, x: Any) -> Any:
        return [jnp.sum(p["w"] ** 2) * x, {"s": jnp.sum(p["w"] * x[:2]) ** 2}]

    args = ({"w": X[:2]}, X)
    for argnums in (0, (0,), (1, 0), (0, 1)):
        ours, theirs = (
            hessve(fun, argnums=argnums)(*args),
            jax.jit(jax.hessian(fun, argnums))(*args),
        )
        assert_same(ours, theirs)
