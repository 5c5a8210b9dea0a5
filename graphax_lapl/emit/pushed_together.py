"""Maps of one equation whose columns are pushed together, by one evaluation of it.

The value comes with them: `jax.jvp` has both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..edges.operations import ApplyOpaque, MaterializeOpaque
from .assembly import assemble
from .few_samples import for_few_samples
from .numbers import BATCH
from .opaque import (
    LinearMap,
    OpaqueOperation,
    apply_opaque,
    apply_together,
    identity_along,
    identity_of,
    laid_out_axes,
    packed_axes,
    parts_of,
    permuted,
)
from .small_loops import is_small_loop

__all__ = ["values_and_pushed", "written_together"]


def written_together(
    operations: Sequence[MaterializeOpaque], maps: Sequence[LinearMap]
) -> list[Array]:
    """Maps between inputs and outputs of one equation as arrays, by columns of all inputs.

    Where many samples share a loop over small arrays, rows of one output after the other are pulled
    back all the same where they are fewer: columns of both inputs, as single numbers, take longer.

    Args:
        operations: how each would be written out by itself.
        maps: between real arrays.
    """
    references = [linear.reference for linear in maps]

    def at(values: Sequence[Any]) -> list[LinearMap]:
        return [LinearMap(reference, values, values) for reference in references]

    def together(values: Sequence[Any]) -> list[Array]:
        return _by_columns(operations, at(values))

    def apart(values: Sequence[Any]) -> list[Array]:
        found: dict[int, Array] = {}
        own = at(values)
        for out in dict.fromkeys(reference.out for reference in references):
            rows = [k for k, o in enumerate(operations) if references[k].out == out and o.by_rows]
            if rows:
                arrays = apply_together([operations[k] for k in rows], [own[k] for k in rows])
                found.update(zip(rows, arrays, strict=True))
        return [
            found[k] if k in found else apply_opaque(operation, own[k])
            for k, operation in enumerate(operations)
        ]

    by_columns = not any(operation.by_rows for operation in operations)
    if by_columns or not is_small_loop(references[0].equation):
        return together(maps[0].values)
    arrays: list[Array] = for_few_samples(together, apart, BATCH)(maps[0].values)
    return arrays


def _by_columns(operations: Sequence[MaterializeOpaque], maps: Sequence[LinearMap]) -> list[Array]:
    """All maps as arrays, by one evaluation of the equation along the columns of all inputs."""
    return values_and_pushed(operations, maps, [None] * len(maps), False)[1]


def values_and_pushed(
    operations: Sequence[OpaqueOperation],
    maps: Sequence[LinearMap],
    arrays: Sequence[Array | None],
    values: bool = True,
) -> tuple[list[Array], list[Array]]:
    """What an equation computes, and what columns become that are pushed, by one evaluation of it.

    Args:
        operations: what is done with each map by itself.
        maps: between real arrays.
        arrays: for each of them the columns, None for those of the identity.
        values: whether what it computes is wanted; otherwise that is an empty list.
    """
    first = maps[0]
    intos = list(dict.fromkeys(linear.reference.into for linear in maps))
    outs = list(dict.fromkeys(linear.reference.out for linear in maps))
    places = list(dict.fromkeys([*intos, *(k for linear in maps for k in linear.moving)]))
    shapes = [first.values[k].shape for k in intos]
    ends = [0, *itertools.accumulate(map(math.prod, shapes))]
    ranges, seeds = _side_by_side(operations, maps, arrays)

    def pushed(column: Array, *own: Array) -> tuple[list[Array], list[Array]]:
        points = [own[k] for k in places]
        flat = (lax.slice(column, (low,), (high,)) for low, high in itertools.pairwise(ends))
        moved = (lax.reshape(part, shape) for part, shape in zip(flat, shapes, strict=True))
        tangents = [part.astype(x.dtype) for part, x in zip(moved, points, strict=False)]
        tangents += [jnp.zeros_like(x) for x in points[len(intos) :]]
        along = first.at_places(own, places, outs)
        _, moved, results = jax.jvp(along, points, tangents, has_aux=True)
        return moved, results if values else []

    with first.in_mode("forward"):
        if not any(getattr(operation, "by_rows", False) for operation in operations):
            columns, results = first.for_all(pushed, seeds)
        else:
            columns, results = jax.vmap(lambda column: pushed(column, *first.values))(seeds)
    found = []
    for operation, linear, (low, high) in zip(operations, maps, ranges, strict=True):
        own = lax.slice_in_dim(columns[outs.index(linear.reference.out)], low, high)
        own = permuted(own, packed_axes(linear.reference.batch_out, own.ndim - 1))
        if isinstance(operation, MaterializeOpaque) and not operation.columns_first:
            own = lax.transpose(own, [*range(1, own.ndim), 0])
        found.append(lax.reshape(own, operation.shape))
    # Values are the same along all columns.
    return [lax.index_in_dim(result, 0, keepdims=False) for result in results], found


def _side_by_side(
    operations: Sequence[OpaqueOperation],
    maps: Sequence[LinearMap],
    arrays: Sequence[Array | None],
) -> tuple[list[tuple[int, int]], Array]:
    """The range of columns for every map, and all columns.

    A column holds what all inputs are moved by, one after the other. Maps from one input share
    columns where these are the same.
    """
    groups: dict[tuple[int, int | None], int] = {}
    keys = [
        (linear.reference.into, None if array is None else id(array))
        for linear, array in zip(maps, arrays, strict=True)
    ]
    for k, key in enumerate(keys):
        groups.setdefault(key, k)
    counts = [0, *itertools.accumulate(_count(operations[k]) for k in groups.values())]
    ranges = dict(zip(groups, itertools.pairwise(counts), strict=True))
    if not any(map(_is_apart, operations)):
        whole = assemble(identity_of((counts[-1],)), (), maps[0].point.dtype)
        return [ranges[key] for key in keys], whole
    columns = {key: _columns(operations[k], maps[k], arrays[k]) for key, k in groups.items()}
    dtype = jnp.result_type(*(own.dtype for own in columns.values()))
    parts = []
    for into in dict.fromkeys(linear.reference.into for linear in maps):
        size = next(own.shape[1] for key, own in columns.items() if key[0] == into)
        rows = [
            own.astype(dtype) if key[0] == into else jnp.zeros((len(own), size), dtype)
            for key, own in columns.items()
        ]
        parts.append(lax.concatenate(rows, 0) if len(rows) > 1 else rows[0])
    whole = lax.concatenate(parts, 1) if len(parts) > 1 else parts[0]
    return [ranges[key] for key in keys], whole


def _is_apart(operation: OpaqueOperation) -> bool:
    """Whether the columns of an operation are not those of the identity of a whole input."""
    return isinstance(operation, ApplyOpaque) or bool(operation.opaque.batch)


def _count(operation: OpaqueOperation) -> int:
    """How many columns an operation pushes."""
    return math.prod(
        operation.extra if isinstance(operation, ApplyOpaque) else parts_of(operation)[2]
    )


def _columns(operation: OpaqueOperation, linear: LinearMap, array: Array | None) -> Array:
    """Columns for an input: what each of its numbers is moved by.

    Along dimensions that the map is diagonal about, those of the identity are the same everywhere.
    """
    if isinstance(operation, ApplyOpaque):
        assert array is not None
        tail = array.shape[len(operation.extra) :]
        wide = lax.reshape(array, (math.prod(operation.extra), *tail))
    else:
        batch, _, core = parts_of(operation)
        wide = identity_along(batch, core, linear.point.dtype)
    wide = permuted(wide, laid_out_axes(linear.reference.batch_in, wide.ndim - 1))
    return lax.reshape(wide, (len(wide), math.prod(wide.shape[1:])))
