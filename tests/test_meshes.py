"""Arrays that are sharded over explicit mesh axes: values against JAX's own, and where results lie.

Expected numbers are JAX's on the same arrays outside of the mesh.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

from graphax_lapl import (
    HutchPlusPlus,
    divergence_ve,
    forward_laplacian,
    hessian_diagonal,
    hessian_vector_product,
    hessve,
    jacve,
    laplacian_ve,
    local_kinetic_energy,
    make_plan,
    second_order_operator,
    value_and_jacve,
)

RNG = np.random.default_rng(5)
X, W, V = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 3)), RNG.normal(size=6)


@pytest.fixture(scope="module")
def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((2, 1), ("i", "k"), axis_types=(AxisType.Explicit,) * 2)


def put(mesh: jax.sharding.Mesh, value: Any, *spec: Any) -> jax.Array:
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))


def assert_same(found: Any, expected: Any) -> None:
    """Leaf by leaf, wherever they lie."""
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(two), atol=1e-9, rtol=1e-9)


def lies(value: Any) -> tuple[Any, ...]:
    return tuple(jax.typeof(value).sharding.spec)


@jax.custom_jvp
def with_jvp(x: Any) -> Any:
    return jnp.sin(x)


with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), jnp.cos(primals[0]) * tangents[0]))


@jax.custom_vjp
def with_vjp(x: Any) -> Any:
    return jnp.sin(x)


with_vjp.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda cosine, g: (g * cosine,))


def branched(x: Any) -> Any:
    return lax.cond(jnp.sum(x) > 99, jnp.cos, lambda x: with_jvp(x) * x, x)


def looped(x: Any) -> Any:
    return lax.scan(lambda y, _: (jnp.sin(y) * x, None), x, length=12)[0]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "elementwise": lambda x: jnp.sin(x) * x,
    "matrix": lambda x: jnp.tanh(x @ W),
    "rules": lambda x: with_jvp(with_vjp(x) * x),
    "branch": branched,
    "loop": looped,
    "indices": lambda x: x[:, np.array([0, 2, 2])] ** 2 * jnp.arange(3.0),
    "solve": lambda x: x @ jnp.linalg.inv(W @ W.T + jnp.eye(3)) * x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_types(name: str, mesh: jax.sharding.Mesh) -> None:
    fun = FUNCTIONS[name]

    def scalar(x: Any) -> Any:
        return jnp.sum(fun(x) ** 2)

    expected = jax.jit(jax.jacrev(fun))(X), jax.jit(jax.jacrev(jax.grad(scalar)))(X)
    with jax.set_mesh(mesh):
        x = put(mesh, X, "i", None)
        jacobian, hessian = jax.jit(lambda x: (jacve(fun)(x), hessve(scalar)(x)))(x)
        trace = jax.jit(laplacian_ve(scalar))(x)
    assert_same((jacobian, hessian), expected)
    assert_same(trace, np.einsum("abab", expected[1]))
    assert lies(jacobian)[0] == "i"
    assert lies(hessian) == ("i", None, None, None)  # an axis goes to the first that has it


@pytest.mark.smoke
def test_without_a_mesh_in_context(mesh: jax.sharding.Mesh) -> None:
    """The arrays' types alone name it; the second argument's axis is used by the first."""
    x, w = put(mesh, X, "i"), put(mesh, W, None, "k")

    def fun(x: Any, w: Any) -> Any:
        return {"y": jnp.tanh(x @ w)}

    value, found = value_and_jacve(fun, argnums=(0, 1))(x, w)
    assert_same(found, jax.jit(jax.jacfwd(fun, (0, 1)))(X, W))
    assert_same(value, fun(X, W))
    assert lies(value["y"]) == ("i", "k")
    assert lies(found["y"][1]) == ("i", "k", None, None)
    assert lies(jacve(lambda w: jnp.sum(jnp.sin(w)))(w)) == (None, "k")  # like its input


def test_what_the_function_says_holds(mesh: jax.sharding.Mesh) -> None:
    def fun(x: Any, *, meshed: bool) -> Any:
        if not meshed:
            return jnp.tanh(x @ W)[::-1] ** 2
        y = jnp.tanh(jnp.einsum("ij,jk->ik", x, W, out_sharding=P("i", "k")))
        y = lax.with_sharding_constraint(y, P("i", "k"))
        return jax.sharding.reshard(jax.sharding.reshard(y, P())[::-1] ** 2, P(None, "i"))

    def said(x: Any) -> Any:
        return fun(x[:, :2], meshed=True)

    v, w = X[:, :2], W[:2, :2]
    with pytest.MonkeyPatch.context() as patch, jax.set_mesh(mesh):
        patch.setitem(globals(), "W", w)
        expected = jax.jit(jax.jacfwd(lambda x: fun(x, meshed=False)))(v)
        value, found = jax.jit(value_and_jacve(said))(put(mesh, v, "i"))
    assert_same(found, expected)
    assert lies(value) == (None, "i")
    assert lies(found) == (None, "i", None, None)


@pytest.mark.smoke
def test_parameters_that_are_closed_over(mesh: jax.sharding.Mesh) -> None:
    """A loss on Laplacians of sharded samples, with sharded weights that are traced outside."""

    def loss(w: Any, x: Any, laplacian: Callable[..., Any]) -> Any:
        def energy(x: Any) -> Any:
            return jnp.sum(jnp.tanh(w @ jnp.tanh(w @ x)))

        return jnp.mean(jax.vmap(laplacian(energy))(x) ** 2)

    def reference(fun: Any) -> Any:
        return lambda x: jnp.trace(jax.jit(jax.hessian(fun))(x))

    w = RNG.normal(size=(3, 3))
    expected = jax.grad(loss)(w, X, reference)
    with jax.set_mesh(mesh):
        found = jax.jit(lambda w, x: jax.grad(loss)(w, x, laplacian_ve))(
            put(mesh, w, None, "k"), put(mesh, X, "i")
        )
    assert_same(found, expected)
    assert lies(found) == (None, "k")


def test_many_samples(mesh: jax.sharding.Mesh) -> None:
    """Programs and loops in numbers are made under `vmap`, which knows of the axis."""

    def fun(x: Any) -> Any:
        return looped(jnp.stack([x[0] * jnp.sin(x[1]), x[1] * x[2], x @ x]))

    samples = RNG.uniform(size=(256, 3))
    found = jax.jit(jax.vmap(jacve(fun)))(put(mesh, samples, "i"))
    assert_same(found, jax.jit(jax.vmap(jax.jacfwd(fun)))(samples))
    assert lies(found) == ("i", None, None)


@pytest.mark.slow
def test_sparse_results(mesh: jax.sharding.Mesh) -> None:
    """Stored arrays lie along the dimensions that they run along, and what is made of them too."""
    wide = np.linspace(0.0, 1.0, 2048).reshape(2, 1024)
    diagonal = np.sin(wide) + wide * np.cos(wide)
    with jax.set_mesh(mesh):
        found = jax.jit(jacve(FUNCTIONS["elementwise"], sparse_representation=True))(
            put(mesh, wide, "i")
        )
        (array,) = found.arrays
        twice = jax.jit(lambda j: (j.T @ (j + j)).diagonal())(found)
        product = found @ put(mesh, wide, "i")
        flat = np.ones(2048) @ found
    assert lies(array) == lies(found.diagonal()) == lies(product) == lies(twice) == ("i", None)
    assert_same((array, found.diagonal(), found.data), (diagonal, diagonal, diagonal.ravel()))
    assert_same((product, twice, flat), (diagonal * wide, 2 * diagonal**2, diagonal.ravel()))
    small = jacve(FUNCTIONS["matrix"], sparse_representation=True)(put(mesh, X, "i"))
    assert_same(small.todense(), jax.jacfwd(FUNCTIONS["matrix"])(X))


@pytest.mark.slow
def test_other_operators(mesh: jax.sharding.Mesh) -> None:
    """Coefficients may be sharded as well; a fixed key draws the same numbers in both places."""

    def fun(v: Any) -> Any:
        return jnp.sum(jnp.sin(v) ** 2) * jnp.sum(v * v)

    def operators(v: Any, weights: Any) -> list[Any]:
        energy = forward_laplacian(fun)(v)
        estimate = laplacian_ve(fun, stochastic=HutchPlusPlus(18))(v, key=jax.random.key(0))
        return [
            hessian_diagonal(fun)(v),
            hessian_vector_product(fun)(v, v),
            divergence_ve(jax.grad(fun))(v),
            local_kinetic_energy(fun, weights=weights)(v),
            second_order_operator(fun, a=weights, b=weights, c=2.0)(v),
            laplacian_ve(fun, weights=weights)(v),
            (energy.jacobian.dense_array, energy.laplacian, estimate),
        ]

    weights = np.linspace(1.0, 2.0, 6)
    hessian, slope = jax.jit(jax.hessian(fun))(V), jax.grad(fun)(V)
    trace, weighted = np.trace(hessian), np.sum(weights * np.diag(hessian))
    expected = [
        np.diag(hessian),
        hessian @ V,
        trace,
        -0.5 * (weighted + np.sum(weights * slope**2)),
        weighted + weights @ slope + 2 * fun(V),
        weighted,
        (slope, trace, trace),
    ]
    with jax.set_mesh(mesh):
        v, shared = put(mesh, V, "i"), put(mesh, weights, "i")
        found = jax.jit(operators)(v, shared)
    assert_same(found, expected)
    assert lies(found[0]) == lies(found[1]) == lies(found[-1][0]) == ("i",)


def test_among_manual_and_automatic_axes() -> None:
    kinds = (AxisType.Explicit, AxisType.Explicit, AxisType.Auto)
    mesh = jax.make_mesh((2, 1, 1), ("i", "k", "l"), axis_types=kinds)
    fun = FUNCTIONS["elementwise"]

    def mapped(x: Any) -> Any:
        return jax.shard_map(
            jax.vmap(jacve(fun)), in_specs=P("i"), out_specs=P("i"), axis_names={"i"}
        )(x)

    def around(x: Any) -> Any:
        summed = jax.shard_map(
            lambda x: x * lax.psum(jnp.sum(x), "i"),
            in_specs=P("i"),
            out_specs=P("i"),
            axis_names={"i"},
        )
        return jnp.sin(summed(x))

    with jax.set_mesh(mesh):
        found = jax.jit(mapped)(put(mesh, X, "i", "k"))
        outside = jax.jit(jacve(around))(put(mesh, V, "i"))
    assert_same(found, jax.jit(jax.vmap(jax.jacfwd(fun)))(X))
    assert_same(outside, jax.jit(jax.jacfwd(lambda x: jnp.sin(x * jnp.sum(x))))(V))
    assert lies(outside) == ("i", None)


def test_plans_do_not_depend_on_where_arrays_lie(mesh: jax.sharding.Mesh) -> None:
    fun = FUNCTIONS["matrix"]
    x = put(mesh, X, "i")
    plan = make_plan(fun, x, order="compressed")
    assert plan.counts.muls == make_plan(fun, X, order="compressed").counts.muls
    assert_same(plan.compile()(x), jax.jit(jax.jacfwd(fun))(X))
    assert isinstance(jax.typeof(x).sharding.mesh, AbstractMesh)
    with jax.set_mesh(mesh):
        abstract = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=NamedSharding(mesh, P("i")))
        assert make_plan(fun, abstract, order="forward").counts.muls > 0
