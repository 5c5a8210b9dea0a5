"""Integer and boolean equations evaluated in numpy while planning.

Index arithmetic (wrapping of negative indices, index vectors put together) occurs in nearly every
program with gathers. Each primitive run by JAX at a new shape is a compilation of its own, which
takes tens of milliseconds; integers are exact, so numpy's results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["integer_result"]

_ENTRYWISE: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "select_n": lambda which, *cases: np.where(which, cases[1], cases[0]),
}


def integer_result(
    name: str, params: Mapping[str, Any], values: Sequence[np.ndarray], shape: Sequence[int]
) -> np.ndarray | None:
    """What an equation computes.

    Args:
        name: of the primitive.
        params: of the equation.
        values: its operands.
        shape: of its result.

    Returns:
        The result, of any integer dtype that holds it; None where numpy is not asked.
    """
    if any(value.dtype.kind not in "biu" for value in values):
        return None
    if name in _ENTRYWISE:
        # Three operands with a boolean are the usual selection, and numpy's; others are rare.
        if name == "select_n" and (len(values) != 3 or values[0].dtype != np.bool_):
            return None
        if name in ("add", "sub", "mul") and values[0].dtype == np.bool_:
            return None
        with np.errstate(over="ignore"):
            return np.asarray(_ENTRYWISE[name](*values))
    if name == "broadcast_in_dim" and len(values) == 1:
        spread = [1] * len(shape)
        for size, place in zip(values[0].shape, params["broadcast_dimensions"], strict=True):
            spread[place] = size
        return np.broadcast_to(values[0].reshape(spread), tuple(shape))
    if name == "squeeze" or (name == "reshape" and params.get("dimensions") is None):
        return values[0].reshape(tuple(shape)) if len(values) == 1 else None
    if name == "concatenate":
        return np.concatenate(values, params["dimension"])
    return None
