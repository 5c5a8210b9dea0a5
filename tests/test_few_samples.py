"""Single inputs and small batches of long programs: another program, the same numbers."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import Plan, hessve, jacve, make_plan, value_and_jacve
from graphax_lapl.api import few_samples
from graphax_lapl.api.compressed import CompressedPlan
from graphax_lapl.api.full_rows import zeros_meet_finite_slopes
from graphax_lapl.api.guarded import GuardedFunction
from graphax_lapl.api.hessian import hessian_plan
from graphax_lapl.api.plain import PlainPlan
from graphax_lapl.api.planning import prepare
from graphax_lapl.edges.operations import ApplyOpaque, MaterializeOpaque
from graphax_lapl.emit.numbers import BATCH
from graphax_lapl.rules.elementwise import has_finite_slopes

RNG = np.random.default_rng(5)
Q: Any = RNG.normal(size=3)
V: Any = RNG.normal(size=3)
J: Any = np.array([0.1, 0.2, 0.15])
WEIGHTS: Any = np.random.default_rng(6).normal(size=(4, 4))


@pytest.fixture(autouse=True)
def _short_programs_too(monkeypatch: pytest.MonkeyPatch, fresh_plans: None) -> None:
    monkeypatch.setattr(few_samples, "LONG", 10)
    monkeypatch.setattr(few_samples, "is_small_program", lambda program: False)
    monkeypatch.setattr(few_samples, "FEWEST", 4)
    monkeypatch.setattr(few_samples, "MARGIN", 1.0)


def tumbling(q: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rotations and gyroscopic torques one after the other, on arrays of three."""
    for _ in range(3):
        v = v - 0.1 * jnp.cross(v, J * v) / J
        q = q + 0.1 * jnp.cross(jnp.sin(q), v) + 0.01 * v**2
    return q, v


def with_count(q: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    return tumbling(q, v)[0], jnp.argmax(v)


def jacobian(q: jax.Array, v: jax.Array) -> Any:
    return jacve(tumbling, argnums=(0, 1))(q, v)


expected = jax.jit(jax.jacrev(tumbling, argnums=(0, 1)))


def assert_close(found: object, wanted: object) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_few_samples_have_a_program_of_their_own() -> None:
    plan = make_plan(tumbling, Q, V, argnums=(0, 1))
    limit = plan.order.few_limit
    assert plan.few is not None
    assert limit >= few_samples.FEWEST

    def equations(*sizes: int) -> int:
        fun: Callable[..., Any] = jacobian
        for _ in sizes:
            fun = jax.vmap(fun)
        x = jnp.zeros((*sizes, 3))
        return len(jax.jit(fun).lower(x, x).as_text().splitlines())

    few, many = equations(limit - 1), equations(limit)
    assert many > 1.2 * few
    assert equations() < 1.2 * few
    # Neither axis of a nested batch is large.
    assert equations(2, (limit + 1) // 2) > 1.2 * few


@pytest.mark.slow
def test_they_are_right_in_every_batch() -> None:
    assert_close(jacobian(Q, V), expected(Q, V))
    for size in (3, few_samples.MOST):
        qs, vs = RNG.normal(size=(2, size, 3))
        both = (jax.jit(jax.vmap(f, (0, None))) for f in (jacobian, expected))
        found, wanted = (f(qs, vs[0]) for f in both)
        assert_close(found, wanted)
    assert_close(jax.vmap(jacobian, (0, None))(qs[:5], V), jax.vmap(expected, (0, None))(qs[:5], V))


@pytest.mark.slow
def test_derivatives_of_the_jacobian_are_right() -> None:
    def of(derivative: Callable[..., Any]) -> Callable[..., Any]:
        return lambda q, v: sum(jnp.sum(jnp.cos(x)) for x in jax.tree.leaves(derivative(q, v)))

    found, wanted = (jax.jit(jax.grad(of(f))) for f in (jacobian, expected))
    assert_close(found(Q, V), wanted(Q, V))


@pytest.mark.slow
def test_values_and_integers_beside_it() -> None:
    values, jac = value_and_jacve(tumbling, argnums=(0, 1))(Q, V)
    assert_close((values, jac), (tumbling(Q, V), expected(Q, V)))
    jac, count = jax.vmap(jacve(with_count, argnums=0, has_aux=True))(Q[None], V[None])
    assert int(count[0]) == int(np.argmax(V))
    assert_close(jac[0], jax.jit(jax.jacrev(lambda q: tumbling(q, V)[0]))(Q))


def test_a_saved_order_keeps_it(tmp_path: Path) -> None:
    plan = make_plan(tumbling, Q, V, argnums=(0, 1))
    plan.save(tmp_path / "plan.json")
    order = Plan.load(tmp_path / "plan.json").order
    again = make_plan(tumbling, Q, V, argnums=(0, 1), order=order)
    assert again.few is not None
    assert again.order.few_limit == plan.order.few_limit
    assert_close(again.compile()(Q, V), expected(Q, V))


def test_an_infinite_slope_stays_where_it_is() -> None:
    """Seeds of zeros times an infinite slope would be NaN, where no path leads."""

    def rooted(q: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        q, v = tumbling(q, v)
        root = jnp.sqrt(jnp.abs(v) - jnp.abs(v))
        return q + 0 * root[0], q

    plan = make_plan(rooted, Q, V, argnums=(0, 1))
    assert plan.few is None
    assert np.isfinite(np.asarray(jacve(rooted, argnums=(0, 1))(Q, V)[1][0])).all()


def two_steps(x: jax.Array) -> jax.Array:
    """Velocities that enter only behind a root: tangents of zeros meet its slope before."""
    q, v = x[:3], x[3:]
    for _ in range(2):
        v = v - 0.1 * jnp.sqrt(q) * jnp.roll(q, 1) / (2 + v**2)
        q = q + 0.1 * v * jnp.sin(q)
    return jnp.concatenate([q, v])


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plan of these steps, with pushed columns however little they save."""
    monkeypatch.setattr(few_samples, "REPEATED", 0)
    plan = make_plan(two_steps, jnp.ones(6))
    assert plan.few is not None
    assert plan.few.guarded is not None
    assert plan.order.few_limit == few_samples.GUARDED
    return plan


def test_columns_are_pushed_with_guards(guarded: Plan) -> None:
    """The first root depends on one position each, the second one on velocities too."""
    assert guarded.few is not None
    function = guarded.few.guarded
    assert isinstance(function, GuardedFunction)
    equations, reached = function.listing.equations, function.reached.items()
    first, second = (paths for (k, _), paths in reached if equations[k].name == "sqrt")
    np.testing.assert_array_equal(first[:3], np.eye(3))
    np.testing.assert_array_equal(first[3:], 0)
    np.testing.assert_array_equal(second[3:], np.eye(3))


@pytest.mark.slow
def test_they_are_right(guarded: Plan) -> None:
    del guarded
    xs = np.random.default_rng(3).uniform(0.5, 1.5, (5, 6))
    ours, reference = jacve(two_steps), jax.jacfwd(two_steps)
    assert_close(ours(xs[0]), reference(xs[0]))
    assert_close(jax.jit(jax.vmap(ours))(xs), jax.vmap(reference)(xs))
    found, expected = (
        jax.grad(lambda x, f=f: jnp.sum(jnp.sin(jax.vmap(f)(x))))(xs) for f in (ours, reference)
    )
    assert_close(found, expected)


def test_no_zero_meets_an_infinite_slope_there(guarded: Plan, tmp_path: Path) -> None:
    """At the root of zero what is finite by elimination is, and what is not is not."""
    x = np.array([0.0, 0.5, 1.0, 0.1, 0.2, 0.3])
    eliminated = jacve(two_steps, order="reverse")(x)
    found = jax.jit(jax.vmap(jacve(two_steps)))(x[None])[0]
    assert np.isfinite(np.asarray(found[:, 4:])).all()
    assert not np.isfinite(np.asarray(found)).all()
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(eliminated))
    guarded.save(tmp_path / "plan.json")
    order = Plan.load(tmp_path / "plan.json").order
    again = make_plan(two_steps, x, order=order)
    assert again.few is not None
    assert again.few.guarded is not None


def test_they_know_what_is_known_while_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks and positions are evaluated once, and no equation makes them."""

    def alternating(x: jax.Array) -> jax.Array:
        return two_steps(jnp.where(jnp.arange(6) % 2 == 0, x, 2 * x))

    monkeypatch.setattr(few_samples, "REPEATED", 0)
    plan = make_plan(alternating, jnp.ones(6))
    assert plan.few is not None
    assert plan.few.guarded is not None
    xs = np.random.default_rng(4).uniform(0.5, 1.5, (5, 6))
    assert_close(jax.jit(jax.vmap(jacve(alternating)))(xs), jax.vmap(jax.jacfwd(alternating))(xs))


def test_functions_with_rules_of_their_own_have_no_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_samples, "REPEATED", 0)
    plan = make_plan(lambda x: two_steps(jax.nn.relu(x)), jnp.ones(6))
    assert plan.few is None


def twice_read(x: jax.Array) -> jax.Array:
    """A loop whose start is also read at every step: two maps, of four columns each."""
    result: jax.Array = jax.lax.fori_loop(0, 10, lambda _, y: jnp.tanh(WEIGHTS @ y) + 0.1 * x, x)
    return result


@pytest.mark.slow
def test_a_loop_is_pushed_through_once_for_all_columns() -> None:
    points = np.random.default_rng(7).uniform(0.5, 1.5, (3, 4))
    plan = make_plan(twice_read, points[0])
    assert plan.few is not None
    assert plan.few.coloring.columns == 4
    assert plan.order.few_limit > 10**6
    derivative, wanted = jacve(twice_read), jax.jacfwd(twice_read)
    assert_close(derivative(points[0]), wanted(points[0]))
    assert_close(jax.vmap(derivative)(points), jax.vmap(wanted)(points))
    # Sparse results and derivatives are those of the elimination.
    assert_close(
        jacve(twice_read, sparse_representation=True)(points[0]).todense(), wanted(points[0])
    )
    assert_close(jax.jacfwd(derivative)(points[0]), jax.jit(jax.jacfwd(wanted))(points[0]))


def epidemic(
    beta: jax.Array,
    gamma: jax.Array,
    healthy: jax.Array,
    contacts: Callable[[jax.Array], jax.Array] = jnp.negative,
) -> jax.Array:
    """Twenty Runge-Kutta steps of susceptible, infected and recovered; the infected."""

    def slope(y: jax.Array) -> jax.Array:
        new, healed = beta * y[0] * contacts(-y[1]), gamma * y[1]
        return jnp.stack([-new, new - healed, healed])

    def step(y: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        k1 = slope(y)
        k2 = slope(y + 0.25 * k1)
        k3 = slope(y + 0.25 * k2)
        y = y + 0.5 / 6 * (k1 + 2 * k2 + 2 * k3 + slope(y + 0.5 * k3))
        return y, y[1]

    start = jnp.stack([healthy, 1 - healthy, 0 * healthy])
    return lax.scan(step, start, None, length=20)[1]


@pytest.mark.slow
def test_many_samples_have_a_loop_for_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_samples, "MARGIN", 1.25)
    inputs = [jnp.linspace(low, high, 70) for low, high in ((1.0, 1.5), (0.2, 0.4), (0.8, 0.95))]
    plan = make_plan(epidemic, *(x[0] for x in inputs), argnums=(0, 1, 2))
    assert plan.order.few_limit == few_samples.MOST
    operations = [getattr(i, "operation", None) for i in plan.program.instructions]
    maps = [o for o in operations if isinstance(o, ApplyOpaque | MaterializeOpaque)]
    # The three numbers that the state begins with move together, with one of the inputs.
    assert [math.prod(m.shape) for m in maps] == [20, 20, 20]
    for count in (3, 70):
        own = [x[:count] for x in inputs]
        found, wanted = (
            jax.jit(jax.vmap(transform(epidemic, (0, 1, 2))))(*own)
            for transform in (lambda f, n: jacve(f, argnums=n), jax.jacfwd)
        )
        assert_close(found, wanted)


def test_loops_with_dear_functions_are_pushed_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_samples, "MARGIN", 1.25)
    assert make_plan(twice_read, np.ones(4)).order.few_limit == few_samples.ANY

    def saturated(beta: jax.Array, gamma: jax.Array, healthy: jax.Array) -> jax.Array:
        return epidemic(beta, gamma, healthy, jnp.tanh)

    numbers = [jnp.asarray(x) for x in (1.2, 0.3, 0.9)]
    plans = [make_plan(f, *numbers, argnums=(0, 1, 2)) for f in (saturated, epidemic)]
    assert [p.order.few_limit for p in plans] == [few_samples.ANY, few_samples.MOST]


def test_columns_in_the_time_of_a_row_through_a_loop() -> None:
    """Eight where steps compute with single numbers that move, two of arrays."""

    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.fori_loop(0, 10, lambda _, y: jnp.sin(y) + x, x))

    def by_numbers(x: jax.Array) -> jax.Array:
        step = lambda _, y: jnp.stack([x[0] * y[1], y[0] * jnp.sum(jnp.sin(x))])  # noqa: E731
        return jnp.sum(jax.lax.fori_loop(0, 10, step, jnp.ones(2)))

    def factored(x: jax.Array) -> jax.Array:
        step = lambda _, y: jnp.linalg.cholesky(y @ y.T + jnp.eye(x.size)) * x  # noqa: E731
        return jnp.sum(jax.lax.fori_loop(0, 10, step, jnp.eye(x.size)))

    cases = (
        *((by_numbers, 4, 4), (by_numbers, 9, 0)),
        *((factored, 2, 2), (factored, 4, 0)),
        *((total, 2, 2), (total, 4, 0)),
    )
    for fun, size, columns in cases:
        plan = make_plan(fun, np.ones(size), order="compressed")
        assert isinstance(plan, CompressedPlan)
        assert plan.coloring.columns == columns


@pytest.mark.parametrize("repeated", [few_samples.REPEATED, 0])
def test_a_row_through_loops_is_pulled_for_any_number_of_samples(
    repeated: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logarithm of a density behind coupling layers: elimination sees several maps of them."""
    monkeypatch.setattr(few_samples, "REPEATED", repeated)
    weights = np.random.default_rng(0).standard_normal((6, 6)) / 3

    def density(x: jax.Array) -> jax.Array:
        def layer(carry: tuple[jax.Array, jax.Array], w: jax.Array) -> tuple[Any, None]:
            y, total = carry
            h = jnp.tanh(w * (weights @ y))
            moved = y[3:] * jnp.exp(h[:3]) + h[3:]
            return (jnp.concatenate([moved, y[:3]]), total + jnp.sum(h[:3])), None

        (y, total), _ = lax.scan(layer, (x, jnp.zeros(())), jnp.linspace(0.5, 1.0, 9))
        return total - 0.5 * jnp.sum(y**2)

    points = np.random.default_rng(1).uniform(0.5, 1.5, (300, 6))
    plan = make_plan(density, points[0])
    assert plan.few is not None
    assert (plan.few.coloring.columns, plan.few.coloring.rows) == (0, 1)
    assert plan.order.few_limit == few_samples.ANY
    found = jax.jit(jax.vmap(jacve(density)))(points)
    assert_close(found, jax.vmap(jax.grad(density))(points))


def test_a_loop_that_is_met_once_stays_with_the_elimination() -> None:
    def decay(p: jax.Array) -> jax.Array:
        result: jax.Array = jax.lax.fori_loop(0, 20, lambda _, y: y - 0.1 * p * y, jnp.ones(4))
        return result

    assert make_plan(decay, np.ones(4)).few is None


def remembered(weights: jax.Array) -> jax.Array:
    """The state of a recurrent cell after a few steps, which are written out."""

    def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        gates = jax.nn.sigmoid(weights[0] @ state + x)
        return gates * jnp.tanh(weights[1] @ state) + (1 - gates) * state, None

    return jax.lax.scan(step, jnp.full(4, 0.3), jnp.linspace(-1.0, 1.0, 24).reshape(6, 4))[0]


@pytest.mark.slow
def test_steps_that_are_written_out_are_not_started_again() -> None:
    weights = jnp.linspace(-0.5, 0.7, 32).reshape(2, 4, 4)
    plan = make_plan(remembered, weights)
    assert plan.few is None
    assert "scan" not in str(jax.make_jaxpr(jacve(remembered))(weights))
    assert_close(jacve(remembered)(weights), jax.jacrev(remembered)(weights))


def state_after(state: jax.Array) -> jax.Array:
    """The same cell with respect to its first state: columns of all steps."""
    weights = jnp.linspace(-0.5, 0.7, 32).reshape(2, 4, 4)

    def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        gates = jax.nn.sigmoid(weights[0] @ state + x)
        return gates * jnp.tanh(weights[1] @ (gates * state)) + (1 - gates) * state, None

    return jax.lax.scan(step, state, jnp.linspace(-1.0, 1.0, 32).reshape(8, 4))[0]


@pytest.mark.slow
def test_few_samples_push_columns_through_loops_that_are_written_out() -> None:
    states = np.random.default_rng(9).uniform(-1.0, 1.0, (70, 4))
    plan = make_plan(state_after, states[0])
    assert plan.order.few_limit == few_samples.MOST
    derivative, wanted = jacve(state_after), jax.jit(jax.jacfwd(state_after))
    assert "scan" in str(jax.make_jaxpr(derivative)(states[0]))
    for size in (1, 5, 70):
        batch = states[:size]
        assert_close(jax.jit(jax.vmap(derivative))(batch), jax.vmap(wanted)(batch))
    assert_close(jax.jit(derivative)(states[0]), wanted(states[0]))
    again = jax.jit(lambda x: [jax.jacrev(jacobian)(x) for jacobian in (derivative, wanted)])
    assert_close(*again(states[0]))
    assert_close(
        jacve(state_after, sparse_representation=True)(states[0]).todense(), wanted(states[0])
    )


def test_a_loop_of_what_does_not_move_changes_nothing() -> None:
    def scaled(x: jax.Array) -> jax.Array:
        scale = jax.lax.fori_loop(
            0, 20, lambda _, y: jnp.tanh(y) + 0.1, jnp.ones(4) + 0 * WEIGHTS[0]
        )
        for _ in range(4):
            x = jnp.sin(x) * scale + jnp.roll(x, 1) * jnp.cos(x)
        return x

    assert make_plan(scaled, np.ones(4)).few is None


def rotated(x: jax.Array) -> jax.Array:
    """Two of Newton's steps towards the orthogonal factor: quotients by determinants."""
    for _ in range(2):
        a, b, c = x
        cofactors = jnp.stack([jnp.cross(b, c), jnp.cross(c, a), jnp.cross(a, b)])
        x = 0.5 * (x + cofactors / jnp.dot(a, cofactors[0]))
    return x


@pytest.mark.slow
def test_quotients_of_what_all_inputs_move_are_compressed() -> None:
    points = 2 * np.eye(3) + np.random.default_rng(8).uniform(-0.4, 0.4, (3, 3, 3))
    plan = make_plan(rotated, points[0])
    assert plan.few is not None
    assert plan.order.few_limit > 10**6
    assert_close(jax.vmap(jacve(rotated))(points), jax.vmap(jax.jacfwd(rotated))(points))
    # Without an inverse no entry is finite, in either form.
    eliminated = jacve(rotated, order="forward")(np.zeros((3, 3)))
    assert not np.isfinite(np.asarray(eliminated)).any()
    assert not np.isfinite(np.asarray(jacve(rotated)(np.zeros((3, 3))))).any()


def each_by_its_own(x: jax.Array) -> jax.Array:
    result: jax.Array = jnp.outer(x, x) @ (1.0 / x)
    return result


def by_what_cancels(x: jax.Array) -> jax.Array:
    total = jnp.sum(x)
    return x / ((total + x) - x + x[0] - total)


def by_the_sum(x: jax.Array) -> jax.Array:
    return jnp.sin(x) / jnp.sum(x)


def the_only_root(x: jax.Array) -> jax.Array:
    return jnp.sqrt(x[0]) * jnp.cos(x)


@pytest.mark.parametrize(
    ("fun", "columns", "rows"),
    [
        (each_by_its_own, False, True),
        (by_what_cancels, False, False),
        (by_the_sum, True, False),
        (the_only_root, False, True),
    ],
)
def test_where_seeds_of_zeros_meet_finite_slopes(
    fun: Callable[..., Any], columns: bool, rows: bool
) -> None:
    graph = make_plan(fun, Q).graph
    moving = [e for e in graph.listing.equations if any(e.active)]
    unsure = [e for e in moving if e.name not in few_samples.LINEAR and not has_finite_slopes(e)]
    assert unsure
    assert zeros_meet_finite_slopes(graph, unsure, columns=True, rows=False) is columns
    assert zeros_meet_finite_slopes(graph, unsure, columns=False, rows=True) is rows


def quadrotor(x: jax.Array, u: jax.Array) -> jax.Array:
    """Newton's and Euler's equations, written on unpacked numbers as one reads them in papers."""
    v, q, w = x[3:6], x[6:10], x[10:13]
    rows = [
        [1 - 2 * (q[2] ** 2 + q[3] ** 2), 2 * (q[1] * q[2] - q[0] * q[3])],
        [2 * (q[1] * q[2] + q[0] * q[3]), 1 - 2 * (q[1] ** 2 + q[3] ** 2)],
        [2 * (q[1] * q[3] - q[0] * q[2]), 2 * (q[2] * q[3] + q[0] * q[1])],
    ]
    thrust = jnp.array(rows) @ jnp.stack([0.1 * u[0], jnp.sum(u)])
    turned = [
        -q[1] * w[0] - q[2] * w[1] - q[3] * w[2],
        q[0] * w[0] + q[2] * w[2] - q[3] * w[1],
        q[0] * w[1] - q[1] * w[2] + q[3] * w[0],
        q[0] * w[2] + q[1] * w[1] - q[2] * w[0],
    ]
    torque = jnp.stack([u[1] - u[3], u[2] - u[0], 0.1 * (u[0] - u[1] + u[2] - u[3])])
    inertia = jnp.array([1.0, 1.2, 2.0])
    spin = (torque - jnp.cross(w, inertia * w)) / inertia
    return jnp.concatenate([v, thrust, 0.5 * jnp.stack(turned), spin])


def runge_kutta(z: jax.Array) -> jax.Array:
    x, u, h = z[:13], z[13:], 0.02
    a = quadrotor(x, u)
    b = quadrotor(x + h / 2 * a, u)
    c = quadrotor(x + h / 2 * b, u)
    return x + h / 6 * (a + 2 * b + 2 * c + quadrotor(x + h * c, u))


@pytest.mark.slow
def test_columns_are_pushed_where_an_elimination_would_be_repeated() -> None:
    """Thousands of operations on numbers, which XLA writes again for every entry of a matrix."""
    z = jax.random.uniform(jax.random.key(7), (3, 17), jnp.float64, 0.3, 1.2)
    plan = make_plan(runge_kutta, z[0])
    assert plan.order.few_limit == BATCH - 1
    assert plan.few is not None
    derivative = jax.jacfwd(runge_kutta)
    found = jax.jit(jacve(runge_kutta, order=plan.order))(z[0])
    assert_close(found, jax.jit(derivative)(z[0]))
    assert_close(jax.jit(jax.vmap(jacve(runge_kutta)))(z), jax.jit(jax.vmap(derivative))(z))


def filtered(x: jax.Array) -> jax.Array:
    """A loop over matrices, and a branch that depends on where it starts."""

    def step(state: tuple[jax.Array, jax.Array], k: jax.Array) -> tuple[Any, jax.Array]:
        mean, spread = state
        moved = WEIGHTS @ spread @ WEIGHTS.T + jnp.diag(x**2)
        gain = moved[:, 0] / (1.0 + moved[0, 0] ** 2)
        mean = jnp.tanh(mean + gain * (jnp.sin(k * x[1]) - mean[0]))
        return (mean, 0.1 * moved), mean[0]

    _, seen = lax.scan(step, (x, jnp.outer(x, x)), jnp.arange(12.0))
    return lax.cond(x[0] > 0, jnp.sum, lambda y: jnp.sum(y**2), seen)


@pytest.mark.slow
def test_columns_are_pushed_through_loops_beside_branches_in_one_program() -> None:
    gradient = jax.grad(filtered)
    x: Any = np.array([0.4, -0.3, 0.5, 0.2])
    plan = make_plan(gradient, x)
    assert isinstance(plan, CompressedPlan)
    assert plan.few is None
    assert_close(jacve(gradient)(x), jax.jacfwd(gradient)(x))
    several = np.stack([x, -x, 0.5 * x])
    assert_close(jax.vmap(jacve(gradient))(several), jax.vmap(jax.jacfwd(gradient))(several))

    def total(jacobian: Callable[..., Any]) -> Any:
        return jax.grad(lambda z: jnp.sum(jnp.sin(jax.vmap(jacobian)(z))))(several)

    assert_close(total(jacve(gradient)), total(jax.jacfwd(gradient)))


def circuit(angles: jax.Array) -> jax.Array:
    """Rotations of the first or last axis of a state, and the probabilities behind them."""
    state = jnp.zeros((2, 2)).at[0, 0].set(1.0)
    for k in range(6):
        cosine, sine = jnp.cos(angles[k]), jnp.sin(angles[k])
        gate = jnp.array([[cosine, -sine], [sine, cosine]])
        state = gate @ state if k % 2 else state @ gate
        state = state.at[1].set(state[1, ::-1])
    return jnp.sum(jnp.arange(1.0, 5.0) * jnp.ravel(state) ** 2)


def test_single_inputs_nest_products_where_second_derivatives_start_far_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(few_samples, "TIMES", 1.2)
    angles: Any = np.array([0.4, -0.3, 0.5, 0.2, -0.6, 0.7])
    plan = hessian_plan(prepare(circuit, (angles,), {}, 0, False, 2), "auto")
    assert plan is not None
    assert isinstance(plan.single, PlainPlan)
    assert plan.traced_work.equations >= few_samples.TIMES * plan.single.traced_work.equations
    several = np.stack([angles, 2 * angles, -angles])
    expected = jax.hessian(circuit)(angles)
    assert_close(hessve(circuit)(angles), expected)
    assert_close(jax.jit(hessve(circuit))(angles), expected)
    assert_close(jax.vmap(hessve(circuit))(several), jax.vmap(jax.hessian(circuit))(several))

    def total(hessian: Callable[..., Any]) -> Callable[[Any], jax.Array]:
        return lambda x: jnp.sum(jnp.sin(hessian(circuit)(x)))

    assert_close(jax.grad(total(hessve))(angles), jax.grad(total(jax.hessian))(angles))


def test_elimination_stays_for_single_inputs_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_samples, "TIMES", 1.2)
    angles: Any = np.array([0.4, 0.3, 0.5, 0.2, 0.6, 0.7])

    def single(fun: Callable[..., Any], order: str = "auto") -> Plan | None:
        plan = hessian_plan(prepare(fun, (angles,), {}, 0, False, 2), order)
        assert plan is not None
        return plan.single

    assert single(circuit, "reverse") is None
    # A root of zero is a finite number whose slope is not.
    assert single(lambda x: circuit(jnp.sqrt(x))) is None
    assert single(lambda x: circuit(jnp.exp(x))) is not None
    monkeypatch.setattr(few_samples, "TIMES", 100)
    assert single(lambda x: circuit(2 * x)) is None


def test_entries_that_are_written_take_products_with_columns() -> None:
    def written(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x.at[jnp.array([0, 2])].set(y[1:]).at[1].add(y[0])
        return tumbling(x, jnp.cumsum(y))

    plan = make_plan(written, Q, V, argnums=(0, 1))
    assert plan.few is not None
    assert few_samples._writes_entries(plan.graph)
    assert not few_samples._writes_entries(make_plan(tumbling, Q, V, argnums=(0, 1)).graph)
    found = jacve(written, argnums=(0, 1))(Q, V)
    assert_close(found, jax.jacrev(written, argnums=(0, 1))(Q, V))


def test_a_loop_that_elimination_meets_once_stays_with_it_beside_branches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(few_samples, "LONG", 100)

    def once(x: jax.Array) -> jax.Array:
        y, _ = lax.scan(lambda c, _: (jnp.sin(c) * c, None), jnp.sum(x**2), None, length=9)
        return lax.cond(x[0] > 0, jnp.sin, jnp.cos, x) * y

    plan = make_plan(once, WEIGHTS[0])
    assert not isinstance(plan, CompressedPlan)
    assert plan.few is None
