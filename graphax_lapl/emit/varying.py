"""Arrays that differ between the devices of a mesh, inside of `jax.shard_map`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import Array, lax

__all__ = ["varying_like"]


def varying_like(array: Array, others: Sequence[Any]) -> Array:
    """An array, marked as one that differs between devices where one of the others does.

    Inside `jax.shard_map` an equation takes operands of one kind, as it did when it was traced.
    """
    axes = frozenset().union(*map(_varying_axes, others)) - _varying_axes(array)
    return lax.pcast(array, tuple(sorted(axes)), to="varying") if axes else array


def _varying_axes(value: Any) -> frozenset[str]:
    """Axes of a mesh along which devices hold different values; JAX 0.11 renamed the attribute."""
    type_ = jax.typeof(value)
    axes: frozenset[str] | None = getattr(type_, "vma", None)
    if axes is None:
        axes = getattr(getattr(type_, "manual_axis_type", None), "varying", None)
    return axes or frozenset()
