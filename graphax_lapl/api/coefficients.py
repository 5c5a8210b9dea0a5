"""Coefficients of differential operators, as users write them, by differentiated leaf."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, dtypes, tree_util

from ..errors import InvalidArgumentError, InvalidTypeError
from ..graph.tracing import Traced
from ..program.laplacian import Metric
from .twice import raveling_order

__all__ = ["drift_of", "metric_of"]


def metric_of(traced: Traced, args: Sequence[Any], given: Any, name: str) -> tuple[Metric, list]:
    """The metric of a symmetric matrix A, and its arrays (None where A is zero).

    Args:
        traced: the trace.
        args: the call's positional arguments.
        given: None (zero), a number (times the identity), a raveled (n,) diagonal, a raveled (n, n)
            matrix, or a pytree prefix of the arguments with None, numbers, or arrays like the
            leaves (diagonals), or matrices (size of the leaf, size of the leaf).
        name: what the coefficient is called.

    Raises:
        InvalidArgumentError: for another shape.
        InvalidTypeError: for coefficients that are not real.
    """
    types, count = traced.in_types, len(traced.in_types)
    sizes = [math.prod(aval.shape) for aval in types]
    whole = _raveled_matrix(traced, given)
    if whole is not None:
        _check_real(whole, name)
        matrix = jnp.asarray(whole)
        matrix = (matrix + matrix.T) / 2
        spans = _spans(traced)
        blocks = [
            jnp.reshape(matrix[spans[i], spans[j]], (*types[i].shape, *types[j].shape)).astype(
                types[i].dtype
            )
            for i in range(count)
            for j in range(count)
        ]
        return Metric("matrix"), blocks
    entries = _by_leaf(traced, args, given, name, matrices=True)
    present = tuple(entry is not None for entry in entries)
    leaves = None if all(present) else present
    numbers = {entry for entry in entries if isinstance(entry, float)}
    if all(entry is None or isinstance(entry, float) for entry in entries) and len(numbers) < 2:
        return Metric(leaves=leaves, scale=numbers.pop() if numbers else 1.0), []
    square = [_is_matrix(e, types[k].shape, sizes[k]) for k, e in enumerate(entries)]
    if not any(square):
        return Metric("diagonal", leaves=leaves), [
            None if entry is None else jnp.broadcast_to(jnp.asarray(entry, aval.dtype), aval.shape)
            for entry, aval in zip(entries, types, strict=True)
        ]
    arrays: list[Array | None] = []
    for i, entry in enumerate(entries):
        for j, other in enumerate(entries):
            if entry is None or other is None:
                arrays.append(None)
                continue
            block = jnp.zeros((sizes[i], sizes[j]), types[i].dtype)
            if i == j:
                block = jnp.asarray(entry, types[i].dtype)
                block = (
                    (block + block.T) / 2
                    if square[i]
                    else jnp.diag(jnp.ravel(jnp.broadcast_to(block, types[i].shape)))
                )
            arrays.append(jnp.reshape(block, (*types[i].shape, *types[j].shape)))
    return Metric("matrix", leaves=leaves), arrays


def drift_of(traced: Traced, args: Sequence[Any], given: Any, name: str) -> list[Any]:
    """The vector b by leaf, None where it is zero.

    Args:
        traced: the trace.
        args: the call's positional arguments.
        given: None (zero), a number (the same everywhere), a raveled (n,) vector, or a pytree
            prefix of the arguments with None, numbers, or arrays like the leaves.
        name: what the coefficient is called.

    Raises:
        InvalidArgumentError: for another shape.
        InvalidTypeError: for coefficients that are not real.
    """
    entries = _by_leaf(traced, args, given, name, matrices=False)
    return [
        None if entry is None else jnp.broadcast_to(jnp.asarray(entry, aval.dtype), aval.shape)
        for entry, aval in zip(entries, traced.in_types, strict=True)
    ]


def _chosen(traced: Traced, args: Sequence[Any]) -> Any:
    """What the coefficients are like: the argument, or the tuple of arguments."""
    chosen = tuple(args[position] for position in traced.argnums)
    return chosen[0] if traced.single else chosen


def _spans(traced: Traced) -> list[slice]:
    """Where each leaf, in the order of the trace, stands in the raveled arguments."""
    spans: dict[int, slice] = {}
    start = 0
    for k in raveling_order(traced):
        size = math.prod(traced.in_types[k].shape)
        spans[k] = slice(start, start + size)
        start += size
    return [spans[k] for k in range(len(spans))]


def _raveled_matrix(traced: Traced, given: Any) -> Any:
    """`given` if it is a matrix over all raveled arguments, which are several leaves."""
    total = sum(math.prod(aval.shape) for aval in traced.in_types)
    several = len(traced.in_types) > 1
    return given if several and _is_array(given) and given.shape == (total, total) else None


def _by_leaf(
    traced: Traced, args: Sequence[Any], given: Any, name: str, matrices: bool
) -> list[Any]:
    """For every leaf, in the order of the trace, None, a known nonzero number, or an array."""
    ravel = raveling_order(traced)
    types = [traced.in_types[k] for k in ravel]
    total = sum(math.prod(aval.shape) for aval in types)
    if _is_array(given) and given.shape == (total,):
        _check_real(given, name)
        spans = _spans(traced)
        found = [
            jnp.reshape(jnp.asarray(given)[spans[k]], aval.shape)
            for k, aval in zip(ravel, types, strict=True)
        ]
    else:
        chosen = _chosen(traced, args)
        try:
            spread = jax.tree.broadcast(given, chosen, is_leaf=_is_none)
        except ValueError as error:
            raise InvalidArgumentError(
                f"{name} must be None, a number, a raveled array, or a pytree prefix of the "
                f"differentiated arguments of {traced.name} with such entries: {error}"
            ) from error
        found = tree_util.tree_leaves(spread, is_leaf=_is_none)
    result: list[Any] = [None] * len(ravel)
    for k, aval, entry in zip(ravel, types, found, strict=True):
        result[k] = _entry(entry, aval, name, traced.name, matrices)
    return result


def _entry(entry: Any, aval: Any, name: str, function: str, matrices: bool) -> Any:
    if entry is None:
        return None
    _check_real(entry, name)
    if isinstance(entry, int | float | np.number):
        return float(entry) or None
    size = math.prod(aval.shape)
    entry = jnp.asarray(entry)
    if entry.shape in ((), aval.shape) or (matrices and entry.shape == (size, size)):
        return entry
    if entry.shape == (size,):
        return jnp.reshape(entry, aval.shape)
    shapes = dict.fromkeys([(), aval.shape, (size,), *[(size, size)] * matrices])
    expected = " or ".join(map(str, shapes))
    raise InvalidArgumentError(
        f"{name} has an entry of shape {entry.shape} for an argument of {function} of shape "
        f"{aval.shape}; expected shape {expected}."
    )


def _is_matrix(entry: Any, shape: tuple[int, ...], size: int) -> bool:
    return _is_array(entry) and entry.shape == (size, size) and entry.shape != shape


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _is_none(value: Any) -> bool:
    return value is None


def _check_real(given: Any, name: str) -> None:
    dtype = getattr(given, "dtype", None) or np.asarray(given).dtype
    if not (dtypes.issubdtype(dtype, np.floating) or dtypes.issubdtype(dtype, np.integer)):
        raise InvalidTypeError(
            f"{name} must hold real numbers, got dtype {dtype}. Pass real arrays; for complex "
            "coefficients add the operators of their real and imaginary parts."
        )
