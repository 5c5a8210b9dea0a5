"""Arrays that are put together from pieces of one array, before windows slide over them.

`jnp.pad(x, 1, mode="wrap")` concatenates the last entries of `x`, `x` and its first ones, along one
dimension after the other. As pieces these are three terms of a partial for every dimension, and a
window that slides over them meets each of them separately. As a gather with known indices, which
is the same function, they are one term.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import jax
import numpy as np
from jax import lax

from ..graph.listing import Atom, Constant, Equation, Listing
from ..graph.numpy_values import MOVES, moved
from .stretches import read_stretches, stretches

__all__ = ["with_window_tables"]

#: Whose first operand windows slide over.
WINDOWED = frozenset({"conv_general_dilated", "reduce_window_sum"})
#: What windows may slide over after it has been put together.
MOVED = MOVES | {"convert_element_type", "expand_dims", "pad"}
#: Most entries of an array that is looked at.
MAX_ENTRIES = 1 << 20


def with_window_tables(listing: Listing) -> None:
    """Replace what windows slide over by gathers, where it is pieces of one array."""
    makers = {output: equation for equation in listing.equations for output in equation.outputs}
    found: dict[int, Equation] = {}
    for equation in listing.equations:
        if equation.name in WINDOWED and equation.active[0]:
            found.update(_tables(listing, makers, equation.inputs[0]))
    if found:
        # What only prints has no outputs.
        listing.equations = [
            found.get(e.outputs[0], e) if e.outputs else e for e in listing.equations
        ]


def _tables(
    listing: Listing, makers: dict[int, Equation], atom: Atom
) -> Iterator[tuple[int, Equation]]:
    """The gathers that stand in the place of equations from which an array is moved."""
    while isinstance(atom, int) and atom in makers:
        equation = makers[atom]
        if equation.name == "concatenate":
            table = _table(listing, makers, equation)
            if table is None:
                return
            base, positions = table
            yield atom, _gather(listing, equation, base, positions)
            atom = base
        elif equation.name in MOVED:
            atom = equation.inputs[0]
        else:
            return


def _table(
    listing: Listing, makers: dict[int, Equation], equation: Equation
) -> tuple[int, np.ndarray] | None:
    """The array that all operands are pieces of, and which of its positions they hold."""
    operands = [atom for atom in equation.inputs if isinstance(atom, int)]
    if len(operands) < len(equation.inputs):
        return None
    chains = [_moved_from(makers, atom) for atom in operands]
    shared = [atom for atom in chains[0] if all(atom in chain for chain in chains)]
    if not shared or math.prod(listing.variables[shared[0]].shape) > MAX_ENTRIES:
        return None
    base, dimension = shared[0], equation.params["dimension"]
    pieces = [
        _positions(listing, makers, chain[: chain.index(base)], base, dimension) for chain in chains
    ]
    found = [piece for piece in pieces if piece is not None]
    return (base, np.concatenate(found)) if len(found) == len(pieces) else None


def _moved_from(makers: dict[int, Equation], atom: int) -> list[int]:
    """An array, what its entries are moved from, what those are, and so on."""
    chain = [atom]
    while (equation := makers.get(chain[-1])) is not None and equation.name in MOVES:
        if not isinstance(equation.inputs[0], int):
            break
        chain.append(equation.inputs[0])
    return chain


def _positions(
    listing: Listing, makers: dict[int, Equation], chain: list[int], base: int, dimension: int
) -> np.ndarray | None:
    """Where along a dimension of `base` the entries of a moved array stand, all others in place."""
    shape = listing.variables[base].shape
    entries = every = np.arange(math.prod(shape)).reshape(shape)
    for variable in reversed(chain):
        equation, target = makers[variable], listing.variables[variable].shape
        found = moved(equation.name, equation.params, entries, target)
        if found is None:
            return None
        entries = found
    if not entries.size or entries.ndim != len(shape):
        return None
    line = np.moveaxis(entries, dimension, 0).reshape(entries.shape[dimension], -1)[:, 0]
    positions = np.unravel_index(line, shape)[dimension]
    return positions if np.array_equal(np.take(every, positions, dimension), entries) else None


def _gather(listing: Listing, equation: Equation, base: int, positions: np.ndarray) -> Equation:
    """An equation that reads positions along the dimension of a concatenation."""
    type_ = listing.variables[base]
    dimension = equation.params["dimension"]
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(d for d in range(len(type_.shape)) if d != dimension),
        collapsed_slice_dims=(dimension,),
        start_index_map=(dimension,),
    )
    sizes = tuple(1 if d == dimension else size for d, size in enumerate(type_.shape))
    indices = positions.astype(np.int32)[:, None]

    def read(x: jax.Array, indices: jax.Array) -> jax.Array:
        mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
        return lax.gather(x, indices, numbers, sizes, mode=mode)

    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (type_, indices)]
    (made,) = jax.make_jaxpr(read)(*shapes).jaxpr.eqns
    parts = stretches(positions)

    def pieces(x: jax.Array, indices: jax.Array) -> jax.Array:
        del indices
        return read_stretches(x, dimension, parts)

    return dataclasses.replace(
        equation,
        form=pieces,
        primitive=made.primitive,
        params=made.params,
        inputs=(base, Constant(indices)),
        active=(True, False),
    )
