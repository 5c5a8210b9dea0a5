"""Loops and branches keep the sparsity that their bodies have."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.ode import odeint

from graphax_lapl import (
    NonlinearRuleError,
    computational_graph,
    hessve,
    jacve,
    laplacian_ve,
)
from graphax_lapl.rules import opaque
from graphax_lapl.rules.bodies import Body
from tests.checks import ORDERS, assert_same

X = np.linspace(0.2, 1.3, 12).reshape(3, 4)
LONG = 20


def elementwise_scan(x: Any) -> Any:
    return lax.scan(lambda c, t: (jnp.sin(c) + t * c, jnp.cos(c)), x, np.linspace(0, 1, LONG))[0]


def row_scan(x: Any) -> Any:
    """Rows do not mix, entries of a row do."""
    return lax.scan(lambda c, _: (jnp.tanh(c + c.sum(1, keepdims=True)), None), x, length=LONG)[0]


def stacked(x: Any) -> Any:
    """What each step returns, of every entry."""
    return lax.scan(lambda c, _: (jnp.sin(c), c * c), x, length=LONG)[1]


def swapped(x: Any) -> Any:
    """Two carries that change places."""
    start = (x, 2 * x)
    return lax.scan(lambda c, _: ((jnp.sin(c[1]), c[0] * c[0]), None), start, length=LONG)[0][0]


def turned(x: Any) -> Any:
    """A carry whose dimensions change places: only the pair of them is fixed."""
    square = x[:, :3]
    return lax.scan(lambda c, _: (jnp.sin(c).T, None), square, length=LONG)[0]


def rolled(x: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.sin(jnp.roll(c, 1, 0)), None), x, length=LONG)[0]


def mapped(x: Any) -> Any:
    return lax.map(lambda row: row * row.sum(), x)


def counted(x: Any) -> Any:
    return lax.fori_loop(0, LONG, lambda n, c: jnp.cos(c) * x, x)


def until(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0, 0] < 2, lambda c: c * c + 0.5, x)


def branched(x: Any) -> Any:
    branches = [jnp.sin, lambda y: y * y, lambda y: jnp.ones_like(y)]
    return lax.switch((x[0, 0] > 1).astype(int), branches, x)


def mixed_branches(x: Any) -> Any:
    return lax.cond(x[0, 0] > 1, jnp.sin, lambda y: jnp.cumsum(y, 1), x)


def sliced(x: Any) -> Any:
    """The output is shorter than the input that it is diagonal in."""
    return lax.scan(lambda c, _: (c, c[:, :2] ** 2), x, length=LONG)[1]


def complex_inside(x: Any) -> Any:
    def step(c: Any, _: Any) -> Any:
        z = lax.complex(c, 0.1 * c)
        return jnp.sqrt(jnp.abs(z * z)), None

    return lax.scan(step, x, length=LONG)[0]


#: With the number of entries that the structure may hold.
CASES = {
    "elementwise scan": (elementwise_scan, 12),
    "rows of a scan": (row_scan, 48),
    "stacked results": (stacked, LONG * 12),
    "carries that change places": (swapped, 12),
    "transposed carry": (turned, 9 * 12),
    "rolled carry": (rolled, 3 * 12),
    "map": (mapped, 48),
    "fori_loop": (counted, 12),
    "while": (until, 12),
    "switch": (branched, 12),
    "cond of two structures": (mixed_branches, 48),
    "shorter results": (sliced, LONG * 24),
    "complex inside": (complex_inside, 144),
}


@pytest.mark.parametrize("name", CASES)
def test_first_order(name: str) -> None:
    fun, entries = CASES[name]
    expected = jax.jit(jax.jacfwd(fun))(X)
    for order in ORDERS:
        if name == "while" and order == "reverse":
            continue
        assert_same(jacve(fun, order=order)(X), expected, context=name)
    sparse = jacve(fun, sparse_representation=True)(X)
    assert_same(sparse.todense(), expected)
    assert sparse.nse <= entries, sparse


@pytest.mark.parametrize("name", ["rows of a scan", "map", "switch", "while"])
def test_second_order(name: str) -> None:
    fun, _ = CASES[name]
    expected = jax.jit(jax.jacfwd(jax.jacfwd(fun)))(X)
    assert_same(hessve(fun)(X), expected)
    axes = expected.ndim - 4
    trace = np.trace(np.reshape(expected, (*expected.shape[:axes], 12, 12)), axis1=-2, axis2=-1)
    assert_same(laplacian_ve(fun)(X), trace)


def short(x: Any) -> Any:
    """Few steps, backwards, with results and a captured value."""

    def step(c: Any, row: Any) -> tuple[Any, Any]:
        c = jnp.sin(c) * row + x[0]
        return c, c * c

    carry, rows = lax.scan(step, x[1], x, reverse=True)
    return carry, rows


@pytest.mark.slow
def test_short_loops_are_written_out() -> None:
    names = {vertex.primitive for vertex in computational_graph(short, X).vertices}
    assert "scan" not in names
    for order in ORDERS:
        assert_same(jacve(short, order=order)(X), jax.jit(jax.jacfwd(short))(X))
    assert_same(hessve(short, strict=True)(X), jax.jit(jax.hessian(short))(X))


def test_what_does_not_depend_has_no_arrow() -> None:
    def fun(x: Any, y: Any) -> Any:
        step = lambda c, _: ((jnp.sin(c[0]), c[1] * c[0]), None)  # noqa: E731
        return lax.scan(step, (x, y), length=LONG)[0]

    blocks: Callable[..., Any] = jacve(fun, argnums=(0, 1), sparse_representation=True)
    (_, none), (_, _) = blocks(X, X)
    assert none.nse == 0


@jax.custom_vjp
def doubled(x: Any) -> Any:
    """The rule says twice the slope of the sine, and only for cotangents."""
    return jnp.sin(x)


doubled.defvjp(lambda x: (doubled(x), x), lambda x, pulled: (2.0 * pulled * jnp.cos(x),))


@pytest.mark.slow
def test_backward_function_inside_of_a_long_loop() -> None:
    """A loop has no forward mode where what it repeats has none."""

    def fun(x: Any) -> Any:
        return lax.scan(lambda c, _: (doubled(c), None), x, length=LONG)[0]

    for order in ("auto", "forward"):
        assert_same(jacve(fun, order)(X[0]), jax.jit(jax.jacrev(fun))(X[0]))
    assert_same(hessve(fun)(X[0]), jax.jit(jax.jacrev(jax.jacrev(fun)))(X[0]))


def test_loop_without_reverse_mode_inside_of_a_loop() -> None:
    def converge(y: Any) -> Any:
        return lax.while_loop(lambda s: s > 0.1, lambda s: 0.5 * jnp.sin(s), y)

    def fun(x: Any) -> Any:
        return lax.map(lambda row: converge(row[0]) * row, jnp.tile(x, (4, 1)))

    for order in ("auto", "reverse"):
        assert_same(jacve(fun, order)(X), jax.jit(jax.jacfwd(fun))(X))
    hessian = jax.jit(jax.jacfwd(jax.jacfwd(fun)))(X)
    assert_same(laplacian_ve(fun)(X), jnp.einsum("abijij->ab", hessian))


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return x * x


def guarded(x: Any, pulled: Any) -> Any:
    """Linear but for a guard against NaN."""
    return (jnp.where(jnp.isnan(pulled), 0.0, 2.0 * pulled * x),)


clipped.defvjp(lambda x: (clipped(x), x), lambda x, pulled: (jnp.clip(pulled, -0.5, 0.5) * x,))


@pytest.mark.parametrize("steps", [1, LONG])
def test_backward_function_that_is_not_linear_is_refused(steps: int) -> None:
    def repeated(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: lax.scan(lambda c, _: (jnp.sin(call(c)), None), x, length=steps)[0]

    for order in ("auto", "forward"):
        with pytest.raises(NonlinearRuleError, match=r"test_control_flow.py.*not linear.*jacrev"):
            jacve(repeated(clipped), order)(X)
    linear = jax.custom_vjp(jnp.square)
    linear.defvjp(lambda x: (linear(x), x), guarded)
    assert_same(jacve(repeated(linear))(X), jax.jit(jax.jacrev(repeated(linear)))(X))


@pytest.mark.every_case
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
def test_a_sign_of_any_cotangent_is_refused(order: str) -> None:
    """All outputs are looked at together, and each of them may be the one that is not linear."""
    both = jax.custom_vjp(lambda x: (jnp.sin(x), x**2))
    both.defvjp(
        lambda x: (both(x), x),
        lambda x, pulled: (pulled[0] * jnp.cos(x) + x * jnp.sign(pulled[1]),),
    )
    with pytest.raises(NonlinearRuleError, match=r"test_control_flow.py.*not linear"):
        jacve(lambda x: both(x)[1] * x, order)(X)
    expected = jax.jit(jax.jacrev(lambda x: both(x)[0] * x))(X)
    assert_same(jacve(lambda x: both(x)[0] * x, order)(X), expected)


def by_logarithms(x: Any, pulled: Any) -> Any:
    """A kernel applied as solvers of optimal transport do: linear, and none of its steps is."""
    kernel = -((x[..., :, None] - x[..., None, :]) ** 2)
    sums = jax.scipy.special.logsumexp(
        kernel, axis=-1, b=jnp.broadcast_to(pulled[..., None, :], kernel.shape), return_sign=True
    )
    return (sums[1] * jnp.exp(sums[0]),)


@pytest.mark.every_case
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
def test_backward_function_that_is_linear_as_a_whole(order: str) -> None:
    smoothed = jax.custom_vjp(lambda x: jnp.sum(x) + x)
    smoothed.defvjp(lambda x: (smoothed(x), x), by_logarithms)

    def fun(x: Any) -> Any:
        return jnp.tanh(smoothed(jnp.sin(x)))

    assert_same(jax.jit(jacve(fun, order))(X), jax.jit(jax.jacrev(fun))(X))


def test_a_clipping_rule_of_random_keys_is_refused() -> None:
    """No keys can be drawn to see whether it acts linearly."""
    noisy = jax.custom_vjp(lambda x, key: x + jax.random.normal(key, x.shape, x.dtype))

    def backward(key: Any, pulled: Any) -> Any:
        return jnp.clip(pulled, -0.1, 0.1) * jax.random.normal(
            key, pulled.shape, pulled.dtype
        ), None

    noisy.defvjp(lambda x, key: (noisy(x, key), key), backward)
    with pytest.raises(NonlinearRuleError, match="not linear"):
        jacve(lambda x: noisy(x, jax.random.key(0)))(X)


CLIPPED: dict[str, Callable[[Any], Any]] = {
    "value": lambda pulled: jnp.clip(pulled, -1e4, 1e4),
    "norm": lambda pulled: pulled / jnp.maximum(1.0, jnp.linalg.norm(pulled)),
    "sign": jnp.sign,
    "rounded": lambda pulled: jnp.round(pulled, 2),
    "threshold": lambda pulled: jnp.where(jnp.abs(pulled) > 1e-4, pulled, 0.0),
    "positive": jax.nn.relu,
    "square": lambda pulled: pulled * jnp.abs(pulled),
    "shifted": lambda pulled: jnp.exp(jnp.log1p(jnp.abs(pulled))) * jnp.sign(pulled),
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", CLIPPED)
def test_backward_functions_that_clip_are_refused(name: str) -> None:
    called = jax.custom_vjp(jnp.square)
    called.defvjp(lambda x: (called(x), x), lambda x, pulled: (CLIPPED[name](pulled) * x,))
    with pytest.raises(NonlinearRuleError, match="not linear"):
        jacve(called)(X)


def flow(x: Any) -> Any:
    """Its backward function solves an equation with steps of lengths that the cotangent decides."""
    times = jnp.array([0.0, 0.4, 1.0])
    start = jnp.ravel(x)

    def slope(y: Any, time: Any, rate: Any) -> Any:
        return -rate * jnp.sin(y) * jnp.cos(time * y)

    return odeint(slope, start, times, start[0], rtol=1e-10, atol=1e-10)[1:]


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("order", ["auto", "forward", "reverse", "markowitz"])
def test_backward_function_that_solves(order: str) -> None:
    """Linear up to the tolerance that it is solved to."""
    expected = jax.jit(jax.jacrev(flow))(X)
    np.testing.assert_allclose(jax.jit(jacve(flow, order))(X), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["auto", "reverse"])
def test_second_derivatives_through_a_backward_function_that_solves(order: str) -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(flow(x) ** 2)

    hessian = jax.jit(jax.jacrev(jax.jacrev(loss)))(X)
    assert_same(laplacian_ve(loss, order=order)(X), jnp.einsum("ijij->", hessian), tolerance=1e-7)


def halved(pulled: Any) -> Any:
    return lax.while_loop(lambda p: jnp.any(jnp.abs(p) > 1.0), lambda p: 0.5 * p, pulled)


@pytest.mark.parametrize("before", [False, True])
def test_what_is_clipped_beside_what_solves_is_refused(before: bool) -> None:
    def backward(x: Any, pulled: Any) -> Any:
        if before:
            return (halved(jnp.clip(pulled, -0.1, 0.1)) * x,)
        return (jnp.clip(halved(pulled), -0.1, 0.1) * x,)

    solved = jax.custom_vjp(jnp.square)
    solved.defvjp(lambda x: (solved(x), x), backward)
    with pytest.raises(NonlinearRuleError, match=r"it applies '(clamp|max|min)'"):
        jacve(solved)(X)


@jax.custom_vjp
def scaled(x: Any, y: Any) -> Any:
    return x**3 * jnp.sum(y)


def scaled_forward(x: Any, y: Any) -> tuple[Any, Any]:
    return scaled(x, y), (x, y)


def scaled_backward(held: Any, cotangent: Any) -> tuple[Any, Any]:
    x, y = held
    return 3 * x**2 * jnp.sum(y) * cotangent, jnp.full_like(y, jnp.sum(cotangent * x**3))


scaled.defvjp(scaled_forward, scaled_backward)


@jax.custom_vjp
def mirrored(x: Any) -> Any:
    return x[::-1]


# Its backward function calls it again.
mirrored.defvjp(lambda x: (mirrored(x), None), lambda _, cotangent: (mirrored(cotangent),))


def test_backward_functions_keep_their_sparsity() -> None:
    def fun(x: Any, y: Any) -> Any:
        return jax.vmap(mirrored)(scaled(jnp.sin(x), y))

    y = X[0]
    blocks: Callable[..., Any] = jax.jit(jacve(fun, argnums=(0, 1)))
    for block, expected in zip(blocks(X, y), jax.jit(jax.jacrev(fun, (0, 1)))(X, y), strict=True):
        assert_same(block, expected)
    first = jax.eval_shape(jacve(scaled, sparse_representation=True), X, y)
    assert first.nse == X.size


@pytest.mark.slow
def test_a_branch_is_evaluated_once_for_all_its_rows() -> None:
    """Rows from several outputs to several inputs go back through what the value's branch kept."""

    def one(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.linalg.solve(a, b), jnp.sin(b) * a[0]

    def other(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        return a @ b, jnp.cumsum(b) + a[1]

    def fun(x: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        u, v = jax.lax.cond(b[0] > 0, one, other, jnp.cos(x) + 3 * jnp.eye(3), jnp.exp(b))
        return jnp.sin(u) * v, jnp.sum(jnp.tanh(u * v))

    x = jax.random.normal(jax.random.key(0), (3, 3), jnp.float64)
    b = jax.random.normal(jax.random.key(1), (3,), jnp.float64)
    found = jax.jit(jacve(fun, argnums=(0, 1), order="reverse"))
    expected = jax.jit(jax.jacrev(fun, (0, 1)))
    for sign in (1, -1):
        point = (x, jnp.abs(b) * sign)
        for own, wanted in zip(
            jax.tree.leaves(found(*point)), jax.tree.leaves(expected(*point)), strict=True
        ):
            np.testing.assert_allclose(own, wanted, rtol=1e-10, atol=1e-12)
    text = str(jax.make_jaxpr(jacve(fun, argnums=(0, 1), order="reverse"))(x, b))
    assert text.count(" = cond[") == 6  # the value, and five times back


@jax.custom_jvp
def not_to_be_moved(x: jax.Array) -> jax.Array:
    """Must not be differentiated, as equinox' `nondifferentiable`."""
    return 2.0 * x


@not_to_be_moved.defjvp
def _(primals: Any, tangents: Any) -> Any:
    raise RuntimeError("Unexpected tangent.")


def carried_beside(x: jax.Array) -> jax.Array:
    """What the loop carries beside the moving array is guarded, and does not move."""

    def step(carry: Any, _: None) -> Any:
        moving, fixed = carry
        return (jnp.sin(moving) * fixed, not_to_be_moved(fixed) / 2.0), None

    return jax.lax.scan(step, (x, jnp.ones(3)), None, length=12)[0][0]


def test_what_must_not_be_differentiated_and_does_not_move() -> None:
    """Solvers guard what they carry; the error came from looking for structure."""
    x = jnp.asarray([0.1, 0.5, 0.9])
    for order in ("auto", "forward", "reverse"):
        assert_same(jacve(carried_beside, order=order)(x), jax.jacrev(carried_beside)(x))
    with pytest.raises(RuntimeError, match="Unexpected tangent"):
        jacve(not_to_be_moved)(x)


def test_structure_of_a_body_traces_no_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of every input and output of nested loops, that took most of the planning."""

    def converge(y: jax.Array) -> jax.Array:
        return lax.while_loop(lambda s: s[0] > 0.1, lambda s: 0.5 * jnp.sin(s), y)

    def body(x: jax.Array) -> jax.Array:
        return lax.cond(x[0] > 0.0, lambda v: converge(v) * v, jnp.sin, x)

    monkeypatch.setattr(opaque, "_traced", lambda *_: pytest.fail("a derivative is traced"))
    found = Body(jax.make_jaxpr(body)(X[0]))
    assert found.push({0: frozenset({0})}) == {0: frozenset({0})}
