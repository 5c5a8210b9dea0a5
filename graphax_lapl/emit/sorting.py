"""Equations that select: every output is one of the inputs along a dimension, as in a sort.

Their value and their derivative are one evaluation here. JAX's derivative evaluates the equation
again, and XLA, which has dropped by then what each of the two does not read, takes them for two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..edges.operations import MaterializeOpaque
from ..program.instructions import OpaqueInstruction, Program
from ..rules.site import OpaqueMap

__all__ = [
    "pulled_by_places",
    "pushed_by_places",
    "selected_places",
    "selecting",
    "values_and_places",
    "written_by_places",
]

#: Primitives of which every output is one of the inputs, at a place that depends on the values.
SELECTIONS = frozenset({"sort", "top_k"})


def selecting(program: Program) -> frozenset[int]:
    """Identities of the equations of a program that select, and whose derivative it reads."""
    references = [i.reference for i in program.instructions if isinstance(i, OpaqueInstruction)]
    return frozenset(
        id(reference.equation)
        for reference in references
        if reference.equation.name in SELECTIONS
        and reference.conjugate is None
        and not reference.slot
        and all(argument is not None for argument in reference.arguments)
    )


def values_and_places(
    equation: Any, values: Sequence[Array]
) -> tuple[Sequence[Array], Sequence[Array | None]]:
    """What an equation that selects gives, and for each output the place of what was selected.

    Positions are pushed through its derivative, which says it without naming the primitive; where
    their dtype cannot count so far, there are none.
    """
    rank = values[0].ndim
    along = equation.params.get("dimension", equation.params.get("axis", rank - 1)) % rank
    chosen = [k for k, value in enumerate(values) if _counts_to(value.dtype, value.shape[along])]

    def at(*moving: Array) -> list[Array]:
        full = list(values)
        for k, value in zip(chosen, moving, strict=True):
            full[k] = value
        return list(equation.evaluate(*full))

    moving = [values[k] for k in chosen]
    if not moving:
        return equation.evaluate(*values), [None] * len(equation.outputs)
    positions = [lax.broadcasted_iota(value.dtype, value.shape, along) for value in moving]
    results, places = jax.jvp(at, moving, positions)
    told = [jnp.issubdtype(place.dtype, jnp.floating) for place in places]
    if equation.name == "sort":  # one operand's places are not read off another one
        told = [k in chosen for k in range(len(places))]
    return results, [
        lax.convert_element_type(place, jnp.int32) if known else None
        for place, known in zip(places, told, strict=True)
    ]


def selected_places(reference: OpaqueMap, places: Sequence[Array | None] | None) -> Array | None:
    """Places of a map's output, dimensions in the order (batch..., core); None where not known."""
    own = None if places is None else places[reference.out]
    if own is None:
        return None
    batch = reference.batch_out
    core = [d for d in range(own.ndim) if d not in batch]
    return lax.transpose(own, [*batch, *core]) if len(core) == 1 else None


def pushed_by_places(places: Array, tangents: Array) -> Array:
    """Tangents of shape `(count, *batch, in)` as those of what is selected."""
    return jax.vmap(lambda own: jnp.take_along_axis(own, places, -1))(tangents)


def pulled_by_places(places: Array, cotangents: Array, size: int) -> Array:
    """Cotangents of shape `(count, *batch, out)` as those of the input, of some size.

    Every input is read at most once. Where it was read is written down first, so that all
    cotangents are gathered, which takes less than adding each of them in its place.
    """
    shape = places.shape[:-1]
    order = jnp.zeros((*shape, size), jnp.int32)
    numbers = lax.broadcasted_iota(jnp.int32, places.shape, places.ndim - 1) + 1
    order = jnp.put_along_axis(order, places, numbers, axis=-1, inplace=False)
    read = order > 0
    readers = jnp.maximum(order - 1, 0)
    found = pushed_by_places(readers, cotangents)
    return found if places.shape[-1] == size else jnp.where(read, found, jnp.zeros_like(found))


def written_by_places(operation: MaterializeOpaque, places: Array, dtype: Any) -> Array:
    """The array of a map that selects, by comparing positions: part of whatever reads it."""
    whole, split = operation.map_shape, operation.opaque.batch + operation.opaque.outputs
    chosen = lax.broadcast_in_dim(places, whole, range(split))
    positions = lax.broadcasted_iota(jnp.int32, whole, split)
    written = lax.convert_element_type(chosen == positions, dtype)
    if not operation.columns_first:
        return written
    return lax.transpose(written, [*range(split, len(whole)), *range(split)])


def _counts_to(dtype: Any, size: int) -> bool:
    """Whether real numbers of a dtype hold all positions below a size exactly."""
    return bool(jnp.issubdtype(dtype, jnp.floating) and size <= 2 ** jnp.finfo(dtype).nmant)
