"""Gathers and scatters of numbers (numpy arrays of objects) whose positions are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from jax import lax

__all__ = ["ADDED", "ENTRIES", "OutOfBounds", "combined", "filled", "gathered", "windows_read"]

#: Of a gather that takes single entries of a vector, and of a scatter that adds to them.
ENTRIES = lax.GatherDimensionNumbers((), (0,), (0,))
ADDED = lax.ScatterDimensionNumbers((), (0,), (0,))


class OutOfBounds(Exception):
    """Raised where a position is not in an array, and a mode says what is read or written."""


def filled(shape: tuple[int, ...], values: Iterator[Any]) -> np.ndarray:
    """An array of a shape with the next numbers of an iterator."""
    numbers = np.empty(math.prod(shape), object)
    for k, value in enumerate(islice(values, numbers.size)):
        numbers[k] = value
    return numbers.reshape(shape)


def gathered(params: Mapping[str, Any], operand: np.ndarray, places: np.ndarray) -> np.ndarray:
    """What a gather reads.

    Raises:
        OutOfBounds: a position is outside of the operand.
    """
    result: np.ndarray = operand.ravel()[_read(params, operand.shape, places)]
    return result


def windows_read(
    params: Mapping[str, Any], shape: Sequence[int], batch: Sequence[int], starts: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """What a gather reads if all of its windows begin at the same place.

    Args:
        params: of the gather, whose windows are placed along one axis.
        shape: of the operand.
        batch: of the places, without the axis of a place's coordinates.
        starts: how many places there are.

    Returns:
        For each entry of the result which of the places it belongs to, and for each place that
        windows may begin at the flat positions in the operand.
    """
    numbers = params["dimension_numbers"]
    places = np.zeros((*batch, 1), np.intp)
    owners = np.arange(math.prod(batch)).reshape(batch)
    size = [params["slice_sizes"][d] for d in range(len(shape))]
    left_out = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    window = [n for d, n in enumerate(size) if d not in left_out]
    owners = np.broadcast_to(owners.reshape(*batch, *(1 for _ in window)), (*batch, *window))
    owners = owners.transpose(_laid_out(numbers.offset_dims, len(batch), owners.ndim))
    return owners, [_read(params, shape, places + start) for start in range(starts)]


def _read(params: Mapping[str, Any], shape: Sequence[int], places: np.ndarray) -> np.ndarray:
    """Positions that a gather reads in a flat operand of a shape."""
    numbers = params["dimension_numbers"]
    return _positions(
        shape,
        places,
        params["slice_sizes"],
        numbers.start_index_map,
        numbers.collapsed_slice_dims,
        numbers.offset_dims,
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True),
    )


def combined(
    params: Mapping[str, Any],
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
    params: Mapping[str, Any], operand: np.ndarray, places: np.ndarray, entries: np.ndarray
) -> np.ndarray:
    """Where a scatter writes each of its entries."""
    numbers = params["dimension_numbers"]
    sizes = [1] * operand.ndim
    left_out = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    inside = [d for d in range(operand.ndim) if d not in left_out]
    for d, axis in zip(inside, numbers.update_window_dims, strict=True):
        sizes[d] = entries.shape[axis]
    return _positions(
        operand.shape,
        places,
        sizes,
        numbers.scatter_dims_to_operand_dims,
        numbers.inserted_window_dims,
        numbers.update_window_dims,
        zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True),
    )


def _positions(
    shape: Sequence[int],
    places: np.ndarray,
    sizes: Sequence[int],
    started: Sequence[int],
    collapsed: Sequence[int],
    window: Sequence[int],
    shared: Iterable[tuple[int, int]],
) -> np.ndarray:
    """Positions in a flat operand, in the shape of what is read or written.

    Args:
        shape: of the operand.
        places: known numbers; along the last axis, where a window begins.
        sizes: of the window, along the operand's axes.
        started: which axis of the operand each of the last axis' numbers belongs to.
        collapsed: axes of the operand that the window leaves out.
        window: axes of the result along which the window lies.
        shared: axes of the operand, and those of the places that run along them.
    """
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    batch = places.shape[:-1]
    found = np.zeros(batch, np.intp)
    left_out = {*collapsed}
    for d, axis in shared:
        along = [-1 if k == axis else 1 for k in range(len(batch))]
        found = found + (np.arange(shape[d]) * strides[d]).reshape(along)
        left_out.add(d)
    for k, d in enumerate(started):
        first = places[..., k].astype(np.intp)
        if np.any(first < 0) or np.any(first + sizes[d] > shape[d]):
            raise OutOfBounds
        found = found + first * strides[d]
    for d, size in enumerate(sizes):
        if d not in left_out:
            found = found[..., None] + np.arange(size) * strides[d]
    return found.transpose(_laid_out(window, len(batch), found.ndim))


def _laid_out(window: Sequence[int], batch: int, rank: int) -> list[int]:
    """The order of axes (batch..., window...) in what is read or written."""
    others, inside = iter(range(batch)), iter(range(batch, rank))
    return [next(inside) if d in window else next(others) for d in range(rank)]
