"""Networks over coordinates: per node, physics-informed, wide into narrow, scanned, convolutional.

Sources: the per-node network is the example that the README of folx times (Gao, Köhler, Foster,
"folx", 2023); physics-informed networks: Raissi, Perdikaris, Karniadakis, J. Comput. Phys. 378
(2019) 686; in many dimensions: Hu, Shukla, Karniadakis, Kawaguchi, arXiv 2307.12306.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.problems.laplacian.problem import Draw, Instance, LaplacianProblem, Layer, mlp


def per_node(params: list[Layer], x: jax.Array) -> jax.Array:
    """The sum over nodes of a network of the node's coordinates; x: (nodes, coordinates)."""
    return jnp.sum(mlp(params, x, jax.nn.silu))


def pinn(params: list[Layer], x: jax.Array) -> jax.Array:
    """A physics-informed network, x: (d,)."""
    return mlp(params, x)[0]


def scanned(params: tuple[Layer, Layer, Layer], x: jax.Array) -> jax.Array:
    """Square layers with stacked weights in a scan, between a first and a last one; x: (d,)."""
    first, layers, last = params

    def step(h: jax.Array, layer: Layer) -> tuple[jax.Array, None]:
        weights, bias = layer
        return jnp.tanh(h @ weights + bias), None

    h = jnp.tanh(x @ first[0] + first[1])
    h, _ = lax.scan(step, h, layers)
    return (h @ last[0] + last[1])[0]


def convolutional(params: tuple[list[Layer], Layer], x: jax.Array) -> jax.Array:
    """3 x 3 convolutions, then the mean over pixels into a dense layer; x: (height, width)."""
    kernels, last = params
    h = x[None, :, :, None]
    for weights, bias in kernels:
        h = lax.conv_general_dilated(
            h, weights, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        h = jnp.tanh(h + bias)
    return (jnp.mean(h, axis=(0, 1, 2)) @ last[0] + last[1])[0]


def make_per_node(
    draw: Draw, batch: int, nodes: int, coordinates: int, width: int, depth: int
) -> Instance:
    """`depth` hidden layers of `width`."""
    params = draw.mlp(coordinates, *[width] * depth, 1)
    return Instance(per_node, params, draw.normal(batch, nodes, coordinates))


def make_pinn(draw: Draw, batch: int, d: int, width: int, depth: int) -> Instance:
    """`depth` hidden layers of `width` in d dimensions."""
    return Instance(pinn, draw.mlp(d, *[width] * depth, 1), draw.normal(batch, d))


def make_scanned(draw: Draw, batch: int, d: int, width: int, depth: int) -> Instance:
    """`depth` layers of `width` in the scan."""
    params = (draw.dense(d, width), draw.stacked(depth, width), draw.dense(width, 1))
    return Instance(scanned, params, draw.normal(batch, d))


def make_convolutional(draw: Draw, batch: int, pixels: int, channels: int, depth: int) -> Instance:
    """`depth` convolutions on pixels x pixels."""
    sizes = [1, *[channels] * depth]
    kernels = [
        (draw.normal(3, 3, a, b, scale=(9 * a) ** -0.5), draw.normal(b, scale=0.1))
        for a, b in pairwise(sizes)
    ]
    params = (kernels, draw.dense(channels, 1))
    return Instance(convolutional, params, draw.normal(batch, pixels, pixels))


FOLX = "README of folx 0.2"
PINN = "Raissi et al., J. Comput. Phys. 378 (2019) 686"
MANY = "Hu et al., arXiv 2307.12306"

PROBLEMS = (
    LaplacianProblem(
        "per_node_mlp",
        make_per_node,
        {"batch": 20, "nodes": 100, "coordinates": 4, "width": 100, "depth": 10},
        {"batch": 2, "nodes": 3, "coordinates": 2, "width": 5, "depth": 2},
        FOLX,
    ),
    LaplacianProblem(
        "pinn_d10",
        make_pinn,
        {"batch": 100, "d": 10, "width": 128, "depth": 4},
        {"batch": 2, "d": 3, "width": 6, "depth": 4},
        PINN,
    ),
    LaplacianProblem(
        "pinn_d100",
        make_pinn,
        {"batch": 100, "d": 100, "width": 256, "depth": 3},
        {"batch": 2, "d": 7, "width": 5, "depth": 3},
        PINN,
    ),
    LaplacianProblem(
        "pinn_d2000",
        make_pinn,
        {"batch": 10, "d": 2000, "width": 128, "depth": 3},
        {"batch": 2, "d": 20, "width": 3, "depth": 3},
        MANY,
    ),
    LaplacianProblem(
        "wide_into_narrow",
        make_pinn,
        {"batch": 100, "d": 1000, "width": 64, "depth": 2},
        {"batch": 2, "d": 12, "width": 3, "depth": 2},
        MANY,
    ),
    LaplacianProblem(
        "scanned_mlp",
        make_scanned,
        {"batch": 50, "d": 32, "width": 64, "depth": 8},
        {"batch": 2, "d": 3, "width": 4, "depth": 3},
        PINN,
    ),
    LaplacianProblem(
        "cnn_8x8",
        make_convolutional,
        {"batch": 16, "pixels": 8, "channels": 8, "depth": 3},
        {"batch": 2, "pixels": 3, "channels": 2, "depth": 2},
        PINN,
    ),
)
