"""Operations that move elements without computing: reshape, slice, pad, concatenate, roll, ..."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.random_operations.builder import NotApplicable, OperationTable, ProgramBuilder

operation = OperationTable()


def factorizations(size: int, rank: int) -> list[tuple[int, ...]]:
    """All shapes of the given rank with the given number of elements."""
    if rank == 0:
        return [()] if size == 1 else []
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    return [(d, *rest) for d in divisors for rest in factorizations(size // d, rank - 1)]


@operation(weight=3)
def reshape(builder: ProgramBuilder) -> None:
    """Reshape to another factorization of the size."""
    x = builder.pick(nonempty=True)
    shape = builder.choice([s for rank in range(4) for s in factorizations(x.size, rank)])
    builder.apply(f"reshape {shape}", lambda x: x.reshape(shape), x, bound=x.bound)


@operation(weight=2)
def ravel(builder: ProgramBuilder) -> None:
    """Flatten, also an empty array."""
    x = builder.pick()
    builder.apply("ravel", jnp.ravel, x, bound=x.bound)


@operation(weight=3)
def transpose(builder: ProgramBuilder) -> None:
    """Permute the dimensions."""
    x = builder.pick_rank(2)
    permutation = builder.permutation(x.rank)
    builder.apply(
        f"transpose {permutation}", lambda x: jnp.transpose(x, permutation), x, bound=x.bound
    )


@operation(weight=2)
def expand(builder: ProgramBuilder) -> None:
    """Insert dimensions of size 1, or broadcast along new and along size-1 dimensions."""
    x = builder.pick_rank(0, 3)
    if builder.chance(0.4):
        axis = builder.integer(0, x.rank)
        builder.apply(f"expand {axis}", lambda x: jnp.expand_dims(x, axis), x, bound=x.bound)
        return
    new = (builder.choice([1, 2, 3]),) if builder.chance(0.5) else ()
    grown = tuple(builder.choice([2, 3]) if n == 1 and builder.chance(0.5) else n for n in x.shape)
    shape = new + grown
    builder.apply(f"broadcast_to {shape}", lambda x: jnp.broadcast_to(x, shape), x, bound=x.bound)


@operation(weight=1)
def squeeze(builder: ProgramBuilder) -> None:
    """Remove dimensions of size 1."""
    x = builder.pick(where=lambda value: 1 in value.shape)
    axes = builder.subset([i for i, n in enumerate(x.shape) if n == 1])
    builder.apply(f"squeeze {axes}", lambda x: jnp.squeeze(x, axes), x, bound=x.bound)


@operation(weight=4)
def slices(builder: ProgramBuilder) -> None:
    """Basic indexing: ranges with positive and negative strides, single elements, new axes."""
    x = builder.pick_rank(1)
    parts: list = []
    for n in x.shape:
        kind = builder.choice(["all", "all", "range", "reversed", "element"])
        start = builder.integer(0, n)
        stop = builder.integer(start, n)
        stride = builder.integer(1, 3)
        if kind == "element" and n > 0:
            parts.append(builder.integer(-n, n - 1))
        elif kind == "range":
            parts.append(slice(start, stop, stride))
        elif kind == "reversed":
            parts.append(slice(None, None, -stride))
        else:
            parts.append(slice(None))
    if builder.chance(0.15) and x.rank < 4:
        parts.insert(builder.integer(0, len(parts)), None)
    if builder.chance(0.85) and any(p == slice(p.start, p.start) for p in parts if _sliced(p)):
        raise NotApplicable  # keep empty results rare
    key = tuple(parts)
    builder.apply(f"x[{key}]", lambda x: x[key], x, bound=x.bound)


def _sliced(part: object) -> bool:
    return isinstance(part, slice) and part.start is not None


@operation(weight=3)
def pad(builder: ProgramBuilder) -> None:
    """lax.pad with interior and negative padding, or jnp.pad in one of its modes."""
    x = builder.pick_rank(1, 3, nonempty=True)
    if builder.chance(0.35):
        mode = builder.choice(["edge", "wrap", "constant", "reflect"])
        width = 1 if min(x.shape) > 1 else 0
        builder.apply(f"jnp.pad {mode}", lambda x: jnp.pad(x, width, mode=mode), x, bound=x.bound)
        return
    config = []
    for n in x.shape:
        low, high, interior = builder.integer(-1, 2), builder.integer(-1, 2), builder.integer(0, 2)
        if low + high + n + max(0, n - 1) * interior < 1:
            low, high = 0, 0
        config.append((low, high, interior))
    filler = builder.choice([0.0, 0.7])
    builder.apply(
        f"pad {config}", lambda x: lax.pad(x, jnp.asarray(filler), config), x, bound=x.bound + 1
    )


@operation(weight=1)
def pad_with_value(builder: ProgramBuilder) -> None:
    """lax.pad whose filler is itself a differentiated scalar."""
    x = builder.pick_rank(1, 2, nonempty=True)
    filler = builder.pick_rank(0, 0)
    config = [(builder.integer(0, 2), builder.integer(-1, 1), builder.integer(0, 1))] * x.rank
    if any(low + high + n < 1 for (low, high, _), n in zip(config, x.shape, strict=True)):
        raise NotApplicable
    builder.apply(
        f"pad by value {config}", lambda x, f: lax.pad(x + 0.1 * f, f, config), x, filler, bound=2.0
    )


@operation(weight=4)
def concatenate(builder: ProgramBuilder) -> None:
    """Concatenate with values or constants that agree in the other dimensions."""
    x = builder.pick_rank(1, 3)
    axis = builder.integer(0, x.rank - 1)
    rest = x.shape[:axis] + x.shape[axis + 1 :]
    others = [
        builder.pick(
            where=lambda v: v.rank == x.rank and v.shape[:axis] + v.shape[axis + 1 :] == rest,
            partner=x,
        )
        for _ in range(builder.integer(0, 2))
    ]
    constant = builder.array((*x.shape[:axis], builder.integer(1, 2), *x.shape[axis + 1 :]))
    with_constant = builder.chance(0.3)
    order = builder.permutation(1 + len(others) + with_constant)

    def join(*operands: object) -> object:
        parts = [*operands, constant] if with_constant else list(operands)
        return jnp.concatenate([parts[i] for i in order], axis=axis)

    builder.apply(f"concatenate axis {axis}", join, x, *others, bound=2.0)


@operation(weight=2)
def stack(builder: ProgramBuilder) -> None:
    """Stack two or three values of one shape along a new dimension."""
    x = builder.pick_rank(0, 2)
    count = builder.integer(1, 2)
    others = [builder.pick(where=lambda v: v.shape == x.shape, partner=x) for _ in range(count)]
    axis = builder.integer(0, x.rank)
    builder.apply(
        f"stack axis {axis}", lambda *parts: jnp.stack(parts, axis=axis), x, *others, bound=1.5
    )


@operation(weight=2)
def split(builder: ProgramBuilder) -> None:
    """Split into two parts: one step with two results."""
    x = builder.pick(where=lambda value: value.rank >= 1 and max(value.shape) >= 2)
    axis = builder.choice([i for i, n in enumerate(x.shape) if n >= 2])
    cut = builder.integer(1, x.shape[axis] - 1)
    builder.apply(
        f"split axis {axis}", lambda x: tuple(jnp.split(x, [cut], axis=axis)), x, bound=x.bound
    )


@operation(weight=3)
def rearrange(builder: ProgramBuilder) -> None:
    """Reverse, flip, roll, tile, repeat, move an axis."""
    x = builder.pick_rank(1, 3)
    axis = builder.integer(0, x.rank - 1)
    shift = builder.integer(-5, 5)
    name, fun = builder.choice(
        [
            ("rev", lambda x: lax.rev(x, (axis,))),
            ("flip", jnp.flip),
            ("roll", lambda x: jnp.roll(x, shift, axis)),
            ("roll flat", lambda x: jnp.roll(x, shift)),
            ("tile", lambda x: jnp.tile(x, 2)),
            ("repeat", lambda x: jnp.repeat(x, 2, axis=axis)),
            ("moveaxis", lambda x: jnp.moveaxis(x, axis, 0)),
        ]
    )
    builder.apply(f"{name} {axis} {shift}", fun, x, bound=x.bound)


@operation(weight=2)
def triangle(builder: ProgramBuilder) -> None:
    """Triangular part, diagonal, trace, diagonal matrix."""
    x = builder.pick_rank(1, 3, nonempty=True)
    offset = builder.integer(-1, 1)
    if x.rank == 1:
        builder.apply(f"diag {offset}", lambda x: jnp.diag(x, offset), x, bound=x.bound)
        return
    name, fun = builder.choice(
        [
            ("tril", lambda x: jnp.tril(x, offset)),
            ("triu", lambda x: jnp.triu(x, offset)),
            ("diagonal", lambda x: jnp.diagonal(x, 0, -2, -1)),
            ("trace", lambda x: jnp.trace(x, 0, 0, 1)),
            ("fill mask", lambda x: jnp.where(np.tri(*x.shape[-2:], dtype=bool), x, -1.0)),
        ]
    )
    builder.apply(f"{name} {offset}", fun, x, bound=4.0 * x.bound)
