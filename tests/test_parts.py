"""Arrays of single inputs that a few kernels write, and what is traced once for all devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve
from graphax_lapl.emit import joining
from graphax_lapl.emit.joining import PARTS, in_digits, in_parts

MASS = 0.4


def rusanov(x):
    """A flux between two states of a gas, whose speeds of sound are kernels of their own."""

    def side(q):
        r, m, n, k, energy = q
        u = m / r
        pressure = MASS * (energy - 0.5 * (m * m + n * n + k * k) / r)
        flux = jnp.stack([m, m * u + pressure, n * u, k * u, (energy + pressure) * u])
        return flux, jnp.abs(u) + jnp.sqrt(1.4 * jnp.abs(pressure) / r)

    (left, fast), (right, other) = side(x[:5]), side(x[5:])
    return 0.5 * (left + right) - 0.5 * jnp.maximum(fast, other) * (x[5:] - x[:5])


def polynomials(x):
    return jnp.stack([x[0] * x[1], x[1] ** 2 * x[2], x[0] - x[2]])


@pytest.fixture
def held(monkeypatch):
    """Shapes of the parts that are in memory before they are put together."""
    shapes = []

    def spy(part):
        shapes.append(part.shape)
        return linear_barrier(part)

    linear_barrier = joining.linear_barrier
    monkeypatch.setattr(joining, "linear_barrier", spy)
    return shapes


def numbers_of(shape):
    found = np.empty(shape, object)
    for k, index in enumerate(np.ndindex(*shape)):
        found[index] = jnp.asarray(float(k))
    return found


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        ((), []),
        ((1,), []),
        ((2,), [1, 1]),
        ((7,), [3, 3, 1]),
        ((2, 9), [6, 6, 6]),
        ((5, 10), [20, 20, 10]),  # whole rows
        ((4, 2, 3), [12, 12]),
    ],
)
def test_all_parts_are_the_array(shape, parts, held):
    numbers = numbers_of(shape)
    found = in_parts(numbers)
    np.testing.assert_array_equal(found, in_digits(numbers))
    assert found.shape == shape
    assert held == [(size,) for size in parts]


@pytest.mark.parametrize(("fun", "size", "parts"), [(rusanov, 10, PARTS), (polynomials, 3, 0)])
def test_what_is_much_is_in_parts(fun, size, parts, held):
    x = jax.random.uniform(jax.random.key(3), (size,), jnp.float64, 0.4, 1.2)
    found = jax.jit(jacve(fun))(x)
    np.testing.assert_allclose(found, jax.jacfwd(fun)(x), 1e-12, 1e-12)
    assert len(held) == parts


def test_other_devices_call_what_was_traced():
    """The program on arrays is traced once, to be looked at; devices that keep it call it."""
    calls = []

    def watched(x):
        calls.append(1)
        return rusanov(x)

    x = jnp.full((10,), 0.7)
    jaxpr = jax.make_jaxpr(jax.jit(jacve(watched)))(x)
    assert len(calls) == 1
    (choice,) = [e for e in equations_of(jaxpr.jaxpr) if e.primitive.name == "cond"]
    sizes = sorted(len(branch.jaxpr.eqns) for branch in choice.params["branches"])
    assert sizes[0] == 1 < sizes[-1]


def equations_of(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", None)
            if inner is not None:
                yield from equations_of(getattr(inner, "jaxpr", inner))
