"""Jacobians of networks for batches: weights on the left, activations put together before."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from graphax_lapl import computational_graph, jacve, make_plan
from graphax_lapl.api.elementwise_first import elementwise_first
from graphax_lapl.api.orders import resolve_order
from graphax_lapl.edges.operations import Einsum
from graphax_lapl.program.columns_last import columns_last, products_of_matrices
from graphax_lapl.program.instructions import LocalInstruction, Program
from graphax_lapl.program.selections import with_selections

Activation = Callable[[Array], Array]
ACTIVATIONS: dict[str, Activation] = {
    "tanh": jnp.tanh,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
    "softplus": jax.nn.softplus,
    "sine": jnp.sin,
}
#: Numbers of neurons, by what the largest product is.
SIZES = {
    "narrow": (5, 20, 20, 5),
    "square": (6, 6, 6, 6),
    "deep rows": (3, 32, 32, 2),
    "deep rows of many columns": (9, 32, 32, 9),
    "very deep": (8, 64, 64, 8),
    "one output": (4, 16, 16, 1),
    "narrow middle": (12, 6, 12, 6, 12),
}


def weights(sizes: tuple[int, ...], seed: int = 0) -> list[tuple[Array, Array]]:
    """Matrices and biases of a network."""
    random = np.random.default_rng(seed)
    return [
        (jnp.asarray(random.normal(size=(o, i)) / np.sqrt(i)), jnp.asarray(random.normal(size=o)))
        for i, o in itertools.pairwise(sizes)
    ]


def network(layers: Any, x: Array, act: Activation = jnp.tanh) -> Array:
    """`W x + b` and an activation, layer by layer."""
    for number, (matrix, bias) in enumerate(layers):
        x = matrix @ x + bias
        x = act(x) if number + 1 < len(layers) else x
    return x


def by_rows(layers: Any, x: Array) -> Array:
    """The same with `x W`, of one row or several."""
    for matrix, bias in layers:
        x = jax.nn.gelu(x @ matrix.T + bias)
    return x


def samples(count: int, size: int) -> Array:
    return jnp.asarray(np.random.default_rng(5).normal(size=(count, size)))


def program_of(fun: Callable[[Array], Array], size: int, order: str) -> tuple[Program, set[int]]:
    plan = make_plan(fun, jnp.ones(size), order=order)
    return plan.program, plan.moving


@pytest.mark.parametrize("order", ["auto", "forward", "reverse", "markowitz"])
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("sizes", SIZES)
def test_batches_of_networks(sizes: str, act: str, order: str) -> None:
    layers, xs = weights(SIZES[sizes]), samples(3, SIZES[sizes][0])

    def f(x: Array) -> Array:
        return network(layers, x, ACTIVATIONS[act])

    found = jax.jit(jax.vmap(jacve(f, order=order)))(xs)
    np.testing.assert_allclose(found, jax.vmap(jax.jacfwd(f))(xs), rtol=1e-10, atol=1e-12)


Ways = dict[str, Callable[[Any, Array], Any]]
WAYS: Ways = {
    "weights of all samples": lambda p, xs: jax.vmap(jacve(network, argnums=1), (None, 0))(p, xs),
    "weights of each sample": lambda p, xs: jax.vmap(jacve(network, argnums=1))(
        jax.tree.map(lambda w: jnp.stack([w, 2 * w, -w]), p), xs
    ),
    "batches of batches": lambda p, xs: jax.vmap(
        jax.vmap(jacve(network, argnums=1), (None, 0)), (None, 0)
    )(p, jnp.stack([xs, xs + 1])),
    "networks of batches": lambda p, xs: jax.vmap(
        jax.vmap(jacve(network, argnums=1), (None, 0)), (0, None)
    )(jax.tree.map(lambda w: jnp.stack([w, 2 * w]), p), xs),
    "gradient of weights": lambda p, xs: jax.grad(
        lambda p: jnp.sum(jax.vmap(jacve(network, argnums=1), (None, 0))(p, xs) ** 2)
    )(p),
    "forward over the batch": lambda p, xs: jax.jvp(
        lambda xs: jax.vmap(jacve(network, argnums=1), (None, 0))(p, xs),
        (xs,),
        (jnp.ones_like(xs),),
    ),
    "weights on the right": lambda p, xs: jax.vmap(jacve(by_rows, argnums=1), (None, 0))(p, xs),
    "rows of a sample": lambda p, xs: jax.vmap(jacve(by_rows, argnums=1), (None, 0))(
        p, jnp.stack([xs, xs + 1])
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_weights_and_transformations(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `jax.jacfwd` in the place of `jacve`."""
    layers, xs = weights((5, 12, 12, 4)), samples(3, 5)
    found = jax.jit(WAYS[way])(layers, xs)
    monkeypatch.setitem(globals(), "jacve", jax.jacfwd)
    expected = WAYS[way](layers, xs)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_weights_stand_on_the_left(order: str) -> None:
    """What is summed is the first axis of the other operand, and nothing is turned between."""
    layers = weights((5, 12, 12, 4))
    program, moving = program_of(lambda x: network(layers, x), 5, order)
    found = columns_last(program, moving)
    assert found is not None
    fixed = found.unreached(moving)
    products = [
        (i, i.operation)
        for i in found.instructions
        if isinstance(getattr(i, "operation", None), Einsum) and i.operation.common
    ]
    assert len(products) >= 2
    for instruction, operation in products:
        right = operation.reads[1]
        assert instruction.inputs[0] in fixed
        assert instruction.inputs[1] not in fixed
        assert {right.axes[0].labels[0]} == operation.summed
    for _, operation in products[:-1]:
        assert operation.output[0] in operation.reads[0].labels


@pytest.mark.parametrize(
    ("sizes", "applies"),
    [
        ((5, 20, 20, 5), True),
        ((3, 32, 32, 3), False),
        ((9, 32, 32, 9), True),
        ((9, 64, 64, 9), False),
        ((5, 20, 20, 1), False),
        ((5, 20, 5), False),
    ],
)
def test_where_rows_are_short(sizes: tuple[int, ...], applies: bool) -> None:
    layers = weights(sizes)
    program, moving = program_of(lambda x: network(layers, x), sizes[0], "reverse")
    assert (columns_last(program, moving) is not None) == applies


def test_products_of_samples_are_counted_apart() -> None:
    layers = weights((6, 12, 12, 6))
    f = lambda x: x + network(layers, x)  # noqa: E731
    reverse, moving = program_of(f, 6, "reverse")
    assert products_of_matrices(reverse, moving) == (6 * 12 * 12 + 6 * 12 * 6, 0, 0)
    twice, moving = program_of(lambda x: f(f(x)), 6, "markowitz")
    assert products_of_matrices(twice, moving).own >= 6 * 6 * 6
    assert "markowitz" not in make_plan(lambda x: f(f(x)), jnp.ones(6)).order.method


def test_activations_come_first() -> None:
    """An activation's own equations are eliminated before all else, and scale a matrix once."""
    layers = weights((5, 20, 20, 5))

    def f(x: Array) -> Array:
        return network(layers, x, jax.nn.gelu)

    graph = computational_graph(f, jnp.ones(5))
    reverse = resolve_order("reverse", graph)
    (order,) = elementwise_first(graph, reverse)
    assert sorted(order.vertices) == sorted(graph.eliminable)
    behind = [v for v in reverse.vertices if v in order.vertices[-5:]]
    assert list(order.vertices[-5:]) == behind
    names = [graph.by_name[v].primitive for v in order.vertices]
    assert names.index("dot_general") > len(names) // 2
    plans = [make_plan(f, jnp.ones(5), order=o.vertices) for o in (order, reverse)]
    assert plans[0].predicted_work < plans[1].predicted_work


def test_nothing_comes_first_without_products() -> None:
    graph = computational_graph(lambda x: jnp.tanh(jnp.sin(x) * x), jnp.ones(5))
    assert elementwise_first(graph, resolve_order("reverse", graph)) == []


def test_both_cases_of_a_condition_leave_nothing_out() -> None:
    """Where one of two slopes is taken nothing behind them is selected again."""
    layers = weights((5, 20, 20, 5))
    f = lambda x: network(layers, x, jax.nn.elu)  # noqa: E731
    plan = make_plan(f, jnp.ones(5))
    assert plan.order.method.startswith("auto (elementwise")
    selected = [
        i.local.name
        for i in with_selections(plan.program).instructions
        if isinstance(i, LocalInstruction) and i.local.name in ("selected", "united")
    ]
    assert selected == ["selected"] * 2  # the slope of the exponential, in each of two layers


@pytest.mark.parametrize("big", [400.0, np.inf])
def test_slopes_of_cases_that_are_not_taken(big: float) -> None:
    """The exponential of what is not taken overflows, and its slope meets a zero."""
    layers = weights((3, 8, 8, 2))

    def act(x: Array) -> Array:
        return jnp.where(x > 0, x, jnp.exp(x * big))

    xs = jnp.abs(samples(4, 3))
    found = jax.vmap(jacve(lambda x: network(layers, x, act)))(xs)
    expected = jax.vmap(jax.jacfwd(lambda x: network(layers, x, act)))(xs)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_products_with_a_large_known_matrix_stay_arrays() -> None:
    """However few the results: `x^T T tanh(x)` for each of four matrices T."""
    random = np.random.default_rng(0)
    tensor = jnp.asarray(random.normal(size=(4, 6, 6)))

    def form(x: Array) -> Array:
        return jnp.einsum("oij,i,j->o", tensor, jnp.tanh(x), x)

    xs = samples(16, 6)
    found = jax.jit(jax.vmap(jacve(form)))
    np.testing.assert_allclose(found(xs), jax.vmap(jax.jacfwd(form))(xs), rtol=1e-10)
    kernels = found.lower(xs).compile().as_text()
    entry = kernels[kernels.index("ENTRY") :]
    assert entry.count("concatenate") + entry.count("fusion(") < 10
