"""Equations on known values evaluated in numpy while planning.

Index arithmetic, masks and the moving about of small constants occur in nearly every program. Each
primitive run by JAX at a new shape is a compilation of its own, which takes tens of milliseconds.
Integers are exact, a moved number is the same number, and sums, products, quotients and roots of
single and double precision are rounded correctly by both, so numpy's results are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .gathers import MODES, gathered_positions, mirrored_gather

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
    "is_finite": np.isfinite,
    "clamp": lambda low, value, high: np.minimum(np.maximum(low, value), high),
}
#: Exact for integers, which wrap in their dtype, and rounded correctly.
ROUNDED: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "square": np.square,
}
#: Rounded correctly, of floating point numbers.
ROUNDED_FLOATS: dict[str, Callable[..., Any]] = {"div": np.divide, "sqrt": np.sqrt}
#: Of integers and truth values.
WHOLE: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "sign": np.sign,
}
#: Of integers, by divisors that are not zero: rounded towards zero, and what is left then.
DIVISIONS: dict[str, Callable[..., Any]] = {
    "div": lambda value, by: (value - np.fmod(value, by)) // by,
    "rem": np.fmod,
}
#: Along axes, of integers and truth values.
REDUCTIONS: dict[str, np.ufunc] = {
    "reduce_sum": np.add,
    "reduce_prod": np.multiply,
    "reduce_max": np.maximum,
    "reduce_min": np.minimum,
    "reduce_and": np.bitwise_and,
    "reduce_or": np.bitwise_or,
    "reduce_xor": np.bitwise_xor,
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
    if name in PLACED:
        return PLACED[name](params, values)
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
        if single:
            return np.asarray(ROUNDED_FLOATS[name](*values)) if name in ROUNDED_FLOATS else None
        if name in WHOLE:
            return np.asarray(WHOLE[name](*values))
        if name in DIVISIONS and values[1].all():
            return np.asarray(DIVISIONS[name](*values))
    if name in REDUCTIONS and values[0].size:
        return np.asarray(
            REDUCTIONS[name].reduce(values[0], tuple(params["axes"]), values[0].dtype)
        )
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


def _gathered(params: Mapping[str, Any], values: Sequence[np.ndarray]) -> np.ndarray | None:
    """What a gather reads; None where something of it is outside of the array."""
    array, indices = values
    mode = params["mode"]
    if mode not in MODES:
        return None
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    at = gathered_positions(array.shape, indices, numbers, sizes, mode)
    return None if (at < 0).any() else array.reshape(-1)[at]


def _scattered(
    params: Mapping[str, Any], values: Sequence[np.ndarray], added: bool = False
) -> np.ndarray | None:
    """What a scatter leaves; None where entries are written more than once."""
    array, indices, updates = values
    mode = params["mode"]
    if mode not in MODES or (added and array.dtype == np.bool_):
        return None
    numbers, sizes = mirrored_gather(params["dimension_numbers"], array.shape, updates.shape)
    at = gathered_positions(array.shape, indices, numbers, sizes, mode)
    inside = at >= 0
    places = at[inside]
    if len(np.unique(places)) < len(places):
        return None
    result = array.flatten()
    result[places] = result[places] + updates[inside] if added else updates[inside]
    return result.reshape(array.shape)


def _padded(params: Mapping[str, Any], values: Sequence[np.ndarray]) -> np.ndarray | None:
    """An array with something before, behind and between its entries; None where it is cut."""
    array, padding = values
    widths = params["padding_config"]
    if any(min(width) < 0 for width in widths):
        return None
    sizes = [
        max(0, (n - 1) * (k + 1) + 1) for n, (_, _, k) in zip(array.shape, widths, strict=True)
    ]
    whole = [low + size + high for size, (low, high, _) in zip(sizes, widths, strict=True)]
    result = np.full(whole, padding, array.dtype)
    bounds = zip(sizes, widths, strict=True)
    result[tuple(slice(low, low + size, k + 1) for size, (low, _, k) in bounds)] = array
    return result


#: Primitives whose result has entries of their operands, or sums of two, in known places.
PLACED: dict[str, Callable[[Mapping[str, Any], Sequence[np.ndarray]], np.ndarray | None]] = {
    "gather": _gathered,
    "scatter": _scattered,
    "scatter-add": functools.partial(_scattered, added=True),
    "pad": _padded,
    "tile": lambda params, values: np.tile(values[0], params["reps"]),
    "stack": lambda params, values: np.stack(values, params["axis"]),
}
