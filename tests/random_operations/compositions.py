"""Everyday compositions: softmax, layer norm, outer differences, dense layers, user's own rules."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tests.random_operations.builder import OperationTable, ProgramBuilder

operation = OperationTable()


@jax.custom_jvp
def doubled_slope(x: jax.Array) -> jax.Array:
    """sin(x) with a rule that is deliberately not its derivative: 2 cos(x)."""
    return jnp.sin(x)


@doubled_slope.defjvp
def _doubled_slope_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x,), (dx,) = primals, tangents
    return jnp.sin(x), 2.0 * jnp.cos(x) * dx


@jax.custom_jvp
def guarded_ratio(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two results of two operands with a hand-written (correct) rule."""
    return x / (y + 3.0), x * y


@guarded_ratio.defjvp
def _guarded_ratio_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x, y), (dx, dy) = primals, tangents
    ratio = x / (y + 3.0)
    return (ratio, x * y), ((dx - ratio * dy) / (y + 3.0), dx * y + x * dy)


@operation(weight=3)
def normalization(builder: ProgramBuilder) -> None:
    """Softmax, log-softmax, layer norm, unit vectors along an axis."""
    x = builder.pick_rank(1, 3, nonempty=True)
    axis = builder.integer(-x.rank, -1)

    def layer_norm(x: jax.Array) -> jax.Array:
        centred = x - x.mean(axis, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis, keepdims=True) + 0.5)

    name, fun = builder.choice(
        [
            ("softmax", lambda x: jax.nn.softmax(x, axis)),
            ("log_softmax", lambda x: jax.nn.log_softmax(x, axis)),
            ("layer norm", layer_norm),
            ("unit", lambda x: x / jnp.sqrt(1.0 + jnp.sum(x * x, axis, keepdims=True))),
            ("standardize", lambda x: jax.nn.standardize(x, axis=axis, epsilon=0.5)),
        ]
    )
    builder.apply(f"{name} axis {axis}", fun, x, bound=5.0)


@operation(weight=2)
def pairwise(builder: ProgramBuilder) -> None:
    """Differences of all pairs, distances, Gram matrices."""
    x = builder.pick_rank(1, 2)
    name, fun = builder.choice(
        [
            ("x_i - x_j", lambda x: x[:, None] - x[None, :]),
            ("x_i x_j", lambda x: x[:, None] * x[None, :]),
            ("distance", lambda x: jnp.sqrt((x[:, None] - x[None, :]) ** 2 + 0.2)),
            ("gram", lambda x: jnp.tensordot(x, x, axes=(-1, -1))),
        ]
    )
    builder.apply(name, fun, x, bound=2.3 * max(2, x.size))


@operation(weight=2)
def dense_layer(builder: ProgramBuilder) -> None:
    """Affine map with constant weights, then an activation."""
    x = builder.pick_rank(1, 3, nonempty=True)
    weights = builder.array((x.shape[-1], builder.choice([1, 2, 3])))
    bias = builder.array(weights.shape[1:])
    activation = builder.choice([jax.nn.relu, jax.nn.silu, jax.nn.gelu, jnp.tanh, jax.nn.softplus])
    builder.apply("dense layer", lambda x: activation(x @ weights + bias), x, bound=8.0)


@operation(weight=3)
def custom_rule(builder: ProgramBuilder) -> None:
    """Functions with their own derivative rule: the library's and the user's."""
    x = builder.pick()
    kind = builder.choice(["relu", "silu", "user", "user", "pair", "logsumexp"])
    if kind == "pair":
        y = builder.pick(where=lambda v: v.shape == x.shape, partner=x)
        builder.apply("custom_jvp pair", lambda x, y: tuple(guarded_ratio(x, y)), x, y, bound=2.3)
        return
    shift = builder.dither(x)
    fun = {
        "relu": lambda x: jax.nn.relu(x + shift),
        "silu": jax.nn.silu,
        "user": doubled_slope,
        "logsumexp": lambda x: jnp.logaddexp(x, 0.3),
    }[kind]
    builder.apply(f"custom_jvp {kind}", fun, x, bound=2.5)
