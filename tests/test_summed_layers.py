"""Sums over all rows of a layer with one output: which they are, and that derivatives stay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import laplacian_ve, make_plan
from graphax_lapl.edges.operations import Einsum
from graphax_lapl.emit.products import sum_with_weights
from graphax_lapl.program.summed_layers import WIDE


def draw(seed, *shape, dtype=jnp.float64):
    return jax.random.normal(jax.random.key(seed), shape, dtype) / 2


WEIGHTS = (draw(0, 2, 6), draw(1, 6, WIDE), draw(2, WIDE, 1))
X = draw(3, 3, 7, 2)


def per_node(weights, x):
    first, second, last = weights
    return 3.0 * jnp.sum(jax.nn.silu(jnp.tanh(x @ first) @ second) @ last)


def read_twice(weights, x):
    out = jnp.tanh(x @ weights[0] @ weights[1]) @ weights[2]
    return jnp.sum(out) + jnp.sum(jnp.sin(out))


def weights_of_the_sample(weights, x):
    return jnp.sum(jnp.tanh(x @ weights[0]) @ jnp.sin(x.reshape(-1)[:6]))


def narrow(weights, x):
    return jnp.sum(jnp.cos(x @ weights[0]) @ weights[1][:, :1])


def sums_with_weights(fun, dtype=jnp.float64):
    weights = jax.tree.map(lambda w: w.astype(dtype), WEIGHTS)
    plan = make_plan(fun, weights, X[0].astype(dtype), argnums=1, kind="laplacian", order="forward")
    operations = (getattr(i, "operation", None) for i in plan.pruned(False).instructions)
    return [
        operation
        for operation in operations
        if isinstance(operation, Einsum)
        and not operation.output
        and len({len(read.labels) for read in operation.reads}) == 2
    ]


def test_a_sum_over_the_rows_of_a_last_layer_is_one_sum():
    (found,) = sums_with_weights(per_node)
    assert sorted(dict(found.sizes).values()) == [7, WIDE]


def test_other_sums_stay():
    assert not sums_with_weights(read_twice)
    assert not sums_with_weights(weights_of_the_sample)
    assert not sums_with_weights(narrow)
    assert not sums_with_weights(per_node, jnp.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("fun", [per_node, read_twice, weights_of_the_sample])
def test_values_and_training_steps(fun):
    def expected(weights, x):
        matrix = jax.jit(jax.hessian(fun, argnums=1))(weights, x).reshape(x.size, x.size)
        return jnp.trace(matrix)

    def batch(operator):
        return lambda weights, x: jax.vmap(operator, (None, 0))(weights, x)

    def step(operator):
        loss = lambda *args: jnp.mean(batch(operator)(*args) ** 2)  # noqa: E731
        return jax.grad(loss, argnums=(0, 1))

    operator = laplacian_ve(fun, argnums=1, order="forward")
    for form in (batch, step):
        found, wanted = jax.jit(form(operator))(WEIGHTS, X), form(expected)(WEIGHTS, X)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-9, 1e-11), found, wanted)


def test_axes_of_weights_in_any_order():
    (operation,) = sums_with_weights(per_node)
    rows, weights = draw(4, 7, WIDE), draw(5, WIDE, 1)
    shapes = [(7, WIDE) if len(r.labels) == 2 else (WIDE, 1) for r in operation.reads]
    operands = [rows if shape == (7, WIDE) else weights for shape in shapes]
    np.testing.assert_allclose(sum_with_weights(operation, operands), jnp.sum(rows @ weights))
