"""A Jacobian whose structure is known while planning and whose values are arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..edges.sparse_form import coordinate_structure, flattened, swapped
from ..emit.assembly import assemble
from ..errors import InvalidArgumentError, InvalidTypeError
from ..graph.tracing import check_flags
from .placement import opened
from .sparse_arithmetic import added, product_with_array, product_with_sparse, refuse_sum
from .sparse_entries import StoredEntries
from .sparse_formats import bcoo_array, bcsr_array, require_scipy, scipy_array
from .spy import MAX_ENTRIES, braille_spy, spy_plot

if TYPE_CHECKING:
    from jax.experimental import sparse as jax_sparse
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["SparseJacobian"]


@jax.tree_util.register_pytree_node_class
class SparseJacobian(StoredEntries):
    """The Jacobian of one output leaf with respect to one input leaf, as a linear map.

    A sum of terms; each reads one of a few arrays of entries, through static index maps, and puts
    what it reads where other static index maps say (`structure`). Where the entries stand is no
    array: a jitted function that returns a `SparseJacobian` returns the arrays only, and the index
    arrays (`indices`, `indptr`) are numpy arrays on the host. An array is stored once, however many
    terms read it, and a number known while planning once, however many entries it is.

    `data` are the entries in the order of `indices`, with those that fall on one entry added up;
    `values` are those of each term, in no particular order.

    Under transformations. It is a pytree of its arrays, so it passes through `jax.jit` and
    `jax.vmap`. What `jax.vmap` returns has a leading batch axis in every array (`batch_shape`).
    Then `data`, `todense`, `diagonal` and `to_bcoo` have the batch axes in front; `shape` and `nse`
    are those of one matrix; `T`, `matrix`, scaling and sums work; products and the
    conversions to BCSR and scipy are refused, because it would be unclear which axis of
    the vector is the batch: use `jax.vmap(lambda j, x: j @ x)`. A batch axis elsewhere (`out_axes`
    other than 0) is refused where it can be seen from the shapes.

    Attributes:
        structure: where the entries stand and how terms read the arrays; the zero matrix has no
            terms.
        arrays: the arrays; see `values` for one array per term.
    """

    #: numpy arrays leave `array @ jacobian` and `array * jacobian` to this class.
    __array_ufunc__ = None

    # ------------------------------------------------------------------ conversions

    def todense(self) -> Array:
        """The dense array, of shape `(*batch_shape, *shape)`."""
        return self._per_matrix(lambda one: one._dense())

    @opened(lambda out, into: out + into)
    def _dense(self) -> Array:
        return assemble(self.structure, self._operands(), self.dtype)

    def diagonal(self) -> Array:
        """The main diagonal.

        Returns:
            For a map between arrays of one shape the entries `J[i, i]` with i a position in the
            array, shaped like it; for a matrix (one output and one input dimension)
            what `numpy.diagonal` returns, also where it is not square. Batch axes lead.

        Raises:
            InvalidArgumentError: for other shapes.
        """
        square = self.out_shape == self.in_shape
        if not square and not (len(self.out_shape) == len(self.in_shape) == 1):
            raise InvalidArgumentError(
                f"diagonal() of a map from {self.in_shape} to {self.out_shape}: expected equal "
                "shapes, or one dimension each. Use .matrix.diagonal() for the flattened matrix."
            )

        return self._per_matrix(lambda one: one._square() if square else one._rectangular())

    @opened(lambda out, into: out)
    def _square(self) -> Array:
        return self._placed(diagonal=True).reshape(self.out_shape)

    @opened(lambda out, into: (None,))
    def _rectangular(self) -> Array:
        return self._placed(diagonal=True)

    def to_bcoo(self, flat: bool = False) -> jax_sparse.BCOO:
        """As `jax.experimental.sparse.BCOO` with sorted, unique indices.

        Inside `jax.jit` this embeds the indices as a constant and returns them on every call; to
        avoid that return `data`, or the `SparseJacobian`, and convert outside.

        Args:
            flat: as a matrix of shape (output size, input size) instead of one with all dimensions.
        """
        check_flags(flat=flat)
        if flat:
            indices = np.stack(self._rows_and_columns(), axis=1).astype(np.int32)
            shape: tuple[int, ...] = self._matrix_shape()
        else:
            indices, shape = self.indices, self.shape
        return bcoo_array(self.data, indices, shape, self.batch_shape)

    def to_bcsr(self) -> jax_sparse.BCSR:
        """The matrix (output size, input size) as `jax.experimental.sparse.BCSR`.

        Raises:
            InvalidArgumentError: for a batch of matrices.
        """
        self._refuse_batch("to_bcsr()")
        columns = self._rows_and_columns()[1].astype(np.int32)
        return bcsr_array(self.data, columns, self.indptr, self._matrix_shape())

    def to_scipy(self, format: str = "csr") -> Any:
        """The matrix (output size, input size) as a `scipy.sparse` array.

        Args:
            format: "csr", or another format that scipy converts to: "csc", "coo", "dia", ...

        Raises:
            ImportError: without scipy.
            InvalidTypeError: while tracing, when there are no values yet.
            InvalidArgumentError: for a batch of matrices, or an unknown format.
        """
        require_scipy(format)
        self._refuse_batch("to_scipy()")
        columns = self._rows_and_columns()[1].astype(np.int32)
        return scipy_array(self.data, columns, self.indptr, self._matrix_shape(), format)

    # ------------------------------------------------------------------ other matrices

    @property
    def T(self) -> SparseJacobian:
        """The transpose: output and input dimensions swapped, values shared."""
        return self._with(swapped(self.structure), self.arrays, self._sources)

    @property
    def matrix(self) -> SparseJacobian:
        """The same map between the flattened arrays: shape (output size, input size)."""
        if len(self.out_shape) == len(self.in_shape) == 1:
            return self
        made = flattened(self.structure)
        if made is not None:
            return self._with(made, self.arrays, self._sources)
        made = coordinate_structure(*self._rows_and_columns(), self._matrix_shape())
        data = self.data
        if not made.terms:
            return self._with(made, (), ())
        shape = (*data.shape[:-1], *made.terms[0].sizes)
        return self._with(made, (data.reshape(shape),), (0,))

    def astype(self, dtype: Any) -> SparseJacobian:
        """The same matrix in another dtype."""
        return self._with(
            self.structure, [jnp.astype(v, dtype) for v in self.arrays], self._sources, dtype
        )

    def __neg__(self) -> SparseJacobian:
        arrays = [jnp.negative(array) for array in self.arrays]
        return self._with(self.structure, arrays, self._sources)

    def __pos__(self) -> SparseJacobian:
        return self

    def __mul__(self, factor: Any) -> SparseJacobian:
        """Multiply by a number, or by an array without axes."""
        if not _is_number(factor):
            return _refuse_scaling(factor)
        dtype = jnp.multiply(jnp.zeros((), self.dtype), factor).dtype
        arrays = [jnp.multiply(array, factor) for array in self.arrays]
        return self._with(self.structure, arrays, self._sources, dtype)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> SparseJacobian:
        """Divide by a number, or by an array without axes."""
        if not _is_number(divisor):
            return _refuse_scaling(divisor)
        dtype = jnp.divide(jnp.zeros((), self.dtype), divisor).dtype
        arrays = [jnp.divide(array, divisor) for array in self.arrays]
        return self._with(self.structure, arrays, self._sources, dtype)

    def __add__(self, other: Any) -> SparseJacobian:
        """Add a `SparseJacobian` of the same shapes; terms of one pattern are added at once."""
        return self._sum(other) if isinstance(other, SparseJacobian) else refuse_sum(other)

    def __radd__(self, other: Any) -> Any:
        """Refused: the left operand is no `SparseJacobian`."""
        return refuse_sum(other)

    __rsub__ = __radd__

    @opened(lambda out, into, other: out + into)
    def _sum(self, other: SparseJacobian) -> SparseJacobian:
        for what in ("out_shape", "in_shape", "batch_shape"):
            mine, theirs = getattr(self, what), getattr(other, what)
            if mine != theirs:
                raise InvalidArgumentError(
                    f"Sum of two SparseJacobians: {what} is {mine} and {theirs}, expected equal."
                )
        dtype = jnp.add(jnp.zeros((), self.dtype), jnp.zeros((), other.dtype)).dtype
        one, two = self.astype(dtype), other.astype(dtype)
        structure, arrays, sources = added(
            [one.structure, two.structure],
            [one.arrays, two.arrays],
            [one._sources, two._sources],
            lambda: (*one.values, *two.values),
        )
        return self._with(structure, arrays, sources, dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Refused, as a conversion that nobody asked for would be large."""
        raise InvalidTypeError(
            f"A SparseJacobian of shape {self.shape} was taken for an array. Write .todense() for "
            "a dense one, .to_scipy() or .to_bcoo() for a sparse matrix of another library."
        )

    def __sub__(self, other: Any) -> SparseJacobian:
        """Subtract a `SparseJacobian` of the same shapes."""
        return self + (-other) if isinstance(other, SparseJacobian) else refuse_sum(other)

    # ------------------------------------------------------------------ products

    def __matmul__(self, x: Any) -> Any:
        """Contract the input dimensions with the leading dimensions of an array.

        Args:
            x: an array of shape `(*in_shape, *rest)`: `rest` are columns, each mapped on
                its own. Or, where the input has two or more dimensions, a vector of the input's
                size in C order. For several flat columns write `J.matrix @ x`. Or another
                `SparseJacobian` whose `out_shape` is this one's `in_shape`: `J.T @ J`.

        Returns:
            Array of shape `(*out_shape, *rest)`; for a flat vector a vector of the output's size;
            for a `SparseJacobian` another one.

        Raises:
            InvalidArgumentError: for other shapes, or a batch of matrices.
        """
        if isinstance(x, SparseJacobian):
            return self._product_with(x)
        self._refuse_batch("A product", "use jax.vmap(lambda j, x: j @ x)")
        x = jnp.asarray(x)
        rank = len(self.in_shape)
        if x.shape[:rank] == self.in_shape:
            return self._product(x)
        if x.ndim == 1 and x.shape[0] == math.prod(self.in_shape):
            return self._flat_product(x)
        raise InvalidArgumentError(
            f"J @ x with x of shape {x.shape}: expected {self.in_shape} followed by any number of "
            f"column dimensions, or a flat vector of {math.prod(self.in_shape)} elements."
        )

    def __rmatmul__(self, x: Any) -> Array:
        """Contract the output dimensions with the trailing dimensions of an array.

        Args:
            x: an array of shape `(*rest, *out_shape)`: `rest` are rows, each mapped on its own. Or,
                where the output has two or more dimensions, a vector of its size in C order.

        Returns:
            Array of shape `(*rest, *in_shape)`; for a flat vector a vector of the input's size.

        Raises:
            InvalidArgumentError: for other shapes, or a batch of matrices.
        """
        self._refuse_batch("A product", "use jax.vmap(lambda x, j: x @ j)")
        x = jnp.asarray(x)
        rest = x.ndim - len(self.out_shape)
        if rest >= 0 and x.shape[rest:] == self.out_shape:
            return self._product_of_rows(x)
        if x.ndim == 1 and x.shape[0] == math.prod(self.out_shape):
            return self.T._flat_product(x)
        raise InvalidArgumentError(
            f"x @ J with x of shape {x.shape}: expected any number of row dimensions followed by "
            f"{self.out_shape}, or a flat vector of {math.prod(self.out_shape)} elements."
        )

    @opened(lambda out, into, x: (None,))
    def _flat_product(self, x: Array) -> Array:
        """The product with a vector in C order."""
        return self._product(x.reshape(self.in_shape)).reshape(-1)

    @opened(lambda out, into, x: out + x[len(into) :])
    def _product(self, x: Array) -> Array:
        """The product with the columns of `x`."""
        dtype = jnp.multiply(jnp.zeros((), self.dtype), jnp.zeros((), x.dtype)).dtype
        return product_with_array(self.structure, self._operands(), x, dtype)

    @opened(lambda out, into, x: x[: len(x) - len(out)] + into)
    def _product_of_rows(self, x: Array) -> Array:
        """The product of the rows of `x` with the matrix."""
        rest = x.ndim - len(self.out_shape)
        result = self.T._product(jnp.moveaxis(x, range(rest), range(-rest, 0)))
        return jnp.moveaxis(result, range(-rest, 0), range(rest))

    @opened(lambda out, into, inner: out + inner[len(into) :])
    def _product_with(self, inner: SparseJacobian) -> SparseJacobian:
        """The map `self` after `inner`."""
        self._refuse_batch("A product", "use jax.vmap(lambda j, k: j @ k)")
        inner._refuse_batch("A product", "use jax.vmap(lambda j, k: j @ k)")
        if self.in_shape != inner.out_shape:
            raise InvalidArgumentError(
                f"J @ K of two SparseJacobians: J takes an array of shape {self.in_shape}, K gives "
                f"one of shape {inner.out_shape}, expected equal shapes. Between flattened arrays: "
                "J.matrix @ K.matrix."
            )
        dtype = jnp.multiply(jnp.zeros((), self.dtype), jnp.zeros((), inner.dtype)).dtype
        structure, arrays = product_with_sparse(
            self.structure, self._operands(), inner.structure, inner._operands(), dtype
        )
        return self._with(structure, arrays, tuple(range(len(arrays))), dtype)

    # ------------------------------------------------------------------ pictures

    def spy(self, ax: Axes | None = None, marker_size: float | None = None) -> tuple[Figure, Axes]:
        """Plot where the entries of the flattened matrix stand; returns `(figure, axes)`.

        Args:
            ax: axes to draw on; new ones by default.
            marker_size: size of a marker in points; chosen by the matrix by default.

        Raises:
            ImportError: without matplotlib (`pip install 'graphax_lapl[plots]'`).
        """
        rows, columns = self._rows_and_columns()
        return spy_plot(rows, columns, self._matrix_shape(), self._title(), ax, marker_size)

    def _title(self) -> str:
        size = math.prod(self.shape)
        stored = sum(term.entries for term in self.structure.terms)
        small = stored <= MAX_ENTRIES
        count = self.nse if small else stored
        sparsity = f"{1 - min(count, size) / size:.1%}" if size else "empty"
        return (
            f"{'x'.join(map(str, self.out_shape)) or 'scalar'} <- "
            f"{'x'.join(map(str, self.in_shape)) or 'scalar'}, {self.dtype}, "
            f"nse{'=' if small else '<='}{count}, sparsity={sparsity}, "
            f"{len(self.structure.terms)} terms"
        )

    def __repr__(self) -> str:
        picture = braille_spy(self.structure)
        return f"SparseJacobian({self._title()})" + (f"\n{picture}" if picture else "")


def _refuse_scaling(factor: Any) -> Any:
    """Raise for an array; anything else may know what to do itself."""
    if not isinstance(factor, Array | np.ndarray):
        return NotImplemented
    raise InvalidTypeError(
        f"A SparseJacobian is scaled by a number, got an array of shape {factor.shape}. Write "
        "J @ x for a product. To scale rows differentiate the scaled function, "
        "jacve(lambda x: scale * fun(x), ...)."
    )


def _is_number(value: Any) -> bool:
    return not isinstance(value, SparseJacobian | str | bytes) and np.shape(value) == ()
