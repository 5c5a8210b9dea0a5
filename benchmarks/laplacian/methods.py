"""Ways to obtain a Laplacian or a divergence: this package, folx, loops and Hessians of JAX.

Each is a function of `fun(params, x)` that gives `operator(params, x)`; batches, gradients with
respect to parameters and compilation are the same for all of them, in `measure.py`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.core.methods import peer
from graphax_lapl import divergence_ve, laplacian_ve

Fun = Callable[[Any, jax.Array], jax.Array]
Method = Callable[[Fun], Fun]

OURS = "ours"

#: Thresholds of folx: dense, the best one for many wave functions, and the one its help recommends.
FOLX_THRESHOLDS = (6, 0, 0.6)


def ours(fun: Fun) -> Fun:
    """The planned Laplacian."""
    return laplacian_ve(fun, argnums=1)


def folx(threshold: float) -> Method:
    """Forward Laplacians by folx with a threshold for the sparsity of Jacobians."""

    def method(fun: Fun) -> Fun:
        package = peer("folx")

        def laplacian(params: Any, x: jax.Array) -> jax.Array:
            forward = package.forward_laplacian(lambda x: fun(params, x), threshold)
            return forward(x).laplacian

        return laplacian

    return method


def loop(fun: Fun) -> Fun:
    """A scan of Hessian-vector products, linearised once."""

    def laplacian(params: Any, x: jax.Array) -> jax.Array:
        flat = x.reshape(-1)
        gradient = jax.grad(lambda flat: fun(params, flat.reshape(x.shape)))
        _, product = jax.linearize(gradient, flat)

        def step(total: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
            column = jax.nn.one_hot(k, flat.size, dtype=flat.dtype)
            return total + product(column)[k], None

        total, _ = lax.scan(step, jnp.zeros((), flat.dtype), jnp.arange(flat.size))
        return total

    return laplacian


def hessian(fun: Fun) -> Fun:
    """The trace of `jax.hessian`."""

    def laplacian(params: Any, x: jax.Array) -> jax.Array:
        second = jax.hessian(lambda flat: fun(params, flat.reshape(x.shape)))
        return jnp.trace(second(x.reshape(-1)))

    return laplacian


def jacobian(derivative: Callable[..., Any]) -> Method:
    """The trace of the Jacobian that `jax.jacfwd` or `jax.jacrev` makes."""

    def method(fun: Fun) -> Fun:
        def divergence(params: Any, x: jax.Array) -> jax.Array:
            return jnp.trace(derivative(lambda x: fun(params, x))(x))

        return divergence

    return method


def planned_divergence(fun: Fun) -> Fun:
    """The planned divergence."""
    return divergence_ve(fun, argnums=1)


#: By operator, then by name. The first one is this package's.
METHODS: dict[str, dict[str, Method]] = {
    "laplacian": {
        OURS: ours,
        **{f"folx {threshold:g}": folx(threshold) for threshold in FOLX_THRESHOLDS},
        "loop": loop,
        "jax.hessian": hessian,
    },
    "divergence": {
        OURS: planned_divergence,
        "jax.jacfwd": jacobian(jax.jacfwd),
        "jax.jacrev": jacobian(jax.jacrev),
    },
}
