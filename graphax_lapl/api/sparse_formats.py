"""Coordinates and entries as matrices of JAX and of scipy; both libraries are imported on use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from jax.experimental import sparse as jax_sparse

__all__ = ["SCIPY_FORMATS", "bcoo_array", "bcsr_array", "require_scipy", "scipy_array"]

SCIPY_FORMATS = ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")


def bcoo_array(
    data: Array, indices: np.ndarray, shape: tuple[int, ...], batch: tuple[int, ...]
) -> jax_sparse.BCOO:
    """A BCOO matrix at sorted, unique `indices` (nse, ndim) that a whole batch shares."""
    from jax.experimental import sparse as jax_sparse  # takes long to import

    return jax_sparse.BCOO(
        (data, jnp.asarray(indices.reshape((1,) * len(batch) + indices.shape))),
        shape=(*batch, *shape),
        indices_sorted=True,
        unique_indices=True,
    )


def bcsr_array(
    data: Array, columns: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> jax_sparse.BCSR:
    """A BCSR matrix whose columns are sorted and unique in every row."""
    from jax.experimental import sparse as jax_sparse  # takes long to import

    return jax_sparse.BCSR(
        (data, jnp.asarray(columns), jnp.asarray(indptr)),
        shape=shape,
        indices_sorted=True,
        unique_indices=True,
    )


def require_scipy(format: str) -> None:
    """Check that scipy is there and has a format.

    Raises:
        ImportError: without scipy.
        InvalidArgumentError: for a format that it does not have.
    """
    try:
        import scipy.sparse  # noqa: F401
    except ImportError as error:
        raise ImportError("to_scipy() needs scipy: pip install 'graphax_lapl[scipy]'") from error
    if format not in SCIPY_FORMATS:
        raise InvalidArgumentError(
            f"format must be one of {', '.join(SCIPY_FORMATS)}; got {format!r}."
        )


def scipy_array(
    data: Array, columns: np.ndarray, indptr: np.ndarray, shape: tuple[int, int], format: str
) -> Any:
    """A `scipy.sparse` array of one of `SCIPY_FORMATS`.

    Raises:
        InvalidTypeError: while tracing, when there are no values yet.
    """
    import scipy.sparse

    try:
        values = np.asarray(data)
    except jax.errors.TracerArrayConversionError as error:
        raise InvalidTypeError(
            "to_scipy() needs concrete values and was called while tracing. Return the "
            "SparseJacobian from the jitted function and convert it outside, or use to_bcoo()."
        ) from error
    csr = scipy.sparse.csr_array((values, columns, indptr), shape=shape)
    csr.has_canonical_format = True
    return csr if format == "csr" else csr.asformat(format)
