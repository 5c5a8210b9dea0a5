"""Operation counts: recomputed from the graph, and compared with what is emitted."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from elimination_orders import EliminationGraph, elimination_cost
from graphax_lapl import compare_orders, computational_graph, count_ops, jacve, make_plan
from tests.checks import ORDERS, assert_same, eliminable, shuffled_vertices
from tests.random_programs import random_elementwise_dag

DAGS = [(n, seed) for n in (1, 2, 4, 8, 16) for seed in range(5)]

of_every_dag = pytest.mark.parametrize(("n_vertices", "seed"), DAGS)


def simulated_muls(graph: nx.DiGraph, order: list[int]) -> int:
    """Sum of predecessors x successors at the time each vertex is eliminated."""
    before = {node: set(graph.predecessors(node)) for node in graph}
    after = {node: set(graph.successors(node)) for node in graph}
    total = 0
    for vertex in order:
        total += len(before[vertex]) * len(after[vertex])
        for u in before[vertex]:
            after[u] |= after[vertex]
            after[u].discard(vertex)
        for w in after[vertex]:
            before[w] |= before[vertex]
            before[w].discard(vertex)
    return total


def primitives(jaxpr: Any) -> Iterator[str]:
    """Names of all primitives of a jaxpr, those of nested jaxprs included."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        nested = [
            item
            for value in equation.params.values()
            for item in (value if isinstance(value, tuple | list) else (value,))
            if hasattr(item, "eqns") or hasattr(item, "jaxpr")
        ]
        for inner in nested:
            yield from primitives(inner)
        if not nested:
            yield equation.primitive.name


def emitted(fun: Callable[..., Any], *args: Any, order: Any, argnums: Any = 0) -> list[str]:
    """Names of the primitives that the Jacobian of ``fun`` executes."""
    return list(primitives(jax.make_jaxpr(jacve(fun, order=order, argnums=argnums))(*args)))


# ---------------------------------------------------------------- the literature's convention


@of_every_dag
def test_predecessors_times_successors(n_vertices: int, seed: int) -> None:
    program = random_elementwise_dag(seed, n_vertices, n_inputs=3, n_outputs=2)
    fun, args, argnums = program.fun, program.args, program.argnums
    graph = computational_graph(fun, *args, argnums=argnums).to_networkx()
    vertices = eliminable(fun, *args, argnums=argnums)
    shuffled = shuffled_vertices(seed, fun, *args, argnums=argnums)
    for order, sequence in (
        ("forward", vertices),
        ("reverse", vertices[::-1]),
        (shuffled, shuffled),
    ):
        counted = count_ops(fun, *args, order=order, argnums=argnums, convention="ad")
        assert counted.muls == simulated_muls(graph, sequence), program.description


@of_every_dag
def test_planner_counts_alike(n_vertices: int, seed: int) -> None:
    """The planner, given the edges of the networkx view, finds the same cost."""
    program = random_elementwise_dag(seed, n_vertices, n_inputs=3, n_outputs=2)
    fun, args, argnums = program.fun, program.args, program.argnums
    network = computational_graph(fun, *args, argnums=argnums).to_networkx()
    kinds = nx.get_node_attributes(network, "kind")
    graph = EliminationGraph(
        inputs=[node for node, kind in kinds.items() if kind == "input"],
        outputs=[node for node, kind in kinds.items() if kind == "output"],
        edges=list(network.edges),
    )
    for order in (
        make_plan(fun, *args, order="markowitz", argnums=argnums).order,
        shuffled_vertices(seed, fun, *args, argnums=argnums),
    ):
        counted = count_ops(fun, *args, order=order, argnums=argnums, convention="ad")
        assert elimination_cost(graph, order, objective="muls") == counted.muls


def test_vertices_do_not_depend_on_values() -> None:
    """Concrete, abstract and traced side inputs give one graph: an order found once stays valid."""

    def fun(x: jax.Array, i: jax.Array, keep: jax.Array) -> jax.Array:
        chosen = jnp.where(i > 1, jnp.sin(x), -jnp.exp(x))
        return jnp.where(keep, chosen * x[i], jnp.tanh(chosen))

    x = np.array([0.3, 0.5, 0.9])
    expected = eliminable(fun, x, np.int64(0), x > 0)
    assert eliminable(fun, x, np.int64(2), x < 0.4) == expected
    abstract = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, np.array(0), x > 0))
    assert eliminable(fun, *abstract) == expected
    order = tuple(reversed(expected))

    @jax.jit
    def compiled(*args: jax.Array) -> jax.Array:
        return jacve(fun, order=order)(*args)

    for i in (0, 2):
        result = compiled(x, np.int64(i), x > 0.4)
        assert_same(result, jax.jit(jax.jacfwd(fun))(x, np.int64(i), x > 0.4))


@of_every_dag
def test_ids_are_topological(n_vertices: int, seed: int) -> None:
    program = random_elementwise_dag(seed, n_vertices)
    graph = computational_graph(program.fun, *program.args, argnums=program.argnums)
    network = graph.to_networkx()
    vertices = eliminable(program.fun, *program.args, argnums=program.argnums)
    assert vertices == list(range(1, n_vertices + 1))
    assert all(u < v for u, v in network.edges if isinstance(u, int) and isinstance(v, int))


def test_counted_by_hand() -> None:
    """Two products, two functions of one operand, three inputs, one output."""

    def fun(x: Any, y: Any, z: Any) -> Any:
        return jnp.exp(jnp.sin((x * y) * z))

    def muls(order: Any) -> int:
        return count_ops(fun, 0.5, 0.6, 0.7, order=order, argnums=(0, 1, 2), convention="ad").muls

    assert muls("forward") == 2 * 1 + 3 * 1 + 3 * 1
    assert muls("reverse") == 1 * 1 + 2 * 1 + 2 * 1
    assert muls([2, 1, 3]) == 2 * 1 + 2 * 1 + 3 * 1
    assert muls("markowitz") <= 6


@pytest.mark.parametrize("length", [1, 2, 5, 20])
def test_chain_costs_the_same_in_every_order(length: int) -> None:
    def chain(x: Any) -> Any:
        for k in range(length):
            x = jnp.sin(x) if k % 2 else jnp.exp(x)
        return x

    for order in ORDERS:
        assert count_ops(chain, 0.3, order=order, convention="ad").muls == length - 1


def test_markowitz_is_greedy() -> None:
    """Wide on the input side, wide on the output side: eliminating the waist first is cheapest."""

    def waist(*xs: Any) -> Any:
        middle = jnp.sin(jnp.exp(sum(xs)))
        return tuple(jnp.sin(k * middle) for k in range(1, 4))

    xs = (0.1, 0.2, 0.3, 0.4)
    cost = {
        order: count_ops(waist, *xs, order=order, argnums=(0, 1, 2, 3), convention="ad").muls
        for order in ORDERS
    }
    assert cost["markowitz"] <= min(cost["forward"], cost["reverse"])


@of_every_dag
def test_by_vertex_adds_up(n_vertices: int, seed: int) -> None:
    program = random_elementwise_dag(seed, n_vertices)
    fun, args, argnums = program.fun, program.args, program.argnums
    for order in ORDERS:
        counted = count_ops(fun, *args, order=order, argnums=argnums, convention="ad")
        assert sorted(counted.by_vertex) == eliminable(fun, *args, argnums=argnums)
        assert sum(counted.by_vertex.values()) == counted.muls


def test_products_outside_of_eliminations_are_counted() -> None:
    """Traces, and what second derivatives multiply, belong to no vertex."""
    w = np.arange(1.0, 7.0).reshape(2, 3)

    def field(x: Any) -> Any:
        return w.T @ jnp.tanh(w @ x)

    def square(x: Any) -> Any:
        return (w[0] @ x) ** 2

    x = np.ones(3)
    cases: list[tuple[str, Any, int]] = [
        ("divergence", lambda x: w.T @ (w @ x), 6),  # the trace of 3 x 2 times 2 x 3
        ("divergence", field, 6 + 6),  # a 3 x 2 by a diagonal, and the trace
        ("hessian", square, 1 + 3 + 9),  # the adjoint by 2, and the row from either side
    ]
    for kind, fun, expected in cases:
        for order in ("forward", "reverse"):
            counted = count_ops(fun, x, kind=kind, order=order)
            assert counted.muls == expected
            assert compare_orders(fun, x, kind=kind, orders=(order,)).rows[0].muls == expected
            plan = str(make_plan(fun, x, kind=kind, order=order))
            others = expected - sum(counted.by_vertex.values())
            assert plan.splitlines()[-1].split() == ["outside", "of", "eliminations", str(others)]


def test_plan_and_comparison_count_alike() -> None:
    program = random_elementwise_dag(3, 8)
    fun, args, argnums = program.fun, program.args, program.argnums
    comparison = compare_orders(fun, *args, orders=ORDERS, argnums=argnums)
    for order in ORDERS:
        counted = count_ops(fun, *args, order=order, argnums=argnums)
        plan = make_plan(fun, *args, order=order, argnums=argnums)
        assert count_ops(fun, *args, order=plan, argnums=argnums).muls == counted.muls
        assert order in str(comparison)
    assert repr(comparison) == str(comparison)
    assert comparison.best in ORDERS
    assert set(ORDERS) <= {row.order for row in comparison.rows}
    assert isinstance(comparison.to_dict(), dict)


# ---------------------------------------------------------------- what is emitted


@of_every_dag
@pytest.mark.parametrize("order", ORDERS)
def test_emitted_multiplications(order: str, n_vertices: int, seed: int) -> None:
    program = random_elementwise_dag(seed, n_vertices, n_inputs=3)
    fun, args, argnums = program.fun, program.args, program.argnums
    counted = count_ops(fun, *args, order=order, argnums=argnums, convention="flops")
    names = emitted(fun, *args, order=order, argnums=argnums)
    assert names.count("mul") == counted.muls, program.description
    additions = sum(names.count(name) for name in ("add", "sub", "add_any"))
    assert additions == counted.adds, program.description


@of_every_dag
def test_elimination_alone(n_vertices: int, seed: int) -> None:
    """Where neither values nor partials multiply, every multiplication is the elimination's."""
    program = random_elementwise_dag(
        seed, n_vertices, unary=("sin", "cos", "exp", "sinh"), binary=("add", "sub")
    )
    fun, args, argnums = program.fun, program.args, program.argnums
    for order in ORDERS:
        upper = count_ops(fun, *args, order=order, argnums=argnums, convention="ad").muls
        found = emitted(fun, *args, order=order, argnums=argnums).count("mul")
        assert found <= upper, program.description
        counted = count_ops(fun, *args, order=order, argnums=argnums, convention="flops")
        assert found == counted.muls, program.description


MULTIPLYING = {"mul", "dot_general", "conv_general_dilated", "div", "integer_pow", "square", "pow"}

WITHOUT_MULTIPLICATION: dict[str, Callable[[jax.Array], Any]] = {
    "identity": lambda x: x,
    "sum and difference": lambda x: (x + x[0]) - x[:, :1],
    "negation": lambda x: -(-x + 1.0),
    "slices": lambda x: x[1:, ::2] + x[:-1, 1::2],
    "reversed": lambda x: x[::-1] + x[:, ::-1],
    "reshape": lambda x: x.reshape(2, 6)[:, 1:4] - x.ravel()[:3],
    "transpose": lambda x: x.T.reshape(3, 4) + x,
    "concatenate": lambda x: jnp.concatenate([x, -x[:1], x + 1.0]),
    "stack": lambda x: jnp.stack([x[0], x[1], x[0] - x[2]]),
    "pad": lambda x: jnp.pad(x, 1) + jnp.pad(x, ((0, 2), (2, 0))),
    "roll": lambda x: jnp.roll(x, 1, 0) + jnp.roll(x, -1, 1) - x,
    "broadcast": lambda x: x[:, None] - x[None, :],
    "reduction": lambda x: x.sum(0) - x[0].sum(),
    "sum of a broadcast": lambda x: (x[:, None] + x[None, :]).sum(0),
    "gather": lambda x: x[np.array([2, 0, 0])] + x,
    "scatter-add": lambda x: x.at[np.array([2, 0])].add(x[1]),
    "constant mask": lambda x: jnp.where(np.tri(3, 4, dtype=bool), x, -x),
    "squeeze and expand": lambda x: jnp.squeeze(x[:1, None], 0) + x,
    "all together": lambda x: jnp.concatenate([(x + x[::-1]).T[1:], x.reshape(4, 3) - 1.0]).sum(1),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", WITHOUT_MULTIPLICATION)
def test_no_multiplication_at_all(name: str) -> None:
    fun = WITHOUT_MULTIPLICATION[name]
    x = np.arange(12.0).reshape(3, 4)
    for order in ORDERS:
        assert not MULTIPLYING & set(emitted(fun, x, order=order))
        assert count_ops(fun, x, order=order, convention="flops").muls == 0


# ---------------------------------------------------------------- nothing is executed


def recording(calls: list[Any]) -> Callable[..., Any]:
    """A function that tells whenever it runs."""

    def fun(x: jax.Array, y: jax.Array) -> jax.Array:
        jax.debug.callback(calls.append, y)
        shape = jax.ShapeDtypeStruct(y.shape, y.dtype)
        seen = jax.pure_callback(lambda y: (calls.append(y), np.asarray(y))[1], shape, y)
        return jnp.sin(x * y) * seen

    return fun


@pytest.mark.parametrize(
    "analyse", [count_ops, make_plan, computational_graph, compare_orders], ids=lambda f: f.__name__
)
def test_analysis_executes_nothing(analyse: Callable[..., Any]) -> None:
    calls: list[Any] = []
    x = np.ones(3)
    analyse(recording(calls), x, x)
    jax.effects_barrier()
    assert calls == []


@pytest.mark.smoke
def test_shapes_instead_of_arrays() -> None:
    """A graph far too large to run is counted from shapes alone."""
    huge = jax.ShapeDtypeStruct((10**6,), np.float64)

    def fun(x: jax.Array) -> jax.Array:
        return jnp.sin(jnp.exp(x)) * x

    for order in ORDERS:
        counted = count_ops(fun, huge, order=order, convention="flops")
        assert 10**6 <= counted.muls <= 10**7
    assert computational_graph(fun, huge).to_networkx().number_of_nodes() >= 3
    assert str(make_plan(fun, huge, order="reverse"))


def test_shapes_and_arrays_count_alike() -> None:
    def fun(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w) @ w.T

    arrays = (np.ones((2, 3)), np.ones((3, 4)))
    shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays)
    for order in ORDERS:
        assert count_ops(fun, *arrays, order=order) == count_ops(fun, *shapes, order=order)


def test_diagonal_partials_are_counted_by_their_diagonal() -> None:
    """An elementwise chain of n numbers costs n multiplications per link, not n squared."""

    def chain(x: jax.Array) -> jax.Array:
        return jnp.sin(jnp.exp(jnp.cos(x)))

    for order in ORDERS:
        assert count_ops(chain, np.ones(50), order=order, convention="flops").muls == 2 * 50


def test_contraction_is_counted_by_its_flops() -> None:
    """Forward through w1 then w2: (k x m) times (m x n); reverse the same single product."""
    w1, w2 = np.ones((5, 3)), np.ones((2, 5))

    def linear(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
        return w2 @ (w1 @ x)

    counted = count_ops(linear, np.ones(3), w1, w2, order="reverse", convention="flops")
    assert counted.muls == 2 * 5 * 3


# ---------------------------------------------------------------- the graph as text and as networkx


def test_view_as_networkx() -> None:
    def fun(p: dict, unused: Any) -> Any:
        hidden = jnp.sin(p["w"] @ p["x"])
        return hidden.sum(), hidden

    params = {"w": np.ones((2, 3)), "x": np.ones(3)}
    graph = computational_graph(fun, params, 1.0, argnums=(0, 1))
    network = graph.to_networkx()
    kinds = nx.get_node_attributes(network, "kind")
    assert {n for n, kind in kinds.items() if kind == "input"} == {"x0", "x1", "x2"}
    assert {n for n, kind in kinds.items() if kind == "output"} == {"y0", "y1"}
    ids = sorted(n for n, kind in kinds.items() if kind == "intermediate")
    assert ids == list(range(1, len(ids) + 1))
    assert tuple(network.nodes["x0"]["shape"]) == (2, 3)
    sine = [n for n in ids if network.nodes[n]["primitive"] == "sin"]
    assert len(sine) == 1
    assert tuple(network.nodes[sine[0]]["shape"]) == (2,)
    assert np.dtype(network.nodes[sine[0]]["dtype"]) == np.float64
    assert nx.has_path(network, "x0", "y1")
    assert not list(network.successors("x2"))


def test_table_shows_source_lines() -> None:
    def fun(x: Any) -> Any:
        hidden = jnp.sin(x)
        return jnp.exp(hidden) * x

    text = str(computational_graph(fun, np.ones(3)))
    assert "test_counts.py" in text
    assert "sin" in text
    assert "exp" in text
