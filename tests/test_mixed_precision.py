"""Weights that are less precise than what they are applied to: derivatives are as precise as it is.

A product of two such weights, a sum of them and one with a factor of its own are rounded to their
dtype unless they are converted before, and JAX never forms them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from graphax_lapl import divergence_ve, forward_laplacian, hessve, jacve, laplacian_ve

Made = tuple[Array, Array, Array, Array]
RNG = np.random.default_rng(7)
A, B, M, D, S = (RNG.normal(size=shape) for shape in ((7, 5), (7, 5), (7, 7), (5,), (5, 5)))
X = RNG.normal(size=5)

FUNCTIONS: dict[str, Callable[[Made, Array], Array]] = {
    "a layer": lambda w, x: jnp.sum(jnp.sin(w[0] @ x)),
    "two layers": lambda w, x: w[2] @ (w[0] @ x),
    "three layers": lambda w, x: jnp.tanh(w[2] @ jnp.tanh(w[2] @ (w[0] @ x))),
    "a sum": lambda w, x: w[0] @ x + w[1] @ x,
    "coefficients": lambda w, x: 0.1 * (w[0] @ x) * 0.7 - 0.3 * (w[1] @ x),
    "a multiple": lambda w, x: 0.1 * (w[0] @ x),
    "a sum of rows": lambda w, x: jnp.sum(w[0] @ x),
    "a product": lambda w, x: (w[0] @ x) * (w[1] @ x),
    "a quadratic form": lambda w, x: (w[0] @ x) @ (w[2] @ (w[1] @ x)),
    "a sum of squares": lambda w, x: 0.1 * jnp.sum((w[0] @ x) ** 2),
    "one coefficient": lambda w, x: w[3] * (0.1 * x),
    "gates": lambda w, x: jax.nn.sigmoid(w[0] @ x) * (w[1] @ x),
    "differences": lambda w, x: (w[0] @ x)[1:] - 0.3 * (w[0] @ x)[:-1],
}


def hessian(fun: Callable[[Array], Array], x: Array) -> Any:
    return jax.hessian(fun)(x)


def trace(fun: Callable[[Array], Array], x: Array) -> Any:
    return jnp.trace(jax.hessian(fun)(x), axis1=-2, axis2=-1)


def batched(transformed: Callable[..., Any], samples: int) -> Callable[..., Any]:
    def call(fun: Callable[[Array], Array], x: Array) -> Any:
        return jax.vmap(transformed(fun))(jnp.stack([x] * samples))[-1]

    return call


def squared(laplacian: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of a loss that holds a Laplacian."""

    def call(fun: Callable[[Array], Array], x: Array) -> Any:
        return jax.grad(lambda x: jnp.sum(laplacian(lambda x: jnp.sum(jnp.sin(fun(x))), x) ** 2))(x)

    return call


QUANTITIES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "Jacobian": (lambda f, x: jacve(f)(x), lambda f, x: jax.jacfwd(f)(x)),
    "forward": (lambda f, x: jacve(f, order="forward")(x), lambda f, x: jax.jacfwd(f)(x)),
    "reverse": (lambda f, x: jacve(f, order="reverse")(x), lambda f, x: jax.jacfwd(f)(x)),
    "Jacobians": (batched(jacve, 40), lambda f, x: jax.jacfwd(f)(x)),
    "sparse Jacobian": (
        lambda f, x: jacve(f, sparse_representation=True)(x).todense(),
        lambda f, x: jax.jacfwd(f)(x),
    ),
    "Hessian": (lambda f, x: hessve(f)(x), hessian),
    "Hessians": (batched(hessve, 3), hessian),
    "sparse Hessian": (lambda f, x: hessve(f, sparse_representation=True)(x).todense(), hessian),
    "Laplacian": (lambda f, x: laplacian_ve(f)(x), trace),
    "reverse Laplacian": (lambda f, x: laplacian_ve(f, order="reverse")(x), trace),
    "Laplacians": (batched(laplacian_ve, 3), trace),
    "in one pass": (lambda f, x: forward_laplacian(f)(x).laplacian, trace),
    "training": (squared(lambda f, x: laplacian_ve(f)(x)), squared(trace)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "coarse"),
    [*((name, "float32") for name in FUNCTIONS), ("a layer", "bfloat16"), ("a sum", "bfloat16")],
)
def test_as_precise_as_the_input(name: str, coarse: str) -> None:
    fine, tolerance = ("float64", 1e-12) if coarse == "float32" else ("float32", 2e-5)
    weights = tuple(jnp.asarray(w, coarse) for w in (A, B, M, D))
    x = jnp.asarray(X, fine)
    with jax.numpy_dtype_promotion("standard"):
        for quantity, (ours, reference) in QUANTITIES.items():
            found = ours(lambda x: FUNCTIONS[name](weights, x), x)
            expected = reference(lambda x: FUNCTIONS[name](weights, x), x)
            assert found.dtype == fine
            scale = max(1e-3, float(jnp.abs(expected).max()))
            error = float(jnp.abs(found - expected).max())
            assert error <= tolerance * scale, (quantity, error, scale)


@pytest.mark.slow
@pytest.mark.usefixtures("float32")
def test_weights_of_eight_bits() -> None:
    """JAX multiplies them with wider numbers where the function asks for that."""
    weights = jnp.asarray(A, jnp.float8_e4m3fn)

    def layer(x: Array) -> Array:
        product = jax.lax.dot_general(
            weights, x, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
        )
        return jnp.sum(jnp.sin(product))

    x = jnp.asarray(X, jnp.float32)
    np.testing.assert_allclose(jacve(layer)(x), jax.jacrev(layer)(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(laplacian_ve(layer)(x), trace(layer, x), rtol=1e-4)
    np.testing.assert_allclose(hessve(layer)(x), hessian(layer, x), rtol=1e-4, atol=1e-5)


INTEGERS: dict[str, np.ndarray] = {
    "int8": np.random.default_rng(8).integers(-127, 128, (5, 5)).astype(np.int8),
    "uint8": np.random.default_rng(9).integers(0, 256, (5, 5)).astype(np.uint8),
    "int32": np.random.default_rng(10).integers(-90_000, 90_001, (5, 5)).astype(np.int32),
    "bool": np.random.default_rng(11).integers(0, 2, (5, 5)).astype(bool),
}
NETWORKS: dict[str, Callable[..., Array]] = {
    "a layer": lambda layer, w, x: jnp.sin(layer(w, x)),
    "two layers": lambda layer, w, x: layer(w, layer(w, x)),
    "a sum": lambda layer, w, x: layer(w, x) + layer(w.T, x),
    "gates": lambda layer, w, x: jnp.tanh(layer(w, x)) * layer(w, jnp.sin(x)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("held", [np.asarray, jnp.asarray], ids=["known", "given"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_weights_of_integers(dtype: str, held: Callable[..., Any], name: str) -> None:
    """Quantized layers and masks: products and sums of their weights are numbers of the input's."""
    integers = INTEGERS[dtype]
    scale = 1.0 / np.abs(integers.astype(float)).max()

    def layer(w: Any, x: Array) -> Array:
        numbers = (((1,), (0,)), ((), ()))
        return scale * jax.lax.dot_general(w, x, numbers, preferred_element_type=x.dtype)

    def fun(w: Any, x: Array) -> Array:
        return NETWORKS[name](layer, w, x)

    weights, x = held(integers), jnp.asarray(X)
    for quantity, (ours, reference) in QUANTITIES.items():
        # Given weights are an argument, so no value of them is known while planning.
        found = jax.jit(lambda w, x, ours=ours: ours(lambda x: fun(w, x), x))(weights, x)
        expected = reference(lambda x: fun(jnp.asarray(integers), x), x)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11, err_msg=quantity)
        if held is np.asarray:
            known = ours(lambda x: fun(weights, x), x)
            np.testing.assert_allclose(known, expected, rtol=1e-11, atol=1e-11, err_msg=quantity)


def test_a_trace() -> None:
    weights = jnp.asarray(S, jnp.float32)
    with jax.numpy_dtype_promotion("standard"):

        def field(x: Array) -> Array:
            return weights @ (0.1 * (weights @ x))

        found = divergence_ve(field)(X)
        np.testing.assert_allclose(found, jnp.trace(jax.jacfwd(field)(jnp.asarray(X))), rtol=1e-13)


@pytest.mark.slow
def test_real_weights_of_complex_functions_stay_real() -> None:
    """As precise as the real and the imaginary part."""
    first, second = (jnp.asarray(w, jnp.float32) for w in (A, B))
    with jax.numpy_dtype_promotion("standard"):

        def wave(x: Array) -> Array:
            return jnp.exp(1j * (0.1 * (first @ x) + second @ x))

        def parts(reference: Callable[..., Any]) -> Any:
            real = reference(lambda x: jnp.real(wave(x)), X)
            return real + 1j * reference(lambda x: jnp.imag(wave(x)), X)

        columns, sums = parts(lambda f, x: jax.jacfwd(f)(x)), parts(trace)
        np.testing.assert_allclose(jacve(wave)(X), columns, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(laplacian_ve(wave)(X), sums, rtol=1e-12, atol=1e-13)
