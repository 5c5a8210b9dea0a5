"""Traces of more layers: slopes times products of weights for many samples, whole sums for few."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import divergence_ve
from graphax_lapl.api import divergence
from graphax_lapl.api.divergence import divergence_plan
from graphax_lapl.api.emission import MANY
from graphax_lapl.api.planning import prepare
from graphax_lapl.emit.innermost import samples_of

#: Samples for which products of weights are made, and for which they are not.
SIZES = [MANY + 3, 5]


def weights(sizes, dtype=jnp.float64):
    keys = jax.random.split(jax.random.key(len(sizes)), len(sizes))
    shapes = itertools.pairwise(sizes)
    return [jax.random.normal(k, s, dtype) / 2 for k, s in zip(keys, shapes, strict=False)]


def samples(number, size, dtype=jnp.float64):
    return jax.random.normal(jax.random.key(7), (number, size), dtype)


def layers(p, x):
    for w in p[:-1]:
        x = jnp.tanh(x @ w)
    return x @ p[-1]


def weights_on_the_left(p, x):
    for w in p[:-1]:
        x = jnp.sin(w.T @ x)
    return p[-1].T @ x


def kinks(p, x):
    for w in p[:-1]:
        x = jax.nn.relu(x @ w)
    return x @ p[-1]


def with_time(p, x):
    return layers(p, jnp.concatenate([x, jnp.full((1,), 0.3, x.dtype)]))


def one_layer_beside(p, x):
    return layers(p, x) - 2.0 * jnp.tanh(x @ p[0]) @ p[-1] + 3.0 * x


def gradient(p, x):
    """A field that is the gradient of a network, which reads its weights twice."""
    return jax.grad(lambda x: jnp.sum(weights_on_the_left(p, x)))(x)


def gates(p, x):
    """Layers whose results are scaled by numbers."""
    for w in p[:-1]:
        x = jnp.tanh((x @ w) * jax.nn.sigmoid(w[0]))
    return x @ p[-1]


def trace(field):
    return lambda p, x: jnp.trace(jax.jit(jax.jacfwd(field, 1))(p, x))


CASES = {
    "four layers": (layers, (8, 16, 15, 17, 8)),
    "five layers": (layers, (8, 16, 15, 17, 16, 8)),
    "six layers": (layers, (3, 16, 15, 17, 16, 15, 3)),
    "seven layers": (layers, (2, 9, 8, 7, 9, 8, 7, 2)),
    "one number": (layers, (1, 16, 15, 17, 1)),
    "wide": (layers, (12, 6, 6, 6, 12)),
    "on the left": (weights_on_the_left, (8, 16, 15, 17, 8)),
    "kinks": (kinks, (8, 16, 15, 17, 16, 8)),
    "time": (with_time, (4, 16, 15, 17, 3)),
    "beside": (one_layer_beside, (3, 16, 16, 16, 3)),
    "gradient": (gradient, (3, 16, 15, 1, 3)),
    "gates": (gates, (2, 16, 15, 17, 2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("number", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, number):
    field, sizes = CASES[name]
    params, xs = weights(sizes), samples(number, sizes[-1])

    def both(operator):
        def loss(params, xs):
            values = jax.vmap(operator, (None, 0))(params, xs)
            return jnp.mean(jnp.sin(values)), values

        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, xs)

    found, expected = (both(f) for f in (divergence_ve(field, argnums=1), trace(field)))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), found, expected
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["four layers", "six layers"])
def test_other_transformations(name):
    field, sizes = CASES[name]
    params, xs = weights(sizes), samples(MANY + 1, sizes[-1])
    ours, theirs = divergence_ve(field, argnums=1), trace(field)
    for transformed in (
        lambda f: f(params, xs[0]),
        lambda f: jax.vmap(jax.grad(f, 1), (None, 0))(params, xs),
        lambda f: jax.jit(jax.vmap(f, (None, 0)))(params, xs),
        lambda f: jax.vmap(f)(jax.tree.map(lambda w: jnp.stack([w, -w]), params), xs[:2]),
        lambda f: jax.vmap(jax.vmap(f, (None, 0)), (None, 0))(params, xs.reshape(3, -1, sizes[-1])),
        lambda f: jax.jvp(
            lambda p: jax.jit(jax.vmap(f, (None, 0)))(p, xs),
            (params,),
            (jax.tree.map(jnp.cos, params),),
        ),
    ):
        found, expected = (transformed(f) for f in (ours, theirs))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), found, expected
        )


@pytest.mark.slow
def test_single_precision_and_zeros():
    sizes = (8, 32, 32, 32, 8)
    params, xs = weights(sizes, jnp.float32), samples(MANY, 8, jnp.float32)
    params = [w / 4 for w in params]
    for points in (xs, jnp.zeros_like(xs)):
        found, expected = (
            jax.jit(jax.vmap(f, (None, 0)))(params, points)
            for f in (divergence_ve(layers, argnums=1), trace(layers))
        )
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_what_the_size_of_a_batch_decides():
    """Many samples never write the first weights scaled by slopes, few do; both are one plan."""
    sizes = (8, 16, 15, 17, 8)
    params = weights(sizes)
    operator = jax.vmap(divergence_ve(layers, argnums=1), (None, 0))
    for number in SIZES:
        text = str(jax.make_jaxpr(operator)(params, samples(number, 8)))
        made = any(f"f64[{s}]" in text for s in ("16,8,15", "8,15,17", "16,15,8"))
        assert made == (number >= MANY)


def test_a_plan_without_large_products_of_weights_has_one_program():
    for sizes, two in (((8, 16, 15, 8), False), ((8, 16, 15, 17, 8), True)):
        params = weights(sizes)
        prepared = prepare(
            lambda x, p=params: layers(p, x), (jnp.ones(8),), {}, 0, False, strict=False
        )
        plan = divergence_plan(prepared, "auto")
        assert (plan.program.few_samples is not None) == two


def batched_text(field, sizes, number):
    operator = jax.vmap(divergence_ve(field, argnums=1), (None, 0))
    return str(jax.make_jaxpr(operator)(weights(sizes), samples(number, sizes[-1])))


def test_vectors_meet_products_of_weights_from_the_left_for_many_samples():
    """Their rows then lie as the loops between two products read them."""
    for number in SIZES:
        text = batched_text(gradient, (3, 16, 15, 1, 3), number)
        rows_first = any(f"f64[{number},{s}] = dot_general" in text for s in ("3,15", "15,3"))
        rows_last = any(f"f64[{s},{number}] = dot_general" in text for s in ("3,15", "15,3"))
        assert (rows_first, rows_last) == (number >= MANY, number < MANY)


def test_matrices_of_samples_meet_the_trace_in_the_order_in_which_they_are_made():
    """No weights are repeated for samples, and no matrix has them behind its rows."""
    text = batched_text(gates, (2, 16, 15, 17, 2), MANY)
    products = re.findall(r"f64\[([\d,]+)\] = dot_general", text)
    assert products
    assert all(shape.startswith(f"{MANY},") for shape in products)
    assert f"f64[{MANY},16,15]" not in text


def test_the_plain_orders_are_chosen_where_others_save_little(monkeypatch):
    for size, markowitz, method in ((4, 99.0, "reverse"), (5, 94.0, "markowitz")):
        work = {"reverse": 100.0, "forward": 103.0, "markowitz": markowitz}
        assert planned(monkeypatch, size, work).order.method == f"auto ({method})"


def planned(monkeypatch, size, work):
    """The plan of a divergence whose orders are predicted to take so much."""
    predicted = property(lambda plan: work.get(plan.order.method, 1e9))
    monkeypatch.setattr(divergence.Plan, "predicted_work", predicted)
    params = weights((size, 3, size))
    prepared = prepare(lambda x: layers(params, x), (jnp.ones(size),), {}, 0, False, strict=False)
    return divergence_plan(prepared, "auto")


def test_samples_are_counted_where_vmap_is_innermost():
    found = []

    def probe(x, y):
        found.append(samples_of([x, y]))
        return x * y

    jax.vmap(probe, (0, None))(jnp.ones(6), 2.0)
    jax.grad(lambda x: jnp.sum(jax.vmap(probe, (0, None))(x, 2.0)))(jnp.ones(4))
    probe(1.0, 2.0)
    assert found == [6, 4, None]
