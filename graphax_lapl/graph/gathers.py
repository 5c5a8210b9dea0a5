"""Which positions a gather reads, and a scatter writes, at given indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jax import lax

__all__ = ["MODES", "gathered_positions", "mirrored_gather"]

#: How starts outside an array may be treated where their positions are known.
MODES = (
    lax.GatherScatterMode.CLIP,
    lax.GatherScatterMode.FILL_OR_DROP,
    lax.GatherScatterMode.PROMISE_IN_BOUNDS,
)


def gathered_positions(
    shape: Sequence[int],
    indices: np.ndarray,
    numbers: lax.GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    mode: lax.GatherScatterMode,
) -> np.ndarray:
    """For every entry of a gather's result the flat position that it reads; -1 for none.

    Slices of `slice_sizes` are read at the starts that `indices` holds along its last dimension.
    Starts outside the array are moved inside, or with FILL_OR_DROP the whole slice is left out.

    Args:
        shape: of the array.
        indices: the starts.
        numbers: which dimensions are which, as for `jax.lax.gather`.
        slice_sizes: of the slices, by dimension of the array.
        mode: one of `MODES`.
    """
    batch = indices.shape[:-1]
    starts = [np.zeros(batch, np.int64) for _ in shape]
    for column, d in enumerate(numbers.start_index_map):
        starts[d] = indices[..., column].astype(np.int64)
    for d, along in zip(
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
    ):
        own = [-1 if axis == along else 1 for axis in range(len(batch))]
        starts[d] = np.broadcast_to(np.arange(batch[along]).reshape(own), batch)
    limits = [size - width for size, width in zip(shape, slice_sizes, strict=True)]
    inside = np.ones(batch, bool)
    if mode == lax.GatherScatterMode.FILL_OR_DROP:
        for start, limit in zip(starts, limits, strict=True):
            inside &= (start >= 0) & (start <= limit)
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window = [d for d in range(len(shape)) if d not in dropped]
    flat = np.zeros((*batch, *(slice_sizes[d] for d in window)), np.int64)
    for d, (start, limit) in enumerate(zip(starts, limits, strict=True)):
        stride = math.prod(shape[d + 1 :])
        flat += np.clip(start, 0, limit).reshape((*batch, *(1 for _ in window))) * stride
        if d in window:
            after = len(window) - window.index(d) - 1
            flat += np.arange(slice_sizes[d]).reshape(-1, *(1 for _ in range(after))) * stride
    flat[~inside] = -1
    batches, windows = iter(range(len(batch))), iter(range(len(batch), flat.ndim))
    axes = [next(windows if d in numbers.offset_dims else batches) for d in range(flat.ndim)]
    return flat.transpose(axes)


def mirrored_gather(
    numbers: lax.ScatterDimensionNumbers, shape: Sequence[int], updates: Sequence[int]
) -> tuple[lax.GatherDimensionNumbers, list[int]]:
    """The gather that reads what a scatter writes: its dimension numbers and slice sizes.

    Args:
        numbers: of the scatter.
        shape: of its operand.
        updates: shape of its updates.
    """
    windows = iter(updates[d] for d in numbers.update_window_dims)
    whole = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    mirrored = lax.GatherDimensionNumbers(
        offset_dims=tuple(numbers.update_window_dims),
        collapsed_slice_dims=tuple(numbers.inserted_window_dims),
        start_index_map=tuple(numbers.scatter_dims_to_operand_dims),
        operand_batching_dims=tuple(numbers.operand_batching_dims),
        start_indices_batching_dims=tuple(numbers.scatter_indices_batching_dims),
    )
    return mirrored, [1 if d in whole else next(windows) for d in range(len(shape))]
