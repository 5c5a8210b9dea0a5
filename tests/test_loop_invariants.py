"""What no step of a loop changes: computed before it, and numbers repeated for rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import jacve, laplacian_ve, make_plan
from graphax_lapl.rules.loop_invariants import steps_for_rows

WEIGHTS = np.random.default_rng(0).standard_normal((3, 5)) / 2
START = np.linspace(0.5, 1.0, 3)


def steps(step: Any, start: Any) -> Any:
    return lax.scan(lambda c, k: (step(c, k), c), start, jnp.linspace(0.1, 0.9, 12))


def end(step: Any, start: Any, length: int = 12, reverse: bool = False) -> Any:
    times = jnp.linspace(0.1, 0.9, length)
    return lax.scan(lambda c, k: (step(c, k), None), start, times, reverse=reverse)[0]


def by_matrix(p: Any) -> Any:
    return end(lambda c, k: c + 0.1 * k * jnp.tanh(WEIGHTS @ p * jnp.roll(c, 1)), START)


def by_matrix_twice(p: Any) -> Any:
    rates = WEIGHTS @ p
    return end(lambda c, k: c + 0.1 * k * rates * jnp.tanh(WEIGHTS @ p * jnp.roll(c, 1)), START)


def by_numbers(p: Any) -> Any:
    def step(c, k):
        return c + 0.1 * (p[0] * jnp.roll(c, 1) - p[1] * c * c + k * p[2] * p[3] - jnp.exp(p[4]))

    return jnp.sum(end(step, START, length=12) ** 2)


def of_start_and_numbers(p: Any) -> Any:
    def step(c, k):
        return c + 0.1 * (p[0] * jnp.sin(jnp.roll(c, 1)) - k * p[1] / (1 + c * c))

    return jnp.prod(end(step, p[2:], reverse=True))


def of_single_numbers(p: Any) -> Any:
    def step(c, k):
        return c[0] + 0.1 * p[0] * c[1], c[1] - 0.1 * (p[1] * c[0] + k * p[2] ** 2 * c[1])

    return jnp.stack(end(step, (p[3], p[4])))


def of_entries(p: Any) -> Any:
    """Steps take what is carried apart: its numbers meet numbers."""

    def step(c, k):
        return c + 0.1 * jnp.stack([p[0] * c[1], -p[1] * c[0] * k, p[2] - c[2]])

    return jnp.sum(end(step, START) ** 2)


def with_stacks(p: Any) -> Any:
    last, stacked = steps(lambda c, k: c + 0.1 * k * p[0] * jnp.sin(c) - p[1] * c, START)
    return jnp.sum(last) + jnp.sum(stacked**2)


def nested(p: Any) -> Any:
    def outer(c, k):
        inner = lax.fori_loop(0, 10, lambda i, b: b + 0.05 * p[1] * jnp.roll(b, 1), p[0] * c)
        return 0.5 * inner + k * jnp.cos(p[2]) * c

    return jnp.sum(end(outer, START, length=9))


def of_branches(p: Any) -> Any:
    def step(c, k):
        return lax.cond(k > 0.5, lambda: c * p[0], lambda: c + p[1] * p[2])

    return jnp.sum(end(step, START) ** 2)


def with_a_rule(p: Any) -> Any:
    return jnp.sum(end(lambda c, k: c + 0.1 * jax.nn.silu(p[0]) * jax.nn.relu(c * p[1] - k), START))


def of_still_results(p: Any) -> Any:
    """What is carried on is what no step changes."""
    return jnp.sum(end(lambda c, k: jnp.ones(3) * p[0] * p[1], START))


CASES = [
    by_matrix,
    by_matrix_twice,
    by_numbers,
    of_start_and_numbers,
    of_single_numbers,
    of_entries,
    with_stacks,
    nested,
    of_branches,
    with_a_rule,
    of_still_results,
]


@pytest.mark.every_case
@pytest.mark.parametrize("fun", CASES)
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
def test_jacobians_are_jaxs(fun, order):
    x = jnp.linspace(0.3, 1.2, 5)
    expected = jax.jacfwd(fun)(x)
    np.testing.assert_allclose(jacve(fun, order=order)(x), expected, rtol=1e-11, atol=1e-12)
    samples = x + jnp.linspace(0, 0.2, 4)[:, None]
    expected = jax.vmap(jax.jacfwd(fun))(samples)
    found = jax.jit(jax.vmap(jacve(fun, order=order)))(samples)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("fun", CASES)
def test_second_derivatives_are_jaxs(fun):
    x = jnp.linspace(0.3, 1.2, 5)
    total = lambda x: jnp.sum(fun(x))  # noqa: E731
    hessian = jax.jacfwd(jax.jacrev(total))(x)
    np.testing.assert_allclose(laplacian_ve(total)(x), jnp.trace(hessian), rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(jax.jacfwd(jacve(total))(x), hessian, rtol=1e-10, atol=1e-11)


def scans(fun: Any, x: Any) -> list[Any]:
    return [e for e in make_plan(fun, x).graph.listing.equations if e.name == "scan"]


def test_what_a_loop_reads():
    """Of a matrix product its result, once; of parameters taken apart what they are, for rows."""
    x = jnp.linspace(0.3, 1.2, 5)
    for fun, sizes in ((by_matrix, [3]), (by_matrix_twice, [3]), (of_single_numbers, [1] * 5)):
        (loop,) = scans(fun, x)
        moving = [n for n, moves in zip(loop.inputs, loop.active, strict=True) if moves]
        listing = make_plan(fun, x).graph.listing
        assert [int(np.prod(listing.type_of(atom).shape)) for atom in moving] == sizes
    (loop,) = scans(by_numbers, x)
    found = steps_for_rows(loop)
    assert found is not None
    assert set(found.repeated.values()) == {(3,)}
    assert not found.sums
    (loop,) = scans(of_entries, x)
    found = steps_for_rows(loop)
    assert found is not None
    assert found.sums
    assert not found.repeated


@pytest.mark.parametrize("length", [0, 9])
def test_infinite_slopes_stay_inside(length):
    """What every step selects away has no derivative, and a loop without steps has none either."""

    def fun(p):
        def step(c, k):
            return jnp.where(k > 2, c * jnp.log(p[0]) / p[0], c + p[1])

        return end(step, START, length=length)

    p = jnp.asarray([0.0, 1.0])
    expected = jax.jacfwd(fun)(p)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(jacve(fun, order="forward")(p), expected)
