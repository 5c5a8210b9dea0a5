"""Laplacians and Hessians of random programs are JAX's own.

The default run takes a fixed sample; `make conformance` takes the rest.
"""

import pytest

from tests.random_programs import RandomProgram, random_program
from tests.second_order.checks import check_second_order

SAMPLE = 14
TOTAL = 2000
LARGEST = 12
"""Differentiated numbers of the small programs: a Hessian holds their square."""


def check_program(program: RandomProgram, seed: int) -> None:
    """All orders and both forms against jax.hessian."""
    check_second_order(
        program.fun,
        *program.args,
        argnums=program.argnums,
        seed=seed,
        context=program.description,
    )


@pytest.mark.parametrize("seed", range(SAMPLE))
def test_sample(seed: int) -> None:
    program = random_program(seed, max_steps=6, max_input_size=LARGEST)
    check_program(program, seed)


@pytest.mark.conformance
@pytest.mark.parametrize("seed", range(SAMPLE, TOTAL))
def test_rest(seed: int) -> None:
    check_program(random_program(seed, max_steps=8, max_input_size=LARGEST), seed)
