"""Loops, branches and maps with random bodies, nested and under vmap."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.random_operations.builder import NotApplicable, OperationTable, ProgramBuilder, Value
from tests.random_operations.nested import random_body

operation = OperationTable()

LENGTHS = (0, 1, 2, 3, 5, 9, 12)
"""Numbers of steps: short loops are written out, longer ones are not."""


def pick_carry(builder: ProgramBuilder) -> Value:
    """A value to carry through a loop."""
    return builder.pick_rank(0, 2, nonempty=True)


def captured(builder: ProgramBuilder, carry: Value) -> Value:
    """A value that a body captures."""
    return builder.pick_rank(0, 2, nonempty=True, partner=carry)


@operation(weight=3)
def scan(builder: ProgramBuilder) -> None:
    """A scan with one or two carries, rows, a captured value, and results of every step."""
    carry, extra = pick_carry(builder), captured(builder, pick_carry(builder))
    rows = builder.pick_rank(1, 3)
    mapped = builder.chance(0.6)
    length = rows.shape[0] if mapped else builder.choice(LENGTHS)
    twice = builder.chance(0.3)
    operands = [carry.shape] * (1 + twice) + [extra.shape] + [rows.shape[1:]] * mapped
    stacked = builder.chance(0.6)
    results = [carry.shape] * (1 + twice) + [builder.choice([(), carry.shape])] * stacked
    body = random_body(builder, operands, results)
    reverse, unroll = builder.chance(0.3), builder.choice([1, 1, 1, 2])
    direction = "backwards" if reverse else "forwards"

    def run(c: Any, e: Any, xs: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            out = body(*carry, e, *([row] if mapped else []))
            return out[: 1 + twice], out[1 + twice :]

        start = (c, 0.5 * c) if twice else (c,)
        last, outs = lax.scan(
            step, start, xs if mapped else None, length, reverse=reverse, unroll=unroll
        )
        return (*last, *outs)

    builder.apply(f"scan {length} {direction}", run, carry, extra, rows, bound=1.5)


@operation(weight=2)
def fori(builder: ProgramBuilder) -> None:
    """fori_loop of a static length, whose body may use the counter."""
    carry = pick_carry(builder)
    extra = captured(builder, carry)
    body = random_body(builder, [carry.shape, extra.shape], [carry.shape], steps=2)
    length = builder.choice(LENGTHS)
    counted = builder.chance(0.4)

    def run(c: Any, e: Any) -> Any:
        def step(n: Any, c: Any) -> Any:
            factor = jnp.cos(n.astype(c.dtype)) if counted else jnp.ones((), c.dtype)
            return body(c * factor, e)[0]

        return lax.fori_loop(0, length, step, c)

    builder.apply(f"fori_loop {length}", run, carry, extra, bound=1.5)


@operation(weight=2)
def while_loop(builder: ProgramBuilder) -> None:
    """A while loop that runs until a counter or a decaying number says so."""
    builder.use_forward_mode()
    carry = pick_carry(builder)
    extra = captured(builder, carry)
    body = random_body(builder, [carry.shape, extra.shape], [carry.shape], steps=2)
    limit = builder.integer(0, 4)
    by_value = builder.chance(0.4)

    def run(c: Any, e: Any) -> Any:
        def proceed(state: Any) -> Any:
            counter, size, _ = state
            return (counter < limit) & (size > 0.05) if by_value else counter < limit

        def step(state: Any) -> Any:
            counter, size, c = state
            return counter + 1, 0.3 * size, body(c, e)[0]

        start = (jnp.zeros((), int), 1.0 + 0.1 * jnp.sum(c) if by_value else jnp.sum(e), c)
        _, size, last = lax.while_loop(proceed, step, start)
        return last + 0.1 * size

    builder.apply(f"while {limit}", run, carry, extra, bound=8.0)


@operation(weight=3)
def branch(builder: ProgramBuilder) -> None:
    """Cond or switch on a value, an integer input or a constant; branches of any structure."""
    x = pick_carry(builder)
    y = captured(builder, x)
    count = builder.choice([2, 2, 3])
    branches = [random_body(builder, [x.shape, y.shape], [x.shape], steps=2) for _ in range(count)]
    shift = float(builder.array(())) * 0.3
    integers = [v for v in builder.values if v.dtype == np.int64 and v.shape == ()]
    kind = builder.choice(["value", "value", "integer", "constant"])
    chosen = builder.integer(-1, count)

    def run(x: Any, y: Any, *index: Any) -> Any:
        place: Any = index[0] if index else chosen
        if kind == "value":
            place = (jnp.sum(x) > shift).astype(int)
        if count == 2 and kind == "value":
            return lax.cond(place > 0, *branches, x, y)[0]
        return lax.switch(place, branches, x, y)[0]

    operands = (x, y, builder.choice(integers)) if kind == "integer" else (x, y)
    builder.apply(f"branch on {kind} of {count}", run, *operands, bound=1.5)


@operation(weight=3)
def mapped_body(builder: ProgramBuilder) -> None:
    """lax.map or vmap of a random body along the first or last dimension."""
    x = builder.pick_rank(1, 3, nonempty=True)
    extra = captured(builder, x)
    kind = builder.choice(["map", "map in batches", "vmap", "vmap last"])
    row = x.shape[:-1] if kind == "vmap last" else x.shape[1:]
    body = random_body(builder, [row, extra.shape], [row])

    def run(x: Any, e: Any) -> Any:
        if kind == "vmap":
            return jax.vmap(lambda r: body(r, e)[0])(x)
        if kind == "vmap last":
            return jax.vmap(lambda r: body(r, e)[0], in_axes=-1, out_axes=-1)(x)
        batch = 2 if kind == "map in batches" else None
        return lax.map(lambda r: body(r, e)[0], x, batch_size=batch)

    builder.apply(kind, run, x, extra, bound=1.5)


@operation(weight=2)
def associative(builder: ProgramBuilder) -> None:
    """associative_scan of products, maxima, sums, or of affine maps."""
    x = builder.pick_rank(1, 2, nonempty=True, bound=1.0)
    shift = builder.dither(x)
    reverse = builder.chance(0.3)

    def affine(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    def run(x: Any) -> Any:
        x = x + shift
        if kind == "affine":
            return lax.associative_scan(affine, (jnp.cos(x), x), reverse=reverse)[1]
        fun = {"product": jnp.multiply, "maximum": jnp.maximum, "sum": jnp.add}[kind]
        return lax.associative_scan(fun, x, reverse=reverse)

    kind = builder.choice(["product", "maximum", "sum", "affine"])
    builder.apply(f"associative_scan of {kind}", run, x, bound=4.0 * max(x.shape))


@operation(weight=2)
def nested_loop(builder: ProgramBuilder) -> None:
    """A loop or branch inside a loop, a branch or a vmap."""
    x = builder.pick_rank(1, 2, nonempty=True)
    row = x.shape[1:]
    inner, other = (random_body(builder, [row], [row], steps=2) for _ in range(2))
    outer = builder.choice(["scan", "vmap", "cond", "map", "checkpoint"])
    inside = builder.choice(["fori", "cond", "scan", "jit"])
    length = builder.choice(LENGTHS)

    def per_row(r: Any) -> Any:
        if inside == "fori":
            return lax.fori_loop(0, length, lambda _, c: inner(c)[0], r)
        if inside == "cond":
            return lax.cond(jnp.sum(r) > 0.05, lambda r: inner(r)[0], lambda r: other(r)[0], r)
        if inside == "scan":
            return lax.scan(lambda c, _: (inner(c)[0], None), r, length=length)[0]
        return jax.jit(lambda r: inner(r)[0])(r)

    def run(x: Any) -> Any:
        if outer == "scan":
            return lax.scan(lambda c, r: (other(per_row(c + r))[0], c), x[0], x)[1]
        if outer == "vmap":
            return jax.vmap(per_row)(x)
        if outer == "map":
            return lax.map(per_row, x)
        if outer == "checkpoint":
            return jax.checkpoint(jax.vmap(per_row))(x)
        return lax.cond(x.ravel()[0] > 0.02, jax.vmap(per_row), jnp.sin, x)

    builder.apply(f"{inside} {length} inside {outer}", run, x, bound=2.0)


@operation(weight=1)
def own_rule_in_a_loop(builder: ProgramBuilder) -> None:
    """Activations with their own rule inside a loop or branch."""
    x = pick_carry(builder)
    shift = builder.dither(x)
    name = builder.choice(["relu", "silu", "softplus", "gelu", "relu6", "logsumexp"])
    length = builder.choice(LENGTHS)
    if name == "logsumexp" and not x.rank:
        raise NotApplicable

    def step(c: Any) -> Any:
        if name == "logsumexp":
            return jnp.tanh(c + shift) * jax.nn.logsumexp(c) * 0.2
        return jnp.tanh(getattr(jax.nn, name)(c + shift))

    def run(x: Any) -> Any:
        if branching:
            return lax.cond(jnp.sum(x) > 0.03, step, jnp.sin, x)
        return lax.fori_loop(0, length, lambda _, c: step(c), x)

    branching = builder.chance(0.4)
    builder.apply(f"{name} in a {'branch' if branching else 'loop'}", run, x, bound=1.5)
