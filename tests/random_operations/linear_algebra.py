"""Factorisations, solves and determinants of well-conditioned matrices, also in batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.random_operations.builder import NotApplicable, OperationTable, ProgramBuilder, Value

operation = OperationTable()

linalg = jnp.linalg


def pick_square(builder: ProgramBuilder) -> Value:
    """A square matrix or a batch of them, made of whatever is there."""
    found = [v for v in builder.values if v.rank >= 2 and v.shape[-1] == v.shape[-2] and v.size]
    if found and builder.chance(0.7):
        return builder.pick(where=lambda v: v in found, bound=0.7)
    x = builder.pick_rank(1, 2, nonempty=True, bound=0.7)
    fold = builder.choice(["outer", "gram"])
    if fold == "outer" or x.rank == 1:
        return builder.apply(
            "sin(x_i - 2 x_j)",
            lambda x: 0.7 * jnp.sin(x[..., :, None] - 2.0 * x[..., None, :]),
            x,
            bound=0.7,
        )
    return builder.apply("gram", lambda x: x @ x.T / x.shape[1], x, bound=0.7)


def dominant(x: Any) -> Any:
    """A matrix with a dominant diagonal whose entries differ: distinct eigenvalues."""
    n = x.shape[-1]
    return x + jnp.diag(jnp.arange(1.0, n + 1.0) * 6.0).astype(x.dtype)


def symmetric(x: Any) -> Any:
    """A positive definite matrix with distinct eigenvalues."""
    return dominant(0.5 * (x + jnp.swapaxes(x, -1, -2)))


def singular_vectors(a: Any) -> Any:
    """Left and right singular vectors, signs cancelled."""
    u, s, vt = linalg.svd(a, full_matrices=False)
    return (u * jnp.sqrt(s)[..., None, :]) @ vt


def pivoted(a: Any) -> Any:
    """Both factors of an LU decomposition."""
    return lax.linalg.lu(a)[0]


FACTORS: dict[str, Callable[[Any], Any]] = {
    "cholesky": lambda x: linalg.cholesky(symmetric(x)),
    "qr, R": lambda x: linalg.qr(dominant(x))[1],
    "qr, Q": lambda x: linalg.qr(dominant(x))[0],
    "eigvalsh": lambda x: linalg.eigh(symmetric(x))[0],
    "eigh": lambda x: (lambda w, v: (v * jnp.sin(w)[..., None, :]) @ jnp.swapaxes(v, -1, -2))(
        *linalg.eigh(symmetric(x))
    ),
    "singular values": lambda x: linalg.svd(dominant(x), compute_uv=False),
    "svd": lambda x: singular_vectors(dominant(x)),
    "lu": lambda x: pivoted(dominant(x)),
    "inv": lambda x: linalg.inv(dominant(x)),
    "det": lambda x: linalg.det(dominant(x) / 6.0),
    "slogdet": lambda x: linalg.slogdet(dominant(x))[1],
    "log|det|": lambda x: jnp.log(jnp.abs(linalg.det(dominant(x)))),
    "expm": lambda x: jax.scipy.linalg.expm(0.3 * x),
    "matrix_power": lambda x: linalg.matrix_power(x, 3),
    "pinv": lambda x: linalg.pinv(dominant(x)),
    "nuclear norm": lambda x: linalg.norm(dominant(x), "nuc", axis=(-2, -1)),
    "cho_solve": lambda x: jax.scipy.linalg.cho_solve(
        (linalg.cholesky(symmetric(x)), True),
        jnp.stack([x[..., 0] ** 2, x[..., -1], x[..., 0]], -1)[..., :, :2],
    ),
}
SLOW = frozenset({"expm"})
"""Drawn rarely: one takes as long to compile as dozens of the others."""


@operation(weight=5)
def factorisation(builder: ProgramBuilder) -> None:
    """A function of one matrix, or of a stack of them."""
    x = pick_square(builder)
    name = builder.choice(list(FACTORS))
    if name in SLOW and builder.chance(0.9):
        raise NotApplicable
    if name == "cho_solve" and x.rank > 2:
        raise NotApplicable  # JAX takes some right-hand sides for stacks of vectors
    builder.apply(name, FACTORS[name], x, bound=30.0)


@operation(weight=4)
def solve(builder: ProgramBuilder) -> None:
    """Linear systems: general, triangular, definite, by a user's own solver."""
    x = pick_square(builder)
    n = x.shape[-1]
    sides = [v for v in builder.values if v.rank in (1, 2) and v.shape[0] == n and v.dtype == float]
    y = builder.pick(where=lambda v: v in sides) if sides and x.rank == 2 else x
    lower, trans = builder.chance(0.5), builder.chance(0.3)
    unit = builder.chance(0.2)

    def triangular(x: Any, y: Any) -> Any:
        return jax.scipy.linalg.solve_triangular(
            dominant(x), y, lower=lower, trans=int(trans), unit_diagonal=unit
        )

    def right_side(x: Any, y: Any) -> Any:
        y = y if y.ndim > 1 else y[:, None]
        return lax.linalg.triangular_solve(dominant(x), jnp.swapaxes(y, -1, -2), lower=lower)

    def own(x: Any, y: Any) -> Any:
        a = symmetric(x)
        return lax.custom_linear_solve(
            lambda v: a @ v, y, lambda _, b: linalg.solve(a, b), symmetric=True
        )

    kinds: dict[str, Callable[[Any, Any], Any]] = {
        "solve": lambda x, y: linalg.solve(dominant(x), y),
        "triangular": triangular,
        "triangular from the right": right_side,
        "definite": lambda x, y: jax.scipy.linalg.solve(symmetric(x), y, assume_a="pos"),
    }
    if x.rank > 2:
        del kinds["definite"]  # JAX takes some right-hand sides for stacks of vectors
    if x.rank == 2:
        kinds["own solver"] = own
        kinds["least squares"] = lambda x, y: linalg.lstsq(dominant(x), y)[0]
        if y.rank == 1:
            kinds["conjugate gradients"] = lambda x, y: jax.scipy.sparse.linalg.cg(
                lambda v: symmetric(x) @ v, y, tol=1e-14, maxiter=30
            )[0]
            kinds["tridiagonal"] = lambda x, y: lax.linalg.tridiagonal_solve(
                jnp.concatenate([jnp.zeros(1), jnp.sin(y[1:])]),
                4.0 + y,
                jnp.concatenate([jnp.cos(y[1:]), jnp.zeros(1)]),
                y[:, None] ** 2,
            )
    name = builder.choice(list(kinds))
    if x.rank > 2 and x is not y:
        y = x
    builder.apply(f"{name} {'lower' if lower else 'upper'}", kinds[name], x, y, bound=20.0)
