"""What is known of constants while planning: integers and masks whole, of floats the zeros."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import dtypes

from .numpy_values import MOVES, moved

__all__ = [
    "MAX_KNOWN",
    "MAX_KNOWN_FLOAT",
    "known_constant",
    "moved_support",
    "support_of_constant",
]

#: Largest array (elements) that is evaluated while planning: integers and masks, and floats.
MAX_KNOWN = 1 << 22
MAX_KNOWN_FLOAT = 1 << 14
#: Largest floating-point constant (elements) whose zeros are looked for.
MAX_SUPPORT = 1 << 16
#: Primitives that keep zeros in their place.
SCALINGS = frozenset({"neg", "abs", "convert_element_type", "div", "sqrt", "copy"})


def known_constant(value: Any) -> np.ndarray | None:
    """Integer and boolean constants that are concrete: index arrays and masks."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return None
    if dtypes.issubdtype(dtype, np.inexact) or dtypes.issubdtype(dtype, dtypes.extended):
        return None
    if np.size(value) > MAX_KNOWN:
        return None
    try:
        return np.asarray(value)
    except jax.errors.TracerArrayConversionError:
        return None


def support_of_constant(value: Any) -> np.ndarray | None:
    """Where a concrete floating-point constant is not zero; None where it is nowhere zero."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or not dtypes.issubdtype(dtype, np.inexact):
        return None
    if not 1 < np.size(value) <= MAX_SUPPORT:
        return None
    try:
        support = np.asarray(value) != 0
    except jax.errors.TracerArrayConversionError:
        return None
    return None if support.all() else support


def moved_support(
    equation: Any, supports: Sequence[np.ndarray | None], shape: tuple[int, ...]
) -> np.ndarray | None:
    """Where the result of an equation on constants is not zero, from where its operands are not."""
    name = equation.primitive.name
    if all(support is None for support in supports) or math.prod(shape) > MAX_SUPPORT:
        return None
    if name == "mul":
        found = [np.broadcast_to(support, shape) for support in supports if support is not None]
        return np.logical_and.reduce(found)
    first = supports[0]
    if first is None or name not in MOVES | SCALINGS:
        return None
    if name in SCALINGS:
        return np.broadcast_to(first, shape)
    return moved(name, equation.params, first, shape)
