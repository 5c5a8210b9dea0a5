"""`jax.vmap` in pieces that fit into memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util

from ..errors import InvalidArgumentError
from ..graph.tracing import check_callable

__all__ = ["batched_vmap"]

#: Batch sizes that are compiled to see how memory grows.
PROBES = (8, 16)


def batched_vmap(
    fun: Callable[..., Any],
    max_batch_size: int | None = None,
    in_axes: Any = 0,
    memory_budget: int | None = None,
    out_axes: Any = 0,
) -> Callable[..., Any]:
    """`jax.vmap(fun, in_axes, out_axes)` that takes at most `max_batch_size` samples at a time.

    Full batches run one after the other in a loop (`jax.lax.map`), a remainder after them; the
    results are those of `jax.vmap`. All transformations apply. Under reverse mode the loop keeps
    what every batch needs; wrap `fun` in `jax.checkpoint` to recompute it batch by batch.

    Args:
        fun: a function of one sample.
        max_batch_size: most samples at a time. Neither this nor a budget: all at once.
        in_axes: as for `jax.vmap`: an integer, None, or a tuple with an entry per positional
            argument, each a pytree prefix of it. Keyword arguments are mapped along axis 0.
        memory_budget: bytes that the temporary arrays of a batch may take. `vmap(fun)` is
            compiled for two small batches, once per shape of the arguments, and the batch size is
            read off a straight line through what the compiler reports. Where it cannot be compiled
            by itself (it closes over values that are being traced) or the compiler reports nothing,
            the intermediate values of one sample are added up, which overestimates. With
            `max_batch_size` too, the smaller size counts.
        out_axes: as for `jax.vmap`: a pytree prefix of the result, of integers and None; None is
            for what is the same for all samples. There is no `axis_name`: a batch does not see the
            samples of another.

    Returns:
        A function of the batched arguments.

    Raises:
        InvalidArgumentError: for sizes that are not positive integers, for arguments without a
            mapped axis, for mapped axes of different sizes, and for out_axes beyond the result's.
        ValueError: by `jax.vmap`, for out_axes that are no prefix of the result, or None where it
            does depend on the sample.

    Example:
        >>> import jax.numpy as jnp
        >>> from graphax_lapl import batched_vmap
        >>> print(batched_vmap(lambda x: x**2, max_batch_size=2)(jnp.arange(5.0)))
        [ 0.  1.  4.  9. 16.]
    """
    check_callable(fun)
    for name, given in (("max_batch_size", max_batch_size), ("memory_budget", memory_budget)):
        if given is not None and (isinstance(given, bool) or not _is_positive(given)):
            raise InvalidArgumentError(f"{name} must be a positive integer or None, got {given!r}.")
    for axis in jax.tree.leaves(out_axes):
        if isinstance(axis, bool) or not hasattr(axis, "__index__"):
            raise InvalidArgumentError(f"out_axes must hold integers and None, got {axis!r}.")
    # Samples come first until all are there; what is the same for all of them stays apart.
    first = jax.tree.map(lambda axis: None if axis is None else 0, out_axes, is_leaf=_is_none)
    chosen: dict[Any, int] = {}

    @functools.wraps(fun, updated=())
    def batched(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = tree_util.tree_flatten((args, kwargs))
        axes = _axes(in_axes, args, kwargs)
        count = _batch_count(leaves, axes, getattr(fun, "__name__", "fun"))
        kinds = [
            "mapped" if axis is not None else "fixed" if _is_array(leaf) else "static"
            for leaf, axis in zip(leaves, axes, strict=True)
        ]
        mapped = [
            jnp.moveaxis(leaf, axis, 0)
            for leaf, axis in zip(leaves, axes, strict=True)
            if axis is not None
        ]

        fixed = [leaf for leaf, kind in zip(leaves, kinds, strict=True) if kind == "fixed"]

        def on_sample(sample: list[Any], fixed: list[Any]) -> Any:
            pieces = {"mapped": iter(sample), "fixed": iter(fixed)}
            whole = [
                leaf if kind == "static" else next(pieces[kind])
                for leaf, kind in zip(leaves, kinds, strict=True)
            ]
            positional, named = tree_util.tree_unflatten(tree, whole)
            return fun(*positional, **named)

        size = count if max_batch_size is None else min(max_batch_size, count)
        if memory_budget is not None and size > 1:
            key = (tree, tuple((leaf.shape, leaf.dtype) for leaf in (*mapped, *fixed)))
            if key not in chosen:
                chosen[key] = _fitting(on_sample, mapped, fixed, memory_budget)
            size = min(size, chosen[key])
        over = jax.vmap(on_sample, (0, None), first)
        result = _in_batches(lambda batch: over(batch, fixed), mapped, first, count, size)
        return _with_axes(result, out_axes)

    return batched


def _in_batches(
    over: Callable[..., Any], mapped: list[Any], axes: Any, count: int, size: int
) -> Any:
    """Apply a batched function to `count` samples, `size` at a time.

    `axes` is a pytree prefix of its result: 0 where samples lie along the first axis, None where
    there is one result for all of them.
    """
    if size >= count:
        return over(mapped)
    full = count // size * size
    stacked = [leaf[:full].reshape(-1, size, *leaf.shape[1:]) for leaf in mapped]
    results, tree = tree_util.tree_flatten(lax.map(over, stacked))
    separate = [axis is not None for axis in _spread(axes, tree)]
    joined = [
        leaf.reshape(full, *leaf.shape[2:]) if apart else leaf[0]
        for leaf, apart in zip(results, separate, strict=True)
    ]
    if full != count:
        rest = tree_util.tree_leaves(over([leaf[full:] for leaf in mapped]))
        joined = [
            jnp.concatenate([leaf, more]) if apart else leaf
            for leaf, more, apart in zip(joined, rest, separate, strict=True)
        ]
    return tree_util.tree_unflatten(tree, joined)


def _with_axes(result: Any, out_axes: Any) -> Any:
    """The result with its samples along the axes that are asked for."""
    leaves, tree = tree_util.tree_flatten(result)
    moved = []
    for leaf, axis in zip(leaves, _spread(out_axes, tree), strict=True):
        if axis is not None and not -leaf.ndim <= axis < leaf.ndim:
            raise InvalidArgumentError(
                f"out_axes has axis {axis} for a result of shape {leaf.shape} whose first axis "
                "are the samples."
            )
        moved.append(jnp.moveaxis(leaf, 0, axis) if axis else leaf)
    return tree_util.tree_unflatten(tree, moved)


def _spread(axes: Any, tree: Any) -> list[int | None]:
    """An axis for every leaf of a tree, from a pytree prefix of it."""
    # None is a leaf of the prefix, and nothing at all in the tree.
    marked = jax.tree.map(lambda axis: "" if axis is None else axis, axes, is_leaf=_is_none)
    full = tree_util.tree_unflatten(tree, range(tree.num_leaves))
    return [
        axis if axis != "" else None for axis in jax.tree.leaves(jax.tree.broadcast(marked, full))
    ]


def _axes(in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int | None]:
    """The mapped axis of every leaf of the arguments, None for none."""
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    try:
        spread = jax.tree.broadcast(in_axes, args, is_leaf=_is_none)
    except ValueError as error:
        raise InvalidArgumentError(
            "in_axes must be an integer, None, or a tuple with one pytree prefix per positional "
            f"argument, got {in_axes!r} for {len(args)} arguments: {error}"
        ) from error
    axes = tree_util.tree_leaves(spread, is_leaf=_is_none)
    return axes + [0] * len(tree_util.tree_leaves(kwargs))


def _batch_count(leaves: list[Any], axes: list[int | None], name: str) -> int:
    """The size of the mapped axes."""
    sizes = set()
    for leaf, axis in zip(leaves, axes, strict=True):
        if axis is None:
            continue
        shape = jnp.shape(leaf)
        if not -len(shape) <= axis < len(shape):
            raise InvalidArgumentError(
                f"in_axes has axis {axis} for an argument of {name} of shape {shape}."
            )
        sizes.add(shape[axis])
    if len(sizes) != 1:
        found = f"axes of sizes {sorted(sizes)}" if sizes else "no mapped argument"
        raise InvalidArgumentError(
            f"batched_vmap of {name}: {found}; expected one size along all mapped axes, see "
            "in_axes."
        )
    return int(sizes.pop())


def _fitting(
    on_sample: Callable[..., Any], mapped: list[Any], fixed: list[Any], budget: int
) -> int:
    """The largest batch whose temporary arrays fit into `budget` bytes, at least one sample."""
    over = jax.vmap(on_sample, (0, None))
    fixed_types = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in fixed]

    def types(*batch: int) -> list[jax.ShapeDtypeStruct]:
        return [jax.ShapeDtypeStruct((*batch, *leaf.shape[1:]), leaf.dtype) for leaf in mapped]

    try:
        small, large = (_compiled_bytes(over, types(size), fixed_types) for size in PROBES)
    except (jax.errors.UnexpectedTracerError, NotImplementedError):
        small = large = None
    if small is None or large is None:
        base, slope = 0.0, float(_traced_bytes(on_sample, types(), fixed_types))
    else:
        slope = (large - small) / (PROBES[1] - PROBES[0])
        base = max(0.0, small - slope * PROBES[0])
    if slope <= 0:
        return int(mapped[0].shape[0]) if base <= budget else 1
    return max(1, int((budget - base) // slope))


def _compiled_bytes(over: Callable[..., Any], *types: list[Any]) -> int | None:
    """Temporary and output bytes that the compiler reports; None where it reports nothing."""
    analysis = jax.jit(over).lower(*types).compile().memory_analysis()
    if analysis is None:
        return None
    return int(analysis.temp_size_in_bytes + analysis.output_size_in_bytes)


def _traced_bytes(on_sample: Callable[..., Any], *types: list[Any]) -> int:
    """Bytes of all intermediate values of one sample."""
    jaxpr = jax.make_jaxpr(on_sample)(*types).jaxpr
    avals = [variable.aval for equation in jaxpr.eqns for variable in equation.outvars]
    return max(1, sum(math.prod(a.shape) * a.dtype.itemsize for a in avals if hasattr(a, "shape")))


def _is_positive(value: Any) -> bool:
    return hasattr(value, "__index__") and value.__index__() > 0


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _is_none(value: Any) -> bool:
    return value is None
