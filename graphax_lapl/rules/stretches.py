"""Reading along one axis at places that are few stretches with steps of one length."""

from __future__ import annotations

import numpy as np
from jax import Array, lax

__all__ = ["read_stretches", "stretches"]


def stretches(places: np.ndarray) -> list[np.ndarray]:
    """The places, cut where the step from one to the next changes."""
    ends, start = [], 0
    while start < len(places):
        steps = np.diff(places[start:])
        other = np.flatnonzero(steps != steps[0]) if len(steps) else steps
        start += int(other[0]) + 1 if len(other) else len(steps) + 1
        ends.append(start)
    return np.split(places, ends[:-1])


def read_stretches(value: Array, axis: int, parts: list[np.ndarray]) -> Array:
    """What an array holds there along an axis, put together from slices."""
    read = [_stretch(value, axis, places) for places in parts]
    return lax.concatenate(read, axis) if len(read) > 1 else read[0]


def _stretch(value: Array, axis: int, places: np.ndarray) -> Array:
    """Places with steps of one length."""
    low, high = int(places.min()), int(places.max())
    step = int(places[1] - places[0]) if len(places) > 1 else 1
    if step == 0:
        one = lax.slice_in_dim(value, low, low + 1, axis=axis)
        shape = tuple(len(places) if d == axis else size for d, size in enumerate(value.shape))
        return lax.broadcast_in_dim(one, shape, range(value.ndim))
    read = lax.slice_in_dim(value, low, high + 1, abs(step), axis)
    return read if step > 0 else lax.rev(read, (axis,))
