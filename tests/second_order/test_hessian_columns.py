"""Hessians of networks: columns are taken back through layers, or contracted, as is cheaper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import hessve, make_plan
from graphax_lapl.api.orders import resolve_order
from graphax_lapl.api.plan import Plan
from graphax_lapl.api.planning import prepare
from graphax_lapl.edges.operations import Einsum
from graphax_lapl.program import hessian_columns
from graphax_lapl.program.columns_last import products_of_matrices
from graphax_lapl.program.hessian_columns import build_hessian_by_columns
from graphax_lapl.program.orientation import multiplies
from tests.checks import assert_same


def weights(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) / np.sqrt(shape[0]))


W = [weights(k, 6, 8) for k in range(3)]
V = [weights(10 + k, 8, 8) for k in range(6)]
TAPS = [weights(20, 3, 3, 1, 4), weights(21, 3, 3, 4, 4)]
RING = [weights(22, 3, 1, 4), weights(23, 3, 4, 4)]


@jax.custom_jvp
def skewed(x, y):
    """A product whose rule is not one of any function: its second derivatives are asymmetric."""
    return x * y


@skewed.defjvp
def _(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    return skewed(x, y), y * dx + 3 * jnp.sin(x) * dy


def highway(x):
    h = jnp.tanh(x @ W[0])
    for k in (0, 2):
        gate = jax.nn.sigmoid(h @ V[k])
        h = gate * jnp.tanh(h @ V[k + 1]) + (1 - gate) * h
    return jnp.sum(h)


def coupling(x):
    a, b, total = x[:3], x[3:], 0.0
    for k in range(3):
        scale, shift = jnp.split(jnp.tanh(jnp.tanh(a @ W[k][:3]) @ V[k][:, :6]), 2)
        a, b, total = b * jnp.exp(scale) + shift, a, total + jnp.sum(scale)
    return total - jnp.sum(a**2) * jnp.sum(jnp.cos(b))


def normalised(x):
    h = x @ W[0]
    for k in range(2):
        h = jnp.sin(h) @ V[k]
        h = (h - jnp.mean(h)) / jnp.sqrt(jnp.var(h) + 1e-3)
    return jnp.sum(jnp.tanh(h) * W[1][0])


def recurrent(x):
    h = jnp.zeros(8)
    for t in range(4):
        gate = jax.nn.sigmoid(x[t] * W[0][0] + h @ V[0])
        h = (1 - gate) * h + gate * jnp.tanh(x[t] * W[1][0] + (gate * h) @ V[1])
    return jnp.sum(h)


def of_users_rule(x):
    h = jnp.tanh(x @ W[0])
    return jnp.sum(jnp.sin(skewed(h @ V[0], jnp.cos(h @ V[1])) @ V[2]))


def of_softplus(x):
    return jnp.sum(jax.nn.softplus(jax.nn.softplus(x @ W[0]) @ V[0]))


def on_a_ring(x):
    h = x[:, None]
    for taps in RING:
        around = jnp.concatenate([h[-1:], h, h[:1]])[None]
        dimensions = ("NWC", "WIO", "NWC")
        h = lax.conv_general_dilated(around, taps, (1,), "VALID", dimension_numbers=dimensions)[0]
        h = jnp.tanh(h)
    return jnp.sum(h**2)


def of_columns(x):
    """Layers of an array, row by row, with products between the rows."""
    h = jnp.tanh(x.reshape(3, 2) @ W[0][:2])
    s = jax.nn.softmax((h @ V[0]) @ (h @ V[1]).T)
    return jnp.sum(jnp.tanh(s @ h @ V[2]))


def several_outputs(x):
    h = jnp.tanh(x @ W[0])
    return jnp.tanh(h @ V[0])[:2], jnp.sum(jnp.sin(h @ V[1]) * h), x[0] * x[1]


NETWORKS = {
    made.__name__: made
    for made in (
        *(highway, coupling, normalised, recurrent, of_users_rule, of_softplus),
        *(on_a_ring, of_columns, several_outputs),
    )
}
#: From columns that are always taken back to ones that are contracted at once.
WEIGHTS = (1e9, hessian_columns.OWN, 0)


def program_by_columns(fun, *args, argnums=0):
    prepared = prepare(fun, args, {}, argnums, orders=2)
    graph = prepared.second_choices[-1]
    program = build_hessian_by_columns(graph)
    assert program is not None
    return Plan(graph.graph, resolve_order("reverse", graph.graph), program), prepared.inputs


def hessian_by_columns(fun, *args, argnums=0):
    plan, inputs = program_by_columns(fun, *args, argnums=argnums)
    return plan.run(inputs, values=False, sparse=False, stable=False)[1]


@pytest.mark.slow
@pytest.mark.parametrize("own", WEIGHTS)
@pytest.mark.parametrize("name", NETWORKS)
def test_columns_wherever_they_are_contracted(name, own, monkeypatch):
    monkeypatch.setattr(hessian_columns, "OWN", own)
    fun = NETWORKS[name]
    x = jnp.asarray(np.random.default_rng(30).normal(size=6))
    found = [block for row in hessian_by_columns(fun, x) for block in row]
    assert_same(found, jax.tree.leaves(jax.jit(jax.hessian(fun))(x)))


@pytest.mark.slow
@pytest.mark.parametrize("own", WEIGHTS)
def test_several_arguments(own, monkeypatch):
    monkeypatch.setattr(hessian_columns, "OWN", own)

    def fun(x, y, scale):
        h = jnp.tanh(x @ W[0] + scale * y)
        return jnp.sum(jnp.sin(h @ V[0]) * (y @ V[1]) + jnp.tanh(skewed(h, y) @ V[2]))

    rng = np.random.default_rng(31)
    args = [jnp.asarray(rng.normal(size=shape)) for shape in (6, 8, ())]
    found = [b for row in hessian_by_columns(fun, *args, argnums=(0, 1, 2)) for b in row]
    expected = jax.jit(jax.hessian(fun, argnums=(0, 1, 2)))(*args)
    assert_same(found, jax.tree.leaves(expected))


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_hessians_of_batches(name):
    fun = NETWORKS[name]
    xs = jnp.asarray(np.random.default_rng(32).normal(size=(5, 6)))
    batch = jax.jit(jax.vmap(hessve(fun)))(xs)
    assert_same(batch, jax.jit(jax.vmap(jax.hessian(fun)))(xs))


@pytest.mark.slow
def test_gradients_of_losses_with_hessians():
    def loss(hessian):
        def of_weights(v, x):
            return jnp.sum(hessian(lambda x: jnp.sum(jnp.tanh(jnp.tanh(x @ W[0]) @ v)))(x) ** 2)

        return of_weights

    x = jnp.asarray(np.random.default_rng(33).normal(size=6))
    assert_same(jax.grad(loss(hessve))(V[0], x), jax.grad(loss(jax.hessian))(V[0], x))


def layered(inputs, width):
    first, second = weights(40, inputs, width), weights(41, width, width)

    def fun(x):
        return jnp.sum(jnp.tanh(jnp.tanh(x @ first) @ second))

    plan = make_plan(fun, jnp.ones(inputs), kind="hessian")
    return products_of_matrices(plan.program, plan.moving).each


def test_wide_layers_are_contracted_and_narrow_ones_pulled_back():
    assert layered(6, 32) == 0
    assert layered(2, 128) == 1


def test_layers_in_front_of_several_products_are_pulled_through_once():
    plan = make_plan(highway, jnp.ones(6), kind="hessian")
    fixed = plan.program.unreached(plan.moving)
    products = [
        instruction
        for instruction in plan.program.instructions
        if isinstance(operation := getattr(instruction, "operation", None), Einsum)
        and multiplies(operation)
        and not fixed.isdisjoint(instruction.inputs)
    ]
    # The columns of four layers forward and back, and those of the first one at the end.
    assert len(products) == 9
    assert products_of_matrices(plan.program, plan.moving).each == 0


def test_sums_that_products_read_are_in_memory():
    plan, _ = program_by_columns(recurrent, jnp.ones(6))
    made = {slot for i in plan.program.instructions for slot in i.outputs}
    assert plan.program.sums
    assert plan.program.sums <= made


def test_convolutions_are_taken_as_a_whole():
    def fun(x):
        h = x[None, :, :, None]
        for taps in TAPS:
            dimensions = ("NHWC", "HWIO", "NHWC")
            h = lax.conv_general_dilated(h, taps, (1, 1), "SAME", dimension_numbers=dimensions)
            h = jnp.tanh(h)
        return jnp.sum(h)

    x = jnp.asarray(np.random.default_rng(34).normal(size=(4, 4)))
    plan = make_plan(fun, x, kind="hessian")
    assert plan.graph.listing.whole_windows
    assert_same(plan.compile()(x), jax.jit(jax.hessian(fun))(x))


@pytest.mark.slow
def test_sparse_hessians_keep_their_structure():
    def fun(x):
        return jnp.sum(jnp.tanh(jnp.tanh(x @ W[0][:2]) @ V[0]))

    x = jnp.asarray(np.random.default_rng(35).normal(size=(5, 2)))
    found = hessve(fun, sparse_representation=True)(x)
    assert found.nse == 5 * 2 * 2
    assert_same(found.todense(), jax.hessian(fun)(x))


@pytest.mark.slow
def test_long_programs_and_complex_numbers_are_left_to_the_other_program():
    def of_complex(x):
        h = jnp.tanh(lax.complex(x, jnp.cos(x)) @ lax.complex(W[0], W[1]))
        return jnp.sum(jnp.abs(jnp.tanh(h @ lax.complex(V[0], V[1]))))

    prepared = [prepare(fun, (jnp.ones(6),), {}, 0, orders=2) for fun in (highway, of_complex)]
    assert build_hessian_by_columns(prepared[0].second) is not None
    assert build_hessian_by_columns(prepared[0].second, 3) is None
    assert build_hessian_by_columns(prepared[1].second) is None
    assert_same(hessve(of_complex)(jnp.ones(6)), jax.hessian(of_complex)(jnp.ones(6)))
