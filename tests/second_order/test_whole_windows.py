"""Second derivatives where every convolution is taken as a whole instead of window by window."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree

from graphax_lapl import forward_laplacian, laplacian_ve
from graphax_lapl.api import planning
from tests.checks import assert_same
from tests.second_order.checks import check_second_order

RNG = np.random.default_rng(0)
IMAGE = RNG.normal(size=(1, 2, 3, 3))
KERNEL = RNG.normal(size=(2, 2, 2, 2))
OTHER = RNG.normal(size=(3, 2, 2, 2))
SIGNAL = RNG.normal(size=(2, 4, 3))
TAPS = RNG.normal(size=(4, 2, 2))
BATCH_TAPS = RNG.normal(size=(2, 4, 2))
ORDERS = ("forward", "reverse", "explicit")


@pytest.fixture
def whole_windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every plan takes convolutions as a whole, whatever is cheaper."""
    flatten = planning.flatten_jaxpr

    def flattened(*args: Any, **kwargs: Any) -> Any:
        listing, active = flatten(*args, **kwargs)
        return dataclasses.replace(listing, whole_windows=True), active

    planning.clear_caches()
    monkeypatch.setattr(planning, "flatten_jaxpr", flattened)
    yield
    planning.clear_caches()


def conv(x: Any, kernel: Any, padding: Any = "SAME", **options: Any) -> Any:
    strides = options.pop("window_strides", (1,) * (x.ndim - 2))
    return lax.conv_general_dilated(x, jnp.asarray(kernel), strides, padding, **options)


def several_outputs(x: Any) -> Any:
    inner = conv(jnp.sin(x), KERNEL)
    return inner, jnp.tanh(inner) * x, jnp.sum(conv(inner**2, OTHER) ** 2)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "nonlinear before": (lambda x: conv(jnp.sin(x), KERNEL), (IMAGE,)),
    "nonlinear after": (lambda x: jnp.tanh(conv(x, KERNEL)), (IMAGE,)),
    "before and after": (lambda x: jnp.exp(0.1 * conv(jnp.sin(x), KERNEL)), (IMAGE,)),
    "two in sequence": (
        lambda x: jnp.tanh(conv(jnp.sin(conv(x**2, KERNEL)), OTHER, "VALID")),
        (IMAGE,),
    ),
    "linear in sequence": (lambda x: conv(conv(x, KERNEL), OTHER) ** 3, (IMAGE,)),
    "kernel and input": (lambda x, k: jnp.sin(conv(jnp.tanh(x), k**2)), (IMAGE, KERNEL)),
    "kernel of the input": (lambda x: conv(x, 2.0 * x, "VALID") ** 2, (IMAGE,)),
    "moving kernel behind": (
        lambda x, k: jnp.sum(conv(jnp.tanh(conv(x, KERNEL)), k) ** 2),
        (IMAGE, OTHER),
    ),
    "output that feeds another": (several_outputs, (IMAGE,)),
    "residual": (lambda x: jnp.tanh(x + conv(jnp.tanh(x), KERNEL)), (IMAGE,)),
    "feature groups": (
        lambda x: jnp.sin(conv(x**2, TAPS, feature_group_count=2)),
        (SIGNAL,),
    ),
    "batch groups": (
        lambda x: jnp.sin(conv(x**2, BATCH_TAPS, "VALID", batch_group_count=2)),
        (SIGNAL,),
    ),
    "dilated": (
        lambda x: jnp.cos(
            conv(
                jnp.sin(x),
                KERNEL,
                [(1, 1), (0, 2)],
                window_strides=(2, 1),
                lhs_dilation=(2, 1),
                rhs_dilation=(1, 2),
            )
        ),
        (IMAGE,),
    ),
    "complex": (
        lambda x: jnp.real(conv(jnp.exp(lax.complex(x, x**2)), KERNEL.astype(complex)) ** 2),
        (0.3 * IMAGE,),
    ),
    "nothing but padding": (
        lambda x, y: (
            conv(
                x[0, :1, :1, :2],
                np.ones((1, 1, 3)),
                [(1, 1)],
                window_strides=(2,),
                lhs_dilation=(2,),
                rhs_dilation=(2,),
            ),
            jnp.sqrt(jnp.sin(y) + 2.0),
        ),
        (IMAGE, np.array([0.3, 0.7])),
    ),
}


@pytest.mark.slow
@pytest.mark.usefixtures("whole_windows")
@pytest.mark.parametrize("name", CASES)
def test_laplacian_and_hessian(name: str) -> None:
    fun, args = CASES[name]
    argnums: Any = tuple(range(len(args))) if len(args) > 1 else 0
    check_second_order(fun, *args, argnums=argnums, orders=ORDERS, context=name)


@pytest.mark.usefixtures("whole_windows")
@pytest.mark.parametrize("name", ["two in sequence", "kernel and input", "nothing but padding"])
@pytest.mark.parametrize("kind", ["weights", "diagonal", "seeds"])
def test_metrics(name: str, kind: str) -> None:
    fun, args = CASES[name]
    argnums = tuple(range(len(args)))
    flat, unravel = ravel_pytree(tuple(map(jnp.asarray, args)))
    matrix = np.random.default_rng(1).normal(size=(flat.size, flat.size))
    given: dict[str, Any] = {"weights": matrix}
    if kind == "diagonal":
        given, matrix = {"weights": matrix[0]}, np.diag(matrix[0])
    elif kind == "seeds":
        given, matrix = {"seeds": matrix[:3]}, matrix[:3].T @ matrix[:3]

    @jax.jit
    def both(args: Any) -> Any:
        hessians = jax.jit(jax.hessian(lambda flat: fun(*unravel(flat))))(flat)
        expected = jax.tree.map(lambda h: jnp.sum(h * matrix, (-2, -1)), hessians)
        return laplacian_ve(fun, argnums=argnums, **given)(*args), expected

    assert_same(*both(args), context=f"{name}, {kind}")


@pytest.mark.usefixtures("whole_windows")
def test_forward_laplacian() -> None:
    fun, (x,) = CASES["output that feeds another"]
    found = forward_laplacian(fun)(x)
    jacobian, hessian = jax.jit(
        lambda x: (jax.jit(jax.jacfwd(fun))(x), jax.jit(jax.hessian(fun))(x))
    )(x)
    for result, value, first, second in zip(found, fun(x), jacobian, hessian, strict=True):
        n = x.size
        assert_same(result.x, value)
        assert_same(result.jacobian.dense_array, first.reshape(*value.shape, n))
        trace = jnp.trace(second.reshape(*value.shape, n, n), axis1=-2, axis2=-1)
        assert_same(result.laplacian, trace)


@pytest.mark.usefixtures("whole_windows")
def test_convolutions_are_taken_as_a_whole() -> None:
    """What the tests above rest on."""
    fun, args = CASES["two in sequence"]
    graph = planning.prepare(fun, args, {}, 0, orders=2).graph
    opaque = [any(f.opaque for f in structure.factors) for _, _, structure in graph.edges]
    assert sum(opaque) == 2


@pytest.mark.slow
def test_a_first_layer_meets_the_identity_once(whole_windows):
    """Its columns and their squares come from two identities, which are one to the compiler."""
    kernels = (RNG.normal(size=(4, 1, 3, 3)), RNG.normal(size=(4, 4, 3, 3)))
    images = RNG.normal(size=(2, 4, 4))

    def network(kernels, x):
        inner = jnp.tanh(conv(x[None, None], kernels[0]))
        return jnp.sum(jnp.tanh(conv(inner, kernels[1])))

    laplacian = jax.jit(jax.vmap(laplacian_ve(network, argnums=1), (None, 0)))
    compiled = laplacian.lower(kernels, images).compile().as_text()
    # Two of the values, two of columns, one of their Laplacians.
    assert compiled.count(" convolution(") == 5
    dense = jax.vmap(lambda x: jnp.trace(jax.hessian(_flat(network, kernels))(x.ravel())))(images)
    np.testing.assert_allclose(laplacian(kernels, images), dense, rtol=1e-9)


def _flat(network: Callable[..., Any], kernels: Any) -> Callable[..., Any]:
    return lambda flat: network(kernels, flat.reshape(4, 4))
