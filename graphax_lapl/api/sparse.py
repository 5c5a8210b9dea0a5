"""A Jacobian whose structure is known while planning and whose values are arrays."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import sparse as jax_sparse

from ..edges.layout import coordinate_layout, structural_nonzeros
from ..edges.maps import label
from ..edges.terms import Factor, Structure, Term, intern_structure
from ..emit.assembly import assemble

__all__ = ["SparseJacobian", "value_structure"]


def value_structure(structure: Structure) -> Structure:
    """The same positions with one factor per term: an array over the term's position labels."""
    terms = []
    for term in structure.terms:
        labels = sorted(term.position_labels)
        sizes = tuple(term.sizes[name] for name in labels)
        factor = Factor(tuple(label(k) for k in range(len(labels))), sizes)
        names = {name: k for k, name in enumerate(labels)}
        terms.append(
            Term(
                sizes,
                tuple(axis.renamed(names) for axis in term.out),
                tuple(axis.renamed(names) for axis in term.into),
                (factor,),
            )
        )
    return intern_structure(
        structure.out_shape,
        structure.in_shape,
        terms,
        structure.complex_out,
        structure.complex_in,
    )


@jax.tree_util.register_pytree_node_class
class SparseJacobian:
    """The Jacobian of one output leaf with respect to one input leaf.

    A sum of terms; each has an array of values and static index maps that say where they stand
    (`structure`). It is a pytree whose leaves are the values, so it passes through `jax.jit` and
    `jax.vmap`.

    Attributes:
        structure: where the values stand; the zero matrix has no terms.
        values: for every term an array with one axis per label.
        dtype: dtype of the entries.
    """

    def __init__(self, structure: Structure, values: tuple[Any, ...], dtype: Any):
        """Join a structure of `value_structure` with the values of its terms."""
        self.structure = structure
        self.values = tuple(values)
        self.dtype = np.dtype(dtype)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Structure, Any]]:
        """Values as leaves, structure as static data."""
        return self.values, (self.structure, self.dtype)

    @classmethod
    def tree_unflatten(cls, static: tuple[Structure, Any], values: Any) -> SparseJacobian:
        """Rebuild from `tree_flatten`."""
        made = object.__new__(cls)
        made.structure, made.dtype = static
        made.values = tuple(values)
        return made

    @property
    def shape(self) -> tuple[int, ...]:
        """`(*output shape, *input shape)`."""
        return (*self.structure.out_shape, *self.structure.in_shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nse(self) -> int:
        """Number of distinct positions that may be nonzero."""
        return structural_nonzeros(self.structure)

    def todense(self) -> Array:
        """The dense array."""
        return assemble(self.structure, self.values, self.dtype)

    def to_bcoo(self) -> jax_sparse.BCOO:
        """As `jax.experimental.sparse.BCOO` over all dimensions: sorted, unique indices."""
        layout = coordinate_layout(self.structure)
        shape = self.shape
        if not self.values or not len(layout.indices):
            data = jnp.zeros((len(layout.indices),), self.dtype)
        else:
            flat = [lax.reshape(value, (math.prod(value.shape),)) for value in self.values]
            data = lax.concatenate(flat, 0) if len(flat) > 1 else flat[0]
            if layout.is_permutation:
                # One gather: entry k reads the value that stands there.
                order = np.empty(len(layout.source), np.int64)
                order[layout.source] = (
                    np.arange(len(layout.source)) if layout.chosen is None else layout.chosen
                )
                if (
                    not (order == np.arange(data.shape[0])[: len(order)]).all()
                    or len(order) != data.shape[0]
                ):
                    data = data.at[order].get(mode="promise_in_bounds")
            else:
                if layout.chosen is not None:
                    data = data.at[layout.chosen].get(mode="promise_in_bounds")
                zero = jnp.zeros((len(layout.indices),), data.dtype)
                data = zero.at[layout.source].add(data, mode="promise_in_bounds")
        return jax_sparse.BCOO(
            (data, jnp.asarray(layout.indices)),
            shape=shape,
            indices_sorted=True,
            unique_indices=True,
        )

    def __repr__(self) -> str:
        size = math.prod(self.shape)
        density = f"{1 - self.nse / size:.1%}" if size else "empty"
        return (
            f"SparseJacobian({'x'.join(map(str, self.structure.out_shape)) or 'scalar'} <- "
            f"{'x'.join(map(str, self.structure.in_shape)) or 'scalar'}, {self.dtype}, "
            f"nse={self.nse}, sparsity={density}, {len(self.structure.terms)} terms)"
        )
