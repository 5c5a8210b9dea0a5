"""Every order gives JAX's own Jacobian on random programs.

The default run takes a fixed sample; `make conformance` takes the rest.
"""

from typing import Any

import jax
import numpy as np
import pytest

from graphax_lapl import jacve
from tests.checks import ORDERS, assert_same, check_orders, largest_difference, shuffled_vertices
from tests.program_checks import FORMS, check_jacobian, chosen_orders
from tests.random_operations import FAMILIES
from tests.random_programs import NO_REFERENCE, RandomProgram, random_program

SAMPLE = 40
TOTAL = 10_000
SMOKE = 10
FORM_SAMPLE = 24
"""Programs of the default run that go through one form each."""


def check_program(program: RandomProgram, seed: int) -> None:
    """Forward, reverse, Markowitz and one random order against JAX."""

    def shuffled(*args: Any) -> tuple[int, ...]:
        return shuffled_vertices(seed, program.fun, *args, argnums=program.argnums)

    check_orders(
        program.fun,
        *program.args,
        argnums=program.argnums,
        orders=(*ORDERS, shuffled),
        tolerance=program.tolerance,
        reference=program.reference,
        context=program.description,
    )


def check_form(program: RandomProgram, seed: int) -> None:
    """The form and the two orders that a seed names."""
    check_jacobian(program, seed, FORMS[seed % len(FORMS)], chosen_orders(seed // len(FORMS)))


@pytest.mark.parametrize(
    "seed",
    [pytest.param(s, marks=pytest.mark.smoke if s < SMOKE else ()) for s in range(SAMPLE)],
)
def test_sample(seed: int) -> None:
    check_program(random_program(seed), seed)


@pytest.mark.parametrize("seed", range(SAMPLE, SAMPLE + FORM_SAMPLE))
def test_forms(seed: int) -> None:
    check_form(random_program(seed, max_steps=6), seed)


@pytest.mark.conformance
@pytest.mark.parametrize(
    "seed", [s for s in range(SAMPLE + FORM_SAMPLE, TOTAL) if s not in NO_REFERENCE]
)
def test_rest(seed: int) -> None:
    check_form(random_program(seed), seed)


@pytest.mark.conformance
@pytest.mark.parametrize("seed", range(100))
def test_deep(seed: int) -> None:
    check_form(random_program(seed, min_steps=15, max_steps=30), seed)


@pytest.mark.conformance
@pytest.mark.parametrize("seed", range(150))
def test_larger_arrays(seed: int) -> None:
    """Sizes at which another representation may be cheaper than on tiny arrays."""
    program = random_program(seed, sizes=(1, 3, 7, 12, 17), max_input_size=80, max_steps=7)
    check_program(program, seed)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(s, marks=[] if s < 5 else [pytest.mark.conformance])
        for s in range(300)
        if s not in NO_REFERENCE
    ],
)
def test_single_precision(seed: int) -> None:
    """In float32 throughout, the error is that of JAX's own derivative."""
    program = random_program(seed)
    truth = jax.jit(program.reference(program.fun, program.argnums))(*program.args)
    jax.clear_caches()  # JAX remembers traces of parts of it, with constants of 64 bits
    with jax.enable_x64(False):
        theirs = jax.jit(program.reference(program.fun, program.argnums))(*program.args)
        ours = jax.jit(jacve(program.fun, argnums=program.argnums))(*program.args)
    leaves = (jax.tree.leaves(tree) for tree in (ours, theirs, truth))
    for mine, other, exact in zip(*leaves, strict=True):
        assert mine.dtype == other.dtype
        assert mine.shape == other.shape
        error, scale = largest_difference(np.asarray(mine), np.asarray(exact))
        allowed, _ = largest_difference(np.asarray(other), np.asarray(exact))
        assert error <= 10 * allowed + (1e-4 + program.tolerance) * scale, program.description


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str) -> None:
    """One family alone, together with the elementwise operations that keep values bounded."""
    check_program(random_program(1000, families=(family,)), 0)


@pytest.mark.parametrize("seed", range(20))
def test_generator_is_sound(seed: int) -> None:
    """The references agree with each other on what the generator draws, and are finite."""
    program = random_program(seed)

    @jax.jit
    def references(*args: Any) -> tuple[Any, Any]:
        found = program.reference(program.fun, program.argnums)(*args)
        other = program.reference if program.mode else jax.jacrev
        return found, other(program.fun, program.argnums)(*args)

    found, other = references(*program.args)
    assert_same(other, found, tolerance=program.tolerance, context=program.description)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


def test_a_seed_names_a_program() -> None:
    first, second = random_program(7), random_program(7)
    assert first.description == second.description
    assert_same(first.args, second.args, tolerance=0.0)
    assert random_program(8).description != first.description
