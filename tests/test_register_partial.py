"""Rules of users: every kind of partial, for primitives and functions, and what is refused."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from graphax_lapl import (
    InvalidArgumentError,
    InvalidOrderError,
    InvalidTypeError,
    check_derivatives,
    computational_graph,
    hessve,
    jacve,
    laplacian_ve,
    register_partial,
    unregister_partial,
)
from tests.checks import check_orders

X = np.linspace(0.2, 1.4, 12).reshape(3, 4)
W = np.linspace(-1.0, 1.0, 24).reshape(3, 4, 2)


@pytest.fixture
def register() -> Iterator[Callable[..., None]]:
    """Registers, and forgets at the end."""
    targets: list[Any] = []

    def call(target: Any, *args: Any, **kwargs: Any) -> None:
        register_partial(target, *args, **kwargs)
        if target not in targets:
            targets.append(target)

    yield call
    for target in targets:
        unregister_partial(target)


def primitive(name: str, fun: Callable[..., Any], drop: int = 0) -> Primitive:
    """A primitive that JAX itself cannot differentiate."""
    made = Primitive(name)
    made.def_impl(fun)

    @made.def_abstract_eval
    def _(*types: Any, **params: Any) -> Any:
        shape = np.broadcast_shapes(*(type_.shape for type_ in types))
        return types[0].update(shape=shape[: len(shape) - drop])

    mlir.register_lowering(made, mlir.lower_fun(fun, multiple_results=False))
    batching.defbroadcasting(made)
    return made


@jax.jit
def scaled_sine(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sin(x) * y


@jax.jit
def normalized(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x)


@jax.jit
def applied(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.einsum("bi,bio->bo", x, w)


@jax.jit
def weighted(x: jax.Array) -> jax.Array:
    return jnp.cumsum(x, axis=1) * 2.0 - x[:, ::-1]


SOFTMAX = [
    ("... i -> ... i", lambda out: out),
    ("... i -> ... o", lambda out: -out[..., :, None] * out[..., None, :]),
]


def use(register: Callable[..., None], kind: str) -> Callable[..., Any]:
    """A function around a registered one."""
    if kind == "elementwise":
        register(scaled_sine, (lambda x, y: jnp.cos(x) * y, lambda x: jnp.sin(x)))
        return lambda x: jnp.exp(scaled_sine(x, 2 * x)) * x
    if kind == "block":
        register(normalized, SOFTMAX)
        return lambda x: jnp.sin(normalized(x * x))
    if kind == "bilinear":
        register(applied, bilinear=True, dimensions=("b i -> b o", "b i o -> b o"))
        return lambda x: jnp.sin(applied(jnp.exp(x), W * x[..., None]))
    register(weighted, linear=True, dimensions="b i -> b o")
    return lambda x: jnp.sin(weighted(jnp.exp(x)))


KINDS = ("elementwise", "block", "bilinear", "linear")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_first_and_second_derivatives(kind: str, register: Callable[..., None]) -> None:
    fun = use(register, kind)
    names = [vertex.primitive for vertex in computational_graph(fun, X).vertices]
    assert names.count("jit") == 1
    check_orders(fun, X)
    report = check_derivatives(fun, X)
    assert report.ok, report


@pytest.mark.parametrize("kind", KINDS)
def test_transformed_calls_are_not_mistaken(kind: str, register: Callable[..., None]) -> None:
    """`vmap` and `grad` keep the name of a jitted function and change what it computes."""
    fun = use(register, kind)
    if kind == "elementwise":
        check_orders(jax.vmap(fun), X)
    check_orders(jax.grad(lambda x: jnp.sum(fun(x) ** 2)), X)


def test_structure_is_what_was_said(register: Callable[..., None]) -> None:
    fun = use(register, "linear")
    block = jacve(fun, sparse_representation=True)(X)
    assert block.nse == 3 * 4 * 4


@pytest.mark.slow
def test_the_rule_is_used_and_checked(register: Callable[..., None]) -> None:
    """A wrong rule gives what it says, and the report sees it."""
    register(scaled_sine, (lambda x, y: 1.01 * jnp.cos(x) * y, lambda x: jnp.sin(x)))
    report = check_derivatives(lambda x: scaled_sine(x, x * x), X[0])
    assert not report.ok
    assert "WRONG" in str(report)
    register(scaled_sine, (lambda x, y: jnp.cos(x) * y, lambda x: jnp.sin(x)))
    assert check_derivatives(lambda x: scaled_sine(x, x * x), X[0]).ok


def test_primitives_without_a_rule_in_jax(register: Callable[..., None]) -> None:
    """First and second derivatives come from the given functions alone."""
    cube = primitive("cube_of_the_test", lambda x: x * x * x)
    register(cube, lambda x: 3 * x**2)
    expected = jax.jit(jax.hessian(lambda x: jnp.sin(x**3) @ x))(X[0])

    def fun(x: jax.Array) -> jax.Array:
        return jnp.sin(cube.bind(x)) @ x

    np.testing.assert_allclose(hessve(fun)(X[0]), expected, atol=1e-12)
    np.testing.assert_allclose(laplacian_ve(fun)(X[0]), np.trace(expected), atol=1e-12)


def test_linear_primitive_without_a_rule_in_jax(register: Callable[..., None]) -> None:
    double = primitive("double_and_add_of_the_test", lambda x, y: 2.0 * x + y)
    register(double, linear=True)

    def fun(x: jax.Array) -> jax.Array:
        return double.bind(jnp.sin(x), x * x)

    check = jax.jit(jax.jacfwd(lambda x: 2 * jnp.sin(x) + x * x))(X[0])
    np.testing.assert_allclose(jacve(fun, order="forward")(X[0]), check, atol=1e-12)
    np.testing.assert_allclose(jacve(fun, order="reverse")(X[0]), check, atol=1e-12)


@pytest.mark.slow
def test_second_partials_of_blocks(register: Callable[..., None]) -> None:
    """A primitive that only its rules can differentiate, with a closed second derivative."""
    form = primitive("form_of_the_test", lambda x, y: jnp.sum(x * x * y, -1), drop=1)
    register(
        form,
        (("b i -> b", lambda x, y: 2 * x * y), ("b i -> b", lambda x: x * x)),
        second_partials={
            (0, 0): ("b i, b i -> b", lambda x, y: 2 * y),
            (0, 1): ("b i, b i -> b", lambda x: 2 * x),
        },
    )

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: jnp.sin(call(jnp.exp(x), x**3))

    fun = around(form.bind)
    expected = jax.hessian(around(lambda x, y: jnp.sum(x * x * y, -1)))(X)
    np.testing.assert_allclose(hessve(fun, strict=True)(X), expected, atol=1e-11)
    trace = jnp.einsum("kabab->k", expected)
    np.testing.assert_allclose(laplacian_ve(fun, strict=True)(X), trace, atol=1e-11)


@pytest.mark.parametrize(
    ("partials", "match"),
    [
        (lambda x: x[0], r"has shape \(4,\), expected \(3, 4\)"),
        (("... i -> ... o", lambda out: out), r"has shape \(3, 4\), expected \(3, 4, 4\)"),
        (("i -> i", lambda out: out), "Name every dimension"),
        (("i j -> j i", lambda out: out), "has size 4 in one array and 3 in another"),
        ((lambda x: x, None), "registered with 2 partials, but it is called with 1 operands"),
        (lambda x: x > 0, "dtype bool"),
    ],
)
def test_wrong_partials_are_named(partials: Any, match: str, register: Callable[..., None]) -> None:
    register(normalized, partials)
    with pytest.raises(InvalidArgumentError, match=match):
        jacve(normalized)(X)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((normalized,), {}, InvalidArgumentError, "exactly one"),
        ((normalized, 1), {"linear": True}, InvalidArgumentError, "exactly one"),
        ((normalized, 1), {"dimensions": "i -> i"}, InvalidArgumentError, "says its own"),
        ((3, 1), {}, InvalidTypeError, "primitive or a function"),
        (("normalized", 1), {}, InvalidTypeError, "got str 'normalized'. Pass the function itself"),
        ((normalized, "x"), {}, InvalidTypeError, "must be a function"),
        ((normalized, ("i j", 1)), {}, InvalidArgumentError, "no single"),
        ((normalized, ("i i -> i", 1)), {}, InvalidArgumentError, "stands twice"),
        ((normalized, ("i ... -> i", 1)), {}, InvalidArgumentError, "leading"),
        ((normalized, ("... -> i", 1)), {}, InvalidArgumentError, "the output has it too"),
    ],
)
def test_wrong_registrations(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        register_partial(*arguments, **options)


def test_another_function_of_the_same_name(register: Callable[..., None]) -> None:
    """A rule belongs to a function, not to its name."""

    def named_alike(x: jax.Array) -> jax.Array:
        return x @ jnp.ones(3)

    def other(x: jax.Array) -> jax.Array:
        return x * x

    other.__name__ = named_alike.__name__
    register(named_alike, linear=True, dimensions=("i -> ",))
    check_orders(lambda x: jax.jit(other)(jnp.sin(x)), np.float64(0.3))


def test_forgetting_what_is_not_there() -> None:
    with pytest.raises(InvalidArgumentError, match="Nothing is registered"):
        unregister_partial(weighted)


def test_compressed_evaluation_would_not_follow_a_rule(register):
    fun = use(register, "elementwise")
    with pytest.raises(InvalidOrderError, match=r"order='compressed'.*register_partial"):
        jacve(fun, "compressed")(X)


def test_parameters_that_differ_in_the_sign_of_zero(register: Callable[..., None]) -> None:
    towards = primitive("towards", lambda x, *, side: x * jnp.copysign(1.0, side))
    register(towards, lambda x, params: jnp.full_like(x, np.copysign(1.0, params["side"])))
    found = jacve(lambda x: (towards.bind(x, side=0.0), towards.bind(x, side=-0.0)))(X[0, 0])
    assert [float(entry) for entry in found] == [1.0, -1.0]
