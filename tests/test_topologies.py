"""Odd shapes of graphs: aliases among inputs and outputs, parallel edges, pytrees, empty arrays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import computational_graph, count_ops, jacve, value_and_jacve
from tests.checks import ORDERS, assert_same, check_orders

V = np.array([0.3, -0.7, 1.1])
W = np.array([0.5, 0.2, -0.4])
M = np.array([[0.2, -0.3, 0.8], [0.4, 0.9, -0.6]])
S = np.float64(0.6)


@dataclass
class Case:
    """A function, its arguments, and what it is differentiated with respect to."""

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    argnums: Any = 0
    kwargs: dict[str, Any] = field(default_factory=dict)


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    weight: Any
    bias: Any


def feeding_output(x: Any) -> Any:
    y = jnp.sin(x)
    return y, jnp.exp(y), y * x


def chain_of_outputs(x: Any) -> Any:
    a = jnp.sin(x)
    b = a * a
    c = b + a
    return [a, b, c, b]


def nested_helpers(x: Any, y: Any) -> Any:
    inner = jax.jit(lambda a, b: (jnp.sin(a) * b, a))
    outer = jax.jit(lambda a, b: inner(inner(a, b)[0], b))
    return outer(x, y)[0] + inner(x, y)[1]


OUTPUTS = {
    "output feeds other outputs": Case(feeding_output, (V,)),
    "chain in which everything is returned": Case(chain_of_outputs, (V,)),
    "input returned": Case(lambda x: x, (V,)),
    "scalar input returned": Case(lambda x: x, (S,)),
    "input returned beside a computation": Case(lambda x: (x, jnp.sin(x)), (M,)),
    "one of two inputs returned": Case(lambda x, y: (y, x * y), (V, W), (0, 1)),
    "inputs swapped": Case(lambda x, y: (y, x), (V, S), (0, 1)),
    "same output twice": Case(lambda x: (lambda y: (y, y))(jnp.tanh(x)), (V,)),
    "input returned twice": Case(lambda x: (x, x), (V,)),
    "two equal computations returned": Case(lambda x: (jnp.sin(x), jnp.sin(x)), (V,)),
    "constant array output": Case(lambda x: (jnp.arange(3.0), jnp.sin(x)), (V,)),
    "literal output": Case(lambda x: (jnp.float64(2.0), x * x), (S,)),
    "only constant outputs": Case(lambda x: jnp.ones((2, 2)), (V,)),
    "output of another argument only": Case(lambda x, y: jnp.sin(y), (V, W)),
    "unused input": Case(lambda x, y: jnp.sin(x), (V, W), (0, 1)),
    "None among outputs": Case(lambda x: (None, jnp.sin(x)), (V,)),
    "result of an identity chain": Case(lambda x: x.reshape(3, 1).reshape(3), (V,)),
    "derivative cut by stop_gradient": Case(lambda x: lax.stop_gradient(jnp.sin(x)), (V,)),
    "derivative cut in one branch": Case(lambda x: x * lax.stop_gradient(x), (V,)),
    "derivative through integers": Case(lambda x: jnp.round(x).astype(int).astype(float), (V,)),
}

EDGES = {
    "x * x": Case(lambda x: x * x, (V,)),
    "x + x": Case(lambda x: x + x, (V,)),
    "x - x": Case(lambda x: x - x, (V,)),
    "x / x": Case(lambda x: x / x, (V,)),
    "x ** x": Case(lambda x: jnp.exp(x) ** jnp.exp(x), (V,)),
    "maximum(x, x)": Case(lambda x: jnp.maximum(x, x), (V,)),
    "dot(x, x)": Case(lambda x: jnp.dot(x, x), (V,)),
    "concatenate of itself": Case(lambda x: jnp.concatenate([x, x, x]), (V,)),
    "select of itself": Case(lambda x: jnp.where(x > 0, x, x), (V,)),
    "squared twice": Case(lambda x: (x * x) * (x * x), (V,)),
    "parallel paths that cancel": Case(lambda x: jnp.sin(x) * x - x * jnp.sin(x), (V,)),
    "parallel paths of unit edges": Case(lambda x: (x + 1.0) + (x - 1.0) + (-x), (V,)),
    "paths of different shapes": Case(lambda x: x.sum() * x + x[::-1] * x[0], (V,)),
    "diagonal plus dense": Case(lambda x: jnp.exp(x) + jnp.outer(x, x) @ x, (V,)),
    "transposed paths": Case(lambda x: x[:, :2] @ x[:, :2].T + x[:, :2] * x[:, :2].T, (M,)),
    "wide fan-out": Case(lambda x: sum(jnp.sin(k * x) for k in range(1, 8)), (V,)),
    "long chain": Case(lambda x: _repeat(x, 40), (S,)),
}


def _repeat(x: Any, times: int) -> Any:
    for k in range(times):
        x = jnp.sin(x) if k % 2 else x + 0.1
    return x


INPUTS = {
    "dictionary in, dictionary out": Case(
        lambda p: {"y": p["a"] * p["b"].sum(), "z": {"s": p["b"][0]}}, ({"b": V, "a": S},)
    ),
    "tuple and list": Case(lambda p: [p[0] * p[1][0], (p[1][1],)], ((S, [V, W]),)),
    "None leaves": Case(lambda p: {"a": None, "b": p["x"] ** 2}, ({"x": V, "n": None},)),
    "named tuples": Case(lambda p: Pair(p.second, p.first * 2.0), (Pair(S, V),)),
    "dataclass of weights": Case(
        lambda layer, x: jnp.tanh(layer.weight @ x + layer.bias), (Layer(M, M[:, 0]), V), (0, 1)
    ),
    "empty container": Case(lambda p, x: jnp.sin(x), ({}, V), (0, 1)),
    "integer side input": Case(lambda x, i: x[i] * i.astype(float), (V, np.int64(2))),
    "integer array side input": Case(lambda x, i: x[i], (V, np.array([2, 0, 0, -1]))),
    "boolean side input": Case(lambda x, keep: jnp.where(keep, x, 0.0), (V, V > 0)),
    "key as side input": Case(
        lambda x, key: x * jax.random.normal(key, x.shape), (V, jax.random.key(0))
    ),
    "draws of a moving distribution": Case(
        lambda x, key: jnp.where(
            jax.random.bernoulli(key, x / 9.0), x, jax.random.rayleigh(key, x)
        ),
        (V**2 + 0.1, jax.random.key(0)),
    ),
    "integer beside a float in another argument": Case(
        lambda x, p: x * p["scale"] + p["shift"], (V, {"scale": 2.5, "shift": np.arange(3.0)})
    ),
    "argnums reversed": Case(lambda x, y: jnp.outer(x, y), (V, M[:, 0]), (1, 0)),
    "argnums negative": Case(lambda x, y: jnp.outer(x, y), (V, M[:, 0]), -1),
    "argnums as a tuple of one": Case(lambda x, y: x * y, (V, W), (1,)),
    "argnums skipping": Case(lambda x, y, z: x * y * z, (V, S, W), (2, 0)),
    "argnums negative and reversed": Case(lambda x, y, z: x * y * z, (V, S, W), (-1, 0)),
    "argnums as a list": Case(lambda x, y: x * y, (V, W), [0, 1]),
    "keyword array": Case(lambda x, *, scale: x * scale, (V,), 0, {"scale": W}),
    "keyword dictionary": Case(
        lambda x, *, p: x * p["s"] + p["t"], (V,), 0, {"p": {"s": S, "t": W}}
    ),
    "keyword integer": Case(lambda x, n=1: jnp.roll(x, 1) * n, (V,), 0, {"n": 3}),
    "variable positional arguments": Case(lambda *xs: xs[0] * xs[2], (V, W, S), (0, 2)),
    "Python scalars": Case(lambda x, y: jnp.sin(x) * y, (0.5, 2.0), (0, 1)),
    "numpy scalars": Case(lambda x, y: x * x * y, (np.float64(0.5), np.float64(2.0)), (0, 1)),
    "partial application": Case(partial(lambda c, x: c * jnp.sin(x), 2.0), (V,)),
    "bound method": Case(jnp.asarray(V).dot, (V,)),
}

SIZES = {
    "empty vector": Case(lambda x: jnp.sin(x) * 2.0, (np.zeros(0),)),
    "sum of an empty vector": Case(lambda x: jnp.sum(jnp.sin(x)), (np.zeros(0),)),
    "empty matrix product": Case(lambda x: x @ x.T, (np.zeros((2, 0)),)),
    "product with an empty side": Case(lambda x: x.T @ x, (np.zeros((0, 2)),)),
    "empty slice": Case(lambda x: x[1:1] * 2.0, (V,)),
    "concatenate with an empty part": Case(lambda x: jnp.concatenate([x, x[:0], x[1:]]), (V,)),
    "empty beside full": Case(lambda x, y: (x, y.sum() + x.sum()), (np.zeros((0, 3)), V), (0, 1)),
    "one-element vector": Case(lambda x: jnp.sin(x) * x, (V[:1],)),
    "one-element vector to scalar": Case(lambda x: jnp.squeeze(x) * x[0], (V[:1],)),
    "scalar to matrix": Case(lambda x: x * M, (S,)),
    "broadcast of size 1": Case(lambda x: x + M, (M[:, :1],)),
    "four dimensions": Case(
        lambda x: jnp.einsum("abcd,dc->abd", x, x[0, 0]),
        (np.arange(8.0).reshape(1, 1, 2, 4)[..., :2],),
    ),
    "softmax of one number": Case(jax.nn.softmax, (V[:1],)),
}

NESTING = {
    "jit in jit": Case(nested_helpers, (V, W), (0, 1)),
    "jitted function itself": Case(jax.jit(lambda x: jnp.sin(x) * x), (V,)),
    "one helper with constant and traced arguments": Case(
        lambda x: (lambda h: h(x, 1.0) + h(1.0, x))(jax.jit(lambda a, b: a / (b + 2.0))), (V,)
    ),
    "jit that returns its input": Case(lambda x: jax.jit(lambda a: (a, a))(x)[1] * x, (V,)),
    "jit with a constant result": Case(lambda x: x * jax.jit(lambda a: jnp.float64(3.0))(x), (V,)),
    "checkpoint": Case(jax.checkpoint(lambda x: jnp.sin(jnp.exp(x))), (V,)),
    "jit in checkpoint in jit": Case(
        jax.jit(jax.checkpoint(jax.jit(lambda x: jnp.sin(x) * x))), (V,)
    ),
    "static argument": Case(lambda x: jax.jit(lambda a, n: a**n, static_argnums=1)(x, 3), (V,)),
    "vmap inside": Case(jax.vmap(lambda row: jnp.sin(row) * row.sum()), (M,)),
    "vmap of two axes": Case(jax.vmap(jnp.outer, (0, 1), 2), (M, M.T), (0, 1)),
    "grad inside": Case(lambda x: jax.grad(lambda a: jnp.sum(jnp.sin(a) ** 3))(x), (V,)),
    "jvp inside": Case(lambda x: jax.jvp(jnp.tanh, (x,), (x * x,)), (V,)),
    "hessian inside": Case(lambda x: jax.hessian(lambda a: jnp.prod(jnp.sin(a)))(x), (V,)),
    "optimization barrier": Case(lambda x: lax.optimization_barrier(jnp.sin(x)) * x, (V,)),
    "named scope": Case(lambda x: _named(x), (V,)),
}


def _named(x: Any) -> Any:
    with jax.named_scope("block"):
        return jnp.sin(x) * x


CASES = {
    f"{group}: {name}": case
    for group, cases in (
        ("outputs", OUTPUTS),
        ("edges", EDGES),
        ("inputs", INPUTS),
        ("sizes", SIZES),
        ("nesting", NESTING),
    )
    for name, case in cases.items()
}

in_every_case = pytest.mark.parametrize("name", CASES)


@in_every_case
def test_every_order(name: str) -> None:
    case = CASES[name]
    check_orders(
        case.fun,
        *case.args,
        argnums=case.argnums,
        orders=(*ORDERS, "fwd", "rev"),
        tolerance=1e-12,
        context=name,
        **case.kwargs,
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if k % 3 else pytest.mark.smoke) for k, n in enumerate(CASES)],
)
def test_eagerly_with_value(name: str) -> None:
    case = CASES[name]
    both = value_and_jacve(case.fun, argnums=case.argnums)
    value, jacobian = both(*case.args, **case.kwargs)
    expected = jax.tree.map(jnp.asarray, case.fun(*case.args, **case.kwargs))
    assert_same(value, expected, tolerance=1e-14, context=name)
    reference = jax.jit(jax.jacfwd(case.fun, case.argnums))(*case.args, **case.kwargs)
    assert_same(jacobian, reference, tolerance=1e-12, context=name)


@in_every_case
def test_counts_without_running(name: str) -> None:
    """Every case can be drawn and counted; counts are non-negative and the table has its rows."""
    case = CASES[name]
    graph = computational_graph(case.fun, *case.args, argnums=case.argnums, **case.kwargs)
    graph.to_networkx()
    assert str(graph)
    for convention in ("ad", "flops"):
        counts = count_ops(
            case.fun, *case.args, argnums=case.argnums, convention=convention, **case.kwargs
        )
        assert counts.muls >= 0
        assert counts.adds >= 0
        assert counts.bytes >= 0


def test_has_aux() -> None:
    def fun(x: Any, y: Any) -> Any:
        z = jnp.sin(x) * y
        return z, {"z": z, "n": 3}

    jacobian, aux = jacve(fun, argnums=(0, 1), has_aux=True)(V, W)
    expected, expected_aux = jax.jit(jax.jacfwd(fun, (0, 1), has_aux=True))(V, W)
    assert_same(jacobian, expected)
    assert_same(aux["z"], expected_aux["z"])
    assert aux["n"] == 3
    (value, aux), jacobian = value_and_jacve(fun, argnums=(0, 1), has_aux=True)(V, W)
    assert_same(value, fun(V, W)[0])
    assert_same(aux["z"], value)
    assert_same(jacobian, expected)


def test_count_ops_beside_the_jacobian() -> None:
    def fun(x: Any) -> Any:
        return jnp.sin(x) * x, {"input": x}

    expected = jax.jit(jax.jacfwd(lambda x: fun(x)[0]))(V)
    jacobian, counts = jacve(lambda x: fun(x)[0], order="reverse", count_ops=True)(V)
    assert_same(jacobian, expected)
    assert counts.muls == count_ops(lambda x: fun(x)[0], V, order="reverse").muls
    jacobian, aux, counts = jacve(fun, order="reverse", has_aux=True, count_ops=True)(V)
    assert_same(jacobian, expected)
    assert_same(aux, {"input": jnp.asarray(V)})
    assert counts.muls == count_ops(lambda x: fun(x)[0], V, order="reverse").muls


def test_custom_vjp_uses_the_backward_pass() -> None:
    """Forward mode is not defined for it; jax.jacrev is the reference."""

    @jax.custom_vjp
    def clipped_slope(x: Any) -> Any:
        return x**3

    clipped_slope.defvjp(lambda x: (x**3, x), lambda x, ct: (jnp.clip(3.0 * x**2, 0.0, 1.0) * ct,))
    fun = lambda x: jnp.sin(clipped_slope(x)) * x  # noqa: E731
    expected = jax.jit(jax.jacrev(fun))(V)
    for order in ORDERS:
        assert_same(jacve(fun, order=order)(V), expected, tolerance=1e-12, context=order)


def test_custom_jvp_uses_the_users_rule() -> None:
    """A straight-through rounding: the body's derivative is zero, the rule's is one."""

    @jax.custom_jvp
    def straight_through(x: Any) -> Any:
        return jnp.round(x)

    straight_through.defjvp(lambda primals, tangents: (jnp.round(primals[0]), tangents[0]))
    for order in ORDERS:
        result = jacve(lambda x: straight_through(x) * 2.0, order=order)(V)
        assert_same(result, jnp.diag(jnp.full(3, 2.0)), context=order)


def test_function_is_traced_once_per_signature() -> None:
    """A second call with the same shapes asks Python for the function at most once more."""
    calls = []

    def fun(x: Any) -> Any:
        calls.append(x.shape)
        return jnp.sin(x) * x

    jacobian = jacve(fun)
    jacobian(V)
    first = len(calls)
    jacobian(W)
    assert len(calls) - first <= 1
