"""The form in which products of matrices are emitted, and that it changes no number."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, make_plan
from graphax_lapl.program.orientation import oriented

BATCH = 64


def loss(first, second, x):
    return jnp.sum(jnp.tanh(jnp.tanh(x @ first) @ second))


def scores(q, k, x):
    return jax.nn.softmax((x @ q) @ (x @ k).T, axis=-1) @ x


def narrow(first, second, x):
    return jnp.tanh(second @ jnp.tanh(first @ x))


def bilinear(w, x):
    return x.T @ w @ x


def twice(w, x):
    return x @ w, jnp.sum(x @ w) * (w.T @ x.T)


def rotated(w, x):
    turned = jax.lax.complex(jnp.cos(x @ w), jnp.sin(x @ w))
    return jnp.sum(jnp.abs(turned @ jax.lax.complex(w.T, jnp.sin(w.T))) ** 2)


def einsums(w, x):
    return jnp.einsum("abc,cd,be->aed", w, x.T @ x, jnp.sin(x).T @ x)


CASES = {
    "weights": (loss, (0, 1), [(3, 5), (5, 2), (4, 3)]),
    "attention": (scores, (0, 1), [(3, 2), (3, 2), (4, 3)]),
    "narrow middle": (narrow, 2, [(2, 6), (5, 2), (6,)]),
    "longer weights": (loss, (0, 1), [(3, 5), (5, 2), (6, 3)]),
    "bilinear": (bilinear, (0, 1), [(4, 4), (4, 3)]),
    "two outputs": (twice, (0, 1), [(3, 2), (4, 3)]),
    "complex inside": (rotated, (0, 1), [(3, 2), (4, 3)]),
    "three axes": (einsums, (0, 1), [(2, 3, 3), (4, 3)]),
}


def inputs(shapes, batch=(), dtype=np.float64, seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(size=(*batch, *shape)).astype(dtype) for shape in shapes]


def assert_equal(found, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10), found, expected
    )


@pytest.mark.parametrize("order", ["forward", "reverse", "auto"])
@pytest.mark.parametrize("name", list(CASES))
def test_jacobians_of_products(name, order):
    fun, argnums, shapes = CASES[name]
    batch = inputs(shapes, (3,), seed=1)
    expected = jax.jit(jax.vmap(jax.jacrev(fun, argnums)))(*batch)
    assert_equal(jax.jit(jax.vmap(jacve(fun, order, argnums)))(*batch), expected)


def test_sparse_results_are_the_dense_ones():
    fun, argnums, shapes = CASES["two outputs"]
    values = inputs(shapes)
    sparse = jacve(fun, argnums=argnums, sparse_representation=True)(*values)
    dense = jax.tree.map(lambda j: j.todense(), sparse, is_leaf=lambda j: hasattr(j, "todense"))
    assert_equal(dense, jax.jacrev(fun, argnums)(*values))


@pytest.mark.parametrize("name", ["weights", "longer weights", "narrow middle"])
def test_results_are_not_transposed_at_the_end(name):
    fun, argnums, shapes = CASES[name]
    jaxpr = jax.make_jaxpr(jax.jit(jacve(fun, argnums=argnums), inline=True))(*inputs(shapes)).jaxpr
    makers = {v: e.primitive.name for e in jaxpr.eqns for v in e.outvars}
    assert "transpose" not in [makers[v] for v in jaxpr.outvars]


def test_a_product_with_several_readers_stays_as_it_is():
    plan = make_plan(*_with_inputs("narrow middle"), argnums=2, order="reverse")
    assert oriented(plan.program) is not plan.program
    shared = plan.program.without_dead_code(None)
    shared.values = [*shared.values, *(s for row in shared.blocks for b in row for s in b.slots)]
    assert oriented(shared) is shared


def test_products_for_every_sample_contract_the_last_axis():
    # The only form that XLA's CPU library takes; another one is many times slower.
    shapes = CASES["longer weights"][2]
    gradient = jax.vmap(jacve(loss, argnums=(0, 1)), (None, None, 0))
    values = inputs(shapes[:2], dtype=np.float32)
    text = jax.jit(gradient).lower(*values, *inputs(shapes[2:], (BATCH,), np.float32)).compile()
    forms = re.findall(r"lhs_batch_dims=\{0\}, lhs_contracting_dims=\{(\d)\}", text.as_text())
    assert forms
    assert set(forms) == {"2"}


def test_short_sums_are_written_out():
    fun, argnums, shapes = CASES["weights"]
    values = inputs(shapes)
    text = str(jax.make_jaxpr(jax.jit(jacve(fun, "reverse", argnums), inline=True))(*values))
    assert text.count("dot_general") == 2  # the function's own


def _with_inputs(name):
    fun, _, shapes = CASES[name]
    return fun, *inputs(shapes)
