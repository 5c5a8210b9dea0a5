"""Reductions over axes, cumulative operations, norms and sorting."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from tests.random_operations.builder import OperationTable, ProgramBuilder

operation = OperationTable()


@operation(weight=6)
def reduction(builder: ProgramBuilder) -> None:
    """Sum, mean, product, extrema, log-sum-exp, variance or norm over some axes."""
    name, fun = builder.choice(
        [
            ("sum", jnp.sum),
            ("sum", jnp.sum),
            ("mean", jnp.mean),
            ("prod", jnp.prod),
            ("max", jnp.max),
            ("min", jnp.min),
            ("logsumexp", jax.nn.logsumexp),
            ("var", jnp.var),
            ("norm", lambda x, **where: jnp.sqrt(jnp.sum(x * x, **where) + 0.1)),
        ]
    )
    x = builder.pick_rank(1, nonempty=True, bound=1.0 if name == "prod" else 1.5)
    axes: tuple[int, ...] | None = builder.subset(range(-x.rank, 0))
    if builder.chance(0.2):
        axes = None
    keepdims = builder.chance(0.3)
    shift = builder.dither(x)
    builder.apply(
        f"{name} over {axes}{' keepdims' if keepdims else ''}",
        lambda x: fun(x + shift, axis=axes, keepdims=keepdims),
        x,
        bound=2.0 * x.size if name in ("sum", "norm") else 4.0 if name != "prod" else 1.4**x.size,
    )


@operation(weight=2)
def plain_sum(builder: ProgramBuilder) -> None:
    """A sum over axes that leaves empty arrays in play, and one of a broadcast."""
    x = builder.pick_rank(1)
    axes = builder.subset(range(x.rank))
    builder.apply(f"sum over {axes}", lambda x: jnp.sum(x, axis=axes), x, bound=2.0 * x.size)


@operation(weight=4)
def cumulative(builder: ProgramBuilder) -> None:
    """Cumulative sum, product, extremum and log-sum-exp, in both directions."""
    kinds: list[tuple[Callable, float]] = [
        (lax.cumsum, 6.0),
        (lax.cumprod, 4.0),
        (lax.cummax, 2.0),
        (lax.cummin, 2.0),
        (lax.cumlogsumexp, 4.0),
    ]
    fun, bound = builder.choice(kinds)
    x = builder.pick_rank(1, bound=1.0)
    axis = builder.integer(0, x.rank - 1)
    reverse = builder.chance(0.4)
    shift = builder.dither(x)
    builder.apply(
        f"{fun.__name__} axis {axis}{' reversed' if reverse else ''}",
        lambda x: fun(x + shift, axis=axis, reverse=reverse),
        x,
        bound=bound,
    )


@operation(weight=2)
def norm(builder: ProgramBuilder) -> None:
    """Vector and matrix norms, away from zero."""
    x = builder.pick_rank(1, 3, nonempty=True)
    axis = builder.integer(-x.rank, -1)
    order = builder.choice([None, 1, 2, 3, jnp.inf])
    shift = builder.array(x.shape, 1.6, 2.4)  # away from the origin, without ties
    builder.apply(
        f"norm of order {order}, axis {axis}",
        lambda x: jnp.linalg.norm(x + shift, ord=order, axis=axis),
        x,
        bound=4.0 * x.size,
    )


@operation(weight=3)
def sorting(builder: ProgramBuilder) -> None:
    """Sort along an axis, sort carrying a second operand, take in sorted order."""
    x = builder.pick_rank(1, 3)
    y = builder.pick(where=lambda value: value.shape == x.shape, partner=x)
    axis = builder.integer(0, x.rank - 1)
    shift = builder.dither(x)
    kind = builder.choice(["sort", "key and value", "argsort"])
    if kind == "sort":
        builder.apply(f"sort axis {axis}", lambda x: jnp.sort(x + shift, axis=axis), x, bound=2.0)
    elif kind == "key and value":
        builder.apply(
            f"sort pairs axis {axis}",
            lambda x, y: tuple(lax.sort((x + shift, y), dimension=axis, num_keys=1)),
            x,
            y,
            bound=2.0,
        )
    else:
        builder.apply(
            f"take in sorted order, axis {axis}",
            lambda x, y: jnp.take_along_axis(y, jnp.argsort(x + shift, axis=axis), axis=axis),
            x,
            y,
            bound=1.5,
        )
