"""Small networks whose Jacobian is sparse: one MLP per node, messages on a ring, a deep 1D CNN.

Sources: M. Zaheer et al., "Deep Sets" (arXiv 1703.06114) for a network that is applied to each
element; P. Battaglia et al., "Relational inductive biases, deep learning, and graph networks"
(arXiv 1806.01261), section 3.2, for messages and `segment_sum`; Y. LeCun et al., "Gradient-based
learning applied to document recognition", Proc. IEEE 86 (1998), for convolutions.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.problems.sparse.problem import (
    Instance,
    SparseProblem,
    bands,
    joined,
    total,
    uniform,
)

FEATURES = 4  # of a node, in the MLP
NODE = 2  # of a node, in the graph network
HIDDEN = 8
KERNEL = 3  # taps of a convolution
CHANNELS = 4  # between convolutions


def _weights(seed: int, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return uniform(seed, shape, dtype, -0.7, 0.7)


def make_mlp(n: int, dtype: Any, seed: int) -> Instance:
    """A network of n nodes of four features, each through the same two layers; 16 n nonzeros."""
    inner = _weights(seed + 1, (FEATURES, 2 * HIDDEN), dtype)
    outer = _weights(seed + 2, (2 * HIDDEN, FEATURES), dtype)

    def mlp(x: jax.Array) -> jax.Array:
        return (jnp.tanh(x.reshape(-1, FEATURES) @ inner) @ outer).reshape(-1)

    def by_hand(x: jax.Array) -> tuple[jax.Array, ...]:
        slope = 1.0 - jnp.tanh(x.reshape(-1, FEATURES) @ inner) ** 2
        # One matrix product: [hidden, (output, input)] are the paths through each hidden unit.
        paths = (outer[:, :, None] * inner.T[:, None, :]).reshape(2 * HIDDEN, -1)
        return (slope @ paths,)

    own = np.arange(FEATURES * n).reshape(n, FEATURES)
    shape = (n, FEATURES, FEATURES)
    rows = np.broadcast_to(own[:, :, None], shape).ravel()
    cols = np.broadcast_to(own[:, None, :], shape).ravel()
    return Instance(mlp, uniform(seed, FEATURES * n, dtype), by_hand, rows, cols)


def make_ring(n: int, dtype: Any, seed: int) -> Instance:
    """A ring of n >= 3 nodes of two features, messages from both neighbours; 12 n nonzeros."""
    w_sender, w_receiver, w_own = (_weights(seed + k, (NODE, HIDDEN), dtype) for k in (1, 2, 3))
    w_sum = _weights(seed + 4, (HIDDEN, HIDDEN), dtype)
    w_out = _weights(seed + 5, (HIDDEN, NODE), dtype)
    nodes = np.arange(n)
    receivers = np.concatenate([nodes, nodes])
    senders = np.concatenate([(nodes - 1) % n, (nodes + 1) % n])

    def ring(x: jax.Array) -> jax.Array:
        h = x.reshape(n, NODE)
        messages = jnp.tanh(h[senders] @ w_sender + h[receivers] @ w_receiver)
        received = jax.ops.segment_sum(messages, receivers, num_segments=n)
        return (h + jnp.tanh(h @ w_own + received @ w_sum) @ w_out).reshape(-1)

    def by_hand(x: jax.Array) -> tuple[jax.Array, ...]:
        h = x.reshape(n, NODE)
        sent, own = h @ w_sender, h @ w_receiver
        left, right = (jnp.tanh(jnp.roll(sent, shift, 0) + own) for shift in (1, -1))
        slope = 1.0 - jnp.tanh(h @ w_own + (left + right) @ w_sum) ** 2
        slopes = [1.0 - left**2, 1.0 - right**2]
        # [node, output, message unit]: from the messages' pre-activations to the outputs.
        back = jnp.einsum("nk,hk,ko->noh", slope, w_sum, w_out)
        to_left, to_right = (jnp.einsum("noh,nh,ih->noi", back, s, w_sender) for s in slopes)
        to_own = jnp.einsum("noh,nh,ih->noi", back, slopes[0] + slopes[1], w_receiver)
        to_own += jnp.einsum("nk,ik,ko->noi", slope, w_own, w_out) + jnp.eye(NODE, dtype=x.dtype)
        return to_left, to_own, to_right

    own = np.arange(NODE * n).reshape(n, NODE)
    shape = (n, NODE, NODE)
    rows, cols = joined(
        *(
            (
                np.broadcast_to(own[:, :, None], shape),
                np.broadcast_to(np.roll(own, shift, 0)[:, None, :], shape),
            )
            for shift in (1, 0, -1)
        )
    )
    return Instance(ring, uniform(seed, NODE * n, dtype), by_hand, rows, cols)


def make_cnn(n: int, dtype: Any, seed: int) -> Instance:
    """Three convolutions of three taps over n points (1, 4, 4, 1 channels); 7 n - 12 nonzeros."""
    widths = (1, CHANNELS, CHANNELS, 1)
    kernels = [_weights(seed + k + 1, (KERNEL, widths[k], widths[k + 1]), dtype) for k in range(3)]
    reach = KERNEL // 2

    def convolve(h: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            h[None], kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )[0]

    def cnn(x: jax.Array) -> jax.Array:
        h = x[:, None]
        for kernel in kernels[:-1]:
            h = jnp.tanh(convolve(h, kernel))
        return convolve(h, kernels[-1])[:, 0]

    def by_hand(x: jax.Array) -> tuple[jax.Array, ...]:
        h, slopes = x[:, None], []
        for kernel in kernels[:-1]:
            h = jnp.tanh(convolve(h, kernel))
            slopes.append(1.0 - h**2)
        # band[i, d, c]: output i by channel c of the present layer at point i + d - width // 2.
        band = jnp.broadcast_to(kernels[-1][:, :, 0], (n, KERNEL, CHANNELS))
        for kernel, slope in zip(reversed(kernels[:-1]), reversed(slopes), strict=True):
            width = band.shape[1]
            around = jnp.pad(slope, ((width // 2, width // 2), (0, 0)))
            band = band * jnp.stack([around[d : d + n] for d in range(width)], axis=1)
            band = total(
                jnp.pad(band @ kernel[tap].T, ((0, 0), (tap, 2 * reach - tap), (0, 0)))
                for tap in range(KERNEL)
            )
        return (band[:, :, 0],)

    width = 3 * (KERNEL - 1) + 1
    rows, cols = bands(n, tuple(range(-(width // 2), width // 2 + 1)))
    rows, cols = (part.reshape(width, n).T.ravel() for part in (rows, cols))
    return Instance(cnn, uniform(seed, n, dtype, -1.0, 1.0), by_hand, rows, cols)


PROBLEMS = (
    SparseProblem("block_mlp", make_mlp, 2_048, 5, "Zaheer et al., arXiv 1703.06114"),
    SparseProblem("ring_network", make_ring, 2_048, 5, "Battaglia et al., arXiv 1806.01261"),
    SparseProblem("cnn_1d", make_cnn, 2_000, 12, "LeCun et al., Proc. IEEE 86 (1998)"),
)
