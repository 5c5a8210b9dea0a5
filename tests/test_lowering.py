"""Programs lower for every kind of device, without calling back into Python."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.problems import PROBLEMS
from benchmarks.problems.laplacian import LAPLACIAN_PROBLEMS
from benchmarks.problems.problem import over_batch
from benchmarks.problems.sparse import SPARSE_PROBLEMS
from graphax_lapl import divergence_ve, hessve, jacve, laplacian_ve

PLATFORMS = ("cpu", "cuda", "tpu")
#: Custom calls that are no code of the host's: sharding annotations, and kernels of the platforms'
#: own libraries (factorisations, sorting).
CALLBACK = re.compile(r"callback|py_|host|infeed|outfeed|stablehlo\.send|stablehlo\.recv")
BATCH = 1024  # enough for arrays to be held, see graphax_lapl/emit/holding.py

#: One problem per function: sizes and packed forms share theirs.
SPARSE = list({str(p.make): p for p in SPARSE_PROBLEMS.values()}.values())


def lowered(fun, *arguments):
    """The StableHLO text of a function for all platforms, the arguments being shapes only."""
    types = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), arguments
    )
    exported = jax.export.export(jax.jit(fun), platforms=PLATFORMS)(*types)
    assert exported.platforms == PLATFORMS
    text = exported.mlir_module()
    called = re.findall(r"custom_call @(\w+)", text)
    assert not [name for name in called if CALLBACK.search(name)]
    assert not re.search(r"stablehlo\.(infeed|outfeed|send|recv)", text)
    return exported


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=str)
def test_jacobians_over_a_batch(problem):
    arguments = problem.sample(jax.random.key(0), (BATCH,))
    lowered(over_batch(jacve(problem.fun, argnums=problem.argnums), problem.shared), *arguments)


@pytest.mark.parametrize("problem", SPARSE, ids=str)
def test_sparse_jacobians_and_hessians(problem):
    instance = problem.make(problem.small, jnp.float32, 0)
    transform = jacve if problem.kind == "jacobian" else hessve

    def data(x):
        return transform(instance.fun, sparse_representation=True)(x).data

    lowered(data, instance.x)


@pytest.mark.parametrize("problem", LAPLACIAN_PROBLEMS.values(), ids=lambda p: p.name)
def test_laplacians_and_divergences_over_a_batch(problem):
    instance = problem.instance(jnp.float32, small=True)
    operator = laplacian_ve if problem.operator == "laplacian" else divergence_ve
    over = jax.vmap(operator(instance.fun, argnums=1), (None, 0))
    lowered(over, instance.params, instance.xs)


def test_a_program_that_holds_arrays_runs_as_exported():
    problem = PROBLEMS["robot_arm"]
    arguments = problem.sample(jax.random.key(1), (BATCH,), jnp.float64)
    fun = jax.vmap(jacve(problem.fun, argnums=problem.argnums))
    exported = lowered(fun, *arguments)
    expected = jax.vmap(jax.jacfwd(problem.fun, problem.argnums))(*arguments)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12),
        exported.call(*arguments),
        expected,
    )
