"""Hessians and constraint Jacobians of a fixed sample of CUTEst problems, against JAX's own."""

import jax
import numpy as np
import pytest

from graphax_lapl import hessve, jacve
from tests.cutest_checks import Target, assert_like_jax, check_target, two_points
from tests.cutest_sample import PROBLEMS

#: Many residuals or unrolled terms: several seconds each.
LONG = {"BROYDNBD", "DECONVB", "HS105", "OSBORNEA"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.conformance if n in LONG else ()) for n in PROBLEMS],
)
def test_problem(name: str) -> None:
    problem = PROBLEMS[name]
    points = two_points(problem.start)
    check_target(Target("objective", problem.objective, points))
    if problem.constraints is not None:
        check_target(Target("inequality", problem.constraints, points))


@pytest.mark.slow
def test_finite_where_no_path_leads() -> None:
    """Outside the domain an entry is what depends on it; JAX spreads NaN over rows or columns."""
    point = np.array([9.0, 11.0, 8.0])
    hessian = np.asarray(hessve(PROBLEMS["HS110"].objective)(point))
    assert np.isnan(np.asarray(jax.hessian(PROBLEMS["HS110"].objective)(point))[1]).all()
    expected = np.zeros((3, 3), bool)
    expected[1, 1] = True
    np.testing.assert_array_equal(np.isnan(hessian), expected)

    start = PROBLEMS["S365"].start
    constraints = PROBLEMS["S365"].constraints
    assert constraints is not None
    ours, rows, columns = (
        np.isnan(jax.jit(way(constraints))(start)) for way in (jacve, jax.jacfwd, jax.jacrev)
    )
    assert rows[1].all()
    assert columns[:, 1].all()
    np.testing.assert_array_equal(ours, rows & columns)


def test_the_comparison_fails() -> None:
    """A wrong number is seen, and so is a number where none of JAX's ways has one."""
    right = np.array([[1.0, np.nan], [0.0, 2.0]])
    other = np.array([[1.0, 3.0], [0.0, 2.0]])
    assert_like_jax(other, right, [lambda: other], "finite by the other way")
    for wrong in (np.array([[1.0, 3.1], [0.0, 2.0]]), np.array([[1.0, 3.0], [0.0, np.nan]])):
        with pytest.raises(AssertionError, match="1 of 4 entries differ"):
            assert_like_jax(wrong, right, [lambda: other], "wrong")
    with pytest.raises(AssertionError, match="first at"):
        assert_like_jax(other, right, [lambda: right], "finite by no way")
    assert_like_jax(other, right, [lambda: right], "outside of the domain", inside=False)
