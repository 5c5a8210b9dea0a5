"""Gathers and scatters of numbers (numpy arrays of objects) whose positions are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

__all__ = ["ADDED", "ENTRIES", "OutOfBounds", "combined", "gathered"]

#: Of a gather that takes single entries of a vector, and of a scatter that adds to them.
ENTRIES = lax.GatherDimensionNumbers((), (0,), (0,))
ADDED = lax.ScatterDimensionNumbers((), (0,), (0,))


class OutOfBounds(Exception):
    """Raised where a position is not in an array, and a mode says what is read or written."""


def gathered(params: dict[str, Any], operand: np.ndarray, places: np.ndarray) -> np.ndarray:
    """What a gather reads.

    Raises:
        OutOfBounds: a position is outside of the operand.
    """
    numbers = params["dimension_numbers"]
    read = _positions(
        operand.shape,
        places,
        params["slice_sizes"],
        numbers.start_index_map,
        numbers.collapsed_slice_dims,
        numbers.offset_dims,
    )
    result: np.ndarray = operand.ravel()[read]
    return result


def combined(
    params: dict[str, Any],
    operand: np.ndarray,
    places: np.ndarray,
    entries: np.ndarray,
    combine: Callable[[Any, Any], Any],
) -> np.ndarray:
    """The operand with each entry combined with what stands at its place, in order.

    Raises:
        OutOfBounds: a position is outside of the operand.
    """
    total = operand.flatten()
    written = _written(params, operand, places, entries)
    for place, entry in zip(written.ravel(), entries.ravel(), strict=True):
        total[place] = combine(total[place], entry)
    return total.reshape(operand.shape)


def _written(
    params: dict[str, Any], operand: np.ndarray, places: np.ndarray, entries: np.ndarray
) -> np.ndarray:
    """Where a scatter writes each of its entries."""
    numbers = params["dimension_numbers"]
    sizes = [1] * operand.ndim
    inside = [d for d in range(operand.ndim) if d not in numbers.inserted_window_dims]
    for d, axis in zip(inside, numbers.update_window_dims, strict=True):
        sizes[d] = entries.shape[axis]
    return _positions(
        operand.shape,
        places,
        sizes,
        numbers.scatter_dims_to_operand_dims,
        numbers.inserted_window_dims,
        numbers.update_window_dims,
    )


def _positions(
    shape: Sequence[int],
    places: np.ndarray,
    sizes: Sequence[int],
    started: Sequence[int],
    collapsed: Sequence[int],
    window: Sequence[int],
) -> np.ndarray:
    """Positions in a flat operand, in the shape of what is read or written.

    Args:
        shape: of the operand.
        places: known numbers; along the last axis, where a window begins.
        sizes: of the window, along the operand's axes.
        started: which axis of the operand each of the last axis' numbers belongs to.
        collapsed: axes of the operand that the window leaves out.
        window: axes of the result along which the window lies.
    """
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    batch = places.shape[:-1]
    found = np.zeros(batch, np.intp)
    for k, d in enumerate(started):
        first = places[..., k].astype(np.intp)
        if np.any(first < 0) or np.any(first + sizes[d] > shape[d]):
            raise OutOfBounds
        found = found + first * strides[d]
    for d, size in enumerate(sizes):
        if d not in collapsed:
            found = found[..., None] + np.arange(size) * strides[d]
    others = iter(range(len(batch)))
    inside = iter(range(len(batch), found.ndim))
    order = [next(inside) if d in window else next(others) for d in range(found.ndim)]
    return found.transpose(order)
