"""Programs lower for every kind of device, without calling back into Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.lowering import BATCH, PLATFORMS, example, exported, host_calls
from benchmarks.names import JACOBIAN, LAPLACIAN, SPARSE, names_of, problem_of
from benchmarks.problems import PROBLEMS
from benchmarks.problems.sparse import SPARSE_PROBLEMS
from graphax_lapl import jacve

#: One sparse problem per function: sizes and packed forms share theirs.
DIFFERENT = {str(problem.make): f"{SPARSE}.{name}" for name, problem in SPARSE_PROBLEMS.items()}
NAMES = (*names_of(JACOBIAN, LAPLACIAN), *DIFFERENT.values())


@pytest.mark.every_case
@pytest.mark.parametrize("name", NAMES)
def test_every_example_lowers_for_every_device(name):
    fun, arguments = example(problem_of(name))
    program = exported(fun, *arguments)
    assert program.platforms == PLATFORMS
    assert host_calls(program) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("%1 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%0)", True),
        ('%1 = "stablehlo.outfeed"(%0)', True),
        ("%1 = stablehlo.custom_call @lapack_sgetrf_ffi(%0)", False),
        ("%1 = stablehlo.add %0, %0", False),
    ],
)
def test_a_call_to_the_host_is_seen(line, found):
    class Program:
        def mlir_module(self):
            return line

    assert bool(host_calls(Program())) == found


@pytest.mark.slow
def test_a_program_that_holds_arrays_runs_as_exported():
    problem = PROBLEMS["robot_arm"]
    arguments = problem.sample(jax.random.key(1), (BATCH,), jnp.float64)
    fun = jax.vmap(jacve(problem.fun, argnums=problem.argnums))
    program = exported(fun, *arguments)
    expected = jax.jit(jax.vmap(jax.jacfwd(problem.fun, problem.argnums)))(*arguments)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12),
        program.call(*arguments),
        expected,
    )
