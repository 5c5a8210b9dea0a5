"""Equations on known values evaluated in numpy while planning.

Index arithmetic, masks and the moving about of small constants occur in nearly every program. Each
primitive run by JAX at a new shape is a compilation of its own, which takes tens of milliseconds.
Integers are exact, a moved number is the same number, and sums, products and quotients of single
and double precision are rounded correctly by both, so numpy's results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["EXACT", "MOVES", "ROUNDED", "moved", "numpy_result"]

#: The same numbers for every dtype.
EXACT: dict[str, Callable[..., Any]] = {
    "max": np.maximum,
    "min": np.minimum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "abs": np.abs,
    "neg": np.negative,
    "floor": np.floor,
    "ceil": np.ceil,
}
#: Exact for integers, which wrap in their dtype, and rounded correctly.
ROUNDED: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
}
_FLOATS = (np.float32, np.float64)

#: Primitives that say on which devices an array lies.
PLACEMENTS = frozenset({"sharding_constraint", "reshard", "mesh_cast"})
#: Primitives whose result has the entries of their operand in other places.
MOVES = frozenset({"reshape", "broadcast_in_dim", "transpose", "rev", "slice", "squeeze"})


def numpy_result(
    name: str, params: Mapping[str, Any], values: Sequence[np.ndarray], shape: Sequence[int]
) -> np.ndarray | None:
    """What an equation computes.

    Args:
        name: of the primitive.
        params: of the equation.
        values: its operands.
        shape: of its result.

    Returns:
        The result, of any dtype that holds it; None where numpy is not asked.
    """
    if name in MOVES:
        return moved(name, params, values[0], shape) if len(values) == 1 else None
    if name in PLACEMENTS:
        return values[0]
    if name == "iota" and not values:
        spread = [-1 if k == params["dimension"] else 1 for k in range(len(shape))]
        places = np.arange(shape[params["dimension"]]).reshape(spread)
        return np.broadcast_to(places, tuple(shape))
    if name == "select_n" and len(values) == 3 and values[0].dtype == np.bool_:
        return np.where(values[0], values[2], values[1])
    whole = all(value.dtype.kind in "biu" for value in values)
    single = all(value.dtype in _FLOATS for value in values)
    if not values or not (whole or single):
        return None
    if name == "concatenate":
        return np.concatenate(values, params["dimension"])
    if name == "convert_element_type":
        return values[0] if whole else None
    with np.errstate(all="ignore"):
        if name in EXACT:
            return np.asarray(EXACT[name](*values))
        if name in ROUNDED and values[0].dtype != np.bool_:
            return np.asarray(ROUNDED[name](*values))
        if name == "div" and single:
            return np.asarray(np.divide(*values))
    return None


def moved(
    name: str, params: Mapping[str, Any], value: np.ndarray, shape: Sequence[int]
) -> np.ndarray | None:
    """The entries of an array in their new places, for a primitive of `MOVES`.

    Returns:
        The moved array; None for a reshape that also permutes.
    """
    if name == "broadcast_in_dim":
        spread = [1] * len(shape)
        for size, place in zip(value.shape, params["broadcast_dimensions"], strict=True):
            spread[place] = size
        return np.broadcast_to(value.reshape(spread), tuple(shape))
    if name == "transpose":
        return np.transpose(value, params["permutation"])
    if name == "rev":
        return np.flip(value, params["dimensions"])
    if name == "slice":
        strides = params["strides"] or (1,) * value.ndim
        bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        return value[tuple(slice(*bound) for bound in bounds)]
    if name == "reshape" and params.get("dimensions") is not None:
        return None
    return value.reshape(tuple(shape))
