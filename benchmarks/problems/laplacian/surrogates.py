"""What is fitted to data and then asked for its Laplacian: sines, kernels, experts.

Sources: Sitzmann, Martel, Bergman, Lindell, Wetzstein, arXiv 2006.09661 (sines); C. Rasmussen, C.
Williams, "Gaussian Processes for Machine Learning" (2006), equations 2.25 and 5.1 (the mean of a
process with a squared exponential kernel and a length for each coordinate); R. Jacobs, M. Jordan,
S. Nowlan, G. Hinton, Neural Computation 3 (1991) 79 (experts).
"""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.laplacian.problem import (
    Draw,
    Instance,
    LaplacianProblem,
    Layer,
    dense,
    mlp,
)

FREQUENCY = 30.0


def sines(params: list[Layer], x: jax.Array) -> jax.Array:
    """A network of sines, (d,) -> ()."""
    for layer in params[:-1]:
        x = jnp.sin(FREQUENCY * dense(layer, x))
    return dense(params[-1], x)[0]


def process_mean(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Mean of a Gaussian process, (d,) -> ().

    Args:
        params: "points" (k, d), the data's inputs; "weights" (k,), the covariance's inverse times
            their values; "lengths" (d,).
        x: a point.
    """
    scaled = (x - params["points"]) / params["lengths"]
    return params["weights"] @ jnp.exp(-0.5 * jnp.sum(scaled**2, axis=-1))


def experts(params: dict[str, Any], x: jax.Array) -> jax.Array:
    """Networks weighted by a softmax of the input, (d,) -> ()."""
    shares = jax.nn.softmax(dense(params["gate"], x))
    opinions = jnp.stack([mlp(layers, x)[0] for layers in params["experts"]])
    return shares @ opinions


def make_sines(draw: Draw, batch: int, d: int, width: int, depth: int) -> Instance:
    """`depth` hidden layers with the spread of weights that the source gives, in d dimensions."""
    widths = [d, *[width] * depth, 1]
    layers = []
    for number, (a, b) in enumerate(pairwise(widths)):
        # Uniform within a bound w has the standard deviation w / sqrt 3.
        bound = 1.0 / a if number == 0 else (6.0 / a) ** 0.5 / FREQUENCY
        layers.append((draw.normal(a, b, scale=bound / 3**0.5), draw.normal(b, scale=bound)))
    return Instance(sines, layers, draw.normal(batch, d, scale=0.5))


def make_process_mean(draw: Draw, batch: int, d: int, points: int) -> Instance:
    """Of a number of points in d dimensions."""
    params = {
        "points": draw.normal(points, d),
        "weights": draw.normal(points),
        "lengths": d**0.5 * jnp.exp(draw.normal(d, scale=0.2)),
    }
    return Instance(process_mean, params, draw.normal(batch, d))


def make_experts(draw: Draw, batch: int, d: int, width: int, depth: int, count: int) -> Instance:
    """Experts with `depth` hidden layers of `width`, in d dimensions."""
    params = {
        "gate": draw.dense(d, count),
        "experts": [draw.mlp(d, *[width] * depth, 1) for _ in range(count)],
    }
    return Instance(experts, params, draw.normal(batch, d))


PROBLEMS = (
    LaplacianProblem(
        "sines",
        make_sines,
        {"batch": 256, "d": 3, "width": 64, "depth": 3},
        {"batch": 2, "d": 2, "width": 4, "depth": 2},
        "Sitzmann et al., arXiv 2006.09661",
        group="more",
    ),
    LaplacianProblem(
        "process_mean",
        make_process_mean,
        {"batch": 100, "d": 8, "points": 512},
        {"batch": 2, "d": 3, "points": 4},
        "Rasmussen, Williams 2006, equations 2.25 and 5.1",
        group="more",
    ),
    LaplacianProblem(
        "experts",
        make_experts,
        {"batch": 100, "d": 16, "width": 64, "depth": 2, "count": 4},
        {"batch": 2, "d": 3, "width": 4, "depth": 1, "count": 2},
        "Jacobs et al., Neural Computation 3 (1991) 79",
        group="more",
    ),
)
