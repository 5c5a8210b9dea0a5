"""Every primitive in every form of the rule battery: Laplacians and Hessians against jax.hessian.

A case is taken alone and between two smooth elementwise functions, so that its curvature meets
variable Jacobians on one side and variable adjoints on the other. The default run takes the first
form of every primitive; `make conformance` takes all.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rule_cases import CASES
from tests.second_order.checks import check_second_order

NO_SECOND_DERIVATIVE = {"igamma", "igammac"}
"""JAX itself raises: the derivative along the shape parameter has no derivative."""

CHOSEN = {
    "complex intermediate": {"exp", "constant factor", "abs"},
    "activation": {"silu", "relu", "softmax"},
    "statistics": {"std", "cov"},
    "linear algebra": {"solve", "slogdet", "cholesky"},
    "control flow": {"scan", "while_loop", "cond"},
}

PREFERRED = ("rows", "row and column", "matrix", "plain", "predicate of an operand", "everything")


def parameters() -> Iterator[Any]:
    """One parameter set per case."""
    for primitive, forms in CASES.items():
        if primitive in NO_SECOND_DERIVATIVE:
            continue
        first = next((form for form in PREFERRED if form in forms), next(iter(forms)))
        default = CHOSEN.get(primitive, {first})
        for form in forms:
            marks = [] if form in default else [pytest.mark.conformance]
            yield pytest.param(primitive, form, id=f"{primitive}: {form}", marks=marks)


@pytest.mark.parametrize(("primitive", "form"), parameters())
def test_second_derivatives(primitive: str, form: str) -> None:
    case = CASES[primitive][form]
    check_second_order(
        case.composed,
        *case.args,
        argnums=tuple(range(len(case.args))),
        context=f"{primitive}, {form}",
    )
