"""Contractions: dot_general with batch dimensions anywhere, matmul, einsum, outer products."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tests.random_operations.builder import NotApplicable, OperationTable, ProgramBuilder, Value

operation = OperationTable()

Pairs = list[tuple[int, int]]


def matching_dimensions(builder: ProgramBuilder, x: Value, y: Value) -> Pairs:
    """Pairs of equally long dimensions of two values, each dimension used once, random order."""
    pairs: Pairs = []
    free = set(range(y.rank))
    for i in builder.permutation(x.rank):
        partners = sorted(j for j in free if y.shape[j] == x.shape[i])
        if partners:
            j = builder.choice(partners)
            free.remove(j)
            pairs.append((i, j))
    return pairs


@operation(weight=6)
def general_dot(builder: ProgramBuilder) -> None:
    """dot_general of two values (sometimes the same) over matching dimensions in any position."""
    x = builder.pick()
    y = builder.pick(partner=x)
    pairs = matching_dimensions(builder, x, y)
    kept = [pair for pair in pairs if builder.chance(0.75)]
    cut = builder.integer(0, len(kept))
    batch, contract = kept[: cut // 2], kept[cut // 2 :]
    numbers = (
        (tuple(i for i, _ in contract), tuple(j for _, j in contract)),
        (tuple(i for i, _ in batch), tuple(j for _, j in batch)),
    )
    builder.apply(
        f"dot_general {numbers}",
        lambda x, y: lax.dot_general(x, y, numbers),
        x,
        y,
        bound=2.3 * max(1, x.size),
    )


@operation(weight=3)
def constant_matrix(builder: ProgramBuilder) -> None:
    """Multiplication by a constant matrix from the left or from the right."""
    x = builder.pick_rank(1, 3)
    width = builder.choice([1, 2, 3, 4])
    if builder.chance(0.5):
        matrix = builder.array((x.shape[-1], width))
        builder.apply("x @ C", lambda x: x @ matrix, x, bound=2.0 * max(1, x.shape[-1]))
    else:
        inner = x.shape[-2] if x.rank > 1 else x.shape[0]
        matrix = builder.array((width, inner))
        builder.apply("C @ x", lambda x: matrix @ x, x, bound=2.0 * max(1, inner))


@operation(weight=3)
def matmul(builder: ProgramBuilder) -> None:
    """The @ operator on two values whose shapes allow it (transposed where needed)."""
    x = builder.pick_rank(1, 3)
    y = builder.pick_rank(1, 3, partner=x)
    for name, fun in (
        ("x @ y", lambda x, y: x @ y),
        ("x @ y.T", lambda x, y: x @ jnp.swapaxes(y, -1, -2)),
        ("x.T @ y", lambda x, y: jnp.swapaxes(x, -1, -2) @ y),
    ):
        try:
            builder.apply(name, fun, x, y, bound=2.3 * max(1, x.size))
        except (TypeError, ValueError, IndexError):
            continue  # the shapes do not fit this form
        return
    raise NotApplicable


EINSUMS = {
    1: ["i->", "i->i", "i,i->", "i,i->i", "i,j->ij", "i,j->ji"],
    2: ["ij->ji", "ij->i", "ij->", "ij,ij->i", "ij,kj->ik", "ij,ik->jk", "ij,kl->ikjl", "ij,ij->"],
    3: ["ijk->kij", "ijk,ijk->ik", "ijk,ljk->il", "ijk,ilk->jkl", "ijk->j", "ijk,ijl->kil"],
}


@operation(weight=3)
def einsum(builder: ProgramBuilder) -> None:
    """An einsum of a value with itself or with one of the same shape."""
    x = builder.pick_rank(1, 3)
    y = builder.pick(where=lambda value: value.shape == x.shape, partner=x)
    square = x.rank == 2 and x.shape[0] == x.shape[1]
    formula = builder.choice(EINSUMS[x.rank] + (["ii->i", "ii->", "ij,ji->ij"] if square else []))
    if "," in formula:
        builder.apply(
            f"einsum {formula}",
            lambda x, y: jnp.einsum(formula, x, y),
            x,
            y,
            bound=2.3 * max(1, x.size),
        )
    else:
        builder.apply(
            f"einsum {formula}", lambda x: jnp.einsum(formula, x), x, bound=1.5 * max(1, x.size)
        )


@operation(weight=2)
def products(builder: ProgramBuilder) -> None:
    """Outer, inner, Kronecker, cross and Vandermonde-like products."""
    x = builder.pick_rank(1, 2)
    y = builder.pick(where=lambda value: value.shape == x.shape, partner=x)
    options = [("outer", jnp.outer), ("kron", jnp.kron), ("vdot", jnp.vdot)]
    if x.shape[-1] == 3:
        options.append(("cross", jnp.cross))
    if x.rank == 1:
        options.append(("convolve", jnp.convolve))
    name, fun = builder.choice(options)
    if x.size == 0 and name == "convolve":
        raise NotApplicable
    builder.apply(name, lambda x, y: fun(x, y), x, y, bound=2.3 * max(1, x.size))
