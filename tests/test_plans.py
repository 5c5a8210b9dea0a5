"""Plans are made once, printed, saved, refused on another graph; graphs print and convert."""

import copy
import dataclasses
import json
import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from jax import lax

from graphax_lapl import (
    EliminationOrder,
    InvalidArgumentError,
    InvalidOrderError,
    Plan,
    PlanMismatchError,
    compare_orders,
    computational_graph,
    hessve,
    jacve,
    make_plan,
    value_and_jacve,
)
from graphax_lapl.api import planning

X = np.linspace(0.2, 0.9, 4)


def fun(x):
    y = jnp.sin(x[:-1]) * x[1:]
    return jnp.exp(y), jnp.sum(y * y)


@pytest.fixture
def builds(monkeypatch):
    """Functions whose plan was built, in order; the caches start empty."""
    planning.clear_caches()
    seen = []
    build = Plan.build

    def counted(begun, *rest):
        seen.append(begun.graph.function)
        return build(begun, *rest)

    monkeypatch.setattr(Plan, "build", staticmethod(counted))
    return seen


@pytest.mark.smoke
def test_second_call_plans_nothing(builds):
    for _ in range(3):
        jacve(fun, order="reverse")(X)
    assert builds == ["fun"]
    jacve(fun, order="reverse")(X[:3])
    assert builds == ["fun", "fun"]


def test_changed_closure_values_plan_nothing(builds):
    for scale in (1.0, 2.0, 3.0):
        weights = jnp.asarray(X * scale)
        found = jacve(lambda x, w=weights: jnp.tanh(x * w), order="forward")(X)
        np.testing.assert_allclose(
            found, jax.jit(jax.jacfwd(lambda x, w=weights: jnp.tanh(x * w)))(X)
        )
    assert len(builds) == 1


@pytest.mark.smoke
def test_saved_plan_is_followed_and_refused_elsewhere(tmp_path: Path):
    plan = make_plan(fun, X, order="markowitz")
    path = tmp_path / "fun.json"
    plan.save(path)
    loaded = Plan.load(path)
    assert loaded.order == plan.order
    found = jacve(fun, order=loaded)(X)
    expected = jax.jit(jax.jacrev(fun))(X)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    for other in (X[:3], X.astype(np.float32)):
        with pytest.raises(PlanMismatchError, match="another graph"):
            jacve(fun, order=loaded)(other)


def test_saved_eliminations_of_edges_are_followed(tmp_path: Path):
    path = tmp_path / "plan"
    make_plan(fun, X, order="edges").save(path)
    loaded = Plan.load(path)
    assert loaded.order.steps is not None
    jax.tree.map(
        np.testing.assert_allclose, jacve(fun, order=loaded)(X), jax.jit(jax.jacfwd(fun))(X)
    )
    assert make_plan(fun, X, order=loaded).counts.muls == loaded.muls


def test_order_that_leaves_vertices_is_refused():
    order = make_plan(fun, X, order="reverse").order
    for vertices in ((), order.vertices[1:]):
        with pytest.raises(InvalidOrderError, match="missing vertices"):
            jacve(fun, order=dataclasses.replace(order, vertices=vertices))(X)


def test_order_of_a_plan_is_what_is_pickled():
    plan = make_plan(fun, X, order="reverse")
    assert copy.deepcopy(plan) is plan
    with pytest.raises(TypeError, match=r"plan of fun .* plan\.order"):
        pickle.dumps(plan)
    order = pickle.loads(pickle.dumps(plan.order))
    assert order == plan.order
    assert make_plan(fun, X, order=order).counts == plan.counts


@pytest.mark.parametrize("content", ["", "{}", "[1]", json.dumps({"format": "something else"})])
def test_file_that_is_no_plan(tmp_path: Path, content: str):
    path = tmp_path / "broken.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match="not a plan"):
        Plan.load(path)


def test_compiled_plan_takes_the_functions_arguments():
    plan = make_plan(fun, X, order="reverse")
    found, expected = plan.compile()(X), jax.jit(jax.jacrev(fun))(X)
    assert jax.tree.structure(found) == jax.tree.structure(expected)


def test_plan_prints_every_elimination():
    plan = make_plan(fun, X, order="reverse")
    text = str(plan)
    assert "order: reverse" in text
    rows = text.splitlines()[3:]
    assert [int(row.split()[1]) for row in rows] == list(plan.order.vertices)
    assert sum(plan.counts.by_vertex.values()) == plan.counts.muls
    assert "eliminate" in str(plan.program)


def test_graph_prints_source_lines_and_converts():
    graph = computational_graph(fun, X)
    view = graph.to_networkx()
    assert nx.is_directed_acyclic_graph(view)
    assert {kind for _, kind in view.nodes(data="kind")} == {"input", "intermediate", "output"}
    assert sorted(n for n in view if isinstance(n, int)) == list(graph.eliminable)
    assert str(graph).count(Path(__file__).name) >= 5
    assert graph.fingerprint == computational_graph(fun, X).fingerprint


def test_comparison_is_plain_data():
    comparison = compare_orders(fun, X, orders=("forward", "reverse"), measure=True)
    assert comparison.best in ("forward", "reverse")
    assert json.loads(json.dumps(comparison.to_dict()))["vertices"] == comparison.vertices
    assert all(row.seconds is not None and row.seconds > 0 for row in comparison.rows)


def test_order_object_is_an_order():
    plan = make_plan(fun, X, order="reverse")
    order = EliminationOrder(tuple(plan.order), plan.fingerprint)
    assert len(order) == len(plan.graph.eliminable)
    value, _ = value_and_jacve(fun, order=order)(X)
    np.testing.assert_allclose(value[1], fun(X)[1])


def test_effects_are_kept():
    seen = []

    def noisy(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x[0])
        return jnp.sin(x)

    jacve(noisy)(X)
    jax.effects_barrier()
    assert seen == [X[0]]


def test_a_gradient_that_is_differentiated_calls_back_once():
    seen = []

    def noisy(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x[0])
        y, _ = lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=3)
        return lax.cond(x[0] > 0, jnp.sum, jnp.prod, y)

    hessve(noisy)(X)
    jax.effects_barrier()
    assert seen == [X[0]]


def test_float_side_argument_does_not_recompile_but_may_be_static(builds):
    def step(x, t):
        return x * t

    def branch(x, t):
        return x * 2.0 if t > 0.5 else jnp.sin(x)

    for t in (0.1, 0.2, 0.9):
        np.testing.assert_allclose(jacve(step)(X, t), jax.jit(jax.jacrev(step))(X, t))
        np.testing.assert_allclose(jacve(branch)(X, t), jax.jacrev(branch)(X, t))
    assert builds.count("step") == 1
    assert builds.count("branch") == 2


def test_a_gradient_is_planned_once_and_no_order_twice(builds):
    def total(x):
        y, z = fun(x)
        return jnp.sum(y) * z

    assert make_plan(total, X).order.method == "auto (reverse)"
    assert len(builds) == 1
    # One vertex has one order, whatever it is called.
    make_plan(lambda x: jnp.cos(jnp.sin(x)), X)
    assert len(builds) == 2
