"""Expressions that only sums read: which they are, and that their own rules change no number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import laplacian_ve, make_plan
from graphax_lapl.program.before_sums import (
    in_front_of_sums,
    shared_in_sums,
    taken_for_products,
)
from graphax_lapl.program.instructions import PrimalInstruction
from graphax_lapl.program.regions import regions
from graphax_lapl.program.summed import within_sums

X = jnp.linspace(0.3, 1.4, 1000)
W = jnp.cos(jnp.arange(1000.0))


def separable(x):
    return jnp.sum(W * jnp.tanh(2.0 * jnp.sin(x)) * jnp.exp(-0.5 * x**2))


def through_a_matrix(x):
    return jnp.sum(jnp.tanh(jnp.outer(W, W) @ jnp.sin(x)))


def program_of(fun):
    return make_plan(fun, X, kind="laplacian").pruned(False)


def slots_of(program, name):
    return {
        slot
        for instruction in program.instructions
        if isinstance(instruction, PrimalInstruction) and instruction.equation.name == name
        for slot in instruction.outputs
    }


def test_an_elementwise_expression_under_one_sum():
    program = program_of(separable)
    made = {slot for step in program.instructions[:-1] for slot in step.outputs}
    assert within_sums(program) >= slots_of(program, "sin") | slots_of(program, "tanh")
    ((summed, region),) = regions(program).items()
    assert summed in program.instructions[-1].inputs
    assert region.slots <= within_sums(program) <= made
    assert region.sines.keys() >= slots_of(program, "sin")


def test_what_a_matrix_product_reads_is_not_within_a_sum():
    program = program_of(through_a_matrix)
    assert slots_of(program, "sin")
    assert within_sums(program).isdisjoint(slots_of(program, "sin"))
    assert not any(region.sines for region in regions(program).values())


def network(x):
    weights = jnp.cos(jnp.arange(32.0).reshape(4, 8))
    layer = jnp.sin(3.0 * (x @ weights))
    return jnp.cos(jnp.arange(8.0)) @ jnp.sin(layer @ (weights.T @ weights))


def test_what_is_made_of_a_sum_belongs_to_it():
    program = make_plan(network, X[:4], order="forward", kind="laplacian").pruned(False)
    sines = slots_of(program, "sin")
    assert len(sines) == 2
    assert within_sums(program, products=True) >= sines


def test_what_is_made_of_a_sum_that_others_read_does_not():
    def twice(x):
        total = jnp.sum(x)
        return total * jnp.sin(x), total

    program = make_plan(twice, X, order="forward").pruned(False)
    assert within_sums(program, products=True).isdisjoint(slots_of(program, "sin"))


def test_a_result_is_not_within_a_sum():
    program = make_plan(lambda x: (jnp.sin(x), jnp.sum(jnp.sin(x))), X, kind="laplacian").program
    assert within_sums(program).isdisjoint(program.values)


def test_what_else_is_read_is_no_part():
    def fun(x):
        inner = jnp.exp(x) * jnp.sin(x)
        return jnp.sum(jnp.tanh(inner) ** 2 + inner), inner

    program = make_plan(fun, X, kind="laplacian").pruned(True)
    for region in regions(program).values():
        assert region.slots.isdisjoint(slots_of(program, "sin") | {*program.values})


def test_layers_in_front_and_pairs_of_sines_are_seen():
    ((_, region),) = regions(program_of(separable)).items()
    assert region.has_pairs
    assert not region.layered
    program = make_plan(network, X[:4], order="forward", kind="laplacian").pruned(False)
    found = [region for region in regions(program).values() if region.sines]
    assert all(region.layered for region in found)


@pytest.mark.slow
@pytest.mark.parametrize("special", [np.nan, 1e30, -0.0])
@pytest.mark.parametrize("samples", [1, 8])
def test_sums_that_are_no_numbers_are_those_of_the_function(special, samples):
    def fun(x):
        return jnp.sum(jnp.where(x > 2e3, x, W * jnp.sin(x) / (1.0 + jnp.cos(x) ** 2)))

    xs = jnp.broadcast_to(X, (samples, 1000))
    xs = xs.at[0, 3].set(special)
    found = jax.jit(jax.vmap(laplacian_ve(fun)))(xs)
    expected = jax.vmap(lambda x: jnp.sum(jax.jvp(jax.grad(fun), (x,), (jnp.ones_like(x),))[1]))(xs)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def of_parameters(p, x):
    return jnp.sum(p[1] * jnp.tanh(p[0] * jnp.sin(x)) * jnp.exp(-0.5 * x**2))


def of_a_number(p, x):
    return jnp.sum(jnp.sin(p[0, 0] * x) ** 2 * jnp.exp(jnp.cos(p[0, 0] * x)))


def of_many(p, x):
    return jnp.sum(jax.nn.softplus(p[0] * x + p[1]) * jnp.sin(p[2] * x))


@pytest.mark.slow
@pytest.mark.parametrize("fun", [of_parameters, of_a_number, of_many])
@pytest.mark.parametrize(("samples", "largest"), [(2, 1.0), (90, 1.0), (90, 1e8)])
def test_value_and_derivatives(fun, samples, largest):
    keys = jax.random.split(jax.random.key(samples), 2)
    p, xs = jax.random.normal(keys[0], (3, 48)), jax.random.normal(keys[1], (samples, 48))
    xs = xs.at[0, 0].multiply(largest)  # beyond what the polynomials are made for

    def all_of(laplacian):
        def loss(p, xs):
            return jnp.mean(jax.vmap(laplacian, (None, 0))(p, xs) ** 2)

        def run(p, xs):
            tangent = jax.jvp(lambda p: jax.vmap(laplacian, (None, 0))(p, xs), (p,), (jnp.cos(p),))
            return tangent, jax.grad(loss, argnums=(0, 1))(p, xs)

        return jax.jit(run)(p, xs)

    found = all_of(laplacian_ve(fun, argnums=1))
    expected = all_of(lambda p, x: jnp.sum(second_derivatives(fun, p, x)))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = jnp.max(jnp.abs(other))
        np.testing.assert_allclose(one / scale, other / scale, rtol=0, atol=1e-11)


def second_derivatives(fun, p, x):
    """The diagonal of the Hessian of a sum of functions of one coordinate each."""
    return jax.jvp(lambda x: jax.grad(fun, argnums=1)(p, x), (x,), (jnp.ones_like(x),))[1]


@pytest.mark.parametrize("samples", [1, 64])
def test_laplacian(samples):
    xs = X + jnp.arange(samples)[:, None] / 100
    expected = jax.vmap(lambda x: jnp.sum(jax.vmap(jax.grad(jax.grad(term)))(x, W)))(xs)
    found = jax.jit(jax.vmap(laplacian_ve(separable)))(xs)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def term(x, w):
    return w * jnp.tanh(2.0 * jnp.sin(x)) * jnp.exp(-0.5 * x**2)


def modified(weights, x):
    """A network with two encoders of its input (Wang, Teng, Perdikaris, arXiv 2001.04536)."""
    first, second, third, hidden = weights
    u, v, h = (jnp.tanh(x @ w) for w in (first, second, third))
    h = (1 - h) * u + h * v
    z = jnp.tanh(h @ hidden)
    return jnp.sum((1 - z) * u + z * v)


def two_layers(weights, x):
    first, _, _, hidden = weights
    return jnp.sum(jnp.tanh(jnp.tanh(x @ first) @ hidden))


def gated(weights, x):
    """Its activation reads what a layer makes twice."""
    first, _, _, hidden = weights
    return jnp.sum(jax.nn.silu(jax.nn.silu(x @ first + 0.1) @ hidden))


def gated_rows(weights, x):
    """The same of several rows."""
    first, _, _, hidden = weights
    rows = jnp.stack([x, 0.5 * x, x + 1])
    return jnp.sum(jax.nn.silu(jax.nn.silu(rows @ first + 0.1) @ hidden))


def twice(fun):
    return laplacian_ve(laplacian_ve(fun, argnums=1), argnums=1)


def twice_by_jax(fun):
    def trace(fun):
        return lambda weights, x: jnp.trace(jax.hessian(fun, 1)(weights, x))

    return trace(trace(fun))


@pytest.fixture(scope="module")
def weights():
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = [(2, 6)] * 3 + [(6, 6)]
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fun", "ours", "reference"),
    [
        (modified, lambda fun: laplacian_ve(fun, argnums=1), None),
        (two_layers, twice, twice_by_jax),
        (gated, lambda fun: laplacian_ve(fun, argnums=1), None),
        (gated_rows, lambda fun: laplacian_ve(fun, argnums=1), None),
    ],
    ids=["shared", "taken", "vectors", "in front"],
)
def test_sums_of_products_apart_change_no_number(fun, ours, reference, weights):
    xs = jax.random.normal(jax.random.key(1), (300, 2))
    found = jax.vmap(ours(fun), (None, 0))

    def trace(weights, x):
        return jnp.trace(jax.hessian(fun, 1)(weights, x))

    expected = jax.vmap((reference or (lambda fun: trace))(fun), (None, 0))
    np.testing.assert_allclose(found(weights, xs), expected(weights, xs), rtol=1e-9, atol=1e-9)

    def loss(values):
        return lambda weights: jnp.mean(values(weights, xs) ** 2)

    gradients = [jax.tree.leaves(jax.grad(loss(values))(weights)) for values in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)


def test_which_sums_have_their_products_in_memory(weights):
    x = jnp.ones(2)
    plan = make_plan(modified, weights, x, kind="laplacian", argnums=1)
    assert shared_in_sums(plan.pruned(False), plan.moving)
    of_laplacian = laplacian_ve(two_layers, argnums=1)
    plan = make_plan(of_laplacian, weights, x, kind="laplacian", argnums=1)
    assert taken_for_products(plan.pruned(False))
    plan = make_plan(gated_rows, weights, x, kind="laplacian", argnums=1)
    assert in_front_of_sums(plan.pruned(False), plan.moving)
    plan = make_plan(gated, weights, x, kind="laplacian", argnums=1)
    assert not in_front_of_sums(plan.pruned(False), plan.moving)
    plan = make_plan(two_layers, weights, x, kind="laplacian", argnums=1)
    assert not shared_in_sums(plan.pruned(False), plan.moving)
    assert not taken_for_products(plan.pruned(False))
    assert not in_front_of_sums(plan.pruned(False), plan.moving)
