"""Functions that draw: keys are arguments or constants, move nothing and are no numbers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

from graphax_lapl import divergence_ve, forward_laplacian, hessve, jacve, laplacian_ve

X = np.linspace(0.2, 1.1, 5)


def noisy_steps(x: Any, key: Any) -> Any:
    def step(carry: Any, key: Any) -> Any:
        return carry + jnp.sin(x * random.normal(key, (5,), float) + carry), None

    return jnp.sum(lax.scan(step, x, random.split(key, 4))[0])


def carried_key(x: Any, key: Any) -> Any:
    def step(_: Any, carry: Any) -> Any:
        drawn, key = carry
        return drawn + jnp.sin(drawn) * random.normal(key, dtype=float), random.split(key)[0]

    return jnp.sum(lax.fori_loop(0, 3, step, (x, key))[0])


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "beta": lambda x, key: jnp.sum(
        jnp.sin(random.beta(key, x + 1.0, np.full(5, 2.0), dtype=float))
    ),
    "gamma": lambda x, key: jnp.sum(jnp.sin(random.gamma(key, x + 1.0, dtype=float))),
    "noise": lambda x, key: jnp.sum(jnp.sin(x * random.normal(key, (5,), float))),
    "dropout": lambda x, key: jnp.sum(
        jnp.where(random.bernoulli(key, 0.5, (5,)), jnp.tanh(x), 0.0) ** 2
    ),
    "a key for each": lambda x, key: jnp.sum(
        jnp.sin(jax.vmap(lambda k, v: v * random.normal(k, dtype=float))(random.split(key, 5), x))
    ),
    "noisy steps": noisy_steps,
    "a key in a loop": carried_key,
}


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_draw(name: str) -> None:
    key = random.key(3)

    def fun(x: Any, key: Any) -> Any:
        return FUNCTIONS[name](x, key)

    def drawn(x: Any) -> Any:
        return fun(x, key)

    gradient, hessian = jax.grad(drawn)(X), jax.jit(jax.hessian(drawn))(X)
    trace = jnp.trace(hessian)
    xs, keys = np.stack([X, X]), jnp.stack([random.key(4), key])
    found = {
        "Jacobian": (jax.jit(jacve(fun))(X, key), gradient),
        "forward": (jacve(fun, "forward")(X, key), gradient),
        "Jacobians": (jax.vmap(jacve(fun))(xs, keys)[1], gradient),
        "Hessian": (hessve(fun)(X, key), hessian),
        "Laplacian": (laplacian_ve(fun)(X, key), trace),
        "reverse": (laplacian_ve(fun, order="reverse")(X, key), trace),
        "Laplacians": (jax.vmap(laplacian_ve(fun))(xs, keys)[1], trace),
        "of a constant key": (laplacian_ve(drawn)(X), trace),
        "in one pass": (forward_laplacian(fun)(X, key).laplacian, trace),
        "divergence": (divergence_ve(jax.grad(fun))(X, key), trace),
    }
    for quantity, (ours, expected) in found.items():
        np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9, err_msg=quantity)
