"""Attention whose inputs are differentiated: along the edges of a graph, and between tokens.

Sources: Veličković et al., arXiv 1710.10903 (graph attention, equations 1 to 6); Su et al., arXiv
2104.09864 (rotary embedding, equation 34); the block is that of Touvron et al., arXiv 2302.13971,
with a norm by the root mean square (Zhang, Sennrich, arXiv 1910.07467) and a gated layer (Shazeer,
arXiv 2002.05202).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.laplacian.problem import Draw, Instance, LaplacianProblem, dense, mlp

NEIGHBOURS = (0, 1, 2, -1, -2)


def graph_attention(params: dict[str, Any], x: jax.Array) -> jax.Array:
    """Layers of attention along a ring's edges, then the sum over nodes; x: (nodes, coordinates).

    Every node attends to itself and to two neighbours on either side.
    """
    nodes = x.shape[0]
    receiver = np.repeat(np.arange(nodes), len(NEIGHBOURS))
    sender = (receiver + np.tile(NEIGHBOURS, nodes)) % nodes
    h = x
    for weights, by_receiver, by_sender in params["layers"]:
        z = h @ weights
        scores = jax.nn.leaky_relu((z @ by_receiver)[receiver] + (z @ by_sender)[sender], 0.2)
        # The largest score of a node is taken off, as softmax does; it moves nothing.
        top = jax.lax.stop_gradient(jax.ops.segment_max(scores, receiver, nodes))
        parts = jnp.exp(scores - top[receiver])
        total = jax.ops.segment_sum(parts, receiver, nodes)
        shares = parts / total[receiver]
        h = jax.nn.elu(jax.ops.segment_sum(shares[:, None] * z[sender], receiver, nodes))
    return jnp.sum(mlp(params["readout"], h))


def rotary_block(params: dict[str, Any], x: jax.Array, heads: int) -> jax.Array:
    """Causal attention with rotary embedding and a gated layer, (tokens, width) to the same."""
    tokens, width = x.shape
    q, k, v = (
        (_scaled(x) @ params[name]).reshape(tokens, heads, -1).swapaxes(0, 1) for name in "qkv"
    )
    scores = turned(q) @ turned(k).swapaxes(1, 2) / (width // heads) ** 0.5
    scores = jnp.where(np.tri(tokens, dtype=bool), scores, -jnp.inf)
    seen = (jax.nn.softmax(scores, axis=-1) @ v).swapaxes(0, 1).reshape(tokens, width)
    x = x + seen @ params["out"]
    y = _scaled(x)
    return x + (jax.nn.silu(y @ params["gate"]) * (y @ params["up"])) @ params["down"]


def _scaled(x: jax.Array) -> jax.Array:
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def turned(x: jax.Array) -> jax.Array:
    """Pairs of features turned by angles that grow with the position; x: (heads, tokens, size)."""
    _, tokens, size = x.shape
    angles = np.outer(np.arange(tokens), 10_000.0 ** (-2.0 * np.arange(size // 2) / size))
    cos, sin = (jnp.asarray(table(angles), x.dtype) for table in (np.cos, np.sin))
    even, odd = x[..., ::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def make_graph_attention(
    draw: Draw, batch: int, nodes: int, coordinates: int, width: int, depth: int
) -> Instance:
    """`depth` layers of `width` features."""
    sizes = [coordinates, *[width] * (depth - 1)]
    layers = [
        (
            draw.normal(size, width, scale=size**-0.5),
            draw.normal(width, scale=width**-0.5),
            draw.normal(width, scale=width**-0.5),
        )
        for size in sizes
    ]
    params = {"layers": layers, "readout": draw.mlp(width, width, 1)}
    return Instance(graph_attention, params, draw.normal(batch, nodes, coordinates))


def make_rotary_block(draw: Draw, batch: int, tokens: int, width: int, heads: int) -> Instance:
    """The gated layer is twice as wide."""
    params: dict[str, Any] = {n: draw.dense(width, width)[0] for n in ("q", "k", "v", "out")}
    params |= {name: draw.dense(width, 2 * width)[0] for name in ("gate", "up")}
    params["down"] = draw.dense(2 * width, width)[0]
    params["readout"] = draw.dense(width, 1)

    def fun(params: dict[str, Any], x: jax.Array) -> jax.Array:
        return dense(params["readout"], jnp.mean(rotary_block(params, x, heads), axis=0))[0]

    return Instance(fun, params, draw.normal(batch, tokens, width))


PROBLEMS = (
    LaplacianProblem(
        "graph_attention",
        make_graph_attention,
        {"batch": 16, "nodes": 16, "coordinates": 3, "width": 32, "depth": 2},
        {"batch": 2, "nodes": 6, "coordinates": 2, "width": 3, "depth": 2},
        "Veličković et al., arXiv 1710.10903",
        group="more",
    ),
    LaplacianProblem(
        "rotary_block",
        make_rotary_block,
        {"batch": 16, "tokens": 8, "width": 16, "heads": 2},
        {"batch": 2, "tokens": 3, "width": 4, "heads": 2},
        "Su et al., arXiv 2104.09864",
        group="more",
    ),
)
