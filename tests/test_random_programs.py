"""Every order gives JAX's own Jacobian on random programs.

The default run takes a fixed sample; `make conformance` takes the rest.
"""

from typing import Any

import jax
import numpy as np
import pytest

from graphax_lapl import SparseJacobian, value_and_jacve
from tests.checks import ORDERS, assert_same, check_orders, shuffled_vertices
from tests.random_operations import FAMILIES
from tests.random_programs import RandomProgram, random_program

SAMPLE = 110
TOTAL = 2150
SMOKE = 10


def check_program(program: RandomProgram, seed: int) -> None:
    """Forward, reverse, Markowitz and one random order against jax.jacfwd."""

    def shuffled(*args: Any) -> tuple[int, ...]:
        return shuffled_vertices(seed, program.fun, *args, argnums=program.argnums)

    check_orders(
        program.fun,
        *program.args,
        argnums=program.argnums,
        orders=(*ORDERS, shuffled),
        context=program.description,
    )


@pytest.mark.parametrize(
    "seed",
    [pytest.param(s, marks=pytest.mark.smoke if s < SMOKE else ()) for s in range(SAMPLE)],
)
def test_sample(seed: int) -> None:
    check_program(random_program(seed), seed)


@pytest.mark.conformance
@pytest.mark.parametrize("seed", range(SAMPLE, TOTAL))
def test_rest(seed: int) -> None:
    check_program(random_program(seed), seed)


@pytest.mark.conformance
@pytest.mark.parametrize("seed", range(100))
def test_deep(seed: int) -> None:
    check_program(random_program(seed, min_steps=15, max_steps=30), seed)


@pytest.mark.conformance
@pytest.mark.parametrize("seed", range(150))
def test_larger_arrays(seed: int) -> None:
    """Sizes at which another representation may be cheaper than on tiny arrays."""
    program = random_program(seed, sizes=(1, 3, 7, 12, 17), max_input_size=80, max_steps=7)
    check_program(program, seed)


@pytest.mark.parametrize(
    "seed",
    [*range(10), *(pytest.param(s, marks=pytest.mark.conformance) for s in range(10, 300))],
)
def test_sparse_and_value(seed: int) -> None:
    """Sparse leaves hold the same numbers, each entry once; the value comes along."""
    program = random_program(seed)

    @jax.jit
    def both_ways(*args: Any) -> tuple[Any, Any]:
        ours = value_and_jacve(program.fun, argnums=program.argnums, sparse_representation=True)
        return (program.fun(*args), jax.jacfwd(program.fun, program.argnums)(*args)), ours(*args)

    (expected_value, expected), (value, jacobian) = both_ways(*program.args)
    assert_same(value, expected_value, tolerance=1e-13, context=program.description)

    def is_sparse(leaf: Any) -> bool:
        return isinstance(leaf, SparseJacobian)

    dense = jax.tree.map(lambda leaf: leaf.todense(), jacobian, is_leaf=is_sparse)
    assert_same(dense, expected, context=program.description)
    for leaf, reference in zip(
        jax.tree.leaves(jacobian, is_leaf=is_sparse), jax.tree.leaves(expected), strict=True
    ):
        entries = leaf.to_bcoo()
        assert entries.indices.shape == (leaf.nse, reference.ndim)
        assert len(np.unique(entries.indices, axis=0)) == leaf.nse <= reference.size
        assert_same(entries.todense(), reference, context=program.description)


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
