"""The problems of second order: ours against `trace(jax.hessian)`, at small sizes in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.laplacian.measure import truth
from benchmarks.problems.laplacian import LAPLACIAN_PROBLEMS
from graphax_lapl import divergence_ve, laplacian_ve

OPERATORS = {"laplacian": laplacian_ve, "divergence": divergence_ve}

#: Compiled for seconds; of the networks in d dimensions one is enough for every day.
SLOW = {
    "ferminet",
    "psiformer",
    "lapnet",
    "message_passing",
    "pinn_d10",
    "pinn_d2000",
    "wide_into_narrow",
}
problems = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.conformance) if name in SLOW else name
        for name in LAPLACIAN_PROBLEMS
    ],
)


@functools.cache
def small(name):
    """A small instance and the truth at its first input."""
    problem = LAPLACIAN_PROBLEMS[name]
    instance = problem.instance(jnp.float64, small=True)
    return instance, truth(instance, problem.operator)


@problems
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
def test_agrees_with_dense_derivatives(name, order):
    instance, expected = small(name)
    operator = OPERATORS[LAPLACIAN_PROBLEMS[name].operator](instance.fun, order, argnums=1)
    found = operator(instance.params, instance.xs[0])
    assert found.shape == ()
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("problem", LAPLACIAN_PROBLEMS.values(), ids=lambda p: p.name)
def test_the_sizes_of_the_benchmark_trace_in_float32(problem, float32):
    instance = problem.instance(jnp.float32)
    assert instance.xs.dtype == jnp.float32
    out = jax.eval_shape(instance.fun, instance.params, instance.xs[0])
    assert out.dtype == jnp.float32
    assert out.shape == (() if problem.operator == "laplacian" else instance.xs.shape[1:])
    assert np.isfinite(instance.xs).all()


def test_parameters_are_the_same_for_both_types():
    problem = LAPLACIAN_PROBLEMS["pinn_d10"]
    single, double = (problem.instance(t, small=True) for t in (jnp.float32, jnp.float64))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), single.params, double.params
    )
    np.testing.assert_allclose(single.xs, double.xs, rtol=1e-6)
