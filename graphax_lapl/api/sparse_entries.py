"""Entries of a Jacobian: where they stand, which is static, and the arrays that hold them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..edges.layout import coordinate_layout, diagonal_placement, structural_nonzeros
from ..edges.storage import stored_placement
from ..edges.terms import Structure
from ..emit.coordinates import placed
from ..emit.stored import spread_values, unstacked
from ..errors import InvalidArgumentError
from .placement import array_specs, opened

__all__ = ["StoredEntries"]


class StoredEntries:
    """What a `SparseJacobian` is made of: its arrays, their places, shapes and batch axes.

    Attributes:
        structure: where the entries stand and how terms read the arrays; the zero matrix has no
            terms.
        arrays: the arrays; see `values` for one array per term.
    """

    def __init__(
        self,
        structure: Structure,
        arrays: tuple[Any, ...],
        dtype: Any,
        sources: tuple[int, ...] | None = None,
    ):
        """Join a structure with its arrays.

        Args:
            structure: one factor per term, as `storage_of` or `value_structure` make it.
            arrays: what the factors read.
            dtype: dtype of the entries; the zero matrix has no array to tell it.
            sources: for every term which of the arrays it reads; one each by default.
        """
        self.structure = structure
        self.arrays = tuple(arrays)
        self._sources = tuple(range(len(structure.terms))) if sources is None else sources
        self._dtype = np.dtype(dtype)
        # The zero matrix has no values; an empty array tells whether it went through vmap.
        self._witness = None if structure.terms else jnp.zeros((0,), dtype)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Structure, tuple[int, ...], Any]]:
        """Arrays as leaves (an empty one for the zero matrix), the rest as static data."""
        children = self.arrays if self.structure.terms else (self._witness,)
        return children, (self.structure, self._sources, self._dtype)

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, ...], children: Any) -> Self:
        """Rebuild from `tree_flatten`."""
        made = object.__new__(cls)
        made.structure, made._sources, made._dtype = static
        made.arrays = tuple(children) if made.structure.terms else ()
        made._witness = None if made.structure.terms else children[0]
        return made

    # ------------------------------------------------------------------ what it is

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the entries."""
        kinds = {np.dtype(array.dtype) for array in self.arrays if hasattr(array, "dtype")}
        return kinds.pop() if len(kinds) == 1 else self._dtype

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the output: of `J @ x`."""
        return self.structure.out_shape

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of the input: of `x` in `J @ x`."""
        return self.structure.in_shape

    @property
    def shape(self) -> tuple[int, ...]:
        """`(*output shape, *input shape)`, without batch axes."""
        return (*self.out_shape, *self.in_shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions, without batch axes."""
        return len(self.shape)

    @property
    def nse(self) -> int:
        """Number of distinct positions that may be nonzero."""
        return structural_nonzeros(self.structure)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes that `jax.vmap` has put before every value; usually none.

        Raises:
            InvalidArgumentError: for values that are not those of the structure.
        """
        if not self.structure.terms:
            assert self._witness is not None
            return tuple(np.shape(self._witness)[:-1])
        found = set()
        for term, source in zip(self.structure.terms, self._sources, strict=True):
            shape, expected = tuple(np.shape(self.arrays[source])), term.factors[0].shape
            batch = shape[: len(shape) - len(expected)]
            if shape != (*batch, *expected):
                raise InvalidArgumentError(
                    f"An array of this SparseJacobian has shape {shape}, expected {expected} "
                    "after batch axes that lead. With jax.vmap use out_axes=0."
                )
            found.add(batch)
        if len(found) > 1:
            raise InvalidArgumentError(
                f"The arrays of this SparseJacobian differ in their batch axes: {sorted(found)}. "
                "Map all of its leaves alike."
            )
        return found.pop()

    @property
    def values(self) -> tuple[Array, ...]:
        """For every term its values: an array with one axis per label, after the batch axes."""
        return self._per_matrix(lambda one: one._values())

    # ------------------------------------------------------------------ coordinates

    @property
    def indices(self) -> np.ndarray:
        """Sorted, unique positions of the entries: int32 of shape `(nse, ndim)`, on the host."""
        return coordinate_layout(self.structure).indices

    @property
    def indptr(self) -> np.ndarray:
        """Where each row of the flattened matrix begins in `data`: int32, `(output size + 1,)`."""
        counts = np.bincount(self._rows_and_columns()[0], minlength=math.prod(self.out_shape))
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

    @property
    def data(self) -> Array:
        """The entries at `indices`: shape `(*batch_shape, nse)`."""
        return self._per_matrix(lambda one: one._data())

    @opened(lambda out, into: (None,))
    def _data(self) -> Array:
        return self._placed(diagonal=False)

    def _placed(self, diagonal: bool) -> Array:
        """The entries in coordinate order, or those of the main diagonal."""
        how = stored_placement(self.structure, self._sources, diagonal)
        if how is not None:
            return placed(how, unstacked(self.structure, self._sources, self.arrays), self.dtype)
        structure = self.structure
        how = diagonal_placement(structure) if diagonal else coordinate_layout(structure).placement
        return placed(how, spread_values(structure, self._operands()), self.dtype)

    def _rows_and_columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the entries in the flattened matrix."""
        indices, split = self.indices, len(self.out_shape)

        def flat(part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
            if not shape or not len(part):
                return np.zeros(len(part), np.int64)
            return np.ravel_multi_index(tuple(part.T), shape)

        return flat(indices[:, :split], self.out_shape), flat(indices[:, split:], self.in_shape)

    @functools.partial(jax.jit, inline=True)
    def _values(self) -> tuple[Array, ...]:
        return tuple(spread_values(self.structure, self._operands()))

    # ------------------------------------------------------------------ helpers

    def array_specs(self, spec: Any) -> list[Any]:
        """How the arrays lie on a mesh, from how each dimension of the dense array does."""
        if not self.structure.terms:
            return [(None,)]
        return array_specs(self.structure, self._sources, spec)

    def _operands(self) -> list[Any]:
        """The array of each term."""
        return [self.arrays[source] for source in self._sources]

    def _with(
        self, structure: Structure, arrays: Any, sources: tuple[int, ...], dtype: Any = None
    ) -> Self:
        """Another matrix with the same batch axes."""
        made = object.__new__(type(self))
        made.structure, made.arrays, made._sources = structure, tuple(arrays), sources
        made._dtype = self.dtype if dtype is None else np.dtype(dtype)
        made._witness = None
        if not structure.terms:
            made._witness = jnp.zeros((*self.batch_shape, 0), made._dtype)
        return made

    def _per_matrix(self, fun: Callable[[Any], Any]) -> Any:
        """`fun`, mapped over the batch axes."""
        for _ in self.batch_shape:
            fun = jax.vmap(fun)
        return fun(self)

    def _matrix_shape(self) -> tuple[int, int]:
        return math.prod(self.out_shape), math.prod(self.in_shape)

    def _refuse_batch(self, what: str, instead: str = "take one matrix by jax.tree.map") -> None:
        if self.batch_shape:
            raise InvalidArgumentError(
                f"{what} of a batch of matrices (batch_shape {self.batch_shape}): expected a "
                f"single one; {instead}."
            )
