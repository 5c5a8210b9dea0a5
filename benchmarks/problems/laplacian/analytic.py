"""Functions with a diagonal or tridiagonal Hessian, and a field whose divergence is wanted.

Sources: H. H. Rosenbrock, The Computer Journal 3 (1960) 175, as a chain; the field is the one of
continuous normalising flows (Chen et al., arXiv 1806.07366, section 4).
"""

import jax
import jax.numpy as jnp

from benchmarks.problems.laplacian.problem import Draw, Instance, LaplacianProblem, Layer, mlp


def elementwise(params: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
    """A sum of one function per coordinate, (d,) -> ()."""
    scale, weight = params
    return jnp.sum(weight * jnp.tanh(scale * jnp.sin(x)) * jnp.exp(-0.5 * x**2))


def rosenbrock(params: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
    """The Rosenbrock chain with a stiffness per link, (d,) -> ()."""
    stiffness, rest = params
    return jnp.sum(stiffness * (x[1:] - x[:-1] ** 2) ** 2) + jnp.sum((rest - x) ** 2)


def field(params: list[Layer], x: jax.Array) -> jax.Array:
    """A field of two dense layers, (d,) -> (d,)."""
    return mlp(params, x)


def make_elementwise(draw: Draw, batch: int, d: int) -> Instance:
    """In d dimensions."""
    return Instance(elementwise, (draw.normal(d), draw.normal(d)), draw.normal(batch, d))


def make_rosenbrock(draw: Draw, batch: int, d: int) -> Instance:
    """In d dimensions."""
    params = (100.0 + draw.normal(d - 1), 1.0 + draw.normal(d, scale=0.1))
    return Instance(rosenbrock, params, draw.normal(batch, d))


def make_field(draw: Draw, batch: int, d: int, width: int) -> Instance:
    """In d dimensions, with a hidden layer of `width`."""
    return Instance(field, draw.mlp(d, width, d), draw.normal(batch, d))


PROBLEMS = (
    LaplacianProblem(
        "elementwise_sum",
        make_elementwise,
        {"batch": 100, "d": 1000},
        {"batch": 2, "d": 5},
        "a separable function",
    ),
    LaplacianProblem(
        "rosenbrock",
        make_rosenbrock,
        {"batch": 100, "d": 1000},
        {"batch": 2, "d": 5},
        "Rosenbrock, The Computer Journal 3 (1960) 175",
    ),
    LaplacianProblem(
        "divergence_mlp",
        make_field,
        {"batch": 50, "d": 500, "width": 256},
        {"batch": 2, "d": 5, "width": 4},
        "Chen et al., arXiv 1806.07366",
        "divergence",
    ),
)
