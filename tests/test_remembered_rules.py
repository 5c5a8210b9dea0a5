"""Plans of functions with derivative rules of their own: remembered, and never for another rule.

Where inputs are traced, calls with a rule stay calls, so a plan holds rules. Functions that differ
in what their rules close over are told apart by what their rules compute.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import hessve, jacve, laplacian_ve
from graphax_lapl.api.plan import Plan
from graphax_lapl.api.planning import clear_caches
from tests.checks import assert_same

X = np.array([0.4, -0.3, 0.9])
W = np.array([[0.2, 0.5, -0.4], [0.7, -0.3, 0.2], [0.1, 0.4, 0.3]])

Elementwise = Callable[[jax.Array], jax.Array]


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Orders of the plans that are built, from an empty cache on."""
    clear_caches()
    built: list[str] = []
    build = Plan.build

    def counted(*args: Any, **kwargs: Any) -> Any:
        built.append(args[1].method)
        return build(*args, **kwargs)

    monkeypatch.setattr(Plan, "build", counted)
    return built


def net(act: Elementwise) -> Callable[[jax.Array, Any], jax.Array]:
    return lambda w, x: act(w @ act(w @ x))


def loop(act: Elementwise) -> Callable[[jax.Array, Any], jax.Array]:
    return lambda w, x: lax.scan(lambda h, row: (act(h * row), None), x, w)[0]


def plain_rule(x: jax.Array) -> jax.Array:
    """A user's function, made anew in each call, whose rule does not call it."""
    fun = jax.custom_jvp(jnp.sin)
    fun.defjvp(lambda p, t: (jnp.sin(p[0]), jnp.cos(p[0]) * t[0]))
    return fun(x)


def own_rule(x: jax.Array) -> jax.Array:
    """The same with a rule that does."""
    fun = jax.custom_jvp(jnp.sin)
    fun.defjvp(lambda p, t: (fun(p[0]), jnp.cos(p[0]) * t[0]))
    return fun(x)


def once_more(f: Any) -> Any:
    return jax.grad(lambda x: f(x).sum())


def twice_more(f: Any) -> Any:
    return jax.jacfwd(once_more(f))


ACTIVATIONS: dict[str, Elementwise] = {
    "relu": jax.nn.relu,
    "softplus": jax.nn.softplus,
    "log_sigmoid": jax.nn.log_sigmoid,
    "silu": jax.nn.silu,
    "relu6": jax.nn.relu6,
    "sinc": jnp.sinc,
    "logaddexp": lambda x: jnp.logaddexp(x, 2.0 * x),
    "xlogy": lambda x: jax.scipy.special.xlogy(x * x + 1.0, x * x + 2.0),
    "where": lambda x: jnp.where(x > 0, x, 0.1 * x),
    "rule of a user": plain_rule,
}


@pytest.mark.parametrize("make", [net, loop], ids=["layers", "loop"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_second_call_plans_nothing(plans: list[str], name: str, make: Any) -> None:
    for outer in (lambda f: f, once_more):
        found = []
        for _ in range(2):
            plans.clear()
            fun = make(ACTIVATIONS[name])
            found.append(outer(jacve(lambda x, f=fun: f(W, x)))(X))
        assert not plans
        expected = jax.jit(outer(jax.jacfwd(lambda x, f=fun: f(W, x))))(X)
        assert_same(found, [expected] * 2, tolerance=1e-12, context=name)


def test_rules_that_call_their_function_are_remembered_where_nothing_moves(
    plans: list[str],
) -> None:
    for expected in (False, True):
        jacve(lambda x: loop(own_rule)(W, x))(X)
        assert expected == (not plans)
        plans.clear()


def test_orders_that_search_do_so_once(plans: list[str]) -> None:
    for _ in range(2):
        jax.jit(jacve(lambda w, x: net(jax.nn.relu)(w, x), order="search"))(W, X)
    assert len(plans) == 1


# -- rules that differ in what they close over -----------------------------------------------------


def slope(c: float) -> Elementwise:
    fun = jax.custom_jvp(jnp.sin)
    fun.defjvp(lambda p, t: (jnp.sin(p[0]), c * p[0] * t[0]))
    return fun


def slope_calling(c: float) -> Elementwise:
    fun = jax.custom_jvp(jnp.sin)
    fun.defjvp(lambda p, t: (fun(p[0]), c * fun(p[0]) * t[0]))
    return fun


def series(k: int, depth: int) -> Elementwise:
    """The derivative of sine, but zero from some derivative on: bodies and first rules agree."""
    fun = jax.custom_jvp(lambda x: jnp.sin(x + k * jnp.pi / 2))
    if k < depth:
        fun.defjvp(lambda p, t: (fun(p[0]), series(k + 1, depth)(p[0]) * t[0]))
    else:
        fun.defjvp(lambda p, t: (fun(p[0]), jnp.zeros_like(t[0])))
    return fun


def numbered(n: int) -> Elementwise:
    """The number is an argument that is not differentiated, and is not in the body."""
    fun = jax.custom_jvp(lambda n, x: jnp.sin(x), nondiff_argnums=(0,))
    fun.defjvp(lambda n, p, t: (jnp.sin(p[0]), n * p[0] * t[0]))
    return lambda x: fun(n, x)


def told_zeros(c: float) -> Elementwise:
    """Both tangents at once say the same for all c, one of them alone does not."""
    fun = jax.custom_jvp(lambda x, y: x * y)

    def rule(primals: Any, tangents: Any) -> Any:
        (x, y), (tx, ty) = primals, tangents
        none = jax.custom_derivatives.SymbolicZero
        if type(ty) is none:
            return x * y, c * x * tx
        return x * y, jnp.cos(x) * y * (0.0 if type(tx) is none else tx) + x * ty

    fun.defjvp(rule, symbolic_zeros=True)
    return lambda x: fun(x, jnp.ones_like(x))


def slope_of(c: float) -> Elementwise:
    """The number is in the second derivative only."""
    fun = jax.custom_jvp(jnp.sin)
    fun.defjvp(lambda p, t: (jnp.sin(p[0]), slope(c)(p[0]) * t[0]))
    return fun


def backward(c: float) -> Elementwise:
    fun = jax.custom_vjp(jnp.sin)
    fun.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (c * x * g,))
    return fun


FAMILIES: dict[str, tuple[Callable[[Any], Elementwise], list[Any]]] = {
    "slope": (slope, [1.0, 3.0]),
    "slope of a rule that calls its function": (slope_calling, [1.0, 3.0]),
    "second derivative": (slope_of, [1.0, 3.0]),
    "length of a series": (lambda depth: series(0, depth), [0, 1, 2, 3]),
    "argument that is not differentiated": (numbered, [1, 2]),
    "what a rule does with zeros that it is told": (told_zeros, [1.0, 3.0]),
    "backward pass": (backward, [1.0, 3.0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", [net, loop], ids=["layers", "loop"])
@pytest.mark.parametrize("name", FAMILIES)
def test_rules_are_not_mixed_up(name: str, make: Any) -> None:
    """JAX's own modes disagree on loops of rules that are not derivatives of their functions."""
    family, settings = FAMILIES[name]
    outers = [lambda f: f, once_more] + [twice_more] * (name != "backward pass")

    def ours(setting: Any) -> list[Any]:
        fun = make(family(setting))
        return [outer(jacve(lambda x: fun(W, x)))(X) for outer in outers]

    expected = []
    for setting in settings:
        clear_caches()
        expected.append(ours(setting))
        if make is net:
            fun = make(family(setting))
            own = jax.jacrev(lambda x, f=fun: f(W, x))
            theirs = jax.jit(lambda x, own=own: [outer(own)(x) for outer in outers])(X)
            assert_same(expected[-1], theirs, tolerance=1e-12, context=f"{name}: {setting}")
    clear_caches()
    for setting, alone in [*zip(settings, expected, strict=True)] * 2:
        assert_same(ours(setting), alone, tolerance=1e-12, context=f"{name}: {setting}")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "backward pass"])
def test_rules_of_operators_are_not_mixed_up(name: str) -> None:
    clear_caches()
    family, settings = FAMILIES[name]
    for setting in [*settings, *settings]:
        fun = family(setting)
        inner = lambda x, f=fun: f(x).sum()  # noqa: E731
        hessian = jax.jit(jax.hessian(inner))
        assert_same(hessve(inner)(X), hessian(X), tolerance=1e-12, context=f"{name}: {setting}")
        ours = jax.grad(lambda x, f=inner: laplacian_ve(f)(x))(X)
        theirs = jax.jit(jax.grad(lambda x, h=hessian: jnp.trace(h(x))))(X)
        assert_same(ours, theirs, tolerance=1e-12, context=f"{name}: {setting}")


def test_rules_that_read_what_changes() -> None:
    """Two functions whose rules agree at first; then what one of them reads changes."""

    def reading(cell: list[float]) -> Elementwise:
        fun = jax.custom_jvp(jnp.multiply)
        fun.defjvp(lambda p, t: (p[0] * p[1], cell[0] * p[0] * t[0] + p[0] * t[1]))
        return lambda x: fun(x, x + 1.0)

    one, other = [2.0], [2.0]
    derivative = lambda c: jax.grad(lambda x: jacve(reading(c))(x).sum())(X)  # noqa: E731
    expected = lambda c: jax.jit(jax.grad(lambda x: jax.jacrev(reading(c))(x).sum()))(X)  # noqa: E731
    for first, second in ((2.0, 2.0), (3.0, 2.0), (3.0, 3.0), (2.0, 3.0)):
        one[0], other[0] = first, second
        for cell in (one, other):
            assert_same(derivative(cell), expected(cell), tolerance=1e-12)


def test_rules_with_constants_of_a_trace_have_no_key():
    def integral(x):
        return jax.scipy.special.expn(2, x)

    x = jnp.array([0.5, 1.0, 2.0])
    np.testing.assert_allclose(jax.jit(jacve(integral))(x), jax.jacfwd(integral)(x), rtol=1e-12)
