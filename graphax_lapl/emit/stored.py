"""The arrays of sparse results: what a block keeps, and the values of terms that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.sparse_form import value_structure
from ..edges.storage import Storage, StoredArray, full_storage, storage_of
from ..edges.terms import Structure, Term
from ..program.instructions import Block, Program
from .arrays import at_least, broadcast_labels, scaled
from .assembly import term_values
from .packing import stacked

__all__ = [
    "block_storage",
    "broadcast_values",
    "cast_to",
    "spread_values",
    "stored_arrays",
    "unstacked",
]


def block_storage(block: Block, program: Program) -> Storage:
    """How a block that is not zero is stored."""
    assert block.structure is not None
    if len(block.slots) != len(block.structure.factors):  # compressed evaluation
        return full_storage(value_structure(block.structure))
    kind = np.dtype(block.dtype)
    direct = frozenset(s for s in block.slots if np.dtype(program.slots[s].dtype) == kind)
    return storage_of(block.structure, block.slots, direct)


def stored_arrays(
    block: Block, program: Program, slots: Sequence[Any] | Mapping[int, Any]
) -> list[Array]:
    """The arrays that a block keeps."""
    if block.structure is None:
        return []
    inputs = frozenset(program.inputs)
    return [_stored(array, block, slots, inputs) for array in block_storage(block, program).arrays]


def _stored(
    array: StoredArray,
    block: Block,
    slots: Sequence[Any] | Mapping[int, Any],
    inputs: frozenset[int],
) -> Array:
    if array.parts:
        parts = [_stored(part, block, slots, inputs) for part in array.parts]
        if array.joined:
            return lax.concatenate([part.reshape(-1) for part in parts], 0)
        return stacked(parts)
    if array.numbers:
        return cast_to(jnp.asarray(np.asarray(array.numbers)), block.dtype)
    if array.slot is not None:
        value = cast_to(scaled(slots[array.slot], array.coefficient), block.dtype)
        # Results must not be the caller's own buffers, which it may give away.
        return jnp.copy(value) if array.slot in inputs and array.coefficient == 1 else value
    assert block.structure is not None
    assert array.term is not None
    before = sum(len(t.factors) for t in block.structure.terms[: array.term])
    term = block.structure.terms[array.term]
    own = [slots[slot] for slot in block.slots[before : before + len(term.factors)]]
    values, names = term_values(term, at_least(own, block.dtype), block.dtype)
    return cast_to(broadcast_labels(values, names, array.labels, _sizes(term)), block.dtype)


def spread_values(structure: Structure, operands: Sequence[Array]) -> list[Array]:
    """For each term of a stored structure its values, one axis per label."""
    return [
        broadcast_values(term, [operand], operand.dtype)
        for term, operand in zip(structure.terms, operands, strict=True)
    ]


def unstacked(structure: Structure, sources: Sequence[int], arrays: Sequence[Array]) -> list[Array]:
    """The arrays with stacks taken apart, which XLA never makes then.

    Args:
        structure: one factor per term.
        sources: for every term which array it reads.
        arrays: what the factors read; one that a term reads along its first axis is left whole.
    """
    apart = set(range(len(arrays)))
    for term, source in zip(structure.terms, sources, strict=True):
        axes = term.factors[0].axes
        if len(axes) < 2 or axes[0].parts:
            apart.discard(source)
    return [
        part
        for source, array in enumerate(arrays)
        for part in (
            [lax.index_in_dim(array, k, keepdims=False) for k in range(array.shape[0])]
            if source in apart
            else [array]
        )
    ]


def broadcast_values(term: Term, operands: Sequence[Array], dtype: Any) -> Array:
    """The values of a term, one axis per label that its positions depend on."""
    values, names = term_values(term, operands, dtype)
    labels = tuple(sorted(term.position_labels))
    return cast_to(broadcast_labels(values, names, labels, _sizes(term)), dtype)


def cast_to(value: Array, dtype: Any) -> Array:
    """The array in another dtype; of complex numbers the real part, which a map to reals means."""
    if jnp.iscomplexobj(value) and not jnp.issubdtype(dtype, jnp.complexfloating):
        value = lax.real(value)
    return value if value.dtype == dtype else lax.convert_element_type(value, dtype)


def _sizes(term: Term) -> dict[int, int]:
    return dict(enumerate(term.sizes))
