"""Laplacians and Hessians of random programs are JAX's own.

The default run takes a fixed sample; `make conformance` takes the rest.
"""

import pytest

from tests.random_programs import NO_REFERENCE, random_program
from tests.second_order.checks import check_second_order
from tests.second_order.program_checks import check_second

SAMPLE = 8
FORM_SAMPLE = 20
TOTAL = 2000
SHARED_SAMPLE = 6
SHARED_TOTAL = 300
LARGEST = 10
"""Differentiated numbers of the programs: a Hessian holds their square."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SAMPLE))
def test_sample(seed: int) -> None:
    """All orders and both forms of the Hessian."""
    program = random_program(seed, max_steps=6, max_input_size=LARGEST)
    check_second_order(
        program.fun,
        *program.args,
        argnums=program.argnums,
        seed=seed,
        tolerance=program.tolerance,
        context=program.description,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(s, marks=[] if s < SAMPLE + FORM_SAMPLE else [pytest.mark.conformance])
        for s in range(SAMPLE, TOTAL)
        if s not in NO_REFERENCE
    ],
)
def test_forms(seed: int) -> None:
    """One order of the Laplacian and one further form each."""
    check_second(random_program(seed, max_steps=6, max_input_size=LARGEST), seed)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(s, marks=[] if s < SHARED_SAMPLE else [pytest.mark.conformance])
        for s in range(SHARED_TOTAL)
    ],
)
def test_shared_operands(seed: int) -> None:
    """One array in several places of one operation."""
    families = ("sharing", "elementwise", "shaping")
    program = random_program(seed, max_steps=5, max_input_size=LARGEST, families=families)
    check_second(program, seed)
