"""Every order gives JAX's own Jacobian on random programs.

The default run takes a fixed sample; `make conformance` takes the rest of 2,150 programs.
"""

from typing import Any

import jax
import numpy as np
import pytest

from graphax_lapl import jacve
from tests.checks import ORDERS, assert_same, shuffled_vertices
from tests.random_operations import FAMILIES
from tests.random_programs import RandomProgram, random_program

SAMPLE = 150
TOTAL = 2150
SMOKE = 12


def check_orders(program: RandomProgram, seed: int) -> None:
    """Forward, reverse, Markowitz and one random order against jax.jacfwd.

    Reference and candidates are compiled together: one compilation of a whole program is about
    ten times faster than its operations one by one.
    """
    argnums = program.argnums
    shuffled = shuffled_vertices(seed, program.fun, *program.args, argnums=argnums)

    @jax.jit
    def every_way(*args: Any) -> tuple[Any, list[Any]]:
        results = [
            jacve(program.fun, order=order, argnums=argnums)(*args) for order in (*ORDERS, shuffled)
        ]
        return jax.jacfwd(program.fun, argnums)(*args), results

    expected, results = every_way(*program.args)
    for order, result in zip((*ORDERS, shuffled), results, strict=True):
        assert_same(result, expected, context=f"order {order} of {program.description}")


@pytest.mark.parametrize(
    "seed",
    [pytest.param(s, marks=pytest.mark.smoke if s < SMOKE else ()) for s in range(SAMPLE)],
)
def test_sample(seed: int) -> None:
    check_orders(random_program(seed), seed)


@pytest.mark.conformance
@pytest.mark.parametrize("seed", range(SAMPLE, TOTAL))
def test_rest(seed: int) -> None:
    check_orders(random_program(seed), seed)


@pytest.mark.conformance
@pytest.mark.parametrize("seed", range(100))
def test_deep(seed: int) -> None:
    check_orders(random_program(seed, min_steps=15, max_steps=30), seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str) -> None:
    """One family alone, together with the elementwise operations that keep values bounded."""
    for seed in range(2):
        check_orders(random_program(1000 + seed, families=(family,)), seed)


@pytest.mark.parametrize("seed", range(20))
def test_generator_is_sound(seed: int) -> None:
    """The references agree with each other on what the generator draws, and are finite."""
    program = random_program(seed)

    @jax.jit
    def references(*args: Any) -> tuple[Any, Any]:
        forward = jax.jacfwd(program.fun, program.argnums)(*args)
        return forward, jax.jacrev(program.fun, program.argnums)(*args)

    forward, reverse = references(*program.args)
    assert_same(reverse, forward, tolerance=1e-12, context=program.description)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(forward))


def test_a_seed_names_a_program() -> None:
    first, second = random_program(7), random_program(7)
    assert first.description == second.description
    assert_same(first.args, second.args, tolerance=0.0)
    assert random_program(8).description != first.description
