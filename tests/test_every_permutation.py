"""Every permutation of the vertices of a small graph gives the same Jacobian."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import jacve
from tests.checks import assert_same, eliminable
from tests.random_programs import random_elementwise_dag

# (vertices, shape of the inputs, seeds): 2, 6, 24, 120 and 720 permutations, the last of which are
# for `make conformance`
ELEMENTWISE = [
    (2, (), range(6)),
    (3, (), range(8)),
    (4, (), range(12)),
    (5, (), range(4)),
    (6, (), range(3)),
    (3, (3,), range(4)),
    (4, (3,), range(3)),
    (3, (2, 3), range(3)),
    (4, (2, 2), range(2)),
]

A = np.random.default_rng(0).normal(size=(2, 2))
B = np.random.default_rng(1).normal(size=(2, 3))
C = np.random.default_rng(2).normal(size=(3, 2))


def attention(q: jax.Array, k: jax.Array) -> jax.Array:
    weights = jnp.exp(q @ k.T)
    return (weights / weights.sum(-1, keepdims=True)) @ k


def diamond(x: jax.Array, y: jax.Array) -> jax.Array:
    top = jnp.sin(x @ y)
    return jnp.tanh(top) @ top + top.T


def running(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    total = jnp.cumsum(jnp.exp(x), axis=1)
    return total / (2.0 + total[:, ::-1]), jnp.prod(total, axis=0)


ARRAY_VALUED: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "matrix chain": (lambda x, y: jnp.sin(x @ y) @ x + x @ (y @ x), (B, C)),
    "square matrices": (diamond, (A, A.T + 0.1)),
    "attention": (attention, (A, 0.5 * A + 0.2)),
    "cumulative": (running, (B,)),
    "reshape and slice": (
        lambda x: jnp.exp(jnp.sin(x).reshape(3, 2)[::2]) * x[:, 1:],
        (B,),
    ),
    "pairs": (lambda x: jnp.sum(jnp.sqrt((x[:, None] - x[None, :]) ** 2 + 0.1), axis=0), (B[0],)),
    "convolution": (
        lambda x, k: jnp.tanh(
            lax.conv_general_dilated(jnp.sin(x)[None, None], k[None, None], (1,), [(1, 1)])
        ),
        (B[0], C[:, 0]),
    ),
    "broadcast": (lambda x, y: jnp.exp(x[:, None] * y) * jnp.exp(x)[:, None], (A[0], B)),
}


def check_every_permutation(
    fun: Callable[..., Any], args: tuple[Any, ...], argnums: Any, context: str
) -> int:
    """Compare every permutation with jax.jacfwd and return the number of vertices.

    Operation by operation: compiling hundreds of programs that run once would take minutes.
    """
    vertices = eliminable(fun, *args, argnums=argnums)
    expected = jax.jit(jax.jacfwd(fun, argnums))(*args)
    for order in permutations(vertices):
        with jax.disable_jit():
            result = jacve(fun, order=order, argnums=argnums)(*args)
        assert_same(result, expected, tolerance=1e-12, context=f"order {order} of {context}")
    return len(vertices)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_vertices", "shape", "seed"),
    [
        pytest.param(n, shape, seed, marks=[] if n < 6 else [pytest.mark.conformance])
        for n, shape, seeds in ELEMENTWISE
        for seed in seeds
    ],
)
def test_elementwise(n_vertices: int, shape: tuple[int, ...], seed: int) -> None:
    program = random_elementwise_dag(seed, n_vertices, shape=shape)
    found = check_every_permutation(program.fun, program.args, program.argnums, program.description)
    assert found == n_vertices, program.description


@pytest.mark.slow
@pytest.mark.parametrize("name", ARRAY_VALUED)
def test_array_valued(name: str) -> None:
    fun, args = ARRAY_VALUED[name]
    check_every_permutation(fun, args, tuple(range(len(args))), name)
