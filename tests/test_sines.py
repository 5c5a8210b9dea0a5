"""Sines and cosines by vector instructions: their values, derivatives and where they are taken."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.problems.robot_arm import robot_arm
from graphax_lapl import jacve, laplacian_ve, make_plan
from graphax_lapl.emit.sines import (
    by_polynomials_within_sums,
    sine_and_cosine,
    sine_and_cosine_inside,
)
from graphax_lapl.program.sines import SINES_SIZE, sines
from graphax_lapl.program.summed import SINES_INSIDE


def places(dtype):
    """Arguments up to the largest one: everywhere, and around multiples of pi / 2."""
    limit, count = (1600.0, 1018) if dtype == np.float32 else (1.6e6, 30_000)
    draw = np.random.default_rng(0)
    near = (np.arange(count) * np.pi / 2).astype(dtype)
    beside = [np.nextafter(near, dtype(side * 2 * limit)) for side in (-1, 1)]
    spread = [draw.uniform(-limit, limit, 40_000), np.geomspace(1e-30, limit, 40_000)]
    return np.concatenate([near, *beside, *spread]).astype(dtype)


@pytest.mark.parametrize(
    ("function", "units"),
    [(sine_and_cosine, {4: 1.1, 8: 1.6}), (by_polynomials_within_sums, {4: 2.5, 8: 2.5})],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_are_within_a_few_units_in_the_last_place(dtype, function, units):
    x = places(dtype)
    for sign in (1, -1):
        found = jax.jit(function)(sign * x)
        for values, exact in zip(found, (np.sin, np.cos), strict=True):
            assert values.dtype == dtype
            # Of doubles the library's long double, which has 11 more bits.
            wider = np.float64 if dtype == np.float32 else np.longdouble
            expected = exact((sign * x).astype(wider))
            unit = np.spacing(np.abs(expected).astype(dtype)).astype(wider)
            error = np.abs(np.asarray(values).astype(wider) - expected)
            assert np.max(error / unit) < units[x.itemsize]


@pytest.mark.parametrize("special", [1e9, -1e30, np.inf, np.nan, -0.0])
def test_arguments_that_the_polynomials_are_not_made_for(special):
    x = np.linspace(-3, 3, SINES_SIZE, dtype=np.float32)
    x[5], x[7] = special, 1e5  # a large argument beside NaN
    found = jax.jit(sine_and_cosine)(x)
    for values, function in zip(found, (jnp.sin, jnp.cos), strict=True):
        expected = jax.jit(function)(x)
        np.testing.assert_allclose(values, expected, rtol=3e-7, atol=1e-37)
        assert np.signbit(values[5]) == np.signbit(expected[5]) or np.isnan(special)


@pytest.mark.parametrize("function", [sine_and_cosine, sine_and_cosine_inside])
@pytest.mark.parametrize("count", [3, SINES_SIZE])
def test_under_every_transformation(function, count):
    x = jnp.linspace(-1.0, 2.0, count)

    def fun(x):
        sine, cosine = function(x)
        return jnp.sum(sine * jnp.exp(cosine))

    def plain(x):
        return jnp.sum(jnp.sin(x) * jnp.exp(jnp.cos(x)))

    rows = jnp.stack([x, 2 * x])
    cases = {
        "gradient": (jax.grad, x),
        "second derivative": (lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (x,))[1], x),
        "gradient of a batch": (lambda f: jax.grad(lambda x: jnp.sum(jax.vmap(f)(x))), rows),
        "batch of gradients": (lambda f: jax.vmap(jax.grad(f)), rows),
    }
    for name, (transform, point) in cases.items():
        expected = jax.jit(transform(plain))(point)
        np.testing.assert_allclose(
            jax.jit(transform(fun))(point), expected, atol=1e-13, err_msg=name
        )


def test_both_functions_of_one_array_are_one_evaluation():
    def fun(x):
        return jnp.sin(x) * jnp.cos(x), jnp.cos(2 * x)

    xs = jnp.linspace(0.0, 1.0, 128 * 32).reshape(128, 32)
    program = make_plan(fun, xs[0], order="forward").program
    places = sorted((s.argument, s.place) for s in sines(program).values())
    assert [place for _, place in places] == [0, 1, 0]  # of 2 x the sine alone
    assert len({argument for argument, _ in places}) == 2
    batch = jax.vmap(jacve(fun, order="forward"))
    compiled = jax.jit(batch).lower(xs).compile()
    assert len(re.findall(r" conditional\(", compiled.as_text())) == 2
    found = compiled(xs)
    expected = jax.jit(jax.vmap(jax.jacfwd(fun)))(xs)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("function", "evaluations", "guarded"),
    [
        (lambda x: jnp.sin(x) * x, 2, True),
        (jnp.sin, 1, not SINES_INSIDE),  # a sine without its cosine
    ],
    ids=["both", "sine"],
)
def test_where_only_sums_read_them_they_are_left_to_the_sums(function, evaluations, guarded):
    def fun(weights, x):
        return jnp.sum(weights * function(x))

    weights, xs = jnp.ones(40), jnp.linspace(0.0, 1.0, 128 * 40).reshape(128, 40)

    def loss(weights, xs):
        return jnp.mean(jax.vmap(laplacian_ve(fun, argnums=1), (None, 0))(weights, xs) ** 2)

    value, step = (
        jax.jit(f).lower(weights, xs).compile().as_text() for f in (loss, jax.grad(loss))
    )
    assert (" conditional(" in value) == guarded
    assert (" conditional(" in step) == guarded  # though none has a tangent
    assert len(re.findall(r"\b(?:sine|cosine)\(", step)) == evaluations


def arm(x):
    """Where six joints lead; the last two angles are made of sines of the others."""
    first = jnp.stack(robot_arm(*x, 0.1 * x[0], 0.2 * x[1])[:3])
    return jnp.stack(robot_arm(*x, first[0], first[1] * first[2]))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("special", [0.5, 1e9, np.inf])
def test_numbers_that_wait_for_no_other_sine_are_one_evaluation(order, special):
    x = np.random.default_rng(0).uniform(-1, 1, (SINES_SIZE, 4))
    x[7, 1] = special
    found = jax.jit(jax.vmap(jacve(arm, order=order))).lower(x).compile()
    # Those that are given first, and then what is made of their sines.
    assert found.as_text().count(" conditional(") == 2
    expected = jax.vmap(jax.jacfwd(arm))(x)
    np.testing.assert_allclose(found(x), expected, rtol=1e-12, atol=1e-12)
    few = jax.jit(jax.vmap(jax.vmap(jacve(arm, order=order))))
    halves = x.reshape(2, -1, 4)
    np.testing.assert_allclose(few(halves).reshape(-1, 6, 4), expected, 1e-12, 1e-12)
