"""Small networks whose Jacobians are matrices: what an order of arrays is worth.

A dense network through a narrow middle (its Jacobian is a product of matrices through two numbers),
one head of softmax attention (Vaswani et al., 2017, arXiv 1706.03762), and a deep narrow network of
about two thousand vertices.
"""

import jax
import jax.numpy as jnp

__all__ = ["FUNCTIONS", "attention", "deep", "narrow_middle"]


def narrow_middle(
    x: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array
) -> jax.Array:
    """Four dense layers; with the sizes below 100 -> 50 -> 2 -> 50 -> 100."""
    return jnp.tanh(d @ jnp.tanh(c @ jnp.tanh(b @ jnp.tanh(a @ x))))


def attention(x: jax.Array, wq: jax.Array, wk: jax.Array, wv: jax.Array) -> jax.Array:
    """One head, (tokens, features) -> (tokens, head size)."""
    q, k, v = x @ wq, x @ wk, x @ wv
    return jax.nn.softmax(q @ k.T / q.shape[-1] ** 0.5, axis=-1) @ v


def deep(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
    """Residual layers of four numbers each; six vertices a layer."""
    for w in weights:
        x = jnp.tanh(w @ x) + 0.1 * jnp.sin(x) * x
    return x


def _shaped(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


#: Function and arguments (shapes only: nothing is run) by name.
FUNCTIONS = {
    "dense, narrow middle": (
        narrow_middle,
        (_shaped(100), _shaped(50, 100), _shaped(2, 50), _shaped(50, 2), _shaped(100, 50)),
    ),
    "softmax attention": (attention, (_shaped(12, 16), *(_shaped(16, 8),) * 3)),
    "deep network": (deep, (_shaped(4), [_shaped(4, 4)] * 333)),
}
