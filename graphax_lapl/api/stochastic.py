"""Random estimates of traces: of Jacobians (divergence) and of Hessians (Laplacian)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, dtypes, lax

from ..errors import InvalidArgumentError, InvalidTypeError
from ..graph.tracing import check_integer

__all__ = [
    "HutchPlusPlus",
    "Hutchinson",
    "Stochastic",
    "check_stochastic",
    "estimated_trace",
    "take_key",
]

#: Draws an array of a shape and dtype whose rows v have E[v v^T] = 1.
Distribution = str | Callable[[Array, tuple[int, ...], Any], Array]
#: A linear map that is applied to rows of vectors, (k, n) to (k, n).
RowMap = Callable[[Array], Array]

_DISTRIBUTIONS: dict[str, Callable[..., Array]] = {
    "rademacher": jax.random.rademacher,
    "gaussian": jax.random.normal,
}


@dataclass(frozen=True)
class Hutchinson:
    """The trace as the mean of `v . J v` over random vectors (Hutchinson, 1990).

    Unbiased. Rademacher vectors, with entries 1 and -1, have the smaller variance, which is twice
    the sum of squares off the diagonal of the symmetric part, over the number of samples.

    Attributes:
        samples: number of vectors, each one product with J.
        distribution: "rademacher", "gaussian", or a function `(key, shape, dtype)` that returns
            rows v with `E[v v^T] = 1`.
    """

    samples: int = 1
    distribution: Distribution = "rademacher"

    def __post_init__(self) -> None:
        _check(self.samples, 1, self.distribution)

    def trace(self, apply: RowMap, size: int, dtype: Any, key: Array) -> Array:
        """The estimate for the map of rows `apply` on vectors of a size."""
        rows = self.rows(key, size, dtype)
        return jnp.sum(rows * apply(rows)) / self.samples

    def rows(self, key: Array, size: int, dtype: Any) -> Array:
        """The vectors, shape (samples, size)."""
        return _drawn(self.distribution, key, (self.samples, size), dtype)


@dataclass(frozen=True)
class HutchPlusPlus:
    """Hutch++ (Meyer, Musco, Musco and Woodruff, arXiv 2010.09649).

    A third of the products finds the range Q of J on random vectors, a third gives the exact trace
    there, and the last estimates the rest. Unbiased, with an error that falls like 1/samples
    instead of 1/sqrt(samples) where the spectrum decays, and exact from `samples >= 3 n` on.
    Derivatives of the estimate treat Q as given: it is unbiased for every Q, so they are too.

    Attributes:
        samples: number of products with J; rounded down to a multiple of three.
        distribution: as for `Hutchinson`.
    """

    samples: int = 3
    distribution: Distribution = "rademacher"

    def __post_init__(self) -> None:
        _check(self.samples, 3, self.distribution)

    def trace(self, apply: RowMap, size: int, dtype: Any, key: Array) -> Array:
        """The estimate for the map of rows `apply` on vectors of a size."""
        third = self.samples // 3
        for_range, for_rest = jax.random.split(key)
        if third >= size:  # the range is everything
            basis = jnp.eye(size, dtype=dtype)
            return jnp.sum(basis * apply(basis))
        sketch = apply(_drawn(self.distribution, for_range, (third, size), dtype))
        basis = jnp.linalg.qr(lax.stop_gradient(sketch).T)[0].T
        rest = _drawn(self.distribution, for_rest, (third, size), dtype)
        rest = rest - (rest @ basis.conj().T) @ basis
        both = jnp.concatenate([basis, rest])
        images = both.conj() * apply(both)
        return jnp.sum(images[: len(basis)]) + jnp.sum(images[len(basis) :]) / third


Stochastic = Hutchinson | HutchPlusPlus


def check_stochastic(stochastic: Any) -> None:
    """Raise `InvalidArgumentError` unless `stochastic` is None or an estimator."""
    if stochastic is not None and not isinstance(stochastic, Hutchinson | HutchPlusPlus):
        raise InvalidArgumentError(
            f"stochastic must be Hutchinson(...) or HutchPlusPlus(...), got {stochastic!r}."
        )


def take_key(kwargs: dict[str, Any]) -> Array:
    """Remove `key` from the keyword arguments of a call.

    Raises:
        InvalidArgumentError: where there is none.
        InvalidTypeError: where it is something else.
    """
    if kwargs.get("key") is None:
        raise InvalidArgumentError(
            "A stochastic estimate needs a random key: pass key=jax.random.key(seed) with the "
            "call, another one each time."
        )
    key: Array = kwargs.pop("key")
    dtype = getattr(key, "dtype", None)
    if dtype is None or not (dtypes.issubdtype(dtype, dtypes.prng_key) or dtype == np.uint32):
        raise InvalidTypeError(
            f"key must be a random key, got {type(key).__name__}. Pass key=jax.random.key(seed)."
        )
    return key


def estimated_trace(
    stochastic: Stochastic,
    apply: Callable[[list[Array]], list[Array]],
    like: list[Array],
    key: Array,
) -> Array:
    """The estimated trace of a linear map between lists of arrays.

    Args:
        stochastic: the estimator.
        apply: the map.
        like: arrays of the shapes and dtypes that it takes and returns.
        key: random key.
    """
    dtype = jnp.result_type(*like)
    sizes = [math.prod(leaf.shape) for leaf in like]

    def on_row(row: Array) -> Array:
        pieces, start = [], 0
        for leaf, size in zip(like, sizes, strict=True):
            pieces.append(row[start : start + size].reshape(leaf.shape).astype(leaf.dtype))
            start += size
        return jnp.concatenate([image.reshape(-1).astype(dtype) for image in apply(pieces)])

    return stochastic.trace(jax.vmap(on_row), sum(sizes), dtype, key)


def _drawn(distribution: Distribution, key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    if not isinstance(distribution, str):
        rows = jnp.asarray(distribution(key, shape, dtype))
        if rows.shape != shape:
            raise InvalidArgumentError(
                f"distribution returned an array of shape {rows.shape}, expected {shape}."
            )
        return rows.astype(dtype)
    real = jnp.finfo(dtype).dtype  # vectors stay real on complex spaces
    return _DISTRIBUTIONS[distribution](key, shape, real).astype(dtype)


def _check(samples: Any, least: int, distribution: Any) -> None:
    check_integer("samples", samples, least)
    if not callable(distribution) and distribution not in _DISTRIBUTIONS:
        raise InvalidArgumentError(
            f"distribution must be one of {', '.join(map(repr, _DISTRIBUTIONS))} or a function "
            f"(key, shape, dtype), got {distribution!r}."
        )
