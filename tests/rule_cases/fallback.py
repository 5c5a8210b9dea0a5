"""Everyday functions, nested calls, control flow and linear algebra: rules or the opaque map."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.rule_cases.case import Case, Table, sample

V, M = sample((4,), 0.3, 1.4), sample((2, 3), 0.3, 1.4)
AROUND_ZERO = sample((2, 4), -2.0, 2.0)
SQUARE = sample((3, 3), seed=2)
DEFINITE = SQUARE @ SQUARE.T + 2.0 * np.eye(3)


@jax.custom_jvp
def other_slope(x: Any, y: Any) -> Any:
    """The product with a rule that is not its derivative."""
    return x * y


@other_slope.defjvp
def _other_slope_jvp(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    return x * y, 3.0 * dx + jnp.sin(y) * dy


def running(x: Any) -> Any:
    """A scan that carries a vector and returns one number per step."""

    def step(carry: Any, row: Any) -> Any:
        carry = jnp.tanh(carry + row)
        return carry, carry.sum()

    return lax.scan(step, jnp.zeros(3), x)


def until_large(x: Any) -> Any:
    return lax.while_loop(lambda s: s.sum() < 9.0, lambda s: s * 1.5 + 0.1, x)


def symmetric(x: Any) -> Any:
    return 0.5 * (x + x.T)


EVERYDAY: Table = {
    "activation": {
        name: Case(getattr(jax.nn, name), (AROUND_ZERO,), warp=False)
        for name in (
            *("relu", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "glu", "silu", "mish"),
            *("sigmoid", "log_sigmoid", "hard_sigmoid", "hard_silu", "hard_tanh", "soft_sign"),
            *("softplus", "sparse_plus", "squareplus"),
            *("softmax", "log_softmax", "logsumexp", "standardize"),
        )
    },
    "statistics": {
        "std": Case(jnp.std, (V,)),
        "cov": Case(jnp.cov, (M,)),
        "corrcoef": Case(jnp.corrcoef, (M,)),
        "average": Case(jnp.average, (V,)),
        "weighted average": Case(lambda x, w: jnp.average(x, weights=w), (V, V[::-1])),
        "ptp": Case(jnp.ptp, (V,)),
        "diff": Case(lambda x: jnp.diff(x, 2), (V,)),
        "gradient": Case(jnp.gradient, (V,)),
        "trapezoid": Case(jnp.trapezoid, (V,)),
        "interp": Case(
            lambda y: jnp.interp(np.array([0.5, 2.2]), np.arange(4.0), y), (V,), warp=False
        ),
        "interp at": Case(
            lambda x: jnp.interp(x, np.arange(4.0), np.arange(4.0) ** 2), (V,), warp=False
        ),
        "linspace": Case(lambda a, b: jnp.linspace(a, b, 5), (np.float64(0.3), np.float64(2.0))),
        "heaviside and where": Case(
            lambda x: jnp.heaviside(x, 0.5) * jnp.where(x > 0.6, x, 0.0), (V,), warp=False
        ),
        "nan_to_num": Case(jnp.nan_to_num, (V,)),
        "nanmean": Case(jnp.nanmean, (V,)),
        "unwrap": Case(jnp.unwrap, (V,)),
        "float_power": Case(lambda x: jnp.float_power(x, 2.5), (V,)),
        "logaddexp2": Case(jnp.logaddexp2, (V, V[::-1])),
        "xlogy": Case(jax.scipy.special.xlogy, (V, V[::-1])),
        "entr": Case(jax.scipy.special.entr, (V,)),
        "ndtr": Case(jax.scipy.special.ndtr, (V,)),
        "betaln": Case(jax.scipy.special.betaln, (V, V[::-1])),
        "normal logpdf": Case(jax.scipy.stats.norm.logpdf, (V, V[::-1])),
        "one_hot": Case(lambda x: jax.nn.one_hot(jnp.array([0, 2]), 4, dtype=float) @ x, (V,)),
    },
}

NESTED: Table = {
    "custom_jvp": {
        "another slope": Case(other_slope, (V, V[::-1])),
        "of one operand twice": Case(lambda x: other_slope(x, x), (V,)),
        "inside vmap": Case(jax.vmap(other_slope), (V, V[::-1])),
        "inside jit": Case(jax.jit(other_slope), (M, M + 0.1)),
        "one constant operand": Case(lambda x: other_slope(x, V), (V,)),
    },
    "nested call": {
        "jit": Case(jax.jit(lambda x: jnp.sin(x) * x), (V,)),
        "jit with two results": Case(jax.jit(lambda x: (x[0], x * x[1])), (V,)),
        "one jit called twice": Case(
            lambda x: (lambda f: f(x) * f(x[::-1]))(jax.jit(jnp.sin)), (V,)
        ),
        "checkpoint": Case(jax.checkpoint(lambda x: jnp.exp(jnp.sin(x))), (V,)),
        "vmap": Case(jax.vmap(lambda a: a * a.sum()), (M,)),
        "grad": Case(jax.grad(lambda x: jnp.sum(jnp.sin(x) * x)), (V,)),
        "jacfwd": Case(jax.jacfwd(lambda x: jnp.outer(x, x) @ x), (V,)),
        "jvp": Case(lambda x, y: jax.jvp(jnp.exp, (x,), (y,)), (V, V[::-1])),
        "optimization_barrier": Case(lambda x: lax.optimization_barrier((x, x * x)), (V,)),
    },
    "control flow": {
        "scan": Case(running, (M,)),
        "scan over captured value": Case(
            lambda x, w: lax.scan(lambda c, _: (jnp.sin(c * w), c), x, None, length=3), (V, V[::-1])
        ),
        "reversed scan": Case(
            lambda x: lax.scan(lambda c, r: (c * r.sum(), c), 1.0, x, reverse=True), (M,)
        ),
        "fori_loop": Case(lambda x: lax.fori_loop(0, 3, lambda i, s: jnp.sin(s) * 2.0, x), (V,)),
        "while_loop": Case(until_large, (V,), warp=False),
        "cond": Case(lambda x: lax.cond(x[0] < 9.0, jnp.sin, jnp.cos, x), (V,)),
        "switch": Case(
            lambda x: lax.switch((x[0] * 0).astype(int) + 1, [jnp.sin, jnp.cos, jnp.exp], x), (V,)
        ),
        "map": Case(lambda x: lax.map(lambda r: r * r.sum(), x), (M,)),
        "associative_scan": Case(lambda x: lax.associative_scan(jnp.multiply, x), (V,)),
    },
}

LINALG: Table = {
    "linear algebra": {
        "cholesky": Case(lambda x: jnp.linalg.cholesky(symmetric(x)), (DEFINITE,)),
        "solve": Case(jnp.linalg.solve, (DEFINITE, V[:3])),
        "solve with a constant matrix": Case(lambda b: jnp.linalg.solve(DEFINITE, b), (V[:3],)),
        "triangular_solve": Case(
            lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True), (DEFINITE, V[:3])
        ),
        "inv": Case(jnp.linalg.inv, (DEFINITE,)),
        "det": Case(jnp.linalg.det, (DEFINITE,)),
        "slogdet": Case(lambda x: jnp.linalg.slogdet(x)[1], (DEFINITE,)),
        "qr": Case(jnp.linalg.qr, (DEFINITE,)),
        "singular values": Case(lambda x: jnp.linalg.svd(x, compute_uv=False), (DEFINITE,)),
        "eigenvalues": Case(lambda x: jnp.linalg.eigvalsh(symmetric(x)), (DEFINITE,)),
        "expm": Case(jax.scipy.linalg.expm, (0.3 * SQUARE,)),
        "batched inverse": Case(jnp.linalg.inv, (np.stack([DEFINITE, 2.0 * DEFINITE]),)),
    },
    "fft": {
        "power spectrum": Case(lambda x: jnp.abs(jnp.fft.fft(x)) ** 2, (V,)),
        "rfft and back": Case(lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2.0, 4), (V,)),
        "two dimensions": Case(lambda x: jnp.real(jnp.fft.fft2(x)), (M,)),
    },
}

CASES: Table = EVERYDAY | NESTED | LINALG
