"""Pairs that are taken in both directions: what is even or odd in a difference is computed once."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve
from graphax_lapl.emit.numbers import run_numbers
from graphax_lapl.emit.tape import Tape

X = np.array([0.3, -1.2, 0.7, 2.1])


def operations(fun, x=X):
    """How often each operation is recorded, and what is recorded in numbers."""
    closed = jax.make_jaxpr(fun)(x)
    tape = Tape()
    given = tape.input(x.shape, x.dtype, True)
    results = run_numbers(closed.jaxpr, closed.consts, [given], tape.apply)
    needed, _, _ = tape.needed(results)
    return Counter(operation.name for operation in needed), tape, results


def both(fun):
    """Of all pairs in both directions, without those of a number with itself."""

    def of(x):
        first, second = np.nonzero(~np.eye(x.size, dtype=bool))
        return fun(x[first] - x[second])

    return of


EVEN = {
    "square": jnp.square,
    "product": lambda d: d * d,
    "magnitude": jnp.abs,
    "fourth power": lambda d: d**4,
    "cosh": jnp.cosh,
    "square of a negative": lambda d: jnp.square(-d),
}
ODD = {
    "tanh": jnp.tanh,
    "cube": lambda d: d**3,
    "quotient": lambda d: d / (1 + d * d),
    "arc tangent": jnp.atan,
    "error function": jax.scipy.special.erf,
}


@pytest.mark.parametrize("name", [*EVEN, *ODD])
def test_half_of_all_pairs(name):
    fun = both((EVEN | ODD)[name])
    counts, tape, results = operations(fun)
    del counts["sub"], counts["neg"], counts["add"]
    assert set(counts.values()) == {6}
    program = tape.program(results, 1, 1)
    (found,) = program([X])
    np.testing.assert_allclose(np.stack(found), jax.jit(fun)(X), 1e-14)


def test_sines_are_those_of_their_own_pairs():
    assert operations(both(jnp.cos))[0]["cos"] == 12


def test_what_is_neither():
    assert operations(both(jnp.exp))[0]["exp"] == 12
    assert operations(both(lambda d: d * (1 + d)))[0]["mul"] == 12


def test_integers_and_complex_numbers_stay():
    counts = operations(both(jnp.square), np.arange(4))[0]
    assert counts["mul"] == 12
    counts = operations(both(lambda d: d / (1 + d)), X + 1j)[0]
    assert counts["complex div"] == 12


@pytest.mark.parametrize("samples", [300, 4096])
def test_forces_of_particles(samples):
    def forces(x):
        points = x.reshape(4, 2)
        apart = points[:, None] - points
        return (apart / (jnp.sum(apart**2, -1, keepdims=True) + 0.1) ** 1.5).sum(0).ravel()

    x = np.random.default_rng(0).normal(size=(samples, 8))
    found = jax.jit(jax.vmap(jacve(forces)))(x)
    np.testing.assert_allclose(found, jax.vmap(jax.jacrev(forces))(x), 1e-11, 1e-12)


def test_coincident_particles():
    def magnitudes(x):
        apart = x[:, None] - x
        return jnp.sum(jnp.abs(apart) ** 3 + jnp.tanh(apart) / (1 + apart**2), 1)

    x = np.tile([0.5, 0.5, -1.0], (300, 1))
    found = jax.jit(jax.vmap(jacve(magnitudes)))(x)
    np.testing.assert_allclose(found, jax.vmap(jax.jacrev(magnitudes))(x), 1e-13)
