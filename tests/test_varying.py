"""Derivatives inside of `jax.shard_map`, whose types say along which mesh axes arrays vary.

Expected numbers are JAX's for the same samples outside of the mesh, or, of functions that ask on
which device they are, inside of it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from graphax_lapl import (
    Hutchinson,
    batched_vmap,
    divergence_ve,
    forward_laplacian,
    hessian_diagonal,
    hessian_vector_product,
    hessve,
    jacve,
    laplacian_ve,
    local_kinetic_energy,
    second_order_operator,
    value_and_jacve,
)
from tests.checks import assert_same

RNG = np.random.default_rng(8)
X = jnp.asarray(RNG.uniform(0.3, 1.0, size=(4, 3)))
W = jnp.asarray(RNG.normal(size=(5, 3)))
NAME = "devices"
ALONG, EVERYWHERE = P(NAME), P()


@pytest.fixture(scope="module")
def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((2,), (NAME,), axis_types=(jax.sharding.AxisType.Auto,))


def mapped(mesh: jax.sharding.Mesh, fun: Any, into: Any = ALONG, out: Any = ALONG) -> Any:
    return jax.shard_map(fun, mesh=mesh, in_specs=into, out_specs=out)


def over_samples(mesh: jax.sharding.Mesh, fun: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(mapped(mesh, jax.vmap(fun)))


@jax.custom_jvp
def with_jvp(x: Any) -> Any:
    return jnp.sin(x) * 2.0


with_jvp.defjvp(lambda p, t: (with_jvp(*p), 2.0 * jnp.cos(p[0]) * t[0]))


@jax.custom_vjp
def with_vjp(x: Any) -> Any:
    return jnp.sin(x) * 2.0


with_vjp.defvjp(lambda x: (2.0 * jnp.sin(x), jnp.cos(x)), lambda cosine, g: (2.0 * g * cosine,))


def looped(x: Any) -> Any:
    def step(c: Any, a: Any) -> tuple[Any, Any]:
        return jnp.sin(c) * a + c, jnp.sum(c)

    carry, sums = lax.scan(step, x, jnp.arange(1.0, 9.0))
    return jnp.concatenate([carry, sums])


def begun_by_a_cast(x: Any) -> Any:
    """What a user has to write there: the loop begins with zeros and goes on with what varies."""
    zeros = jnp.zeros(3)
    if axes := jax.sharding.get_abstract_mesh().manual_axes:
        zeros = lax.pcast(zeros, axes, to="varying")
    return lax.scan(lambda c, _: (jnp.sin(c + x), None), zeros, length=7)[0]


def counted(x: Any) -> Any:
    return lax.fori_loop(0, 6, lambda i, c: jnp.sin(c) * 1.1 + i.astype(c.dtype), x)


def repeated(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "product": lambda x: jnp.prod(x) * x,
    "powers": lambda x: x**3.0 + x**2.5 / (1.0 + x[::-1] ** 2),
    "network": lambda x: jnp.tanh(W @ x + 0.5),
    "norm": lambda x: x / jnp.linalg.norm(x),
    "solution": lambda x: jnp.linalg.solve(jnp.eye(3) + jnp.outer(x, x), x),
    "chosen": lambda x: jnp.where(x > 0.6, jnp.sin(x), x**2),
    "read": lambda x: x[jnp.array([0, 2, 1])] * x,
    "sums": lambda x: jnp.cumsum(jnp.exp(x)) + jnp.cumprod(x),
    "sorted": lambda x: jnp.sort(x) * x,
    "loop": looped,
    "loop begun by a cast": begun_by_a_cast,
    "counted loop": counted,
    "branches": lambda x: lax.cond(x[0] > 0.6, jnp.sin, lambda x: jnp.cos(x) + 1.0, x),
    "call": lambda x: jax.jit(lambda x: jnp.sin(x) * W[0])(x) * x,
    "evaluated again": jax.checkpoint(lambda x: jnp.sin(jnp.sin(x) * x)),
    "rule for tangents": lambda x: with_jvp(x) * x,
    "rule for cotangents": lambda x: with_vjp(x) * x,
    "platforms": lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos) * x,
}


def place() -> Any:
    return lax.axis_index(NAME).astype(float)


PLACES: dict[str, Callable[..., Any]] = {
    "outside": lambda x: x * x * place(),
    "loop": lambda x: lax.scan(lambda c, _: (1.1 * c, jnp.sin(c) * place()), x, length=3)[1],
    "carry": lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + place(), x),
    "only": lambda x: lax.scan(lambda c, _: (jnp.sin(c), place()), x, length=3),
    "repetition": lambda x: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1]) * place()), (0, x)
    )[1],
    "branch": lambda x: lax.cond(x[0] > 0.6, lambda x: x * x * place(), lambda x: jnp.sin(x), x),
    "call": lambda x: jax.jit(lambda x: x * x * place())(x),
}


@pytest.mark.smoke
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobian(mesh: jax.sharding.Mesh, name: str, order: str) -> None:
    fun = FUNCTIONS[name]
    assert_same(over_samples(mesh, jacve(fun, order=order))(X), jax.vmap(jax.jacrev(fun))(X))


@pytest.mark.parametrize("name", [*FUNCTIONS, "repetition"])
def test_second_order(mesh: jax.sharding.Mesh, name: str) -> None:
    fun = {**FUNCTIONS, "repetition": repeated}[name]

    def scalar(x: Any) -> Any:
        return jnp.sum(fun(x) ** 2)

    way = jax.jacfwd if name == "repetition" else jax.jacrev
    expected = jax.vmap(way(way(scalar)))(X)
    assert_same(over_samples(mesh, hessve(scalar))(X), expected)
    found = over_samples(mesh, laplacian_ve(scalar))(X)
    assert_same(found, jnp.trace(expected, axis1=1, axis2=2))


@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("name", PLACES)
def test_place_of_the_device(mesh: jax.sharding.Mesh, name: str, order: str) -> None:
    fun = PLACES[name]
    expected = over_samples(mesh, jax.jacfwd(fun))(X)
    assert_same(over_samples(mesh, jacve(fun, order=order))(X), expected)


@pytest.mark.parametrize("name", PLACES)
def test_place_of_the_sample(name: str) -> None:
    fun = PLACES[name]
    expected = jax.jit(jax.vmap(jax.jacfwd(fun), axis_name=NAME))(X)
    assert_same(jax.jit(jax.vmap(jacve(fun), axis_name=NAME))(X), expected)


@pytest.mark.parametrize("name", ["product", "loop", "rule for cotangents"])
def test_without_jit_and_without_vmap(mesh: jax.sharding.Mesh, name: str) -> None:
    fun = FUNCTIONS[name]
    assert_same(mapped(mesh, jax.vmap(jacve(fun)))(X), jax.vmap(jax.jacrev(fun))(X))
    flat = mapped(mesh, jacve(fun), ALONG, ALONG)
    expected = jnp.concatenate([jax.jacrev(fun)(half) for half in X[0].repeat(2).reshape(2, 3)])
    assert_same(jax.jit(flat)(X[0].repeat(2)), expected)


def test_batch_of_batches(mesh: jax.sharding.Mesh) -> None:
    fun = FUNCTIONS["powers"]
    grid = jnp.stack([X, 0.5 * X], 1)
    expected = jax.vmap(jax.vmap(jax.jacfwd(fun)))(grid)
    assert_same(over_samples(mesh, jax.vmap(jacve(fun)))(grid), expected)
    assert_same(
        jax.jit(mapped(mesh, batched_vmap(jacve(fun), max_batch_size=1)))(X), expected[:, 0]
    )


def energy(w: Any, x: Any) -> Any:
    return jnp.sum(jnp.tanh(w @ x)) + jnp.prod(x)


@pytest.mark.parametrize("derivative", [laplacian_ve, hessian_diagonal])
def test_training_step(mesh: jax.sharding.Mesh, derivative: Any) -> None:
    """Gradients of replicated parameters are sums over all devices."""

    def loss(w: Any, x: Any) -> Any:
        parts = jax.vmap(derivative(energy, argnums=1), (None, 0))(w, x)
        return jnp.mean(parts**2)

    def step(w: Any, x: Any) -> Any:
        return jax.value_and_grad(lambda w: lax.pmean(loss(w, x), NAME))(w)

    found = jax.jit(mapped(mesh, step, (EVERYWHERE, ALONG), EVERYWHERE))(W, X)
    assert_same(found, jax.value_and_grad(loss)(W, X))


def test_replicated_parameters(mesh: jax.sharding.Mesh) -> None:
    """With respect to them each device has its own Jacobian, as `jax.jacfwd` has it."""
    own = mapped(mesh, jax.vmap(jacve(energy), (None, 0)), (EVERYWHERE, ALONG), ALONG)
    assert_same(jax.jit(own)(W, X), jax.vmap(jax.grad(energy), (None, 0))(W, X))


def test_what_is_the_same_everywhere_stays_so(mesh: jax.sharding.Mesh) -> None:
    """JAX refuses results that vary where they are said not to."""

    def both(w: Any, x: Any) -> tuple[Any, Any]:
        return jacve(looped)(w), jacve(looped)(x)

    found = jax.jit(mapped(mesh, both, (EVERYWHERE, ALONG), (EVERYWHERE, ALONG)))(W[0], X[0, :2])
    assert_same(found[0], jax.jacfwd(looped)(W[0]))
    assert found[1].shape == (18, 1)


def test_two_axes() -> None:
    """Operands vary along one axis each, what is made of them along both."""
    mesh = jax.make_mesh((2, 1), ("i", "k"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def fun(x: Any, y: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, c: jnp.sin(c) * jnp.prod(y), x * y)

    def own(x: Any, y: Any) -> Any:
        return jax.vmap(jacve(fun, argnums=(0, 1)))(x, y)

    found = jax.jit(mapped(mesh, own, (P("i"), P("k")), P(("i", "k"))))(X, X[:2])
    expected = jax.vmap(jax.jacfwd(fun, (0, 1)))(X, jnp.concatenate([X[:2]] * 2))
    assert_same(found, expected)


def gradient_of(fun: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda x: jnp.sum(fun(x) ** 2))


OPERATORS: dict[str, Callable[..., Any]] = {
    "value and Jacobian": value_and_jacve(FUNCTIONS["solution"]),
    "with aux": value_and_jacve(lambda x: (jnp.prod(x) * x, jnp.argmax(x)), has_aux=True),
    "forward Laplacian": forward_laplacian(FUNCTIONS["product"]),
    "weights": laplacian_ve(FUNCTIONS["product"], weights=jnp.diag(jnp.asarray([1.0, 2.0, 3.0]))),
    "divergence": divergence_ve(lambda x: jnp.tanh(W[:3] @ x)),
    "kinetic energy": local_kinetic_energy(lambda x: jnp.log(jnp.prod(x))),
    "diagonal": hessian_diagonal(lambda x: jnp.prod(x) ** 2),
    "operator": second_order_operator(
        lambda x: jnp.prod(x) ** 2, a=jnp.diag(jnp.asarray([1.0, -1.0, 0.0])), b=jnp.ones(3), c=2.0
    ),
    "gradient through it": gradient_of(jacve(FUNCTIONS["product"])),
    "twice": jacve(jacve(FUNCTIONS["product"])),
    "product": lambda x: hessian_vector_product(lambda x: jnp.prod(x) ** 2)(x, x),
    "sparse": lambda x: jacve(FUNCTIONS["powers"], sparse_representation=True)(x).todense(),
    "estimated": lambda x: laplacian_ve(
        lambda x: jnp.prod(x) ** 2, stochastic=Hutchinson(samples=2)
    )(x, key=jax.random.key(3)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(mesh: jax.sharding.Mesh, name: str) -> None:
    """The same numbers as outside of the mesh, where other tests compare them with JAX's."""
    operator = OPERATORS[name]
    assert_same(over_samples(mesh, operator)(X), jax.jit(jax.vmap(operator))(X))
