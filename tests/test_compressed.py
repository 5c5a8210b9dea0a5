"""Compressed evaluation: same numbers as JAX, few products, never silently wrong."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import sparse

from graphax_lapl import (
    Compressed,
    InvalidArgumentError,
    InvalidTypeError,
    NotDifferentiableError,
    Plan,
    compare_orders,
    count_ops,
    jacve,
    make_plan,
    value_and_jacve,
)
from graphax_lapl.api import compressed as compressed_module
from graphax_lapl.api.compressed import CompressedPlan
from graphax_lapl.api.planning import clear_caches
from graphax_lapl.coloring import Pattern
from graphax_lapl.emit.compressed import _entries
from tests.checks import assert_same, check_orders
from tests.coloring.patterns import diagonals
from tests.test_sparse import brusselator, rolled, state

ORDERS = ("compressed", "compressed_forward", "compressed_reverse", "compressed_both")
X = np.linspace(0.4, 1.3, 12)
M = np.random.default_rng(0).normal(size=(4, 3))

in_every_order = pytest.mark.parametrize("order", ORDERS)


def burgers(u: jax.Array) -> jax.Array:
    inner = u[1:-1] * (u[2:] - u[:-2]) + u[2:] - 2.0 * u[1:-1] + u[:-2]
    return jnp.concatenate([u[:1], inner, u[-1:] ** 2])


def arrowhead(x: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.sum(x**2)[None], x[1:] ** 3 + x[0] * x[1:]])


def steps(x: jax.Array) -> jax.Array:
    """Three steps of a two-point stencil in a loop."""
    return lax.fori_loop(0, 3, lambda _, v: jnp.sin(v) + 0.1 * jnp.roll(v, 1), x)


def many_steps(x: jax.Array) -> jax.Array:
    """Nine steps: too many to be written out."""
    return lax.fori_loop(0, 9, lambda _, v: jnp.sin(v) + 0.1 * jnp.roll(v, 1), x)


STEPS = diagonals(12, (0, -1, -2, -3), periodic=True)


def energy(x: jax.Array) -> jax.Array:
    return jnp.sum((x[1:] - x[:-1] ** 2) ** 2) + jnp.sum(jnp.cos(x))


def tree(p: dict[str, Any], t: Any) -> dict[str, Any]:
    return {
        "a": p["x"] * p["s"] * t,
        "b": (p["x"][0, 0] ** 2, jnp.zeros(3), p["x"].T),
        "c": jnp.sum(p["x"]) + t,
    }


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "stencil": (burgers, (X,), 0),
    "arrowhead": (arrowhead, (X,), 0),
    "dense": (lambda x: jnp.tanh(M @ x), (X[:3],), 0),
    "linear": (lambda x: 3.0 * x[::-1], (X,), 0),
    "scalar": (lambda x: jnp.sin(x) * x, (X[0],), 0),
    "to a scalar": (lambda x: jnp.sum(x**3), (X,), 0),
    "constant": (lambda x: jnp.zeros(2) * jnp.sum(lax.stop_gradient(x)), (X,), 0),
    "no outputs": (lambda x: jnp.sin(x[:0]), (X,), 0),
    "loop": (steps, (X,), 0),
    "pytrees": (tree, ({"x": M, "s": 2.0}, 3.0), (0, 1)),
    "argnums backwards": (tree, ({"x": M, "s": 2.0}, 3.0), (1, 0)),
    "brusselator": (brusselator(rolled), (state(4),), 0),
    "batched solve": (
        lambda a: jnp.linalg.solve(a, jnp.ones((3, 2, 1))),
        (np.eye(2) + 0.1 * np.arange(12.0).reshape(3, 2, 2),),
        0,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_as_jax(name: str) -> None:
    fun, args, argnums = FUNCTIONS[name]
    check_orders(fun, *args, argnums=argnums, orders=ORDERS, reference=jax.jacrev, context=name)


@in_every_order
def test_sparse_results(order: str) -> None:
    fun = brusselator(rolled)
    jacobian = jax.jit(jacve(fun, order=order, sparse_representation=True))(state(4))
    expected = jax.jit(jax.jacfwd(fun))(state(4))
    assert jacobian.nse == 12 * 4**2
    assert_same(jacobian.todense(), expected)
    assert_same(jacobian.to_bcoo().todense(), expected)


@in_every_order
def test_auxiliary_output_value_and_counts(order: str) -> None:
    def fun(x: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
        y = burgers(x)
        return y, {"sum": jnp.sum(y), "index": jnp.argmax(y), "name": "aux"}

    jacobian, aux, counts = jacve(fun, order=order, has_aux=True, count_ops=True)(X)
    assert_same(jacobian, jax.jit(jax.jacfwd(burgers))(X))
    assert aux["name"] == "aux"
    assert_same(aux["index"], jnp.argmax(burgers(X)))
    assert counts.muls == count_ops(burgers, X, order=order).muls
    (value, _), again = value_and_jacve(fun, order=order, has_aux=True)(X)
    assert_same(value, burgers(X))
    assert_same(again, jacobian)


@in_every_order
def test_under_jit_vmap_and_grad(order: str) -> None:
    batch = np.stack([X, X + 0.1])
    found = jax.jit(jax.vmap(jacve(burgers, order=order)))(batch)
    assert_same(found, jax.jit(jax.vmap(jax.jacfwd(burgers)))(batch))
    size = jax.grad(lambda x: jnp.sum(jacve(burgers, order=order)(x) ** 2))
    reference = jax.grad(lambda x: jnp.sum(jax.jit(jax.jacfwd(burgers))(x) ** 2))
    assert_same(jax.jit(size)(X), jax.jit(reference)(X))


@pytest.mark.leaks
def test_no_tracer_leaks() -> None:
    order = Compressed("both", STEPS)
    assert_same(jacve(steps, order=order)(X), jax.jit(jax.jacfwd(steps))(X))


@pytest.mark.usefixtures("float32")
def test_float32_and_mixed_precision() -> None:
    x = np.float32(X)
    check_orders(burgers, x, orders=ORDERS, tolerance=1e-6)


def test_mixed_precision_inputs() -> None:
    def fun(p: dict[str, jax.Array]) -> jax.Array:
        return p["wide"] * p["narrow"].astype(float)

    point = {"wide": X, "narrow": np.float32(X)}
    check_orders(fun, point, orders=ORDERS, reference=jax.jacrev, tolerance=1e-6)


@pytest.mark.parametrize(
    ("fun", "order", "columns", "rows"),
    [
        (burgers, "compressed", 3, 0),
        (burgers, "compressed_reverse", 0, 3),
        (arrowhead, "compressed", 2, 1),
        (arrowhead, "compressed_forward", 12, 0),
        (lambda x: jnp.sum(x**2), "compressed", 0, 1),
        (lambda x: jnp.outer(x, X), "compressed", 1, 0),
        (lambda x: jnp.zeros(3) + 0.0 * lax.stop_gradient(x[0]), "compressed", 0, 0),
        (jax.grad(energy), "compressed_symmetric", 3, 0),
    ],
)
def test_number_of_products(fun: Any, order: str, columns: int, rows: int) -> None:
    plan = make_plan(fun, X, order=order)
    assert isinstance(plan, CompressedPlan)
    assert (plan.coloring.columns, plan.coloring.rows) == (columns, rows)
    assert f"{columns} Jacobian-vector and {rows} vector-Jacobian products" in str(plan)


def test_counts_grow_with_the_number_of_products() -> None:
    one, three = (
        count_ops(fun, X, order="compressed_forward")
        for fun in (lambda x: x**2 * 3.0, lambda x: x**2 * (x[0] + jnp.roll(x, 1)))
    )
    assert one.muls == 2 * len(X)  # one colour, two elementwise factors
    assert three.muls > one.muls
    with pytest.raises(InvalidArgumentError, match="convention"):
        count_ops(burgers, X, order="compressed", convention="time")


def test_flops_are_those_of_the_emitted_program() -> None:
    """A loop counts as often as it runs: sin' * tangent and 0.1 * tangent for each colour."""
    counts = count_ops(steps, X, order=Compressed("forward", STEPS), convention="flops")
    tangents = (4 + 1) * 2 * len(X) * 3  # four colours and the check
    assert tangents <= counts.muls <= 2 * tangents


def test_comparison_with_elimination() -> None:
    comparison = compare_orders(burgers, X, orders=("forward", "compressed"), measure=True)
    assert "compressed" in str(comparison)
    assert [row.order for row in comparison.rows] == ["forward", "compressed"]


@pytest.mark.slow
def test_pattern_of_the_caller() -> None:
    mask = np.zeros((12, 12), bool)
    mask[STEPS.rows, STEPS.cols] = True
    expected = jax.jit(jax.jacfwd(steps))(X)
    for pattern in (mask, STEPS, sparse.BCOO.fromdense(1.0 * mask, nse=60)):
        for mode in ("best", "forward", "reverse", "both"):
            order = Compressed(mode, pattern)
            plan = make_plan(steps, X, order=order)
            assert plan.coloring.count == 4
            assert_same(jacve(steps, order=order)(X), expected)
    assert Compressed("forward", mask) == Compressed("forward", STEPS)
    assert Compressed("forward", mask) != Compressed("forward", np.eye(12))


@pytest.mark.parametrize("mode", ["forward", "reverse", "both"])
def test_wrong_pattern_gives_nan_instead_of_wrong_numbers(mode: str) -> None:
    missing_one = Pattern.of(STEPS.rows[1:], STEPS.cols[1:], STEPS.shape)
    for pattern in (missing_one, np.eye(12)):
        jacobian = jacve(steps, order=Compressed(mode, pattern), sparse_representation=True)(X)
        assert all(np.isnan(values).all() for values in jacobian.values)
    assert np.isfinite(jacve(steps, order=Compressed(mode, STEPS))(X)).all()


def test_wrong_pattern_spoils_the_blocks_that_it_leaves_empty() -> None:
    def fun(x: jax.Array, y: jax.Array) -> jax.Array:
        return x * y

    jacobian = jacve(fun, order=Compressed(pattern=np.eye(12, 24)), argnums=(0, 1))(X, X)
    assert all(np.isnan(block).all() for block in jacobian[1:])


def test_symmetric_mode() -> None:
    assert_same(
        jacve(jax.grad(energy), order="compressed_symmetric")(X), jax.jit(jax.hessian(energy))(X)
    )
    wrong = jacve(burgers, order="compressed_symmetric")(X)
    assert np.isnan(wrong).any()


@pytest.mark.slow
def test_custom_rules_are_honoured() -> None:
    @jax.custom_jvp
    def twice(x: jax.Array) -> jax.Array:
        return x

    twice.defjvp(lambda p, t: (p[0], 2.0 * t[0]))

    @jax.custom_vjp
    def thrice(x: jax.Array) -> jax.Array:
        return x

    thrice.defvjp(lambda x: (x, None), lambda _, g: (3.0 * g,))
    for order in ("compressed", "compressed_reverse", "compressed_forward"):
        assert_same(jacve(lambda x: twice(x) * x, order=order)(X), np.diag(3 * X))
    mask = np.eye(12)
    for order in ("compressed", Compressed("best", mask), Compressed("reverse", mask)):
        assert_same(jacve(lambda x: thrice(jnp.sin(x)), order=order)(X), np.diag(3 * np.cos(X)))


def test_while_loops_go_forward() -> None:
    def fun(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))[1]

    plan = make_plan(fun, X, order=Compressed("best", np.eye(12)))
    assert (plan.coloring.columns, plan.coloring.rows) == (1, 0)
    assert_same(plan.compile()(X), jax.jit(jax.jacfwd(fun))(X))


def test_plan_is_saved_and_followed(tmp_path: Any) -> None:
    for order in ("compressed_both", Compressed("forward", STEPS)):
        plan = make_plan(steps, X, order=order)
        plan.save(tmp_path / "plan")
        saved = Plan.load(tmp_path / "plan")
        for again in (plan, saved, plan.order):
            assert_same(jacve(steps, order=again)(X), jax.jit(jax.jacfwd(steps))(X))
            assert make_plan(steps, X, order=again).coloring.count == plan.coloring.count


def test_changed_constants_are_seen() -> None:
    """One plan serves traces that differ in the arrays they close over."""
    for shift in (1.0, 2.0):
        c = jnp.linspace(0.0, shift, 12)
        fun = lambda x, c=c: jnp.sin(x) * c  # noqa: E731
        assert_same(jacve(fun, order="compressed")(X), np.diag(np.cos(X) * np.asarray(c)))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Compressed("sideways"), InvalidArgumentError, "mode must be one of"),
        (lambda: Compressed(pattern=3), InvalidTypeError, "pattern must be a matrix"),
        (
            lambda: jacve(burgers, order=Compressed(pattern=np.eye(3)))(X),
            InvalidArgumentError,
            r"expected shape \(12, 12\)",
        ),
        (
            lambda: jacve(burgers, order=Compressed(pattern=np.zeros((12, 12))))(X),
            InvalidArgumentError,
            "pattern has no entries",
        ),
        (
            lambda: jacve(lambda z: z * z, order="compressed")(X * 1j),
            InvalidTypeError,
            "complex",
        ),
        (
            lambda: jacve(lambda x: lax.complex(x, x), order="compressed_reverse")(X),
            InvalidTypeError,
            "complex",
        ),
        (
            lambda: make_plan(
                lambda x: x[:, None] * jnp.sum(x),
                jax.ShapeDtypeStruct((5000,), float),
                order="compressed",
            ),
            InvalidArgumentError,
            "too many to colour",
        ),
    ],
)
def test_misuse_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_auto_eliminates_ordinary_functions() -> None:
    for fun, args, argnums in FUNCTIONS.values():
        assert not isinstance(make_plan(fun, *args, argnums=argnums), CompressedPlan)


@pytest.mark.slow
def test_a_long_unrolled_program_compresses_to_its_band() -> None:
    """Every step widens the band by two diagonals."""

    def fun(x: jax.Array) -> jax.Array:
        for _ in range(8):
            x = x + 0.1 * (jnp.roll(x, 1) - 2.0 * x + jnp.roll(x, -1)) * jnp.sin(x)
        return x

    x = np.linspace(0.0, 1.0, 1000)
    plan = make_plan(fun, x, order="compressed")
    assert isinstance(plan, CompressedPlan)
    assert 17 <= plan.coloring.count <= 22
    assert_same(plan.compile()(x), jax.jit(jax.jacfwd(fun))(x))


@pytest.fixture
def loops_are_bands() -> Iterator[None]:
    """A provider that knows the pattern of `many_steps` on 200 points."""

    def provider(plan: Plan, limit: int) -> Pattern | None:
        known = plan.graph.function == "many_steps" and limit >= 2000
        return diagonals(200, tuple(range(0, -10, -1)), periodic=True) if known else None

    compressed_module.PATTERN_PROVIDERS.append(provider)
    clear_caches()
    yield
    compressed_module.PATTERN_PROVIDERS.remove(provider)
    clear_caches()


@pytest.mark.usefixtures("loops_are_bands")
def test_auto_compresses_a_loop_whose_pattern_is_known() -> None:
    x = np.linspace(0.0, 1.0, 200)
    plan = make_plan(many_steps, x)
    assert isinstance(plan, CompressedPlan)
    assert plan.order.method == "auto (compressed)"
    assert plan.coloring.count == 10
    jacobian = jacve(many_steps, sparse_representation=True)(x)
    assert jacobian.nse == 2000
    assert_same(jacobian.todense(), jax.jacfwd(many_steps)(x))


@pytest.mark.slow
def test_entries_of_a_box_are_sliced() -> None:
    rng = np.random.default_rng(0)
    products = np.arange(20.0)
    places = np.arange(20).reshape(4, 5)
    for _ in range(60):
        rows, columns = (np.sort(rng.choice(n + 1, 2, replace=False)) for n in (4, 5))
        box = places[slice(*rows), slice(*columns)]
        sources = box.reshape(-1), box.T.reshape(-1), rng.permutation(box.reshape(-1))
        found = jax.jit(lambda x, sources=sources: [_entries(x, s) for s in sources])(products)
        for one, source in zip(found, sources, strict=True):
            np.testing.assert_array_equal(one, source)
    text = jax.jit(lambda x: _entries(x, places.T.reshape(-1))).lower(products).as_text()
    assert "gather" not in text


def largest_of_dilated_windows(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (4, 4), "VALID", None, (2, 2))


def test_dilated_windows_are_pushed() -> None:
    x = jnp.asarray(np.random.default_rng(1).normal(size=(8, 8)))
    check_orders(largest_of_dilated_windows, x, orders=("compressed", "compressed_forward"))


def test_a_mode_that_jax_does_not_have_is_named() -> None:
    x = jnp.asarray(np.random.default_rng(1).normal(size=(8, 8)))
    with pytest.raises(NotDifferentiableError, match=r"in reverse mode.*'auto'"):
        jacve(largest_of_dilated_windows, "compressed_reverse")(x)
