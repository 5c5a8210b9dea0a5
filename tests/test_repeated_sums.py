"""Sums that one reader repeats along other axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, make_plan
from graphax_lapl.program.repeated_sums import repeated_sums
from tests.checks import primitives


def shares(x):
    """Softmax of sums over half a ring: every row of the Jacobian subtracts sums over columns."""
    count = x.shape[-1]
    table = (np.arange(count)[:, None] + np.arange(count // 2)) % count
    return jax.nn.softmax(jnp.sum(x[table], axis=1))


def scaled(x):
    """Sums that are read twice, and by what is no larger."""
    total = jnp.sum(x * x)
    return jnp.stack([total, jnp.sin(total)])


@pytest.mark.slow
@pytest.mark.parametrize("order", ["auto", "forward", "reverse", "markowitz"])
@pytest.mark.parametrize("samples", [2, 300])
def test_against_jax(order, samples):
    x = jax.random.normal(jax.random.key(0), (samples, 7), jnp.float64)
    found = jax.jit(jax.vmap(jacve(shares, order=order)))(x)
    np.testing.assert_allclose(found, jax.vmap(jax.jacrev(shares))(x), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("size", [6, 16])
def test_sums_over_columns_are_held_from_some_samples_on(size):
    plan = make_plan(shares, jnp.ones(size, jnp.float32), order="forward")
    found = repeated_sums(plan.program)
    sums = {slot: plan.program.slots[slot].shape for slot in found}
    assert (size,) in sums.values()
    (first, _) = next(found[slot] for slot, shape in sums.items() if shape == (size,))
    assert first % size == 0
    assert first // size == {6: 267, 16: 13}[size]


def test_what_nothing_repeats():
    plan = make_plan(scaled, jnp.ones(5, jnp.float32), order="reverse")
    assert repeated_sums(plan.program) == {}


def test_programs_hold_them():
    def sums_held(samples):
        jaxpr = jax.make_jaxpr(jax.vmap(jacve(shares, order="forward")))(
            jnp.ones((samples, 16), jnp.float32)
        )
        return primitives(jaxpr.jaxpr, ("optimization_barrier", "jit", "pjit"))[samples, 16]

    assert sums_held(13) > sums_held(12)
