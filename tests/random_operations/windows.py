"""Convolutions in one and two dimensions, window sums, average and max pooling."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from tests.random_operations.builder import NotApplicable, OperationTable, ProgramBuilder, Value

operation = OperationTable()


def as_image(builder: ProgramBuilder, spatial: int) -> tuple[Value, tuple[int, ...]]:
    """A value and the shape (batch, channels, *space) under which to look at it."""
    x = builder.pick_rank(spatial, spatial + 1, nonempty=True)
    lead = x.shape[: x.rank - spatial]
    shape = (1, *lead, *x.shape[x.rank - spatial :])
    return x, shape if lead else (1, 1, *x.shape)


@operation(weight=4)
def convolution(builder: ProgramBuilder) -> None:
    """conv_general_dilated: strides, both dilations, padding, feature groups, variable kernels."""
    spatial = builder.choice([1, 1, 2])
    x, shape = as_image(builder, spatial)
    channels = shape[1]
    groups = channels if builder.chance(0.3) else 1
    out_channels = groups * builder.integer(1, 2)
    taps = tuple(builder.integer(1, 3) for _ in range(spatial))
    kernel_shape = (out_channels, channels // groups, *taps)
    options = {
        "window_strides": tuple(builder.integer(1, 2) for _ in range(spatial)),
        "padding": [(builder.integer(0, 2), builder.integer(0, 2)) for _ in range(spatial)],
        "lhs_dilation": tuple(builder.integer(1, 2) for _ in range(spatial)),
        "rhs_dilation": tuple(builder.integer(1, 2) for _ in range(spatial)),
        "feature_group_count": groups,
    }
    count = math.prod(kernel_shape)
    variables = [v for v in builder.values if v.dtype == float and v.size == count]
    constant = builder.array(kernel_shape)

    def run(x: jax.Array, *kernel: jax.Array) -> jax.Array:
        weights = kernel[0].reshape(kernel_shape) if kernel else jnp.asarray(constant)
        out = lax.conv_general_dilated(x.reshape(shape), weights, **options)
        return out[0]

    operands = (x,)
    if variables and builder.chance(0.5):
        operands = (x, builder.pick(where=lambda v: v in variables))
    builder.apply(f"conv {shape} * {kernel_shape} {options}", run, *operands, bound=2.3 * count)


@operation(weight=1)
def batch_grouped_convolution(builder: ProgramBuilder) -> None:
    """A convolution with batch groups and channels-last layout."""
    x = builder.pick(where=lambda v: v.rank == 2 and v.shape[0] == 2 and v.size > 0)
    kernel = builder.array((2, 1, 2))

    def run(x: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x[:, :, None],
            jnp.asarray(kernel),
            (1,),
            [(1, 0)],
            dimension_numbers=("NHC", "HIO", "NHC"),
            batch_group_count=2,
        )[0]

    builder.apply("batch-grouped conv", run, x, bound=6.0)


@operation(weight=3)
def window_reduction(builder: ProgramBuilder) -> None:
    """Sum, average and max over windows, with strides, padding and dilation."""
    x = builder.pick_rank(1, 3, nonempty=True)
    window = tuple(builder.integer(1, min(2, n)) for n in x.shape)
    strides = tuple(builder.integer(1, 2) for _ in x.shape)
    padding = [(builder.integer(0, 1), builder.integer(0, 1)) for _ in x.shape]
    plain = [(0, 0)] * x.rank
    shift = builder.dither(x)
    kind = builder.choice(["sum", "sum", "average", "max", "min", "cumulative window"])

    def run(x: jax.Array) -> jax.Array:
        if kind == "sum":
            return lax.reduce_window(x, 0.0, lax.add, window, strides, padding)
        if kind == "average":
            sums = lax.reduce_window(x, 0.0, lax.add, window, strides, plain)
            return sums / lax.reduce_window(jnp.ones_like(x), 0.0, lax.add, window, strides, plain)
        if kind == "max":
            return lax.reduce_window(x + shift, -jnp.inf, lax.max, window, strides, plain)
        if kind == "min":
            return lax.reduce_window(x + shift, jnp.inf, lax.min, window, strides, plain)
        full = [(n - 1, 0) for n in x.shape]
        return lax.reduce_window(x, 0.0, lax.add, x.shape, (1,) * x.ndim, full)

    if kind != "cumulative window" and max(window) == 1:
        raise NotApplicable
    builder.apply(f"window {kind} {window} {strides} {padding}", run, x, bound=2.0 * x.size)
