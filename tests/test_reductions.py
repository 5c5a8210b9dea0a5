"""`lax.reduce` by functions of the user's, of several arrays at once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import hessve, jacve, laplacian_ve
from tests.checks import assert_same

X = np.random.default_rng(0).normal(size=7)
ORDERS = ("forward", "reverse", "auto")


def largest_with_index(x: jax.Array) -> jax.Array:
    """The integers do not move, where JAX's own derivative is a TypeError."""

    def larger(a: Any, b: Any) -> Any:
        return jax.tree.map(lambda p, q: jnp.where(a[0] >= b[0], p, q), a, b)

    start = (-jnp.inf, jnp.int32(-1))
    value, index = lax.reduce((x**2, lax.iota(jnp.int32, len(x))), start, larger, (0,))
    return value * index.astype(x.dtype)


def log_of_sum(x: jax.Array) -> jax.Array:
    """Maximum and sum of exponentials in one pass."""

    def joined(a: Any, b: Any) -> Any:
        top = jnp.maximum(a[0], b[0])
        return top, a[1] * jnp.exp(a[0] - top) + b[1] * jnp.exp(b[0] - top)

    top, total = lax.reduce((x, jnp.ones_like(x)), (-1e30, 0.0), joined, (0,))
    return top + jnp.log(total)


def variance(x: jax.Array) -> jax.Array:
    """Welford's recurrence, count, mean and sum of squares."""

    def joined(a: Any, b: Any) -> Any:
        (n, mean, squares), (m, other, more) = a, b
        count = jnp.maximum(n + m, 1.0)
        gap = other - mean
        return n + m, mean + gap * m / count, squares + more + gap**2 * n * m / count

    arrays = (jnp.ones_like(x), x, jnp.zeros_like(x))
    return lax.reduce(arrays, (0.0, 0.0, 0.0), joined, (0,))[2] / float(len(x))


#: The reduction, and what it is.
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "largest with index": (
        largest_with_index,
        lambda x: jnp.max(x**2) * jnp.argmax(x**2).astype(x.dtype),
    ),
    "log of a sum": (log_of_sum, jax.nn.logsumexp),
    "variance": (variance, jnp.var),
    "moving start": (
        lambda x: lax.reduce(x, x[0], lambda a, b: a + b, (0,)) ** 2,
        lambda x: (jnp.sum(x) + x[0]) ** 2,
    ),
    "start that counts": (
        lambda x: lax.reduce(x, 0.5, jnp.logaddexp, (0,)),
        lambda x: jax.nn.logsumexp(jnp.append(x, 0.5)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_reduction(name: str) -> None:
    fun, same = CASES[name]
    hessian = jax.jit(jax.hessian(same))(X)
    for order in ORDERS:
        assert_same(jacve(fun, order)(X), jax.jacrev(same)(X), context=order)
    assert_same(hessve(fun)(X), hessian)
    assert_same(laplacian_ve(fun)(X), jnp.trace(hessian))


def test_what_is_not_reduced_keeps_its_sparsity() -> None:
    """A reduction along rows is a row of entries for each."""
    m = np.random.default_rng(1).normal(size=(3, 4))
    jacobian = jacve(
        lambda x: lax.reduce(x, -np.inf, jnp.logaddexp, (1,)), sparse_representation=True
    )(m)
    assert jacobian.nse == m.size
