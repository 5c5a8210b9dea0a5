"""Cases that elimination-based differentiators have got wrong without a word, one test each."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import InvalidOrderError, count_ops, hessve, jacve, laplacian_ve
from tests.checks import ORDERS, assert_same, check_orders, eliminable

pytestmark = pytest.mark.smoke

V = np.array([0.3, -0.7, 1.1])
Z = np.array([[0.2, -0.5, 0.7], [1.1, 0.3, -0.2], [-0.4, 0.6, 0.9]])


def check(fun: Callable[..., Any], *args: Any, argnums: Any = 0, tolerance: float = 1e-12) -> None:
    """Every order against jax.jacrev."""
    orders = (*ORDERS, "auto")
    check_orders(
        fun, *args, argnums=argnums, orders=orders, tolerance=tolerance, reference=jax.jacrev
    )


def check_eagerly(fun: Callable[..., Any], *args: Any, argnums: Any = 0) -> None:
    """The same with the arguments as they are, not traced."""
    expected = jax.jit(jax.jacrev(fun, argnums))(*args)
    for order in ORDERS:
        assert_same(jacve(fun, order=order, argnums=argnums)(*args), expected, context=order)


# ---------------------------------------------------------------- parallel edges


PARALLEL = {
    "x * x": lambda x: x * x,
    "x + x": lambda x: x + x,
    "x - x": lambda x: x - x,
    "x / x": lambda x: x / x,
    "x ** x": lambda x: jnp.abs(x) ** x,
    "arctan2(x, x)": lambda x: jnp.arctan2(x, x),
    "dot(x, x)": lambda x: jnp.tensordot(x, x, axes=x.ndim),
}


@pytest.mark.parametrize("shape", [(), (3,), (3, 3)], ids=str)
@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_edges(name: str, shape: tuple[int, ...]) -> None:
    check(PARALLEL[name], np.random.default_rng(0).normal(size=shape))


def test_square_of_a_matrix() -> None:
    check(lambda z: z @ z, Z)


def test_third_power_of_a_matrix() -> None:
    check(lambda z: z @ z @ z, Z)


def test_parallel_edges_inside_a_graph() -> None:
    check(lambda x: jnp.sin(x) * jnp.sin(x) + jnp.sin(jnp.exp(x) * jnp.exp(x)), V)


# ---------------------------------------------------------------- coinciding dimensions


@pytest.mark.parametrize("seed", range(12))
def test_matrix_products_of_coinciding_dimensions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m, k = rng.integers(1, 4, 3)
    p, q = rng.normal(size=(n, m)), rng.normal(size=(m, k))
    check(lambda p, q: jnp.tanh(jnp.sin(p) @ jnp.cos(q)), p, q, argnums=(0, 1))


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_a_square_matrix(axis: int) -> None:
    check(lambda z: jax.nn.softmax(z, axis), Z)


def test_hand_written_softmax_of_a_square_matrix() -> None:
    def softmax(z: jax.Array) -> jax.Array:
        shifted = jnp.exp(z - z.max(1, keepdims=True))
        return shifted / shifted.sum(1, keepdims=True)

    check(softmax, Z)


def test_attention_of_square_matrices() -> None:
    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.nn.softmax(q @ k.T / 3.0**0.5, -1) @ v

    check(attention, Z, Z.T, Z + 0.1, argnums=(0, 1, 2))


@pytest.mark.parametrize("axis", [0, 1])
def test_layer_norm_of_a_square_matrix(axis: int) -> None:
    def layer_norm(z: jax.Array, gain: jax.Array) -> jax.Array:
        centred = z - z.mean(axis, keepdims=True)
        return gain * centred * lax.rsqrt((centred**2).mean(axis, keepdims=True) + 1e-3)

    check(layer_norm, Z, V, argnums=(0, 1))


def test_transpose_of_a_square_matrix() -> None:
    check(lambda z: jnp.sin(z.T) * z, Z)


def test_sum_over_either_axis_of_a_square_matrix() -> None:
    check(lambda z: z.sum(0) * z.sum(1), Z)


def test_broadcast_along_either_axis_of_a_square_matrix() -> None:
    check(lambda v: v[:, None] * Z + v[None, :] * Z.T, V)


def test_batched_products_of_equal_dimensions() -> None:
    stacked = np.stack([Z, Z.T, Z + 0.3])
    check(lambda a, b: jnp.einsum("aij,jak->kia", a, jnp.sin(b)), stacked, stacked, argnums=(0, 1))


def test_all_dimensions_equal() -> None:
    cube = np.random.default_rng(3).normal(size=(2, 2, 2))
    check(lambda x: jnp.einsum("ijk,kij->jki", jnp.sin(x), x.transpose(2, 0, 1)), cube)


# ---------------------------------------------------------------- identity and argnums


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_identity(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    for order in ORDERS:
        assert_same(
            jacve(lambda x: x, order=order)(x), jnp.eye(x.size).reshape(shape + shape), tolerance=0
        )


def test_order_of_argnums() -> None:
    def fun(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.outer(jnp.sin(x), y)

    forwards = jacve(fun, argnums=(0, 1))(V, Z[0, :2])
    backwards = jacve(fun, argnums=(1, 0))(V, Z[0, :2])
    assert_same(backwards, forwards[::-1], tolerance=0)
    check(fun, V, Z[0, :2], argnums=(1, 0))


# ---------------------------------------------------------------- orders that do not fit


def small(x: jax.Array, y: jax.Array) -> jax.Array:
    a = jnp.sin(x)
    b = a * y
    return jnp.exp(b) + jnp.cos(b * a)


def test_zero_based_order_is_refused() -> None:
    vertices = eliminable(small, V, V, argnums=(0, 1))
    with pytest.raises(InvalidOrderError, match="0"):
        jacve(small, order=[v - 1 for v in vertices], argnums=(0, 1))(V, V)


def test_repeated_vertex_is_refused() -> None:
    vertices = eliminable(small, V, V, argnums=(0, 1))
    with pytest.raises(InvalidOrderError, match=str(vertices[0])):
        jacve(small, order=[*vertices[:-1], vertices[0]], argnums=(0, 1))(V, V)


# ---------------------------------------------------------------- kinks and ties as JAX has them


def test_arcsinh() -> None:
    check(jnp.arcsinh, V)
    assert_same(jacve(jnp.arcsinh)(2.0), jnp.asarray(1.0 / 5.0**0.5))


AT_A_KINK = {
    "abs at 0": (jnp.abs, [0.0]),
    "sign at 0": (jnp.sign, [0.0]),
    "relu at 0": (jax.nn.relu, [0.0]),
    "relu6 at its ends": (jax.nn.relu6, [0.0, 6.0]),
    "maximum of equal operands": (lambda x: jnp.maximum(x, x[::-1]), [1.0, 1.0, 1.0]),
    "maximum with 0 at 0": (lambda x: jnp.maximum(x, 0.0), [0.0]),
    "minimum of equal operands": (lambda x: jnp.minimum(x, x[::-1]), [1.0, 1.0, 1.0]),
    "max with ties": (jnp.max, [1.0, 2.0, 2.0, 2.0]),
    "min with ties": (jnp.min, [1.0, 1.0, 2.0]),
    "max with ties along an axis": (lambda x: x.reshape(2, 2).max(0), [1.0, 2.0, 1.0, 0.0]),
    "cummax with ties": (lax.cummax, [1.0, 1.0, 0.5, 2.0, 2.0]),
    "sort with ties": (jnp.sort, [2.0, 1.0, 2.0, 1.0]),
    "clip at its ends": (lambda x: jnp.clip(x, -1.0, 1.0), [-1.0, 1.0, 0.0]),
    "clamp at its ends": (lambda x: lax.clamp(-1.0, x, 1.0), [-1.0, 1.0, 0.0]),
    "where at the switch": (lambda x: jnp.where(x > 0, x, 2.0 * x), [0.0]),
    "prod with one zero": (jnp.prod, [2.0, 0.0, 3.0]),
    "prod with two zeros": (jnp.prod, [2.0, 0.0, 0.0]),
    "cumprod with a zero": (jnp.cumprod, [2.0, 0.0, 3.0]),
    "power 0 at 0": (lambda x: x**0, [0.0]),
    "power 1 at 0": (lambda x: x**1, [0.0]),
    "power 2 at 0": (lambda x: x**2, [0.0]),
    "variable power at a zero exponent": (lambda x: jnp.power(2.0 + x, x), [0.0]),
    "square at 0": (lambda x: x * x, [0.0]),
    "floor at an integer": (jnp.floor, [1.0]),
    "logsumexp of equal numbers": (jax.nn.logsumexp, [1.0, 1.0]),
    "logaddexp of equal numbers": (lambda x: jnp.logaddexp(x, x[::-1]), [1.0, 1.0]),
    "max pooling with ties": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), "VALID"),
        [1.0, 1.0, 0.0, 1.0],
    ),
    "guarded square root": (
        lambda x: jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0),
        [0.0, 4.0],
    ),
    "sinc at 0": (jnp.sinc, [0.0]),
}


@pytest.mark.parametrize("name", AT_A_KINK)
def test_at_a_kink(name: str) -> None:
    fun, point = AT_A_KINK[name]
    x = np.array(point)
    forward, reverse = jax.jit(
        lambda x: (jax.jit(jax.jacfwd(fun))(x), jax.jit(jax.jacrev(fun))(x))
    )(x)
    assert_same(forward, reverse, tolerance=1e-15)
    check(fun, x)


@pytest.mark.parametrize(
    ("fun", "point"),
    [(jnp.sqrt, 0.0), (jnp.log, 0.0), (lambda x: 1.0 / x, 0.0), (jnp.cbrt, 0.0), (jnp.arcsin, 1.0)],
    ids=["sqrt", "log", "reciprocal", "cbrt", "arcsin"],
)
def test_infinite_slope(fun: Callable[[Any], Any], point: float) -> None:
    check(fun, point)


def test_a_neighbour_moves_with_its_number() -> None:
    """JAX has a rule since 0.12."""
    found = jacve(lambda x: jnp.nextafter(x, x**3 + 2.0) * x)(V)
    np.testing.assert_allclose(found, np.diag(2 * V), rtol=1e-12)


# ---------------------------------------------------------------- Python and numpy numbers


@pytest.mark.parametrize(
    "number", [0.7, np.float64(0.7), np.asarray(0.7)], ids=["float", "scalar", "array"]
)
def test_eager_numbers(number: Any) -> None:
    check_eagerly(lambda x: jnp.sin(x) * x, number)
    check_eagerly(lambda x, y: x * y + x, number, 2.0, argnums=(0, 1))


def test_python_number_mixed_with_arrays() -> None:
    check_eagerly(lambda a, x: a * jnp.sin(x), 0.5, V, argnums=(0, 1))


def test_function_of_numbers_without_arrays_inside() -> None:
    check_eagerly(lambda x, y: x * y + x, 0.5, 2.0, argnums=(0, 1))


# ---------------------------------------------------------------- packed (n,) -> (m,) functions


def lighthouse(x: jax.Array) -> jax.Array:
    """Griewank and Walther, Evaluating Derivatives (2008), section 1.1."""
    nu, gamma, omega, t = x
    y = nu * jnp.tan(omega * t) / (gamma - jnp.tan(omega * t))
    return jnp.stack([y, gamma * y])


def dipole(x: jax.Array) -> jax.Array:
    """Residuals of the human heart dipole problem of the MINPACK-2 collection."""
    a, b, c, d, t, u, v, w = x
    return jnp.array(
        [
            a + b,
            c + d,
            t * a + u * b - v * c - w * d,
            v * a + w * b + t * c + u * d,
            a * (t**2 - v**2) - 2 * c * t * v + b * (u**2 - w**2) - 2 * d * u * w,
            c * (t**2 - v**2) + 2 * a * t * v + d * (u**2 - w**2) + 2 * b * u * w,
            a * t * (t**2 - 3 * v**2) + c * v * (v**2 - 3 * t**2),
            b * u * (u**2 - 3 * w**2) + d * w * (w**2 - 3 * u**2),
        ]
    )


def planar_arm(angles: jax.Array) -> jax.Array:
    """Position and direction of the end of a planar arm of unit links."""
    total = jnp.cumsum(angles)
    return jnp.concatenate([jnp.array([jnp.cos(total).sum(), jnp.sin(total).sum()]), total[-1:]])


def euler_flux(state: jax.Array) -> jax.Array:
    """Flux of the one-dimensional Euler equations, gamma = 1.4."""
    density, momentum, energy = state
    velocity = momentum / density
    pressure = 0.4 * (energy - 0.5 * momentum * velocity)
    return jnp.stack([momentum, momentum * velocity + pressure, velocity * (energy + pressure)])


PACKED = {
    "lighthouse": (lighthouse, np.array([0.3, 2.1, 0.4, 0.9])),
    "heart dipole": (dipole, np.random.default_rng(0).uniform(-1, 1, 8)),
    "planar arm": (planar_arm, np.array([0.3, -0.5, 0.9, 0.1])),
    "Euler flux": (euler_flux, np.array([1.2, 0.6, 2.5])),
    "polar": (lambda x: jnp.array([jnp.hypot(x[0], x[1]), jnp.arctan2(x[1], x[0])]), V[:2] + 1.0),
    "swapped": (lambda x: jnp.stack([x[1], x[0], x[2]]), V),
    "updated in place": (lambda x: x.at[0].set(x[1] * x[2]).at[2].add(x[0]), V),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed(name: str) -> None:
    check(*PACKED[name])


@pytest.mark.parametrize("name", PACKED)
def test_packed_batch(name: str) -> None:
    fun, x = PACKED[name]
    batch = x + 0.1 * np.arange(3.0)[:, None]
    expected = jax.jit(jax.vmap(jax.jacrev(fun)))(batch)
    assert_same(jax.vmap(jacve(fun))(batch), expected, tolerance=1e-12)


# ---------------------------------------------------------------- counting


def test_inputs_outside_argnums_are_not_counted() -> None:
    """The second input's edges are pruned, also those inside the graph."""

    def fun(x: jax.Array, y: jax.Array) -> jax.Array:
        z = jnp.exp(jnp.sin(y) * jnp.cos(y))
        return jnp.sin(jnp.exp(x)) * z

    alone = count_ops(lambda x: jnp.sin(jnp.exp(x)) * 2.5, 0.5, order="reverse", convention="ad")
    both = count_ops(fun, 0.5, 0.7, order="reverse", convention="ad")
    assert both.muls == alone.muls


def test_unit_edges_are_free_when_counting_flops() -> None:
    def fun(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sin(-((x + y) - 1.0))

    assert count_ops(fun, 0.5, 0.7, argnums=(0, 1), convention="ad").muls > 0
    assert count_ops(fun, 0.5, 0.7, argnums=(0, 1), convention="flops").muls == 0


def test_a_rule_that_insists_on_what_stands_still() -> None:
    """A `custom_vjp` with symbolic zeros sees as perturbed only what is differentiated."""

    @jax.custom_vjp
    def scaled(x, y):
        return jnp.sin(x) * y

    def forward(x, y):
        assert x.perturbed
        assert not y.perturbed
        return scaled(x.value, y.value), (x.value, y.value)

    def backward(kept, pulled):
        x, y = kept
        return jnp.cos(x) * y * pulled, jnp.zeros_like(y)

    scaled.defvjp(forward, backward, symbolic_zeros=True)
    x = jnp.array([0.3, 0.7])
    for order in ("forward", "reverse"):
        found = jacve(lambda x: jnp.exp(scaled(x, jnp.ones(2))), order=order)(x)
        assert_same(found, jax.jit(jax.jacfwd(lambda x: jnp.exp(jnp.sin(x))))(x))


def test_sign_of_a_complex_number() -> None:
    """It turns with the number, at zero it does not; JAX has it so from 0.12 on, zero before."""

    def parts(x: Any, y: Any) -> Any:
        s = lax.sign(lax.complex(x, y))
        return jnp.real(s), jnp.abs(s * (1.0 + 0.5j) + s**2)

    check(parts, np.array([0.3, -1.2, 0.0]), np.array([0.5, 0.0, 0.0]), argnums=(0, 1))
    x, y = np.array([0.3, -1.2]), np.array([0.5, 0.7])
    found = hessve(lambda x: jnp.sum(jnp.sin(parts(x, y)[0])))(x)
    assert_same(found, jax.jit(jax.hessian(lambda x: jnp.sum(jnp.sin(parts(x, y)[0]))))(x))


@pytest.mark.parametrize(
    "function",
    [jax.nn.softplus, jax.nn.log_sigmoid, jnp.sinc, jax.nn.mish, lambda x: x * jax.nn.relu(x)],
    ids=["softplus", "log_sigmoid", "sinc", "mish", "relu"],
)
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
def test_derivatives_of_a_jacobian_are_those_of_jaxs_rules(function: Any, order: str) -> None:
    """Where the pieces meet that JAX computes a smooth function by, at zero."""
    expected = jax.grad(jax.grad(function))(0.0)
    jacobian = jacve(function, order=order)
    for derivative in (jax.grad(jacobian), jax.jacfwd(jacobian), jax.jit(jax.grad(jacobian))):
        np.testing.assert_allclose(derivative(0.0), expected, atol=1e-12)
    changed = jax.grad(lambda x: laplacian_ve(function)(x))(0.0)
    np.testing.assert_allclose(changed, jax.grad(jax.grad(jax.grad(function)))(0.0), atol=1e-12)
