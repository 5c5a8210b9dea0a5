"""Second derivatives that random programs have shown to be wrong or refused, a case each."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import hessve, laplacian_ve
from tests.checks import assert_same, eliminable
from tests.second_order.checks import check_second_order

X = np.array([0.3, 0.7, -0.4])
ORDERS = ("forward", "reverse")


def waves(x: Any) -> Any:
    """A complex matrix."""
    phase = jnp.outer(x, jnp.arange(1.0, 4.0))
    return lax.complex(jnp.cos(phase), jnp.sin(phase)) + 2.0 * jnp.eye(3).astype(complex)


def hermitian(x: Any) -> Any:
    return waves(x) @ waves(x).conj().T + jnp.diag(5.0 * jnp.arange(3.0)).astype(complex)


def complex_loop(x: Any) -> Any:
    """Twelve steps that are not holomorphic."""

    def step(_: Any, z: Any) -> Any:
        return 0.2 * jnp.tanh(z) @ waves(x) + 0.1 * z.conj()

    return jnp.abs(lax.fori_loop(0, 12, step, waves(x)))


COMPLEX: dict[str, Callable[[Any], Any]] = {
    "squared modulus of exp": lambda x: (lambda w: jnp.real(jnp.vdot(w, w)))(
        jnp.exp(lax.complex(jnp.tanh(x), jnp.sin(x)))
    ),
    "inv": lambda x: jnp.imag(jnp.linalg.inv(waves(x))),
    "log|det|": lambda x: jnp.linalg.slogdet(waves(x))[1],
    "eigh": lambda x: jnp.linalg.eigh(hermitian(x))[0],
    "loop": complex_loop,
}
LONG: dict[str, Callable[[Any], Any]] = {
    "solve": lambda x: jnp.abs(jnp.linalg.solve(waves(x), x.astype(complex))),
    "cholesky": lambda x: jnp.real(jnp.linalg.cholesky(hermitian(x))),
    "qr": lambda x: jnp.abs(jnp.linalg.qr(waves(x))[1]),
    "svd": lambda x: jnp.linalg.svd(waves(x), compute_uv=False),
    "expm": lambda x: jnp.real(jax.scipy.linalg.expm(0.2 * waves(x))),
}


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize(
    "name", [*COMPLEX, *(pytest.param(n, marks=pytest.mark.conformance) for n in LONG)]
)
def test_complex_inside(name: str) -> None:
    check_second_order({**COMPLEX, **LONG}[name], X, orders=ORDERS, context=name)


@pytest.mark.slow
def test_solve_in_a_branch() -> None:
    def fun(a: Any) -> Any:
        return lax.cond(a[0, 0] > 9.0, jnp.sin, lambda a: jnp.linalg.solve(a, jnp.sin(a)), a)

    check_second_order(fun, np.array([[1.3, 0.2], [-0.4, 0.9]]), orders=("reverse",))


@pytest.mark.conformance
def test_expm() -> None:
    matrix = np.random.default_rng(0).normal(size=(2, 2))
    check_second_order(lambda a: jax.scipy.linalg.expm(0.3 * a), matrix, orders=ORDERS)


def test_weights_of_an_argument_that_a_narrow_vertex_does_not_read() -> None:
    def fun(x: Any, y: Any) -> Any:
        narrow = jnp.sum(jnp.sin(x))
        return jnp.tanh(narrow) * jnp.exp(narrow), y

    weights = np.random.default_rng(1).normal(size=(5, 5))
    x, y = np.linspace(0.1, 0.5, 4), np.array([0.3])
    (first, _), second = laplacian_ve(fun, argnums=(0, 1), weights=weights)(x, y), weights[:4, :4]
    hessian = jax.jit(jax.hessian(lambda x: fun(x, y)[0]))(x)
    np.testing.assert_allclose(first, np.sum(hessian * second), rtol=1e-12)


def test_full_weights_of_leaves_of_different_ranks() -> None:
    """The function is differentiated twice, since it holds a rule for cotangents."""

    @jax.custom_vjp
    def scaled(x: Any) -> Any:
        return x

    scaled.defvjp(lambda x: (x, None), lambda _, c: (2.0 * c,))

    def fun(a: Any, b: Any) -> Any:
        return jnp.sum(scaled(jnp.sin(a))) * jnp.sum(b**2) + jnp.sum(a**2 * b[0])

    a, b = np.linspace(0.1, 0.4, 4).reshape(2, 2), np.array([0.3, 0.9, -0.2])
    weights = np.random.default_rng(2).normal(size=(7, 7))
    blocks = jax.jit(jax.hessian(fun, (0, 1)))(a, b)
    matrix = np.block([[np.reshape(blocks[i][j], (4 - i, 4 - j)) for j in (0, 1)] for i in (0, 1)])
    found = laplacian_ve(fun, argnums=(0, 1), weights=weights)(a, b)
    np.testing.assert_allclose(found, np.sum(matrix * weights), rtol=1e-12)


def test_an_explicit_order_of_a_function_that_is_differentiated_twice() -> None:
    def fun(x: Any) -> Any:
        return jnp.sum(lax.fori_loop(0, 12, lambda _, c: jnp.sin(c) * x, x) ** 2)

    order = eliminable(fun, X)
    assert_same(hessve(fun, order=order)(X), jax.jit(jax.hessian(fun))(X))
    trace = np.trace(jax.jit(jax.hessian(fun))(X))
    assert_same(laplacian_ve(fun, order=order)(X), jnp.asarray(trace))


@pytest.mark.parametrize("name", ["relu", "silu"])
def test_activations_in_a_loop_are_not_differentiated_twice(name: str) -> None:
    """Their rules are derivatives of what they compute, so nothing can be missed inside."""

    def fun(x: Any) -> Any:
        return lax.fori_loop(0, 12, lambda _, c: jnp.tanh(getattr(jax.nn, name)(c + 0.1)), x)

    check_second_order(fun, X, orders=ORDERS)


@pytest.mark.parametrize("kernel", [np.ones((1, 1, 3)), np.zeros((1, 1, 1))], ids=["gap", "zero"])
@pytest.mark.parametrize("order", ["auto", *ORDERS])
def test_a_convolution_that_nothing_passes_through(kernel: Any, order: str) -> None:
    """Its arrow is zero window by window only, so ids of vertices depended on how it was taken."""

    def fun(x: Any, y: Any) -> Any:
        steps = {"lhs_dilation": (2,), "rhs_dilation": (2,)} if kernel.size > 1 else {}
        padding = [(1, 1)] if kernel.size > 1 else "VALID"
        return (
            lax.conv_general_dilated(x[None, None], jnp.asarray(kernel), (2,), padding, **steps),
            (0.5 * (y + 3.0) ** 0.7 + 3.0) ** -2,
        )

    x, y = jnp.array([0.4, -0.2]), jnp.array([0.3, 0.7])
    first, second = laplacian_ve(fun, order=order, argnums=(0, 1))(x, y)
    hessian = jax.jit(jax.hessian(lambda y: fun(x, y)[1]))(y)
    assert_same(first, jnp.zeros((1, 1, 1)))
    assert_same(second, jnp.trace(hessian, axis1=1, axis2=2))


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("n", [4, 5])
def test_square_of_a_real_fourier_transform(n: int, summed: bool) -> None:
    def fun(x: Any) -> Any:
        squares = jnp.real(jnp.fft.rfft(x) ** 2)
        return jnp.sum(squares) if summed else squares

    check_second_order(fun, np.linspace(-0.4, 0.9, n), orders=ORDERS)


def test_arrows_that_cancel_through_a_pointwise_function() -> None:
    """`x - x * 1.0` has the slope 1 - 1 where only one of the two arrows goes through a vertex."""

    def fun(x: Any) -> Any:
        return jnp.sum((0.5 * (x - 0.5 * (x - x * 1.0))) ** 2)

    x = jnp.asarray([-0.8, 0.3])
    np.testing.assert_allclose(laplacian_ve(fun)(x), 1.0)
    np.testing.assert_allclose(hessve(fun)(x), 0.5 * jnp.eye(2))


def test_mixed_curvature_of_two_functions_of_one_array() -> None:
    """Its two shares, both with respect to that array, are transposes and not the same."""

    def fun(x: Any) -> Any:
        t = jnp.tanh(x)
        return lax.dot_general(1 / (t + 3), t, (((0,), (0,)), ((), ())))

    x = jnp.asarray([[0.3, -0.5], [1.2, 0.1]])
    expected = jax.jit(jax.hessian(fun))(x)
    assert_same(hessve(fun)(x), expected)
    assert_same(laplacian_ve(fun)(x), jnp.einsum("abijij->ab", expected))


@pytest.mark.usefixtures("standard_promotion")
def test_a_product_that_is_read_with_its_conjugate() -> None:
    """Its columns are a number times a vector, of which the sum takes one reading apart."""

    def fun(x: Any) -> Any:
        wave = x[0] ** 2 * jnp.array([1.0 + 2.0j, 3.0 - 1.0j])
        return jnp.real(jnp.vdot(wave, wave))

    assert_same(laplacian_ve(fun)(X), jnp.trace(jax.jit(jax.hessian(fun))(X)))
