"""Random programs over one vector against JAX without `jax.jit`, which XLA may get wrong.

The default run takes a fixed sample; `make conformance` takes the rest.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, laplacian_ve
from tests.vector_programs import vector_program

SAMPLE = 12
SMOKE = 3
TOTAL = 1000
COMPARED = 2
"""Samples of each batch that are compared."""


def assert_same(found: Any, expected: Any, other: Any) -> None:
    """Equal to one of two references wherever both are numbers."""
    with np.errstate(invalid="ignore"):
        numbers = np.isfinite(expected) & np.isfinite(other)
        same = [np.isclose(found, each, rtol=1e-7, atol=1e-8) for each in (expected, other)]
    assert numbers.any()
    assert (same[0] | same[1] | ~numbers).all(), np.abs(found - expected).max()


def in_batch(fun: Callable[[Any], Any], samples: np.ndarray) -> np.ndarray:
    """A function of every sample under `jax.jit`."""
    return np.asarray(jax.jit(jax.vmap(fun))(samples))[:COMPARED]


def one_by_one(fun: Callable[[Any], Any], samples: np.ndarray) -> np.ndarray:
    """A function of some of the samples, without `jax.jit`."""
    with jax.disable_jit():
        return np.stack([fun(row) for row in samples[:COMPARED]])


def check(seed: int) -> None:
    """Jacobians, gradients of a loss over them, and the Laplacian of a sum."""
    fun, samples, order = vector_program(seed)
    jacobian = jacve(fun, order=order)

    def loss(jacobian: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return jax.grad(lambda x: jnp.sum(jacobian(x) ** 2))

    def total(x: Any) -> Any:
        return jnp.sum(jnp.sin(fun(x)))

    by_rows, by_columns = (one_by_one(of(fun), samples) for of in (jax.jacrev, jax.jacfwd))
    assert_same(in_batch(jacobian, samples), by_rows, by_columns)
    assert_same(np.asarray(jacobian(samples[0])), by_rows[0], by_columns[0])
    expected = one_by_one(loss(jax.jacrev(fun)), samples)
    assert_same(in_batch(loss(jacobian), samples), expected, expected)
    expected = one_by_one(lambda x: jnp.trace(jax.jacfwd(jax.grad(total))(x)), samples)
    assert_same(in_batch(laplacian_ve(total), samples), expected, expected)


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize(
    "seed",
    [pytest.param(s, marks=pytest.mark.smoke if s < SMOKE else ()) for s in range(SAMPLE)],
)
def test_sample(seed: int) -> None:
    check(seed)


@pytest.mark.conformance
@pytest.mark.parametrize("seed", range(SAMPLE, TOTAL))
def test_rest(seed: int) -> None:
    check(seed)
