"""Reading a vector at places that follow a rule, without a gather.

XLA's CPU compiler lays what it gathers for many samples out with the samples last, and a kernel
that reads it along rows then jumps from line to line of the cache.
"""

from __future__ import annotations

import numpy as np
from jax import Array, lax

from ..rules.stretches import read_stretches, stretches

__all__ = ["read_regularly"]

#: Most stretches that are put side by side.
MAX_STRETCHES = 8


def read_regularly(value: Array, places: np.ndarray) -> Array | None:
    """What a vector holds at the places; None where these follow no rule that is known here.

    Args:
        value: the vector.
        places: where to read, -1 where it does not matter what is read.
    """
    used = np.flatnonzero(places >= 0)
    for first, end in ((0, len(places)), (int(used[0]), int(used[-1]) + 1)):
        for before in (True, False):
            read = _read(value, _filled(places[first:end], before))
            if read is not None:
                around = (first, len(places) - end, 0)
                return lax.pad(read, np.zeros((), read.dtype), [around]) if any(around) else read
    return None


def _filled(places: np.ndarray, before: bool) -> np.ndarray:
    """The places, those that do not matter the same as the next ones before, or after, them."""
    used = np.flatnonzero(places >= 0)
    counted = np.arange(len(places))
    if before:
        return places[used[np.maximum(np.searchsorted(used, counted, "right") - 1, 0)]]
    return places[used[np.minimum(np.searchsorted(used, counted), len(used) - 1)]]


def _read(value: Array, places: np.ndarray) -> Array | None:
    steps = np.diff(places)
    if len(places) == 1 or (steps == steps[0]).all():
        return read_stretches(value, 0, [places])
    count = len(places)
    for repeats in range(2, count // 2 + 1):
        if count % repeats:
            continue
        rows = places.reshape(-1, repeats)
        if (rows == rows[:, :1]).all():
            read = _read(value, rows[:, 0])
            return None if read is None else _repeated(read, (count // repeats, repeats), 0)
        rows = places.reshape(repeats, -1)
        if (rows == rows[0]).all():
            read = _read(value, rows[0])
            return None if read is None else _repeated(read, (repeats, count // repeats), 1)
    parts = stretches(places)
    return read_stretches(value, 0, parts) if len(parts) <= MAX_STRETCHES else None


def _repeated(read: Array, shape: tuple[int, int], dimension: int) -> Array:
    return lax.reshape(lax.broadcast_in_dim(read, shape, (dimension,)), (shape[0] * shape[1],))
