"""Derivatives of the CUTEst problems (sif2jax) with at most 300 variables, against JAX's own."""

import jax
import numpy as np
import pytest

from graphax_lapl import SparseJacobian, hessve, jacve
from tests.conformance.cutest import Target, problem_names, targets

pytestmark = pytest.mark.conformance


@pytest.mark.parametrize("name", problem_names())
@pytest.mark.usefixtures("standard_promotion")
def test_problem(name):
    for target in targets(name):
        if target.name == "objective":
            check(target, jax.hessian(target.function), hessve, ("auto",))
        else:
            check(target, jax.jacfwd(target.function), jacve, ("auto", "forward", "reverse"))


def check(target: Target, reference, derivative, orders) -> None:
    """Dense in every order, and sparse, at both points."""
    reference = jax.jit(reference)
    expected = [reference(point) for point in target.points]
    ways = [{"order": order} for order in orders] + [{"sparse_representation": True}]
    for options in ways:
        ours = jax.jit(derivative(target.function, **options))
        for point, want in zip(target.points, expected, strict=True):
            got = jax.tree.map(dense, ours(point), is_leaf=is_sparse)
            assert jax.tree.structure(got) == jax.tree.structure(want)
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
                assert_close(np.asarray(a), np.asarray(b), f"{target.name} {options}")


def is_sparse(leaf) -> bool:
    return isinstance(leaf, SparseJacobian)


def dense(leaf):
    return leaf.todense() if is_sparse(leaf) else leaf


def assert_close(ours: np.ndarray, jaxs: np.ndarray, what: str) -> None:
    """Equal to 1e-8 of the largest finite entry, and finite wherever JAX's derivative is.

    Outside a function's domain JAX spreads what is not a number over structural zeros: a row of
    zero times infinity. Ours has it at the entries that depend on the argument only.
    """
    assert (ours.shape, ours.dtype) == (jaxs.shape, jaxs.dtype), what
    finite = np.isfinite(jaxs)
    assert np.all(np.isfinite(ours[finite])), what
    scale = np.max(np.abs(jaxs[finite]), initial=0.0)
    error = np.max(np.abs(ours[finite] - jaxs[finite]), initial=0.0)
    assert error <= 1e-8 * scale, f"{what}: off by {error} of {scale}"
