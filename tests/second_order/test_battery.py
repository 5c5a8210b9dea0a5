"""Every primitive in every form of the rule battery: Laplacians and Hessians against jax.hessian.

A case is taken alone and between two smooth elementwise functions, so that its curvature meets
variable Jacobians on one side and variable adjoints on the other. The default run takes one form
of every primitive, elementwise ones of a number all together; `make conformance` takes all.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import hessve, laplacian_ve
from tests.checks import assert_same
from tests.rule_cases import CASES
from tests.rule_cases.case import sample
from tests.rule_cases.elementwise import BINARY, OF_THE_SECOND_OPERAND, THOROUGH, UNARY
from tests.second_order.checks import check_second_order

NO_SECOND_DERIVATIVE = {"igamma", "igammac"}
"""JAX itself raises: the derivative along the shape parameter has no derivative."""

OF_COMPARED = {"max", "max with equal numbers", "min with equal real parts"}
"""Of complex numbers. JAX 0.12 compares none, which its second derivative of these asks for."""

CHOSEN = {
    "complex intermediate": {"exp", "constant factor", "abs"},
    "activation": {"silu", "relu", "softmax"},
    "statistics": {"std", "cov"},
    "linear algebra": {"solve", "slogdet", "cholesky"},
    "control flow": {"scan", "while_loop", "cond"},
}

PREFERRED = ("rows", "row and column", "matrix", "plain", "predicate of an operand", "everything")


def compares_complex_numbers() -> bool:
    """Whether this JAX does."""
    number = jax.ShapeDtypeStruct((), np.complex128)
    try:
        jax.eval_shape(jax.lax.gt, number, number)
    except TypeError:
        return False
    return True


def parameters() -> Iterator[Any]:
    """One parameter set per case."""
    refused = set() if compares_complex_numbers() else OF_COMPARED
    elementwise = {**UNARY, **BINARY}.keys() - THOROUGH
    for primitive, forms in CASES.items():
        if primitive in NO_SECOND_DERIVATIVE:
            continue
        first = next((form for form in PREFERRED if form in forms), next(iter(forms)))
        default = set() if primitive in elementwise else CHOSEN.get(primitive, {first})
        for form in forms:
            if (primitive, form) == ("linear algebra", "expm"):
                continue  # not supported: a Hessian through custom_linear_solve's solver raises
            if primitive == "complex intermediate" and form in refused:
                continue
            marks = [] if form in default else [pytest.mark.conformance]
            yield pytest.param(primitive, form, id=f"{primitive}: {form}", marks=marks)


@pytest.mark.parametrize(("primitive", "form"), list(parameters()))
def test_second_derivatives(primitive: str, form: str) -> None:
    case = CASES[primitive][form]
    check_second_order(
        case.composed,
        *case.args,
        argnums=tuple(range(len(case.args))),
        context=f"{primitive}, {form}",
    )


@pytest.mark.slow
def test_elementwise_functions_of_numbers() -> None:
    """All at once: compiling them one by one takes minutes."""
    unary = {**UNARY, **OF_THE_SECOND_OPERAND}
    binary = {name: case for name, case in BINARY.items() if name not in NO_SECOND_DERIVATIVE}
    points = {name: jnp.asarray(sample((2,), low, high)) for name, (_, low, high) in unary.items()}
    pairs = {
        name: tuple(jnp.asarray(sample((), *interval)) for interval in intervals)
        for name, (_, *intervals) in binary.items()
    }

    @jax.jit
    def every_way(points: Any, pairs: Any) -> Any:
        found = {}
        for name, x in points.items():
            fun = unary[name][0]
            ways = (jax.jit(jax.hessian(fun)), hessve(fun), laplacian_ve(fun))
            found[name] = [jax.vmap(way)(x) for way in ways]
        for name, args in pairs.items():
            fun, both = binary[name][0], (0, 1)
            hessian = jax.jit(jax.hessian(fun, both))(*args)
            laplacian = laplacian_ve(fun, argnums=both)(*args)
            found[name] = [hessian, hessve(fun, argnums=both)(*args), laplacian]
        return found

    for name, (expected, hessian, laplacian) in every_way(points, pairs).items():
        assert_same(hessian, expected, context=name)
        trace = expected[0][0] + expected[1][1] if isinstance(expected, tuple) else expected
        assert_same(laplacian, trace, context=name)
