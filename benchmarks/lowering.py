"""Whether what this package emits lowers for every kind of device, without calls into Python."""

import re
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.laplacian import LaplacianProblem
from benchmarks.problems.problem import Problem, over_batch
from benchmarks.problems.sparse import SparseProblem
from graphax_lapl import divergence_ve, hessve, jacve, laplacian_ve

PLATFORMS = ("cpu", "cuda", "tpu")
#: Custom calls that are code of the host's. Sharding annotations and kernels of the platforms' own
#: libraries (factorisations, sorting) are not.
CALLBACK = re.compile(r"callback|py_|host|infeed|outfeed|stablehlo\.send|stablehlo\.recv")
TRANSFER = re.compile(r"stablehlo\.(?:infeed|outfeed|send|recv)")
BATCH = 1024  # enough for arrays to be held, see graphax_lapl/emit/holding.py


def exported(fun: Any, *arguments: Any) -> Any:
    """A function exported for all platforms, the arguments being shapes only."""
    types = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), arguments
    )
    return jax.export.export(jax.jit(fun), platforms=PLATFORMS)(*types)


def host_calls(program: Any) -> list[str]:
    """What an exported program asks of the host."""
    text = program.mlir_module()
    called = re.findall(r"custom_call @(\w+)", text)
    return [name for name in called if CALLBACK.search(name)] + TRANSFER.findall(text)


def example(problem: Problem | SparseProblem | LaplacianProblem) -> tuple[Any, tuple[Any, ...]]:
    """What this package makes of a problem at a small size, and arguments for it."""
    if isinstance(problem, Problem):
        fun = over_batch(jacve(problem.fun, argnums=problem.argnums), problem.shared)
        return fun, problem.sample(jax.random.key(0), (BATCH,))
    if isinstance(problem, SparseProblem):
        instance = problem.make(problem.small, jnp.float32, 0)
        transform = jacve if problem.kind == "jacobian" else hessve
        return lambda x: transform(instance.fun, sparse_representation=True)(x).data, (instance.x,)
    small = problem.instance(jnp.float32, small=True)
    operator = laplacian_ve if problem.operator == "laplacian" else divergence_ve
    return jax.vmap(operator(small.fun, argnums=1), (None, 0)), (small.params, small.xs)
