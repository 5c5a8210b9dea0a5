"""What a problem of second order is: a function of parameters and one input, and its inputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.groups import Group

Layer = tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class Instance:
    """A problem at one size.

    Attributes:
        fun: `fun(params, x)` of one input: a scalar for a Laplacian, like x for a divergence.
        params: its parameters, a pytree.
        xs: inputs, shape (batch, *shape of x).
    """

    fun: Callable[[Any, jax.Array], jax.Array]
    params: Any
    xs: jax.Array


@dataclass(frozen=True)
class LaplacianProblem:
    """A function whose Laplacian or divergence is wanted, at two sizes.

    Attributes:
        name: short name, unique among these problems.
        make: `make(draw, **sizes)` gives an instance.
        sizes: the sizes of the benchmark.
        small: those of the tests, where `trace(jax.hessian)` is the truth.
        source: where the function is published.
        operator: what is taken of it.
        group: whether the suites measure it by themselves.
    """

    name: str
    make: Callable[..., Instance]
    sizes: Mapping[str, int]
    small: Mapping[str, int]
    source: str
    operator: Literal["laplacian", "divergence"] = "laplacian"
    group: Group = "named"

    def instance(self, dtype: Any, *, small: bool = False, seed: int = 0) -> Instance:
        """The problem with random parameters and inputs of a type."""
        return self.make(Draw(seed, dtype), **(self.small if small else self.sizes))


class Draw:
    """Random parameters and inputs, the same numbers for every type.

    Args:
        seed: of the generator.
        dtype: of the arrays.
    """

    def __init__(self, seed: int, dtype: Any):
        self.random = np.random.default_rng(seed)
        self.dtype = dtype

    def normal(self, *shape: int, scale: float = 1.0) -> jax.Array:
        """Normally distributed numbers."""
        return jnp.asarray(scale * self.random.standard_normal(shape), self.dtype)

    def dense(self, n_in: int, n_out: int) -> Layer:
        """Weights of shape (n_in, n_out), scaled by the square root of n_in, and small biases."""
        return self.normal(n_in, n_out, scale=n_in**-0.5), self.normal(n_out, scale=0.1)

    def mlp(self, *widths: int) -> list[Layer]:
        """Dense layers between the widths."""
        return [self.dense(a, b) for a, b in pairwise(widths)]

    def stacked(self, count: int, width: int) -> Layer:
        """Square dense layers along a leading axis, for a scan."""
        weights = self.normal(count, width, width, scale=width**-0.5)
        return weights, self.normal(count, width, scale=0.1)


def dense(layer: Layer, x: jax.Array) -> jax.Array:
    """An affine map of the last axis."""
    weights, bias = layer
    return x @ weights + bias


def mlp(
    layers: Sequence[Layer], x: jax.Array, activation: Callable[[jax.Array], jax.Array] = jnp.tanh
) -> jax.Array:
    """Dense layers with an activation between them."""
    for layer in layers[:-1]:
        x = activation(dense(layer, x))
    return dense(layers[-1], x)
