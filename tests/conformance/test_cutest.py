"""Derivatives of the CUTEst problems (sif2jax) with at most 300 variables, against JAX's own."""

import pytest

from tests.conformance.cutest import problem_names, targets
from tests.cutest_checks import check_target

pytestmark = pytest.mark.conformance


@pytest.mark.parametrize("name", problem_names())
@pytest.mark.usefixtures("standard_promotion")
def test_problem(name):
    for target in targets(name):
        check_target(target)
