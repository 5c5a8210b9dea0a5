"""Where the axis of samples lies, in a program that is differentiated after `jax.vmap`.

What `jax.custom_jvp` evaluates with a derivative beside has its axis of samples where the value
alone has it. The numbers of samples, rows and features differ here, so that nothing fits by chance.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from graphax_lapl import jacve, laplacian_ve
from graphax_lapl.emit.holding import Holding, held
from graphax_lapl.emit.regions import evaluated
from graphax_lapl.emit.run import _valued_by
from graphax_lapl.emit.sines import sine_and_cosine_inside

RNG = np.random.default_rng(11)
SAMPLES, TOKENS = 3, 5
PARAMETERS = {
    name: RNG.normal(size=shape) / 3
    for name, shape in {
        "embed": (16, 2),
        "query": (16, 16),
        "key": (16, 16),
        "value": (16, 16),
        "first": (32, 16),
        "second": (16, 32),
        "out": (16,),
    }.items()
}
BATCH = RNG.normal(size=(SAMPLES, 2))
#: With the samples along its second axis.
COLUMNS = RNG.normal(size=(5, SAMPLES, 4))


def attention(p: dict[str, Array], x: Array) -> Array:
    """Copies of a point, one behind the other, that attend to each other."""
    tokens = jnp.stack([x + jnp.asarray([0.0, 0.1 * k]) for k in range(TOKENS)])
    h = jnp.sin(tokens @ p["embed"].T)
    scores = (h @ p["query"].T) @ (h @ p["key"].T).T / 4
    h = h + jax.nn.softmax(scores, -1) @ (h @ p["value"].T)
    h = h + jnp.sin(h @ p["first"].T) @ p["second"].T
    return jnp.sum(jnp.sin(h) @ p["out"])


def features_first(p: dict[str, Array], x: Array) -> Array:
    """The same features with the tokens as columns."""
    tokens = jnp.stack([x * (k + 1) for k in range(TOKENS)], 1)
    h = jnp.sin(p["embed"] @ tokens)
    h = h + p["second"] @ jnp.sin(p["first"] @ h)
    return jnp.sum(p["out"] @ jnp.sin(p["query"] @ h))


def sines_inside(p: dict[str, Array], x: Array) -> Array:
    """Products of a sine with other functions of the same features."""
    tokens = jnp.stack([x * (k + 1) for k in range(TOKENS)], 1)
    z = p["embed"] @ tokens
    h = jnp.sin(z) * jnp.exp(-z * z) + jnp.cos(z)
    return jnp.sum((p["query"] @ h) ** 2)


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.parametrize("fun", [attention, features_first, sines_inside])
def test_losses_of_batches(fun: Callable[..., Array]) -> None:
    """Gradients of losses that hold Laplacians and gradients of a batch."""

    def gradient(quantity: Callable[..., Callable[[Array], Array]]) -> dict[str, Array]:
        def loss(p: dict[str, Array]) -> Array:
            own = quantity(lambda x: fun(p, x))
            return jnp.sum(jax.vmap(own)(BATCH) ** 2)

        return jax.jit(jax.grad(jax.jit(loss)))(PARAMETERS)

    pairs = [
        (laplacian_ve, lambda f: lambda x: jnp.trace(jax.hessian(f)(x))),
        (jacve, jax.jacrev),
    ]
    for ours, reference in pairs:
        found, expected = gradient(ours), gradient(reference)
        for name, value in expected.items():
            scale = max(1.0, float(jnp.abs(value).max()))
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-10 * scale)


def turned(value: Array) -> Array:
    """The same values, with the axis of samples in front of the others."""
    return held(value, (2, 1 << 62))


HELPERS: dict[str, Callable[[Array], Array]] = {
    "sines": lambda x: jnp.multiply(*sine_and_cosine_inside(x)),
    "held where differentiated": lambda x: Holding(differentiated={0: (2, 1 << 62)}).apply(
        0, x, [x]
    ),
    "a region": lambda x: evaluated(lambda pairs, own: own[0] * pairs[0][0], (0,), [x]),
    "another value": lambda x: _valued_by(jnp.sin, lambda x: turned(jnp.sin(x)))(x),
    "other derivatives": lambda x: _valued_by(lambda x: turned(jnp.sin(x)), jnp.sin)(x),
}


@pytest.mark.parametrize("name", HELPERS)
def test_samples_along_another_axis(name: str) -> None:
    x = jnp.asarray(COLUMNS)
    batch = jax.jit(jax.vmap(HELPERS[name], in_axes=1))
    found, moved = jax.jvp(lambda x: jnp.sum(batch(x) ** 3, 1), (x,), (jnp.cos(x),))
    alone = jax.jvp(lambda x: jnp.sum(HELPERS[name](x) ** 3, 0), (x[:, 1],), (jnp.cos(x[:, 1]),))
    np.testing.assert_allclose(found[1], alone[0], rtol=1e-12)
    np.testing.assert_allclose(moved[1], alone[1], rtol=1e-12)
