"""Programs whose sums are joined, factors reordered, and pointwise functions passed in one step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import divergence_ve, laplacian_ve, make_plan
from graphax_lapl.edges.operations import Combine, Einsum
from tests.checks import assert_same
from tests.second_order.checks import check_second_order

RNG = np.random.default_rng(11)
X = RNG.normal(size=4)
PAIRS = RNG.normal(size=(3, 2))
W = RNG.normal(size=(4, 4))
V = RNG.normal(size=(4, 3))


@jax.custom_jvp
def bent(x: Any) -> Any:
    """A function whose rule is traced."""
    return x * jnp.sin(x)


@bent.defjvp
def bent_jvp(primals: Any, tangents: Any) -> Any:
    """The rule, written with two functions."""
    (x,), (t,) = primals, tangents
    return bent(x), (jnp.sin(x) + x * jnp.cos(x)) * t


SCALARS: dict[str, Callable[[Any], Any]] = {
    "product of chains": lambda x: jnp.sum(jnp.tanh(2.0 * jnp.sin(x)) * jnp.exp(-0.5 * x**2)),
    "sums of one space": lambda x: jnp.sum(x**3) - 2.0 * jnp.sum(jnp.sin(x)) + jnp.sum(x * x[::-1]),
    "sums of two spaces": lambda x: jnp.sum(jnp.cos(x)) + jnp.sum(jnp.sin(x[:2]) ** 2) - jnp.sum(x),
    "sum of a sum squared": lambda x: jnp.sum(jnp.sin(x)) ** 2 + jnp.sum(jnp.sum(x**2) * x**3),
    "rows and columns": lambda x: jnp.sum(jnp.outer(jnp.sin(x), x**2) * W),
    "rows of a matrix": lambda x: jnp.sum(jnp.sum(jnp.outer(jnp.sin(x), x**2) * W, 0) ** 2),
    "silu": lambda x: jnp.sum(jax.nn.silu(x @ W)),
    "two layers of gelu": lambda x: jnp.sum(jax.nn.gelu(jax.nn.gelu(x @ W) @ W)),
    "two layers of softplus": lambda x: jnp.sum(jax.nn.softplus(jax.nn.softplus(x @ W) @ W)),
    "powers of one difference": lambda x: jnp.sum(jnp.logaddexp(x @ W, -(x @ W)) ** 1.5),
    "residual": lambda x: jnp.sum(jnp.tanh((x + jax.nn.silu(x @ W)) @ W) * x),
    "read by a product and a function": lambda x: (
        jnp.sum(jnp.exp(-(jnp.tanh(x @ W) ** 2))) + jnp.sum(jnp.tanh(x @ W) @ W)
    ),
    "gate": lambda x: jnp.sum(jax.nn.sigmoid(x @ W) * jnp.tanh(x @ W.T) * x),
    "rule of the user": lambda x: jnp.sum(bent(x @ W) * jnp.sin(x)),
    "functions of distances": lambda x: jnp.sum(
        jnp.exp(-jnp.sqrt(1.0 + jnp.sum((x[:, None] - x[None]) ** 2, -1)))
    ),
}

FIRST, SECOND = np.triu_indices(3, 1)


def charges(x: Any) -> Any:
    """Energy of charges on a circle; their positions are read once for every pair."""
    x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    return jnp.sum(1.0 / jnp.linalg.norm(x[FIRST] - x[SECOND], axis=-1))


def messages(x: Any) -> Any:
    """Two rounds of messages along the edges of a graph, some of them double."""
    source, target = np.array([0, 1, 2, 2, 0, 1]), np.array([1, 2, 0, 1, 1, 1])
    h = jnp.tanh(x)
    for _ in range(2):
        received = jax.ops.segment_sum(jax.nn.silu(h[source] * x[target]), target, 3)
        h = h + jnp.sin(received[:, ::-1])
    return jnp.sum(h**2)


ON_PAIRS = {"functions of distances", "charges", "messages"}
SCALARS |= {"charges": charges, "messages": messages}

VECTORS: dict[str, Callable[[Any], Any]] = {
    "pointwise output": lambda x: jax.nn.silu(jnp.sin(x)) * x,
    "inner and outer function": lambda x: (jnp.tanh(x), jnp.exp(-(jnp.tanh(x) ** 2))),
    "sums along rows": lambda x: jnp.sum(jnp.sin(jnp.outer(x, x)) * W + jnp.outer(x, x) ** 2, 1),
    "softmax": lambda x: jax.nn.softmax(jnp.sin(x) @ W),
    "second function of an output": lambda x: (x @ W * jnp.tanh(x @ W), jnp.cosh(x @ W)),
}


@pytest.mark.parametrize("name", [*SCALARS, *VECTORS])
def test_second_derivatives(name):
    fun = {**SCALARS, **VECTORS}[name]
    point = PAIRS if name in ON_PAIRS else X
    check_second_order(fun, point)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["product of chains", "silu", "sums of one space"])
def test_gradient_of_a_loss(name):
    fun = SCALARS[name]

    def loss(operator, scale):
        return operator(lambda x: fun(scale * x))(jnp.asarray(X)) ** 2

    def dense(f):
        return lambda x: jnp.trace(jax.hessian(f)(x))

    found = jax.grad(lambda scale: loss(laplacian_ve, scale))(1.3)
    np.testing.assert_allclose(found, jax.grad(lambda scale: loss(dense, scale))(1.3), rtol=1e-9)


def sums_in(fun: Callable[[Any], Any], order: str) -> int:
    """Number of instructions that sum entries."""
    program = make_plan(fun, X, order=order, kind="laplacian").program
    operations = [getattr(instruction, "operation", None) for instruction in program.instructions]
    return sum(hasattr(o, "reads") and len(o.output) < len(o.sizes) for o in operations)


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_sums_over_one_space_are_one(order):
    assert sums_in(SCALARS["product of chains"], order) == 1
    assert sums_in(lambda x: jnp.sum(jnp.sin(x)) + jnp.sum(x**4), order) == 1


def test_products_are_taken_before_they_are_gathered():
    particles, pairs = 8, 28
    first, second = np.triu_indices(particles, 1)

    def energy(x):
        y = jnp.sin(x) * jnp.exp(x)
        return jnp.sum(y[first] * y[second])

    program = make_plan(
        energy, RNG.normal(size=particles), order="forward", kind="laplacian"
    ).program
    products = [i for i in program.instructions if "einsum a,a->a" in str(i)]
    own = [i for i in products if program.slots[i.outputs[0]].shape == (particles,)]
    assert len(products) - len(own) <= 2  # with the other particle's value
    assert all(program.slots[i.outputs[0]].shape == (pairs,) for i in products if i not in own)


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_parts_of_a_concatenation_are_read_forwards(order):
    weights = RNG.normal(size=(6, 3))

    def network(x):
        return jnp.sum(jnp.tanh(jnp.concatenate([x[:2], jnp.tanh(x)]) @ weights))

    laplacian = laplacian_ve(network, order=order)
    assert "rev[" not in str(jax.make_jaxpr(laplacian)(jnp.asarray(X)))
    check_second_order(network, X)


def causal(x):
    features = x @ W[:2]
    scores = jnp.where(np.tril(np.ones((3, 3), bool)), features @ features.T / 2.0, -1e9)
    return jnp.sum(jnp.tanh(jax.nn.softmax(scores) @ features))


@pytest.mark.slow
def test_masked_scores_are_as_wide_as_their_product():
    check_second_order(causal, PAIRS)
    program = make_plan(causal, PAIRS, kind="laplacian").program
    assert not any(6 in program.slots[s].shape for i in program.instructions for s in i.outputs)


def triangle(x):
    features = jnp.tanh(x @ W[:2, :3])
    factor = jnp.tril(features * 0.3 + features**2) + 2.0 * jnp.eye(3)
    return jnp.sum(jnp.tanh(jax.scipy.linalg.solve_triangular(factor, features, lower=True)))


def test_masked_functions_of_a_product_are_as_wide_as_it():
    check_second_order(triangle, PAIRS)
    program = make_plan(triangle, PAIRS, order="forward", kind="laplacian").program
    assert not any(6 in program.slots[s].shape for i in program.instructions for s in i.outputs)


PARTICLES = RNG.normal(size=(6, 3))
TO_FEATURES = RNG.normal(size=(3, 4))


def moved_by_others(x, reach=0.7):
    """Particles that move one another, then a function of each."""
    apart = x[:, None] - x[None]
    pull = jnp.exp(-reach * jnp.sum(apart**2, -1))
    moved = x + jnp.sum(pull[..., None] * apart, 1)
    return jnp.sum(jnp.tanh(moved @ TO_FEATURES) ** 2)


def test_a_sum_that_stands_everywhere_is_one_array():
    check_second_order(moved_by_others, PARTICLES)
    program = make_plan(moved_by_others, PARTICLES, order="forward", kind="laplacian").program
    shapes = {program.slots[slot].shape for i in program.instructions for slot in i.outputs}
    assert (6, 3, 6, 4) in shapes  # the Jacobian of the features


TOKENS = RNG.normal(size=(8, 3))
WIDTHS = [(3, 12), (12, 12), (12, 12), (12, 12), (12, 12), (12, 16), (12, 16), (16, 4)]
LAYERS = [RNG.normal(size=shape) / 4 for shape in WIDTHS]


def attention_and_gate(x, weight=1.0):
    """Attention and a gated layer, each behind a norm: columns are a sum of outer products."""

    def normed(h):
        return h / jnp.sqrt(jnp.mean(h**2, -1, keepdims=True) + 0.1)

    embed, query, key, value, last, gate, up, down = LAYERS
    h = x @ embed
    z = normed(h)
    scores = weight * (z @ query) @ (z @ key).T
    h = h + jax.nn.softmax(scores) @ (z @ value) @ last
    z = normed(h)
    return jnp.sum(jnp.tanh((jax.nn.silu(z @ gate) * (z @ up)) @ down))


@pytest.mark.slow
def test_many_terms_that_are_written_out_behind_are_one_array():
    check_second_order(attention_and_gate, TOKENS)
    program = make_plan(attention_and_gate, TOKENS, order="forward", kind="laplacian").program
    full = [
        i
        for i in program.instructions
        if any(program.slots[slot].shape == (8, 3, 8, 16) for slot in i.outputs)
    ]
    assert full  # the Jacobians of the gate's two layers
    assert max(len(i.inputs) for i in full) <= 2  # not the sum of products of ten terms


def attention_twice(x, weight=1.0):
    """Two layers of attention without norms: columns are sums of three outer products."""
    width = x.shape[-1]
    rng = np.random.default_rng(7)
    h = x
    for _ in range(2):
        query, key, value = (rng.normal(size=(width, width)) / 2 for _ in range(3))
        scores = weight * (h @ query) @ (h @ key).T
        h = jnp.tanh(jax.nn.softmax(scores) @ (h @ value))
    return jnp.sum(h)


FEW_TOKENS = RNG.normal(size=(5, 4))


@pytest.mark.slow
def test_columns_of_few_numbers_are_one_array_from_three_terms_on():
    check_second_order(attention_twice, FEW_TOKENS)
    program = make_plan(attention_twice, FEW_TOKENS, order="forward", kind="laplacian").program
    assert len(program.instructions) < 190  # 215 of them for products term by term


@pytest.mark.slow
def test_few_outer_products_stay_a_sum():
    rates, weights = RNG.normal(size=(5, 6)), RNG.normal(size=(5, 6, 7))

    def energy(x):
        features = [jnp.sum(jnp.cos(k * x)) for k in range(1, 6)]
        z = sum(jnp.sin(rates[k] * s)[:, None] * weights[k] for k, s in enumerate(features))
        return jnp.sum(jnp.tanh(z) * jnp.exp(-(z**2)))

    x = RNG.normal(size=20)
    check_second_order(energy, x)
    program = make_plan(energy, x, order="forward", kind="laplacian").program
    shapes = {program.slots[slot].shape for i in program.instructions for slot in i.outputs}
    assert max(np.prod(shape) for shape in shapes) < 6 * 7 * 20


@pytest.mark.slow
def test_short_products_with_weights_are_products_of_matrices():
    """Four numbers a layer into few features: a batch has rows enough for a product."""
    layers = [(RNG.normal(size=(4, 6)), RNG.normal(size=(6, 4))) for _ in range(3)]

    def flow(layers, x):
        left, right = x[:4], x[4:]
        for first, last in layers:
            change = jnp.tanh(left @ first) @ last
            left, right = right * jnp.exp(jnp.tanh(change)) + change, left
        return jnp.sum(jnp.sin(left) * right)

    x = RNG.normal(size=8)
    check_second_order(lambda x: flow(layers, x), x)
    program = make_plan(lambda x: flow(layers, x), x, order="forward", kind="laplacian").program
    products = [
        i
        for i in program.instructions
        if isinstance(getattr(i, "operation", None), Einsum) and i.operation.whole
    ]
    assert products
    assert not any(i.operation.written_out for i in products)

    def loss(laplacian):
        return jax.jit(jax.grad(lambda layers: laplacian(lambda x: flow(layers, x)) ** 2))(layers)

    found = loss(lambda f: laplacian_ve(f)(x))
    assert_same(found, loss(lambda f: jnp.trace(jax.hessian(f)(x))), tolerance=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fun", "at"),
    [(moved_by_others, PARTICLES), (attention_and_gate, TOKENS), (attention_twice, FEW_TOKENS)],
    ids=["few", "many", "few numbers"],
)
def test_gradient_through_terms_that_stand_everywhere(fun, at):
    def loss(laplacian, parameter):
        return laplacian(lambda x: fun(x, parameter))(jnp.asarray(at)) ** 2

    def by_hessian(f):
        def flat(v):
            return f(v.reshape(at.shape))

        return lambda x: jnp.trace(jax.hessian(flat)(x.ravel()))

    both = [lambda parameter, way=way: loss(way, parameter) for way in (laplacian_ve, by_hessian)]
    found, expected = jax.jit(lambda parameter: [jax.grad(own)(parameter) for own in both])(0.7)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_mask_hides_infinite_slopes_of_what_is_no_product():
    def energy(x):
        distances = jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, -1))
        return jnp.sum(jnp.where(~np.eye(3, dtype=bool), distances, 0.0))

    def pairs(x):
        first, second = np.triu_indices(3, 1)
        return 2.0 * jnp.sum(jnp.linalg.norm(x[first] - x[second], axis=-1))

    dense = jax.jit(jax.hessian(lambda flat: pairs(flat.reshape(3, 2))))(jnp.asarray(PAIRS.ravel()))
    found = laplacian_ve(energy)(jnp.asarray(PAIRS))
    np.testing.assert_allclose(found, jnp.trace(dense), rtol=1e-10)


FIELDS: dict[str, Callable[[Any], Any]] = {
    "two layers": lambda x: jnp.tanh(x @ V) @ V.T,
    "gated": lambda x: (jnp.tanh(x @ V) * jax.nn.sigmoid(x @ V)) @ V.T,
    "scaled": lambda x: -2.0 * jnp.tanh(x @ V) @ (V.T * 0.5),
    "three layers": lambda x: jnp.tanh(jnp.tanh(x @ V) @ V.T) @ W,
    "two fields": lambda x: jnp.cos(x @ V) @ V.T - jnp.tanh(x @ V) ** 2 @ V.T,
}


@pytest.mark.parametrize("name", FIELDS)
def test_divergence(name):
    fun = FIELDS[name]
    expected = jnp.trace(jax.jit(jax.jacfwd(fun))(jnp.asarray(X)))
    np.testing.assert_allclose(divergence_ve(fun)(jnp.asarray(X)), expected, rtol=1e-12)


def test_weights_are_contracted_before_the_point_is_met():
    d, width = 40, 30
    first, second = RNG.normal(size=(d, width)), RNG.normal(size=(width, d))

    def field(x):
        return jnp.tanh(x @ first) @ second

    program = make_plan(field, RNG.normal(size=d), kind="divergence").program
    (point,) = program.inputs[-1:]
    reached = {point}
    for instruction in program.instructions:
        if reached.intersection(instruction.inputs):
            reached.update(instruction.outputs)
    assert max(int(np.prod(program.slots[slot].shape)) for slot in reached) == d


def test_columns_that_are_scaled_in_several_ways_are_scaled_once():
    weights = [RNG.normal(size=shape) for shape in ((8, 16), (16, 16))]

    def network(x):
        return jnp.sum(jax.nn.softplus(jax.nn.softplus(x @ weights[0]) @ weights[1]))

    program = make_plan(network, RNG.normal(size=8), kind="laplacian").pruned(False)
    loops = [
        operation
        for operation in (getattr(i, "operation", None) for i in program.instructions)
        if isinstance(operation, Einsum | Combine) and operation.shape == (8, 16)
        if len(operation.sizes) == 2
    ]
    assert loops
    assert not any(isinstance(operation, Combine) for operation in loops)


GROUPS = RNG.normal(size=(3, 5, 4))
SUMS_OF_SCALED_WEIGHTS: dict[str, Callable[[Any, Any], Any]] = {
    "squares of groups": lambda w, x: jax.nn.logsumexp(
        -jnp.sum(jnp.einsum("i,kij->kj", x, w) ** 2, -1)
    ),
    "sums of groups": lambda w, x: jnp.sum(
        jnp.tanh(jnp.sum(jnp.sin(jnp.einsum("i,kij->kj", x, w)), -1))
    ),
    "groups by their own centres": lambda w, x: jnp.prod(
        jnp.exp(-0.1 * jnp.sum(jnp.einsum("ki,kij->kj", x - w[..., 0], w) ** 2, -1))
    ),
    "roots, with a kink": lambda w, x: jnp.sum(
        jnp.sum(jnp.abs(jnp.einsum("i,kij->kj", x, w)) ** 3, -1) ** 0.5
    ),
}


@pytest.mark.parametrize("name", SUMS_OF_SCALED_WEIGHTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sums_of_scaled_weights_are_products(name, dtype):
    fun = SUMS_OF_SCALED_WEIGHTS[name]
    weights, x = GROUPS.astype(dtype), RNG.normal(size=5).astype(dtype)
    program = make_plan(fun, weights, x, argnums=1, order="forward", kind="laplacian").program
    made = [program.slots[slot] for i in program.instructions for slot in i.outputs]
    assert not [slot for slot in made if sorted(slot.shape) == [3, 4, 5]]

    def loss(laplacian):
        def of_batch(weights, xs):
            return jnp.sum(jax.vmap(lambda x: laplacian(lambda x: fun(weights, x))(x))(xs) ** 2)

        return jax.jit(jax.value_and_grad(of_batch))(weights, jnp.stack([x, 0.3 * x]))

    found = loss(laplacian_ve)
    tolerance = 1e-9 if dtype == np.float64 else 1e-3
    assert_same(found, loss(lambda f: lambda x: jnp.trace(jax.hessian(f)(x))), tolerance=tolerance)


def test_scaled_weights_that_are_read_twice_stay():
    def fun(x):
        z = jnp.einsum("i,kij->kj", x, GROUPS)
        return jnp.sum(jnp.sum(z**2, -1) * jnp.sum(jnp.sin(z**2), -1))

    check_second_order(fun, RNG.normal(size=5))
