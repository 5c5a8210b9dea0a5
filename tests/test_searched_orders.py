"""Orders that the planner finds, on traced functions: right, and as cheap as promised."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.problems.networks import FUNCTIONS
from elimination_orders import ORDERS, Annealing, find_edge_order, find_face_order, find_order
from graphax_lapl import (
    InvalidOrderError,
    PlanMismatchError,
    compare_orders,
    computational_graph,
    count_ops,
    elimination_graph,
    jacve,
)

STATE = (0.9, 0.4, 2.1, 1.1, -0.2, 1.7)
ALL = tuple(range(6))


def interface(a, b, c, d, e, f):
    """A function of scalars with shared intermediates."""
    p, q = jnp.sqrt(a * c) + b, jnp.sqrt(d * f) + e
    r = (p * a + q * d) / (a + d)
    s = jnp.exp(-r * r) * (b - e)
    return p * r + s, q * r - s, r * s * (c + f)


def narrow(x, u, v, w):
    """A dense network with a narrow middle, 20 -> 10 -> 2 -> 10 -> 20."""
    middle = jnp.tanh(v @ jnp.tanh(u @ x))
    return jnp.tanh(w @ jnp.tanh(v.T @ middle))


@pytest.mark.smoke
@pytest.mark.parametrize("order", [*ORDERS.names(), Annealing(max_evaluations=300)], ids=str)
def test_every_named_order_gives_the_jacobian(order):
    expected = jax.jacrev(interface, ALL)(*STATE)
    found = jacve(interface, order=order, argnums=ALL)(*STATE)
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, rtol=1e-10)


def test_search_is_never_worse_than_forward_and_reverse():
    comparison = compare_orders(interface, *STATE, argnums=ALL)
    by_order = {row.order: row.muls for row in comparison.rows}
    assert by_order["search"] <= min(by_order["forward"], by_order["reverse"])
    assert comparison.best_row.muls == by_order["search"]


def test_optimal_agrees_with_the_count():
    graph = computational_graph(interface, *STATE, argnums=ALL)
    result = find_order(elimination_graph(graph), "optimal")
    counts = count_ops(interface, *STATE, argnums=ALL, order=list(result.order))
    assert result.cost == counts.muls


@pytest.mark.smoke
def test_search_beats_forward_and_reverse_through_a_narrow_middle():
    rng = np.random.default_rng(0)
    args = (
        rng.normal(size=20),
        rng.normal(size=(10, 20)),
        rng.normal(size=(2, 10)),
        rng.normal(size=(20, 10)),
    )
    muls = {
        order: count_ops(narrow, *args, order=order).muls
        for order in ("forward", "reverse", "search")
    }
    assert muls["search"] < 0.7 * min(muls["forward"], muls["reverse"])
    found = jacve(narrow, order="search")(*args)
    np.testing.assert_allclose(found, jax.jit(jax.jacrev(narrow))(*args), rtol=1e-10, atol=1e-12)


def test_planner_and_program_count_alike():
    graph = computational_graph(interface, *STATE, argnums=ALL)
    for name in ("forward", "reverse", "markowitz", "eliad", "search"):
        result = find_order(elimination_graph(graph), name)
        counts = count_ops(interface, *STATE, argnums=ALL, order=list(result.order))
        assert result.cost == counts.muls, name


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(InvalidOrderError, match=r"markowitz.*search"):
        jacve(interface, order="quickest", argnums=ALL)(*STATE)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_array_functions_cost_no_more_than_forward_and_reverse(name):
    fun, args = FUNCTIONS[name]
    graph = elimination_graph(computational_graph(fun, *args))
    costs = {order: find_order(graph, order).cost for order in ("forward", "reverse", "auto")}
    assert costs["auto"] < min(costs["forward"], costs["reverse"])


def fan(x0, x1):
    """Edges beat vertices: a -> b -> y2 may be multiplied alone, since a -> y2 absorbs it."""
    a = x0 * x1
    b = jnp.exp(a)
    return jnp.cos(b), jnp.sin(b), a * b, jnp.sqrt(b)


def two_fans(x0, x1, x2, x3):
    """Faces beat edges: the same gain twice through one vertex."""
    a, b = x0 * x1, x2 * x3
    c = a * b
    return jnp.exp(c), jnp.sin(c), a * c, b * c


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("fun", "point", "vertices", "edges", "faces"),
    [(fan, (0.4, 0.8), 12, 11, 11), (two_fans, (0.4, 0.8, 0.3, 1.1), 24, 23, 22)],
    ids=["edges beat vertices", "faces beat edges"],
)
def test_finer_eliminations_give_the_jacobian(fun, point, vertices, edges, faces):
    argnums = tuple(range(len(point)))
    graph = elimination_graph(computational_graph(fun, *point, argnums=argnums))
    assert find_order(graph, "optimal").cost == vertices
    expected = jax.jit(jax.jacrev(fun, argnums))(*point)
    for search, cost in ((find_edge_order, edges), (find_face_order, faces)):
        found = search(graph)
        assert found.cost == cost
        assert count_ops(fun, *point, argnums=argnums, order=found).muls == cost
        for row, wanted in zip(
            jacve(fun, order=found, argnums=argnums)(*point), expected, strict=True
        ):
            np.testing.assert_allclose(row, wanted, rtol=1e-12)
    with pytest.raises(PlanMismatchError, match="partials"):
        jacve(interface, order=found, argnums=ALL)(*STATE)


def test_free_products_do_not_fill_a_residual_network() -> None:
    """Products with identities cost nothing; sums must not all be eliminated first for that."""

    def network(x: jax.Array) -> jax.Array:
        for _ in range(40):
            x = x + jnp.sin(jnp.tanh(2.0 * x + 1.0))
        return jnp.sum(x)

    graph = elimination_graph(computational_graph(network, np.ones(8)), "work")
    costs = {name: find_order(graph, name).cost for name in ("markowitz", "forward")}
    assert costs["markowitz"] <= costs["forward"]
