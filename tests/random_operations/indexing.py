"""Static gather and scatter, dynamic slices with constant and integer-input starts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.random_operations.builder import OperationTable, ProgramBuilder, Value

operation = OperationTable()


def integer_inputs(builder: ProgramBuilder) -> list[Value]:
    """Scalar integer inputs of the program (not differentiated)."""
    return [v for v in builder.values if v.dtype == np.int64 and v.shape == ()]


@operation(weight=4)
def gather(builder: ProgramBuilder) -> None:
    """Indexing with constant integer arrays in one or two dimensions, negative ones included."""
    x = builder.pick_rank(1, 3, nonempty=True)
    axis = builder.integer(0, x.rank - 1)
    shape = builder.choice([(), (2,), (3,), (4,), (2, 2)])
    index = builder.indices(shape, x.shape[axis])
    kind = builder.choice(["index", "index", "take", "pair", "mask"])
    if kind == "pair" and x.rank >= 2:
        other = builder.indices(shape, x.shape[1])
        first = builder.indices(shape, x.shape[0])
        builder.apply(f"x[{first}, {other}]", lambda x: x[first, other], x, bound=x.bound)
    elif kind == "mask":
        mask = builder.rng.random(x.shape) < 0.6
        builder.apply("x[mask]", lambda x: x[mask], x, bound=x.bound)
    elif kind == "take":
        mode = builder.choice(["clip", "wrap", "fill"])
        index = index % x.shape[axis] if mode == "fill" else index + 2  # clip and wrap go beyond
        builder.apply(
            f"take {index} {mode}", lambda x: jnp.take(x, index, axis, mode=mode), x, bound=x.bound
        )
    else:
        key = (slice(None),) * axis + (index,)
        builder.apply(f"x[{index}] axis {axis}", lambda x: x[key], x, bound=x.bound)


@operation(weight=4)
def scatter(builder: ProgramBuilder) -> None:
    """`.at[...]` add, set, multiply with constant indices; set only at distinct places."""
    x = builder.pick_rank(1, 3, nonempty=True)
    count = builder.integer(1, 3)
    index = builder.indices((count,), x.shape[0])
    updates = [v for v in builder.values if v.dtype == np.float64 and v.shape == x.shape[1:]]
    update = builder.pick(where=lambda v: v in updates) if updates else None
    kind = builder.choice(["add", "subtract", "set", "set slice", "multiply"])
    if kind == "set" or kind == "multiply":
        index = builder.rng.permutation(x.shape[0])[:count]
    part = slice(builder.integer(0, x.shape[0] - 1), None, builder.integer(1, 2))
    value = builder.array(x.shape[1:])

    def run(x: jax.Array, *rest: jax.Array) -> jax.Array:
        new = rest[0] if rest else value
        if kind == "add":
            return x.at[index].add(new)
        if kind == "subtract":
            return x.at[index].add(-new)
        if kind == "multiply":
            return x.at[index].multiply(value)
        if kind == "set slice":
            return x.at[part].set(new)
        return x.at[index].set(new)

    operands = (x,) if update is None or kind == "multiply" else (x, update)
    builder.apply(
        f"x.at[{part if kind == 'set slice' else index}] {kind}", run, *operands, bound=6.0
    )


@operation(weight=3)
def dynamic_slice(builder: ProgramBuilder) -> None:
    """dynamic_slice with constant starts (clamped ones too) or a start from an integer input."""
    x = builder.pick_rank(1, 3, nonempty=True)
    sizes = tuple(builder.integer(1, n) for n in x.shape)
    starts = tuple(builder.integer(0, n) for n in x.shape)
    integers = integer_inputs(builder)
    if integers and builder.chance(0.6):
        i = builder.choice(integers)
        builder.apply(
            f"dynamic_slice at (i, ...) sizes {sizes}",
            lambda x, i: lax.dynamic_slice(x, (i, *starts[1:]), sizes),
            x,
            i,
            bound=x.bound,
        )
    else:
        builder.apply(
            f"dynamic_slice at {starts} sizes {sizes}",
            lambda x: lax.dynamic_slice(x, starts, sizes),
            x,
            bound=x.bound,
        )


@operation(weight=2)
def dynamic_update(builder: ProgramBuilder) -> None:
    """dynamic_update_slice at a constant place or at an integer input."""
    x = builder.pick_rank(1, 2, nonempty=True)
    fits = [
        v
        for v in builder.values
        if v.dtype == np.float64
        and v.rank == x.rank
        and v.size > 0
        and all(m <= n for m, n in zip(v.shape, x.shape, strict=True))
    ]
    y = builder.pick(where=lambda v: v in fits)
    starts = tuple(builder.integer(0, n) for n in x.shape)
    integers = integer_inputs(builder)
    if integers and builder.chance(0.5):
        i = builder.choice(integers)
        builder.apply(
            "dynamic_update_slice at i",
            lambda x, y, i: lax.dynamic_update_slice(x, y, (i,) * x.ndim),
            x,
            y,
            i,
            bound=1.5,
        )
    else:
        builder.apply(
            f"dynamic_update_slice at {starts}",
            lambda x, y: lax.dynamic_update_slice(x, y, starts),
            x,
            y,
            bound=1.5,
        )


@operation(weight=2)
def traced_index(builder: ProgramBuilder) -> None:
    """Indexing with an integer input or with indices computed from a value."""
    x = builder.pick_rank(1, 2, nonempty=True)
    integers = integer_inputs(builder)
    if integers and builder.chance(0.7):
        i = builder.choice(integers)
        name, fun = builder.choice(
            [
                ("x[i]", lambda x, i: x[i]),
                ("x.at[i].add(1)", lambda x, i: x.at[i].add(1.0)),
                ("x.at[i].multiply(2)", lambda x, i: x.at[i].multiply(2.0)),
                ("x * i", lambda x, i: x * i.astype(x.dtype)),
                ("x ** i", lambda x, i: (x + 3.0) ** i.astype(x.dtype)),
                ("where(i > 1)", lambda x, i: jnp.where(i > 1, x, -x)),
            ]
        )
        builder.apply(name, fun, x, i, bound=40.0)
        return
    shift = builder.dither(x)
    builder.apply(
        "x[argmax]", lambda x: x[jnp.argmax(x + shift, axis=0).ravel()[0]], x, bound=x.bound
    )
