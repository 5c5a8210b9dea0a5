"""`batched_vmap` against `jax.vmap`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import InvalidArgumentError, batched_vmap, laplacian_ve

KEYS = jax.random.split(jax.random.key(4), 3)
POINTS = jax.random.normal(KEYS[0], (7, 3))
WEIGHTS = jax.random.normal(KEYS[1], (3, 3))


def same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_allclose(left, right, rtol=1e-13, atol=1e-13)


def energy(x, w):
    return jnp.sum(jnp.tanh(w @ x) ** 2)


@pytest.mark.parametrize("size", [None, 1, 2, 3, 6, 7, 100])
def test_sizes(size):
    found = batched_vmap(energy, size, in_axes=(0, None))(POINTS, WEIGHTS)
    same(found, jax.vmap(energy, (0, None))(POINTS, WEIGHTS))


@pytest.mark.parametrize(
    "in_axes",
    [(0, {"a": 1, "b": None}), (0, {"a": 1, "b": (None, None)}), [0, {"a": -1, "b": None}]],
)
def test_trees_of_axes_and_keywords(in_axes):
    def fun(x, tree, flag, *, scale):
        assert flag == "on"
        return {"sum": x * tree["a"] @ tree["b"][0], "scale": (scale * tree["b"][1],)}

    tree = {"a": POINTS.T, "b": (WEIGHTS, 2.0)}
    axes = (*in_axes, None)
    found = batched_vmap(lambda x, t, scale: fun(x, t, "on", scale=scale), 3, tuple(in_axes))(
        POINTS, tree, scale=POINTS[:, 0]
    )
    expected = jax.vmap(lambda x, t, scale: fun(x, t, "on", scale=scale), (*in_axes, 0))(
        POINTS, tree, POINTS[:, 0]
    )
    same(found, expected)
    same(batched_vmap(fun, 3, axes)(POINTS, tree, "on", scale=POINTS[:, 0]), expected)


@pytest.mark.parametrize("size", [None, 3, 7])
@pytest.mark.parametrize("axes", [0, {"x": -1, "each": (1, 0), "all": None}])
def test_axes_of_the_result(axes, size):
    def fun(x, w):
        shared = w if isinstance(axes, dict) else w + x[0]
        return {"x": x, "each": (w * x, jnp.sum(x)), "all": (shared, None)}

    found = batched_vmap(fun, size, (0, None), out_axes=axes)(POINTS, WEIGHTS)
    same(found, jax.vmap(fun, (0, None), axes)(POINTS, WEIGHTS))


def test_axes_that_the_result_has_not():
    with pytest.raises(InvalidArgumentError, match=r"axis 2.*\(7, 3\)"):
        batched_vmap(jnp.sin, 3, out_axes=2)(POINTS)
    with pytest.raises(InvalidArgumentError, match=r"integers and None, got 0\.5"):
        batched_vmap(jnp.sin, 3, out_axes=0.5)


def test_no_samples():
    same(batched_vmap(jnp.sin, 3)(POINTS[:0]), jax.vmap(jnp.sin)(POINTS[:0]))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint], ids=["plain", "checkpoint"])
def test_transformations(wrap):
    def loss(w, over):
        return jnp.sum(over(wrap(laplacian_ve(energy)))(POINTS, w) ** 2)

    def pieces(fun):
        return batched_vmap(fun, 2, (0, None))

    expected = jax.grad(loss)(WEIGHTS, lambda fun: jax.vmap(fun, (0, None)))
    same(jax.jit(jax.grad(loss), static_argnums=1)(WEIGHTS, pieces), expected)
    outer = jax.vmap(batched_vmap(energy, 2, (0, None)), (None, 0))
    stack = jnp.stack([WEIGHTS, 2 * WEIGHTS])
    same(outer(POINTS, stack), jnp.stack([jax.vmap(energy, (0, None))(POINTS, w) for w in stack]))


def wide(x):
    return jnp.sum(jnp.sort(jnp.outer(x, jnp.arange(1000.0)).ravel()) ** 2)


def test_budget_bounds_the_batch():
    points = jnp.tile(POINTS, (10, 1))
    budget = 20 * 3000 * 8  # twenty of the arrays that are sorted

    def run(points, factor):
        return batched_vmap(lambda x: factor * wide(x), memory_budget=budget)(points)

    # `factor` is a number in the first case and is being traced in the second.
    for trace in (jax.make_jaxpr(lambda p: run(p, 1.0))(points), jax.make_jaxpr(run)(points, 1.0)):
        lengths = [e.params["length"] for e in trace.jaxpr.eqns if e.primitive.name == "scan"]
        assert len(lengths) == 1
        assert 2 <= 70 // lengths[0] <= 40
    same(jax.jit(run)(points, 1.0), jax.vmap(wide)(points))


def test_large_budget_takes_all_at_once():
    jaxpr = jax.make_jaxpr(batched_vmap(wide, memory_budget=10**9))(POINTS)
    assert all(equation.primitive.name != "scan" for equation in jaxpr.jaxpr.eqns)


def test_tiny_budget_takes_one_at_a_time():
    same(batched_vmap(wide, 5, memory_budget=1)(POINTS), jax.vmap(wide)(POINTS))


@pytest.mark.parametrize(
    ("options", "arguments", "words"),
    [
        ({"max_batch_size": 0}, (POINTS,), "max_batch_size must be"),
        ({"memory_budget": -5}, (POINTS,), "memory_budget must be"),
        ({"max_batch_size": True}, (POINTS,), "max_batch_size must be"),
        ({"in_axes": None}, (POINTS,), "no mapped argument"),
        ({}, (POINTS, WEIGHTS), "sizes"),
        ({"in_axes": 2}, (POINTS,), "axis 2"),
        ({"in_axes": (0, 0, 0)}, (POINTS, POINTS), "in_axes must be"),
    ],
)
def test_errors(options, arguments, words):
    with pytest.raises(InvalidArgumentError, match=words):
        batched_vmap(lambda *args: args[0], **options)(*arguments)
