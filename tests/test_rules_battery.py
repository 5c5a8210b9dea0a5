"""Every primitive in every form against jax.jacfwd, in forward and in reverse order.

The cases are the table of `tests.rule_cases`; see there for what each form is.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.checks import check_orders
from tests.rule_cases import CASES
from tests.rule_cases.elementwise import THOROUGH, UNARY

SMOKE_FORMS = ("matrix", "row and column", "rows", "plain", "vector", "sum", "batch trailing")


def parameters() -> Iterator[Any]:
    """One parameter set per case."""
    for primitive, forms in CASES.items():
        elementwise = primitive in UNARY and primitive not in THOROUGH
        quick = next((form for form in SMOKE_FORMS if form in forms), next(iter(forms)))
        for form, case in forms.items():
            marks = [pytest.mark.conformance] if case.extended else []
            if form == quick and not case.extended and not elementwise:
                marks.append(pytest.mark.smoke)
            yield pytest.param(primitive, form, id=f"{primitive}: {form}", marks=marks)


PARAMETERS = list(parameters())


def test_size_of_the_battery() -> None:
    """At least 300 cases run by default, and every family has several."""
    assert sum(not case.extended for forms in CASES.values() for case in forms.values()) >= 300


@pytest.mark.parametrize(("primitive", "form"), PARAMETERS)
def test_rule(primitive: str, form: str) -> None:
    case = CASES[primitive][form]
    check_orders(
        case.composed,
        *case.args,
        argnums=tuple(range(len(case.args))),
        orders=("forward", "reverse"),
        context=f"{primitive}, {form}",
    )
