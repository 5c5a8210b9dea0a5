"""Sparse problems at small sizes: by hand, by elimination and by JAX's dense derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.problems.sparse import SPARSE_PROBLEMS
from benchmarks.problems.sparse.problem import Assembly, bands
from benchmarks.sparse.methods import OURS

# Sizes of one family share their function: one of them is tested.
FAMILIES = {
    (problem.make if not hasattr(problem.make, "func") else str(problem.make)): problem
    for problem in SPARSE_PROBLEMS.values()
}
problems = pytest.mark.parametrize("problem", FAMILIES.values(), ids=str)

# Number of nonzeros at the size of the benchmark, worked out in the heads of the problems' files.
NONZEROS = {
    "burgers_slices_1e5": 3 * 100_000 - 2,
    "burgers_roll_1e5": 3 * 100_000,
    "brusselator_64": 12 * 64**2,
    "brusselator_128": 12 * 128**2,
    "heat_roll": 20_480,
    "heat_slices": 20_224,
    "heat_convolution": 20_224,
    "lorenz96": 40_000,
    "robertson_chain": 14 * 3_000 - 6,
    "lotka_volterra": 50_000,
    "block_mlp": 16 * 2_048,
    "ring_network": 12 * 2_048,
    "cnn_1d": 7 * 2_000 - 12,
    "arrowhead": 14_998,
    "collocation": 22_000,
    "bundle_adjustment": 48_000,
    "rosenbrock": 3 * 100_000 - 2,
    "powell": 30_000,
    "graph_regulariser": 10_000 + 2 * 30_000,
    "torsion": 9 * (7 * 1_000 - 12),
    "upwind": 5 * 64**2,
    "shallow_water": 24 * 48**2,
    "cahn_hilliard": 50_000,
    "cell_chain": 15 * 3_000 - 6,
}


@functools.cache
def solved(name):
    """An instance and its dense derivative by JAX."""
    problem = SPARSE_PROBLEMS[name]
    instance = problem.make(problem.small, jnp.float64, 1)
    derivative = jax.jacfwd if problem.kind == "jacobian" else jax.hessian
    return instance, np.asarray(jax.jit(derivative(instance.fun))(instance.x))


@problems
def test_derivative_by_hand_is_that_of_jax(problem):
    instance, expected = solved(problem.name)
    found = instance.dense(jax.jit(instance.by_hand)(instance.x))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    # Every entry that is stated is one, stated once, and there is no other.
    rows, cols = instance.coordinates()
    assert set(zip(rows, cols, strict=True)) == set(zip(*np.nonzero(expected), strict=True))
    assert instance.nse == np.count_nonzero(expected)


@problems
def test_elimination_is_that_of_jax(problem):
    instance, expected = solved(problem.name)
    found = OURS[problem.kind](instance.fun)(instance.x)
    atol = 1e-12 * np.abs(expected).max()
    for form in jax.jit(lambda found: (found.todense(), found.to_bcoo().todense()))(found):
        np.testing.assert_allclose(form, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", NONZEROS)
def test_stated_number_of_nonzeros(name):
    problem = SPARSE_PROBLEMS[name]
    assert problem.make(problem.size, jnp.float32, 0).nse == NONZEROS[name]


def test_same_seed_same_problem_in_either_precision():
    problem = SPARSE_PROBLEMS["bundle_adjustment"]
    single, double = (problem.make(2, dtype, 3) for dtype in (jnp.float32, jnp.float64))
    np.testing.assert_array_equal(single.rows, double.rows)
    np.testing.assert_allclose(single.x, double.x, rtol=1e-6)
    assert (single.x.dtype, double.x.dtype) == (jnp.float32, jnp.float64)


def test_assembly_adds_what_stands_in_one_place():
    rows, cols = np.array([1, 0, 1, 2, 1]), np.array([2, 0, 2, 1, 2])
    assembly = Assembly(rows, cols, 3)
    found = np.zeros((3, 3))
    values = jnp.array([1.0, 2.0, 4.0, 8.0, 16.0])
    found[assembly.rows, assembly.cols] = np.concatenate(assembly(values))
    np.testing.assert_array_equal(found, [[2, 0, 0], [0, 0, 21], [0, 8, 0]])


def test_bands_end_where_the_matrix_ends():
    rows, cols = bands(3, (-1, 1))
    assert [(r, c) for r, c in zip(rows, cols, strict=True) if r >= 0] == [
        (1, 0),
        (2, 1),
        (0, 1),
        (1, 2),
    ]
    rows, cols = bands(3, (-1, 1), periodic=True)
    assert next(zip(rows, cols, strict=True)) == (0, 2)
