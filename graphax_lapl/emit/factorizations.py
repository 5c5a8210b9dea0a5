"""Second derivatives of factorizations and solves, summed over columns, in closed form.

Each is an implicit function, so its second derivative is one application of the map that its
first derivative is, to a matrix that is summed over all columns before (Giles, "Collected matrix
derivative results for forward and reverse mode algorithmic differentiation", 2008, differentiated
once more). `jvp` of `jvp` solves three times for every column.

In all of this d and d' are the derivatives along one column of either Jacobian.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import jaxpr_as_fun

from ..rules.implicit import LOWER_IS_READ

__all__ = ["summed_second_derivative"]

Columns = Sequence[Array | None]


def _cholesky(
    equation: Any, out: int, values: Sequence[Array], tangents: Columns, changes: Columns
) -> Array:
    """For `L L^T = A`: `L (P' P - low(P' S + S P'^T))`, with `S = L^-1 dA L^-T` and `P = low(S)`.

    low() takes the lower triangle and half of the diagonal, so that `dL = L P`.
    """
    (moved,), (changed,) = tangents, changes
    assert moved is not None
    assert changed is not None
    factor = jnp.tril(equation.evaluate(*values)[out])
    identity = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    inverse = lax.linalg.triangular_solve(factor, identity, left_side=True, lower=True)

    def reduced(columns: Array) -> Array:
        if LOWER_IS_READ:
            columns = jnp.tril(columns) + jnp.tril(columns, -1).mT
        right = jnp.einsum("c...ij,...kj->c...ik", columns, inverse)
        return jnp.einsum("...ik,c...kj->c...ij", inverse, right)

    s = reduced(moved)
    p, turned = _low(s), _low(s if changed is moved else reduced(changed))
    square = jnp.einsum("c...ij,c...jk->...ik", turned, p)
    both = jnp.einsum("c...ij,c...jk->...ik", turned, s)
    both += jnp.einsum("c...ij,c...kj->...ik", s, turned)
    return factor @ (square - _low(both))


def _low(matrices: Array) -> Array:
    half = 0.5 * jnp.eye(matrices.shape[-1], dtype=matrices.dtype)
    return jnp.tril(matrices) - half * matrices


def _triangular_solve(
    equation: Any,
    out: int,
    values: Sequence[Array],
    tangents: Columns,
    changes: Columns,
    own: Columns,
) -> Array:
    """For `A X = B`: `-A^-1 (dA d'X + d'A dX)`, with `dX = A^-1 (dB - dA X)`."""
    params, (triangle, right) = equation.params, values
    solution = equation.evaluate(triangle, right)[out]
    take = jnp.tril if params["lower"] else jnp.triu
    offset = int(params["unit_diagonal"]) * (-1 if params["lower"] else 1)

    def times(matrix: Array, other: Array) -> Array:
        """What stands in the triangle times a like of the solution."""
        used = take(matrix, offset)
        used = used.mT if params["transpose_a"] else used
        return used @ other if params["left_side"] else other @ used

    def solved(rights: Array) -> Array:
        return jax.vmap(lambda right: equation.evaluate(triangle, right)[out])(rights)

    operators, rights = zip(tangents, changes, strict=True)
    return _of_bilinear(times, solved, solution, operators, rights, own)


def _of_bilinear(
    times: Callable[[Array, Array], Array],
    solved: Callable[[Array], Array],
    solution: Array,
    operators: Columns,
    rights: Columns,
    own: Columns,
) -> Array:
    """The second derivative of X in `times(A, X) = B`, for both derivatives of A, B and X."""
    same = operators[0] is operators[1] and rights[0] is rights[1]
    first, second = own
    if first is None or second is None:
        first, second = _solutions(times, solved, solution, operators, rights, same)
    pairs = ((operators[0], second), (operators[1], first))
    parts: list[Array] = [
        jnp.sum(jax.vmap(times)(operator, slope), 0)
        for operator, slope in pairs[: 1 if same else 2]
        if operator is not None
    ]
    total = functools.reduce(lax.add, parts)
    return -solved((2 * total if same else total)[None])[0]


def _solutions(
    times: Callable[[Array, Array], Array],
    solved: Callable[[Array], Array],
    solution: Array,
    operators: Columns,
    rights: Columns,
    same: bool,
) -> tuple[Array, Array]:
    """Both derivatives of X in `times(A, X) = B`."""
    slopes = []
    for operator, right in zip(operators, rights, strict=True):
        total = right
        if operator is not None:
            product = jax.vmap(times, (0, None))(operator, solution)
            total = -product if total is None else total - product
        assert total is not None
        slopes.append(total)
    first = solved(slopes[0])
    return first, first if same else solved(slopes[1])


def _eigenvalues(
    equation: Any, out: int, values: Sequence[Array], tangents: Columns, changes: Columns
) -> Array:
    """For `A V = V diag(w)`: `2 sum_j M_ij M'_ij / (w_i - w_j)`, with `M = V^T dA V`.

    M is symmetric, also as it is rounded: what two close eigenvalues gain and lose is the same.
    """
    (moved,), (changed,) = tangents, changes
    assert moved is not None
    assert changed is not None
    # JAX's rule takes the decomposition of the symmetric part.
    vectors, numbers = equation.evaluate(0.5 * (values[0] + values[0].mT))

    def reduced(columns: Array) -> Array:
        right = jnp.einsum("c...ij,...jk->c...ik", columns, vectors)
        found = jnp.einsum("...ki,c...kj->c...ij", vectors, right)
        return found + found.mT  # twice M

    m = reduced(moved)
    other = m if changed is moved else reduced(changed)
    size = numbers.shape[-1]
    gaps = numbers[..., :, None] - numbers[..., None, :]
    unit = jnp.eye(size, dtype=numbers.dtype)
    weights = (1 - unit) / (gaps + unit)
    return 0.5 * jnp.sum(weights * jnp.sum(m * other, 0), -1)


def _linear_solve(
    equation: Any,
    out: int,
    values: Sequence[Array],
    tangents: Columns,
    changes: Columns,
    own: Columns,
) -> Array:
    """For `A x = b`, linear in b as in the solve's own tangent: `-A^-1 (d'A A^-1 db)`."""
    jaxprs, lengths = equation.params["jaxprs"], equation.params["const_lengths"]
    matrices, operands = lengths.matvec, sum(lengths)
    still = [jnp.zeros((_count(tangents), *v.shape), v.dtype) for v in values[operands:]]
    rights = [
        zeros if column is None else column
        for column, zeros in zip(tangents[operands:], still, strict=True)
    ]

    def solved(*rights: Array) -> list[Array]:
        return equation.evaluate(*values[:operands], *rights)

    def moved(solutions: Sequence[Array], columns: Sequence[Array]) -> list[Array]:
        """The derivative of A times solutions along columns of what A is made of."""

        def product(*constants: Array) -> list[Array]:
            full = list(values[:matrices])
            for k, constant in zip(chosen, constants, strict=True):
                full[k] = constant
            return list(jaxpr_as_fun(jaxprs.matvec)(*full, *solutions))

        primals = [values[k] for k in chosen]
        result: list[Array] = jax.jvp(product, primals, list(columns))[1]
        return result

    chosen = [k for k in range(matrices) if changes[k] is not None]
    if not chosen:
        return jnp.zeros_like(values[operands + out])
    columns = [column for column in changes[:matrices] if column is not None]
    solutions = jax.vmap(solved)(*rights) if own[0] is None else [own[0]]
    parts = jax.vmap(moved)(solutions, columns)
    return -solved(*(jnp.sum(part, 0) for part in parts))[out]


def _count(columns: Columns) -> int:
    return next(array.shape[0] for array in columns if array is not None)


def summed_second_derivative(
    equation: Any,
    out: int,
    values: Sequence[Array],
    tangents: Columns,
    changes: Columns,
    own: Columns,
) -> Array | None:
    """The second derivative of an output, summed over columns; None without a closed form.

    Args:
        equation: the equation.
        out: which of its outputs.
        values: of all its operands; zeros for those that it is linear in.
        tangents: for every operand its columns, (columns, *operand), None where it does not move.
        changes: columns of the other Jacobian, or the same arrays.
        own: of what solves a linear equation, columns of the solution along both, where they are
            there.
    """
    if any(jnp.iscomplexobj(value) for value in values):
        return None
    name = equation.name
    if name == "custom_linear_solve":
        operands = sum(equation.params["const_lengths"])
        if any(c is not None for c in (*tangents[:operands], *changes[operands:])):
            return None
        return _linear_solve(equation, out, values, tangents, changes, own)
    if name == "triangular_solve":
        if tangents[0] is None and changes[0] is None:
            return None
        return _triangular_solve(equation, out, values, tangents, changes, own)
    if name == "eigh" and (out != 1 or equation.params.get("subset_by_index") is not None):
        return None
    form = _FORMS.get(name)
    return None if form is None else form(equation, out, values, tangents, changes)


_FORMS = {"cholesky": _cholesky, "eigh": _eigenvalues}
