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
    "concrete_floats",
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


def concrete_floats(value: Any) -> np.ndarray | None:
    """A small concrete floating-point constant; None for all others."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or not dtypes.issubdtype(dtype, np.floating):
        return None
    if not 0 < np.size(value) <= MAX_KNOWN_FLOAT:
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
    equation: Any,
    supports: Sequence[np.ndarray | None],
    shape: tuple[int, ...],
    which: np.ndarray | None = None,
) -> np.ndarray | None:
    """Where the result of an equation on constants is not zero, from where its operands are not.

    Args:
        equation: the equation.
        supports: of its operands; None where one is not known to be zero anywhere.
        shape: of the result.
        which: the first operand of a selection, where it is known.
    """
    name = equation.primitive.name
    if all(support is None for support in supports) or math.prod(shape) > MAX_SUPPORT:
        return None
    if name == "mul":
        found = [np.broadcast_to(support, shape) for support in supports if support is not None]
        return np.logical_and.reduce(found)
    if name == "select_n":
        full = [np.ones(shape, bool) if s is None else s for s in supports[1:]]
        cases = np.stack([np.broadcast_to(case, shape) for case in full])
        if which is None:
            either = np.logical_or.reduce(cases)
            return None if either.all() else either
        chosen = np.broadcast_to(np.clip(which, 0, len(cases) - 1).astype(np.intp), shape)
        support: np.ndarray = np.take_along_axis(cases, chosen[None], 0)[0]
        return None if support.all() else support
    first = supports[0]
    if first is None or name not in MOVES | SCALINGS:
        return None
    if name in SCALINGS:
        return np.broadcast_to(first, shape)
    return moved(name, equation.params, first, shape)
