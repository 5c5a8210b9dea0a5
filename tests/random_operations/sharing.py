"""One array in several places of one operation: with itself, turned, cut, carried twice.

Where operands coincide, mixed second derivatives become second derivatives of one array, arrows run
in parallel or cancel, and diagonals of products matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.random_operations.builder import COMFORTABLE, OperationTable, ProgramBuilder
from tests.random_operations.compositions import doubled_slope

operation = OperationTable()

POINTWISE: list[Callable[..., Any]] = [
    jnp.sin,
    jnp.tanh,
    jnp.square,
    lambda x: 1.0 * x,
    lambda x: -x,
    lambda x: jnp.exp(-x * x),
    lambda x: 2.0 * x - x,
]
"""Of magnitude at most 2.25 on what is at most 1.5; some of them cancel with one another."""

CONTRACTIONS = {
    1: ["i,i->", "i,i->i", "i,j->ij", "i,i,i->"],
    2: ["ij,ij->i", "ij,kj->ik", "ij,ik->jk", "ij,ij->", "ij,ij,ij->j", "ij,kj->ijk"],
    3: ["ijk,ilk->jl", "ijk,ijk->ij", "ijk,ijl->kl"],
}


def functions(builder: ProgramBuilder, count: int) -> list[Callable[..., Any]]:
    """Pointwise functions, often the same one."""
    return [builder.choice(POINTWISE) for _ in range(count)]


@operation(weight=4)
def product_with_itself(builder: ProgramBuilder) -> None:
    """A contraction of two or three functions of one array."""
    x = builder.pick_rank(1, 3, nonempty=True)
    subscripts = builder.choice(CONTRACTIONS[x.rank])
    chosen = functions(builder, subscripts.count(",") + 1)

    def fun(x: jax.Array) -> jax.Array:
        return jnp.einsum(subscripts, *(f(x) for f in chosen))

    builder.apply(f"{subscripts} of x", fun, x, bound=12.0 * x.size)


@operation(weight=3)
def sum_with_itself(builder: ProgramBuilder) -> None:
    """Sums and products of functions of one array, some of which cancel."""
    x = builder.pick()
    f, g, h = functions(builder, 3)
    name, fun = builder.choice(
        [
            ("f - f * 1 + g", lambda x: f(x) - f(x) * 1.0 + g(x)),
            ("(f - x) * (g - x)", lambda x: (f(x) - x) * (g(x) - x)),
            ("f g - g f + h", lambda x: f(x) * g(x) - g(x) * f(x) + h(x)),
            ("stopped f * g", lambda x: lax.stop_gradient(f(x)) * g(x) + h(x)),
        ]
    )
    builder.apply(name, fun, x, bound=15.0)


@operation(weight=4)
def own_parts(builder: ProgramBuilder) -> None:
    """Slices, turned copies and chosen entries of one array, together again."""
    x = builder.pick_rank(1, 3, nonempty=True)
    f, g = functions(builder, 2)
    axis, size = x.rank - 1, x.shape[-1]
    order = np.asarray(builder.permutation(size))
    places = builder.indices((2,), size)

    def halves(x: jax.Array) -> jax.Array:
        first, second = x[..., : (size + 1) // 2], x[..., size // 2 :]
        return jnp.concatenate([f(second), first * second, g(first)], axis)

    name, fun = builder.choice(
        [
            ("halves", halves),
            ("f(x) * g(flipped)", lambda x: f(x) * jnp.flip(g(x), axis)),
            ("f(x) * x[order]", lambda x: f(x) * x[..., order]),
            ("x.at[places].add(x)", lambda x: f(x).at[..., places].add(x[..., places[::-1]])),
            ("rolled differences", lambda x: (f(x) - jnp.roll(x, 1, axis)) * (x - g(x))),
            ("x * running sum", lambda x: f(x) * jnp.cumsum(x, axis)),
            ("x * its mean", lambda x: f(x) * jnp.mean(g(x), axis, keepdims=True)),
        ]
    )
    builder.apply(name, fun, x, bound=4.0 * max(2, size))


@operation(weight=2)
def turned(builder: ProgramBuilder) -> None:
    """A square array with its transpose."""
    x = builder.pick(where=lambda v: v.rank == 2 and v.shape[0] == v.shape[1] > 0)
    f, g = functions(builder, 2)
    name, fun = builder.choice(
        [
            ("f(x) * g(x).T", lambda x: f(x) * g(x).T),
            ("x @ x.T", lambda x: f(x) @ g(x).T),
            ("x @ x", lambda x: f(x) @ g(x)),
            ("f(x) - f(x.T).T + g", lambda x: f(x) - f(x.T).T + g(x) * x.T),
            ("trace", lambda x: jnp.trace(f(x) @ g(x))),
        ]
    )
    builder.apply(name, fun, x, bound=6.0 * x.size)


@operation(weight=3)
def carried_twice(builder: ProgramBuilder) -> None:
    """Loops and branches that take one array at several places; rules of users inside."""
    x = builder.pick_rank(1, 2, nonempty=True, bound=COMFORTABLE)
    f, g = functions(builder, 2)
    length = builder.choice([2, 9])

    def pair(x: jax.Array) -> jax.Array:
        def step(c: Any, row: jax.Array) -> Any:
            a, b = c
            return (jnp.tanh(b) * row.mean(), jnp.sin(a) + f(row).mean()), a * b

        return lax.scan(step, (x, x), jnp.stack([x] * length))[1].sum(0)

    def swapped(x: jax.Array) -> jax.Array:
        return lax.scan(lambda c, _: ((c[1], c[0]), f(c[0]) * c[1]), (x, g(x)), length=length)[1][
            -1
        ]

    def with_rule(x: jax.Array) -> jax.Array:
        def row(r: jax.Array) -> jax.Array:
            return lax.scan(lambda c, _: (doubled_slope(c) * 0.9, None), r, length=length)[0] * r

        return jax.vmap(row)(x)

    def branches(x: jax.Array) -> jax.Array:
        return lax.cond(x.sum() > 0.1, lambda a, b: f(a) * b, lambda a, b: b * f(a), x, x)

    name, fun = builder.choice(
        [("pair", pair), ("swapped", swapped), ("with_rule", with_rule), ("branches", branches)]
    )
    builder.apply(f"{name}, {length} steps", fun, x, bound=12.0 * length)
