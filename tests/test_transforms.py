"""The result is an ordinary JAX function: every transformation applies to it and inside it."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import InvalidArgumentError, jacve, value_and_jacve
from tests.checks import ORDERS, assert_same, check_orders

X = np.array([0.4, -0.3, 0.9])
BATCH = np.linspace(-1.0, 1.0, 12).reshape(4, 3)
MATRIX = np.array([[0.5, -0.2], [0.3, 0.8], [-0.6, 0.1]])


def vector_function(x: jax.Array) -> jax.Array:
    """Mixes elementwise work, a contraction, slices and a reduction; (3,) -> (4,)."""
    h = jnp.tanh(jnp.asarray(MATRIX.T, x.dtype) @ x)
    return jnp.concatenate([jnp.sin(x[1:]) * h, h[::-1] * x.sum()])


def two_arguments(x: jax.Array, w: jax.Array) -> jax.Array:
    """A small layer; (3,), (3, 2) -> (2,)."""
    return jax.nn.silu(x @ w) * x[0]


in_every_order = pytest.mark.parametrize("order", ORDERS)


# ---------------------------------------------------------------- transformations of the result


@pytest.mark.smoke
@in_every_order
def test_jit(order: str) -> None:
    eager = jacve(vector_function, order=order)(X)
    compiled = jax.jit(jacve(vector_function, order=order))(X)
    assert_same(compiled, eager, tolerance=1e-14)
    assert_same(compiled, jax.jit(jax.jacrev(vector_function))(X))


@in_every_order
@pytest.mark.parametrize(
    ("in_axis", "out_axis"),
    [(0, 0), (1, 0), (0, 1), pytest.param(1, 2, marks=pytest.mark.smoke), (-1, -1)],
)
def test_vmap_axes(order: str, in_axis: int, out_axis: int) -> None:
    batch = np.moveaxis(BATCH, 0, in_axis)

    def batched(jacobian: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(jacobian(vector_function), in_axis, out_axis)

    result = jax.jit(batched(lambda fun: jacve(fun, order=order)))(batch)
    assert_same(result, jax.jit(batched(jax.jacrev))(batch))


@in_every_order
def test_vmap_over_one_of_two_arguments(order: str) -> None:
    for axes in ((0, None), (None, 0)):
        args = (BATCH, MATRIX) if axes[0] == 0 else (X, np.stack([MATRIX, 2.0 * MATRIX]))
        result = jax.vmap(jacve(two_arguments, order=order, argnums=(0, 1)), axes)(*args)
        assert_same(result, jax.jit(jax.vmap(jax.jacrev(two_arguments, (0, 1)), axes))(*args))


@in_every_order
@pytest.mark.parametrize("one", [two_arguments, lambda x, w: x.sum() * jnp.sin(w)])
def test_batch_that_a_compiled_function_closes_over(order: str, one: Callable[..., Any]) -> None:
    """There `jax.vmap` hands on arrays of numpy, which JAX's rules for derivatives refuse."""

    @jax.jit
    def both(w: jax.Array) -> list[Any]:
        found = []
        for jacobian in (jacve(one, order=order), jax.jacrev(one)):
            inside = jax.vmap(lambda x, j=jacobian: j(x, w))(BATCH)
            found.append((jax.vmap(jacobian, (0, None))(BATCH, w), inside))
        return found

    assert_same(*both(MATRIX))


@in_every_order
def test_nested_vmap(order: str) -> None:
    grid = BATCH.reshape(2, 2, 3)
    result = jax.vmap(jax.vmap(jacve(vector_function, order=order)))(grid)
    assert_same(result, jax.jit(jax.vmap(jax.vmap(jax.jacrev(vector_function))))(grid))


@in_every_order
def test_vmap_inside_and_outside(order: str) -> None:
    def fun(batch: jax.Array) -> jax.Array:
        return jax.vmap(vector_function)(batch).sum(0)

    stack = np.stack([BATCH, BATCH + 0.1])
    result = jax.jit(jax.vmap(jacve(fun, order=order)))(stack)
    assert_same(result, jax.jit(jax.vmap(jax.jacrev(fun)))(stack))


@in_every_order
def test_grad_of_a_function_of_the_jacobian(order: str) -> None:
    def size(jacobian: Callable[..., Any]) -> Callable[[jax.Array], jax.Array]:
        return lambda x: jnp.sum(jnp.sin(jacobian(vector_function)(x)) ** 2)

    result = jax.jit(jax.grad(size(lambda fun: jacve(fun, order=order))))(X)
    assert_same(result, jax.jit(jax.grad(size(jax.jacrev)))(X))


@pytest.mark.slow
@in_every_order
def test_jvp_and_vjp(order: str) -> None:
    direction = np.array([1.0, -2.0, 0.5])
    ours, theirs = jacve(vector_function, order=order), jax.jit(jax.jacrev(vector_function))
    assert_same(jax.jvp(ours, (X,), (direction,)), jax.jvp(theirs, (X,), (direction,)))
    value, pull = jax.vjp(ours, X)
    reference, pull_reference = jax.vjp(theirs, X)
    assert_same(value, reference)
    weights = np.cos(np.arange(12.0)).reshape(4, 3)
    assert_same(pull(weights), pull_reference(weights))


@in_every_order
@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev])
def test_jacobian_of_the_jacobian_by_jax(order: str, outer: Callable[..., Any]) -> None:
    result = jax.jit(outer(jacve(vector_function, order=order)))(X)
    assert_same(result, jax.jit(jax.jacfwd(jax.jacrev(vector_function)))(X))


@pytest.mark.smoke
@in_every_order
def test_hessian_by_nesting(order: str) -> None:
    def scalar(x: jax.Array) -> jax.Array:
        return jnp.prod(vector_function(x)) + jnp.sum(jnp.exp(x) * x**2)

    for inner in ("reverse", "forward"):
        result = jax.jit(jacve(jacve(scalar, order=inner), order=order))(X)
        assert_same(result, jax.jit(jax.hessian(scalar))(X))


def test_third_derivative_by_nesting() -> None:
    def fun(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * jnp.exp(x)

    assert_same(
        jacve(jacve(jacve(fun)))(0.7), jax.jit(jax.jacfwd(jax.jacfwd(jax.jacfwd(fun))))(0.7)
    )


def test_hessian_of_two_arguments() -> None:
    def scalar(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(two_arguments(x, w) ** 2)

    result = jax.jit(jacve(jacve(scalar, argnums=(0, 1)), argnums=(0, 1)))(X, MATRIX)
    assert_same(result, jax.jit(jax.hessian(scalar, (0, 1)))(X, MATRIX))


@in_every_order
def test_lax_map(order: str) -> None:
    result = lax.map(jacve(vector_function, order=order), BATCH)
    assert_same(result, jax.jit(jax.vmap(jax.jacrev(vector_function)))(BATCH))


def test_inside_a_scan() -> None:
    def newton(jacobian: Callable[..., Any]) -> Callable[[jax.Array], jax.Array]:
        def residual(x: jax.Array) -> jax.Array:
            return x + 0.2 * jnp.sin(x[::-1]) - 0.5

        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return x - jnp.linalg.solve(jacobian(residual)(x), residual(x)), None

        return lambda x: lax.scan(step, x, None, length=4)[0]

    assert_same(newton(jacve)(X), newton(jax.jacrev)(X))
    assert_same(jax.jacfwd(newton(jacve))(X), jax.jacfwd(newton(jax.jacrev))(X))


def test_inside_cond_and_while() -> None:
    def fun(x: jax.Array) -> jax.Array:
        picked = lax.cond(x[0] > 0, jacve(vector_function), lambda x: jnp.zeros((4, 3)), x)
        return lax.fori_loop(0, 3, lambda i, j: j @ jacve(jnp.sin)(x), picked)

    diagonal = np.diag(np.cos(X) ** 3)
    assert_same(jax.jit(fun)(X), jax.jit(jax.jacrev(vector_function))(X) @ diagonal)


@pytest.mark.slow
def test_checkpoint_of_the_jacobian() -> None:
    def size(x: jax.Array) -> jax.Array:
        return jnp.sum(jax.checkpoint(jacve(vector_function))(x) ** 2)

    def reference(x: jax.Array) -> jax.Array:
        return jnp.sum(jax.jit(jax.jacrev(vector_function))(x) ** 2)

    assert_same(jax.grad(size)(X), jax.grad(reference)(X))


def test_lowering_for_export() -> None:
    """The compiled function contains no host callback."""
    text = jax.jit(jacve(vector_function)).lower(X).as_text()
    assert "callback" not in text


def test_abstract_evaluation() -> None:
    shape = jax.eval_shape(jacve(vector_function), jax.ShapeDtypeStruct((3,), np.float64))
    assert (shape.shape, shape.dtype) == ((4, 3), np.float64)


# ---------------------------------------------------------------- closures over tracers


@pytest.mark.leaks
@in_every_order
def test_closure_over_a_tracer_of_an_outer_jit(order: str) -> None:
    @jax.jit
    def outer(x: jax.Array, w: jax.Array) -> jax.Array:
        return jacve(lambda a: two_arguments(a, w), order=order)(x)

    assert_same(outer(X, MATRIX), jax.jit(jax.jacrev(two_arguments))(X, MATRIX))


@pytest.mark.slow
@in_every_order
def test_closure_over_a_tracer_of_an_outer_grad(order: str) -> None:
    def size(jacobian: Callable[..., Any]) -> Callable[[jax.Array], jax.Array]:
        return lambda w: jnp.sum(jacobian(lambda a: two_arguments(a, w))(X) ** 2)

    result = jax.grad(size(lambda fun: jacve(fun, order=order)))(MATRIX)
    assert_same(result, jax.grad(size(jax.jacrev))(MATRIX))


@pytest.mark.slow
@in_every_order
def test_closure_over_a_tracer_of_an_outer_vmap(order: str) -> None:
    def at(jacobian: Callable[..., Any]) -> Callable[[jax.Array], jax.Array]:
        return lambda c: jacobian(lambda a: vector_function(a * c) * c[0])(X)

    result = jax.vmap(at(lambda fun: jacve(fun, order=order)))(BATCH)
    assert_same(result, jax.vmap(at(jax.jacrev))(BATCH))


def test_closure_over_the_differentiated_value_of_an_outer_jacve() -> None:
    """An inner Jacobian at a fixed point, inside the function of an outer one."""

    def with_inner(jacobian: Callable[..., Any]) -> Callable[[jax.Array], jax.Array]:
        def outer(x: jax.Array) -> jax.Array:
            inner = jacobian(lambda a: jnp.sin(a) * x)(jnp.asarray(X))
            return inner @ x

        return jacobian(outer)

    assert_same(with_inner(jacve)(X + 0.1), with_inner(jax.jacrev)(X + 0.1))


def test_two_closures_with_the_same_graph_keep_their_own_constants() -> None:
    """Plans may be shared between calls, captured values may not."""

    def scaled(c: float) -> Callable[[jax.Array], jax.Array]:
        return lambda x: jnp.sin(x) * jnp.asarray([c, 2.0 * c, 3.0 * c])

    for c in (1.0, -2.5, 4.0):
        assert_same(jacve(scaled(c))(X), jax.jacrev(scaled(c))(X))


def test_side_input_may_change_between_calls() -> None:
    jacobian = jacve(lambda x, shift: jnp.roll(x, 1) * shift + lax.dynamic_slice(x, (1,), (1,)))
    reference = jax.jit(
        jax.jacrev(lambda x, s: jnp.roll(x, 1) * s + lax.dynamic_slice(x, (1,), (1,)))
    )
    for shift in (1.0, 2.0):
        assert_same(jacobian(X, shift), reference(X, shift))


# ---------------------------------------------------------------- precisions


@pytest.fixture
def x64_off() -> Iterator[None]:
    """JAX's default precision."""
    with jax.enable_x64(False):
        yield


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 3e-2), ("float16", 3e-3)]
)
def test_reduced_precision(dtype: str, tolerance: float) -> None:
    """Same dtype as JAX's, and as close to the float64 result as the precision allows."""
    x = jnp.asarray(X, dtype)
    exact = np.asarray(jax.jit(jax.jacrev(vector_function))(np.asarray(x, np.float64)))
    for order in ORDERS:
        result = jacve(vector_function, order=order)(x)
        assert result.dtype == jax.jit(jax.jacrev(vector_function))(x).dtype == jnp.dtype(dtype)
        assert_same(np.asarray(result, np.float64), exact, tolerance=tolerance, context=order)


def test_mixed_precision_through_conversion() -> None:
    def fun(x: jax.Array) -> jax.Array:
        return jnp.sin(x.astype(jnp.float32)).astype(jnp.float64) * x

    check_orders(fun, X, tolerance=1e-6)


@in_every_order
def test_conversion_that_changes_the_dtype_of_the_output(order: str) -> None:
    """jax.jacfwd returns the dtype of the output here, jax.jacrev that of the input."""
    result = jacve(lambda x: jnp.sin(x).astype(jnp.float64), order=order)(X.astype(np.float32))
    assert result.dtype in (np.float32, np.float64)
    assert_same(np.asarray(result, np.float64), np.diag(np.cos(X)), tolerance=1e-6)


@in_every_order
def test_several_precisions_of_inputs(order: str) -> None:
    def fun(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sin(x) * 2.0, jnp.exp(y) + x.astype(jnp.float64)

    result = jacve(fun, order=order, argnums=(0, 1))(X.astype(np.float32), X)
    zero, one = np.zeros((3, 3)), np.eye(3)
    expected = ((np.diag(2.0 * np.cos(X)), zero), (one, np.diag(np.exp(X))))
    assert_same(
        jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), result), expected, tolerance=1e-6
    )


@pytest.mark.smoke
def test_x64_switched_off(x64_off: None) -> None:
    result = jacve(vector_function)(X)
    assert result.dtype == jnp.float32
    assert_same(result, jax.jit(jax.jacrev(vector_function))(X), tolerance=1e-6)


def test_x64_switched_on_and_off_between_calls() -> None:
    """One function, one set of shapes, two precisions: no plan of one is used for the other."""
    jacobian = jacve(vector_function)
    for enabled in (True, False, True):
        with jax.enable_x64(enabled):
            assert_same(jacobian(X), jax.jit(jax.jacrev(vector_function))(X), tolerance=1e-6)


@pytest.mark.parametrize(
    "fun",
    [
        lambda z: z * z,
        lambda z: jnp.exp(z) / (z + 2.0),
        lambda z: jnp.sin(z) @ jnp.cos(z),
        lambda z: jnp.tanh(z)[::-1] * z.sum(),
        lambda z: jnp.asarray([[1.0 + 2.0j, 0.5j, 1.0], [0.3, -1.0j, 2.0]], z.dtype) @ jnp.log(z),
        lambda z: z**3 + jnp.sqrt(z),
        lambda z: lax.fori_loop(
            0,
            jnp.where(jnp.real(z[0]) > 9.0, 4, 2),
            lambda k, w: jnp.where(k < 1, w * z, jnp.where(w == z, w, w + lax.stop_gradient(w))),
            z,
        ),
    ],
    ids=["square", "quotient", "inner product", "reduction", "constant matrix", "powers", "loop"],
)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_holomorphic(fun: Callable[..., Any], dtype: str) -> None:
    """A complex input is differentiated as jax.jacfwd(holomorphic=True) does it."""
    z = jnp.asarray(X + 1j * np.array([0.2, 0.7, -0.4]), dtype)
    expected = jax.jit(jax.jacfwd(fun, holomorphic=True))(z)
    for order in ORDERS:
        result = jacve(fun, order=order)(z)
        assert_same(result, expected, tolerance=2e-6 if dtype == "complex64" else 1e-12)


INVERSES: dict[str, Callable[[Any], Any]] = {
    "arcsin": lambda w: 1.0 / jnp.cos(w),
    "arccos": lambda w: -1.0 / jnp.sin(w),
    "arctan": lambda w: jnp.cos(w) ** 2,
    "arcsinh": lambda w: 1.0 / jnp.cosh(w),
    "arccosh": lambda w: 1.0 / jnp.sinh(w),
    "arctanh": lambda w: jnp.cosh(w) ** 2,
    "sqrt": lambda w: 0.5 / w,
    "log": lambda w: jnp.exp(-w),
}


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("name", INVERSES)
def test_slopes_of_principal_values(name: str) -> None:
    """In every quadrant they are those of the value; JAX's arccosh has other signs before 0.12."""
    fun, z = getattr(jnp, name), np.array([0.6 + 0.8j, -0.7 + 0.3j, -1.9 - 0.4j, 1.2 - 0.5j])
    assert_same(jacve(fun)(z), jnp.diag(INVERSES[name](fun(z))), tolerance=1e-12)


@pytest.mark.smoke
def test_real_function_through_complex_numbers() -> None:
    def fun(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        z = lax.complex(x, y)
        w = jnp.exp(z) * z.conj() + 1j * z
        return jnp.real(w), jnp.imag(w), jnp.abs(z), jnp.real(z * z)

    check_orders(fun, X, X[::-1] + 2.0, argnums=(0, 1))


def test_value_and_jacobian_share_the_dtype_rules() -> None:
    value, jacobian = value_and_jacve(vector_function)(X.astype(np.float32))
    assert value.dtype == jacobian.dtype == np.float32


@in_every_order
def test_real_output_of_a_complex_input(order: str) -> None:
    """As jax.jacrev has it: the derivative along x minus i times that along y."""

    def fun(z: jax.Array) -> jax.Array:
        return jnp.abs(jnp.sin(z)) ** 2

    z = X + 0.5j * X[::-1]
    assert_same(jacve(fun, order=order)(z), jax.jit(jax.jacrev(fun))(z))


def test_export_with_a_symbolic_batch() -> None:
    """Of one sample sizes are numbers; how many there are `jax.export` leaves open."""
    fun = jax.jit(jax.vmap(jacve(lambda x: jnp.sin(x) * x[0])))
    (batch,) = jax.export.symbolic_shape("b")
    exported = jax.export.export(fun)(jax.ShapeDtypeStruct((batch, 3), np.float64))
    samples = np.arange(6.0).reshape(2, 3)
    assert_same(
        exported.call(samples), jax.jit(jax.vmap(jax.jacfwd(lambda x: jnp.sin(x) * x[0])))(samples)
    )
    with pytest.raises(InvalidArgumentError, match=r"shape \(b,\).*symbol of jax.export.*vmap"):
        jax.export.export(jax.jit(jacve(jnp.sin)))(jax.ShapeDtypeStruct((batch,), np.float64))
