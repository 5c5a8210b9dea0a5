"""Powers with known exponents in loops and branches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import source_info_util

from graphax_lapl import hessve, jacve, laplacian_ve, value_and_jacve
from graphax_lapl.graph.powers_in_bodies import with_known_powers

EXPONENTS = np.array([1.5, 2.0, 0.5, 3.0])


def stepped(x):
    def step(s, _):
        return s + 0.01 * (jnp.roll(s, 1) ** 1.5 - s**2.5), s[0] ** -0.5

    last, seen = lax.scan(step, x, None, length=5)
    return jnp.concatenate([last, seen])


def of_an_array(x):
    exponents = jnp.asarray(EXPONENTS) + 1.0

    def step(s, _):
        return s + 0.01 * s ** (exponents[::-1] - 1.0), None

    return lax.scan(step, x, None, length=5)[0]


def counted(x):
    return lax.fori_loop(0, 4, lambda i, s: s + 0.1 * i * s**-1.5, x)


def waiting(x):
    def body(state):
        k, s = state
        return k + 1, s - 0.05 * s**1.5

    return lax.while_loop(lambda state: state[0] < 4, body, (0, x))[1]


def choosing(x):
    return lax.cond(x[0] > 0.5, lambda y: y**1.5, lambda y: y ** jnp.asarray(EXPONENTS), x)


def within_calls(x):
    @jax.jit
    def outer(y):
        return lax.scan(lambda s, _: (inner(s), None), y, None, length=3)[0]

    @jax.jit
    def inner(y):
        return lax.fori_loop(0, 2, lambda i, s: 0.9 * s**1.5 + 0.1, y)

    return outer(x)


PROGRAMS = [stepped, of_an_array, counted, waiting, choosing, within_calls]


def draw(*shape):
    return jax.random.uniform(jax.random.key(7), shape, jnp.float64, 0.3, 1.2)


def powers_in(fun, *args):
    return str(jax.make_jaxpr(fun)(*args)).count(" pow ")


@pytest.mark.parametrize("fun", PROGRAMS, ids=lambda fun: fun.__name__)
def test_jacobians(fun):
    x = draw(4)
    assert powers_in(fun, x) > 0
    assert powers_in(jax.jit(value_and_jacve(fun)), x) == 0
    value, jacobian = value_and_jacve(fun)(x)
    np.testing.assert_allclose(value, fun(x), 1e-13)
    np.testing.assert_allclose(jacobian, jax.jacfwd(fun)(x), 1e-12, 1e-13)


@pytest.mark.parametrize("fun", [stepped, of_an_array], ids=lambda fun: fun.__name__)
def test_batches(fun):
    x = draw(300, 4)
    found = jax.jit(jax.vmap(jacve(fun)))(x)
    np.testing.assert_allclose(found, jax.vmap(jax.jacrev(fun))(x), 1e-12, 1e-13)


@pytest.mark.parametrize("fun", [stepped, counted, within_calls], ids=lambda fun: fun.__name__)
def test_second_derivatives(fun):
    x = draw(4)

    def total(x):
        return jnp.sum(jnp.sin(fun(x)))

    expected = jax.jacfwd(jax.jacrev(total))(x)
    np.testing.assert_allclose(hessve(total)(x), expected, 1e-11, 1e-12)
    np.testing.assert_allclose(laplacian_ve(total)(x), jnp.trace(expected), 1e-11)


@pytest.mark.parametrize("exponent", [0.5, 1.5, 2.0, -0.5, 0.0, 1.0])
@pytest.mark.parametrize("point", [0.0, -0.0, -1.0, np.inf, -np.inf, np.nan])
def test_singular_points(exponent, point):
    """A loop's powers are what JAX's are there, and their derivatives."""

    def fun(x):
        return lax.scan(lambda s, _: (s**exponent, None), x, None, length=1)[0]

    x = jnp.asarray(point)
    np.testing.assert_array_equal(value_and_jacve(fun)(x)[0], fun(x))
    np.testing.assert_array_equal(jacve(fun)(x), jacve(lambda x: x**exponent)(x))


def test_what_is_not_known_stays():
    x = draw(4)

    def of_inputs(x, y):
        return lax.scan(lambda s, _: (s**y, None), x, None, length=2)[0]

    def of_steps(x):
        return lax.scan(lambda s, e: (s**e, None), x, jnp.linspace(0.9, 1.1, 40))[0]

    def of_others(x):
        return lax.scan(lambda s, _: (s**1.3 + s**9.0, None), x, None, length=2)[0]

    for fun, args in [(of_inputs, (x, x)), (of_steps, (x,)), (of_others, (x,))]:
        found = jacve(fun)(*args)
        np.testing.assert_allclose(found, jax.jacfwd(fun)(*args), 1e-12, 1e-13)
        assert powers_in(jax.jit(jacve(fun)), *args) > 0


def test_types_that_a_loop_carries():
    """Python's numbers are weakly typed, and a loop returns what it was begun with."""

    def fun(x):
        last, _ = lax.scan(
            lambda s, _: ((s[0] ** 1.5, s[1] ** 0.5 + s[0]), None), (2.0, x), None, 3
        )
        return last[1] * last[0]

    x = jnp.linspace(0.3, 1.2, 3, dtype=jnp.float32)
    np.testing.assert_allclose(jacve(fun)(x), jax.jacfwd(fun)(x), 1e-5)


def test_programs_without_are_the_same():
    x = draw(4)
    for fun in (lambda x: x**1.5, lambda x: lax.fori_loop(0, 3, lambda i, s: s * x, x)):
        closed = jax.make_jaxpr(fun)(x)
        assert with_known_powers(closed) is closed


def test_equations_keep_their_source_lines():
    closed = with_known_powers(jax.make_jaxpr(stepped)(draw(4)))
    (loop,) = [e for e in closed.jaxpr.eqns if e.primitive.name == "scan"]
    body = loop.params["jaxpr"].jaxpr
    lines = [source_info_util.summarize(e.source_info) for e in body.eqns]
    assert "custom_jvp_call" in [e.primitive.name for e in body.eqns]
    assert all("step" in line and __file__ in line for line in lines), lines


def test_effects_stay(capfd):
    def step(s, _):
        jax.debug.print("at {}", s[0])
        return s**1.5, None

    def fun(x):
        return lax.scan(step, x, None, length=2)[0]

    x = draw(4)
    closed = jax.make_jaxpr(fun)(x)
    assert with_known_powers(closed) is closed
    np.testing.assert_allclose(jacve(fun)(x), jax.jacfwd(fun)(x), 1e-12, 1e-13)
    jax.effects_barrier()
    assert "at " in capfd.readouterr().out
