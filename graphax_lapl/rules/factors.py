"""What the factors of a matrix, P A = L U, say of its determinant and its inverse.

JAX's `inv` permutes an identity by the order of the rows in P A, and finds that order by a loop
over the pivots that swaps two of its entries at every step: on a CPU a dozen kernels to compile,
and to start for every row. Here each row of A is followed through all swaps by comparisons, which
are one kernel together, and one more comparison makes P. The diagonal of U is read by comparisons
as well, and where an entry of it is zero its product says so.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

__all__ = ["determinant_and_adjugate", "inverse_of", "sign_and_logarithm"]

#: Rows that are followed one swap after the other; beyond that JAX's loop has the shorter program.
MAX_SWAPS = 16


@jax.jit
def inverse_of(matrix: Array) -> Array:
    """The inverses of the matrices in an array: `U^-1 L^-1 P`."""
    factors, pivots, permutation = lax.linalg.lu(matrix)
    return _solved(factors, factors, pivots, permutation)


@jax.jit
def determinant_and_adjugate(matrix: Array) -> tuple[Array, Array]:
    """The determinants of the matrices in an array, and `det U * U^-1 L^-1 P`.

    The solution is that of an upper factor that differs in the last digits of its entries, each
    pivot by as much as its part of the determinant: small pivots cost no digits of the product.
    Where a pivot is zero it is a rounding error of its column. The smallest one meets the inverse
    first, since their product is of moderate size where a determinant is too small for its dtype.
    """
    factors, pivots, permutation = lax.linalg.lu(matrix)
    rank = factors.ndim
    swapped = pivots != lax.broadcasted_iota(pivots.dtype, pivots.shape, rank - 2)
    odd = jnp.sum(swapped, -1) % 2 == 1
    on = [lax.broadcasted_iota(pivots.dtype, factors.shape, rank - n) for n in (2, 1)]
    on_diagonal = on[0] == on[1]
    largest = jnp.max(jnp.abs(matrix), -2, keepdims=True)
    least = jnp.finfo(matrix.dtype).eps * jnp.where(largest == 0, 1, largest)
    upper = jnp.where(on_diagonal & (factors == 0), least.astype(matrix.dtype), factors)
    given, diagonal = (
        jnp.sum(jnp.where(on_diagonal, triangle, 0), -1) for triangle in (factors, upper)
    )
    smallest = jnp.argmin(jnp.abs(diagonal), -1, keepdims=True)
    apart = lax.broadcasted_iota(smallest.dtype, diagonal.shape, rank - 2) == smallest
    others, det = jnp.prod(jnp.where(apart, 1, diagonal), -1), jnp.prod(given, -1)
    others, det = (jnp.where(odd, -product, product) for product in (others, det))
    pivot = jnp.sum(jnp.where(apart, diagonal, 0), -1)
    inverse = _solved(factors, upper, pivots, permutation)
    return det, others[..., None, None] * (pivot[..., None, None] * inverse)


def _solved(lower: Array, upper: Array, pivots: Array, permutation: Array) -> Array:
    """`U^-1 L^-1 P`, of two triangles and what `lu` says of the rows."""
    size = lower.shape[-1]
    rank, whole = lower.ndim, lower.shape
    if size <= MAX_SWAPS:
        places = lax.broadcast_in_dim(_places(pivots, size), whole, (*range(rank - 2), rank - 1))
        chosen = places == lax.broadcasted_iota(places.dtype, whole, rank - 2)
    else:
        rows = lax.broadcast_in_dim(permutation, whole, range(rank - 1))
        chosen = rows == lax.broadcasted_iota(rows.dtype, whole, rank - 1)
    permuted = lax.convert_element_type(chosen, lower.dtype)
    solve = lax.linalg.triangular_solve
    first = solve(lower, permuted, left_side=True, lower=True, unit_diagonal=True)
    result: Array = solve(upper, first, left_side=True)
    return result


@jax.jit
def sign_and_logarithm(matrix: Array) -> tuple[Array, Array]:
    """The sign of the determinants of real matrices, and the logarithm of their size."""
    factors, pivots, _ = lax.linalg.lu(matrix)
    rank = factors.ndim
    on = [lax.broadcasted_iota(pivots.dtype, factors.shape, rank - n) for n in (2, 1)]
    zeros = lax.full_like(factors, 0)
    diagonal = lax.reduce_sum(lax.select(on[0] == on[1], factors, zeros), (rank - 1,))
    swapped = pivots != lax.broadcasted_iota(pivots.dtype, pivots.shape, rank - 2)
    one, zero = lax.full_like(diagonal, 1), lax.full_like(diagonal, 0)
    signs = lax.select((diagonal < 0) != swapped, -one, one)
    product = lax.reduce_prod(lax.select(diagonal == 0, zero, signs), (rank - 2,))
    singular = product == 0
    logarithm = lax.reduce_sum(lax.log(lax.abs(diagonal)), (rank - 2,))
    sign = lax.select(singular, lax.full_like(product, 0), product)
    return sign, lax.select(singular, lax.full_like(logarithm, -jnp.inf), logarithm)


def _places(pivots: Array, size: int) -> Array:
    """Which row of P A every row of A is: the k-th step swaps the rows k and `pivots[k]`."""
    places = lax.broadcasted_iota(pivots.dtype, pivots.shape, pivots.ndim - 1)
    for k in range(size):
        step = lax.full_like(places, k)
        pivot = lax.slice_in_dim(pivots, k, k + 1, axis=-1)
        other = lax.broadcast_in_dim(pivot, pivots.shape, range(pivots.ndim))
        places = lax.select(places == step, other, lax.select(places == other, step, places))
    return places
