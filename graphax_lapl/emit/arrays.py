"""Reading operands through index maps, and the einsums and sums of a program, as `jax.lax` calls.

Only `lax` primitives are emitted: no nested jits, no dtype surprises, nothing that is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.maps import IndexMap, label
from ..edges.operations import FEW_TERMS_OF_MANY, Combine, Einsum, Read
from ..edges.terms import Number
from ..rules.stretches import read_stretches, stretches

__all__ = [
    "at_least",
    "broadcast_labels",
    "combine",
    "einsum",
    "promoted",
    "promoted_dtype",
    "read",
    "scaled",
]


#: Largest product of matrices (multiplications) that is brought into the form which XLA's CPU
#: library takes for batches; larger ones are left alone.
SMALL_PRODUCT = 1 << 15
#: Label of the axis of length one that does so.
UNIT = -1
#: Sliding windows up to this length are read as slices side by side, longer ones by positions.
MAX_WINDOW = 32
#: Most stretches of a table that are put side by side: the transpose of a gather is a scatter.
MAX_STRETCHES = 3


def promoted(values: Sequence[Array]) -> list[Array]:
    """Convert arrays to their common dtype."""
    dtypes = {value.dtype for value in values}
    if len(dtypes) == 1:
        return list(values)
    common = promoted_dtype(*dtypes)
    return [lax.convert_element_type(value, common) for value in values]


def at_least(values: Sequence[Any], dtype: Any) -> Sequence[Any]:
    """Arrays that are together as precise as `dtype`; real ones stay real.

    Weights of a layer may be less precise than what it is applied to. The product of such a partial
    with another value is as precise as that, but not its product with itself.
    """
    if not all(jnp.issubdtype(own, jnp.inexact) for own in (dtype, *(x.dtype for x in values))):
        return values
    precise = jnp.finfo(dtype)
    if any(jnp.finfo(x.dtype).eps <= precise.eps for x in values):
        return values
    # Once for each: whether an array is multiplied with itself is seen later.
    converted = {
        id(x): lax.convert_element_type(x, promoted_dtype(x.dtype, precise.dtype)) for x in values
    }
    return [converted[id(x)] for x in values]


def promoted_dtype(*dtypes: Any) -> np.dtype:
    """The smallest dtype that holds all of them, whatever promotion the user has configured."""
    kinds = {np.dtype(dtype) for dtype in dtypes}
    if len(kinds) > 1:
        # JAX promotes floats of eight bits to nothing else; bfloat16 holds all of them.
        kinds = {np.dtype(jnp.bfloat16) if _has_eight_bits(kind) else kind for kind in kinds}
    common, *rest = sorted(kinds, key=str)
    with jax.numpy_dtype_promotion("standard"):
        for dtype in rest:
            common = jnp.promote_types(common, dtype)
    return np.dtype(common)


def _has_eight_bits(dtype: np.dtype) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating)) and dtype.itemsize == 1


def scaled(value: Array, coefficient: Number) -> Array:
    """`coefficient * value`, without a multiplication for one and minus one."""
    if coefficient == 1:
        return value
    if coefficient == -1:
        return lax.neg(value)
    if isinstance(coefficient, complex) and not jnp.issubdtype(value.dtype, jnp.complexfloating):
        if coefficient.imag == 0:
            coefficient = coefficient.real
        else:
            value = lax.convert_element_type(
                value, promoted_dtype(value.dtype, np.dtype(np.complex64))
            )
    factor = np.asarray(coefficient).astype(value.dtype)
    return lax.mul(value, lax.full_like(value, factor))


def read(value: Array, view: Read, sizes: dict[int, int]) -> tuple[Array, tuple[int, ...]]:
    """The operand as an array with one axis per label, and those labels."""
    names: list[int] = []
    axis = 0
    value, axes = _read_jointly(value, list(view.axes), sizes)
    for index_map in axes:
        value, found = _read_axis(value, axis, index_map, sizes)
        names += found
        axis += len(found)
    while len(set(names)) < len(names):
        repeated = next(n for n in names if names.count(n) > 1)
        first = names.index(repeated)
        second = names.index(repeated, first + 1)
        value = _diagonal(value, first, second)
        del names[second]
    if view.conj and jnp.issubdtype(value.dtype, jnp.complexfloating):
        value = lax.conj(value)
    return value, tuple(names)


def _read_jointly(
    value: Array, axes: list[IndexMap], sizes: dict[int, int]
) -> tuple[Array, list[IndexMap]]:
    """Axes that tables of one label read, replaced by a first one for that label.

    One gather picks as many entries as the label has values; axis by axis it would be their square.
    """
    for name in sorted({name for axis in axes for name in axis.labels}):
        places = [k for k, axis in enumerate(axes) if axis.labels == (name,)]
        if len(places) < 2 or all(axes[k].is_affine for k in places):
            continue
        positions = []
        for k in places:
            value, index_map = _padded(value, k, axes[k], sizes)
            positions.append(index_map.evaluate([name], sizes).astype(np.int32))
        rest = [k for k in range(value.ndim) if k not in places]
        value = lax.transpose(value, [*places, *rest])
        value = value.at[tuple(positions)].get(mode="promise_in_bounds")
        axes = [label(name), *(axes[k] for k in rest)]
    return value, axes


def _padded(
    value: Array, axis: int, index_map: IndexMap, sizes: dict[int, int]
) -> tuple[Array, IndexMap]:
    """The array with zeros where a map reads outside of it, and the map into that."""
    low, high = index_map.bounds(sizes)
    if low >= 0 and high < value.shape[axis]:
        return value, index_map
    config = [(0, 0, 0)] * value.ndim
    before = max(0, -low)
    config[axis] = (before, max(0, high + 1 - value.shape[axis]), 0)
    return lax.pad(value, np.zeros((), value.dtype), config), index_map.shifted(before)


def _read_axis(
    value: Array, axis: int, index_map: IndexMap, sizes: dict[int, int]
) -> tuple[Array, list[int]]:
    """Replace one axis by the axes of the labels that select its positions."""
    value, index_map = _padded(value, axis, index_map, sizes)
    extent = value.shape[axis]
    if not index_map.parts:
        if extent == 1:
            return lax.squeeze(value, (axis,)), []
        return lax.index_in_dim(value, index_map.offset, axis, keepdims=False), []
    if len(index_map.parts) == 1 and index_map.is_affine:
        ((name, stride),) = index_map.parts
        assert isinstance(stride, int)
        size, start = sizes[name], index_map.offset
        if stride == 1 and size == extent:
            return value, [name]
        last = start + stride * (size - 1)
        low, high = min(start, last), max(start, last)
        value = lax.slice_in_dim(value, low, high + 1, abs(stride), axis)
        return (lax.rev(value, (axis,)) if stride < 0 else value), [name]
    radix = _contiguous(index_map, sizes)
    if radix is not None:
        total = math.prod(sizes[name] for name in radix)
        if total != extent:
            value = lax.slice_in_dim(value, index_map.offset, index_map.offset + total, 1, axis)
        shape = (*value.shape[:axis], *(sizes[n] for n in radix), *value.shape[axis + 1 :])
        return lax.reshape(value, shape), radix
    window = min(index_map.labels, key=lambda name: sizes[name])
    step = index_map.stride(window)
    if sizes[window] <= MAX_WINDOW and step is not None:
        rest = IndexMap(index_map.offset, tuple(p for p in index_map.parts if p[0] != window))
        slices: list[Array] = []
        names: list[int] = []
        for place in range(sizes[window]):
            part, names = _read_axis(value, axis, rest.shifted(step * place), sizes)
            slices.append(lax.expand_dims(part, (axis + len(names),)))
        return lax.concatenate(slices, axis + len(names)), [*names, window]
    labels = list(index_map.labels)
    positions = index_map.evaluate(labels, sizes).astype(np.int32)
    if len(labels) == 1 and len(parts := stretches(positions)) <= MAX_STRETCHES:
        return read_stretches(value, axis, parts), labels
    index = (slice(None),) * axis + (positions,)
    return value.at[index].get(mode="promise_in_bounds"), labels


def _contiguous(index_map: IndexMap, sizes: dict[int, int]) -> list[int] | None:
    """The labels from major to minor where the map counts through them without gaps."""
    if not index_map.is_affine:
        return None
    expected, names = 1, []
    for name, stride in sorted(index_map.parts, key=lambda item: item[1]):  # type: ignore[arg-type,return-value]
        if stride != expected:
            return None
        expected *= sizes[name]
        names.append(name)
    return names[::-1]


def _diagonal(value: Array, first: int, second: int) -> Array:
    """The diagonal of two equally long axes, kept at the first one's place."""
    order = [first, second, *(k for k in range(value.ndim) if k not in (first, second))]
    moved = lax.transpose(value, order)
    size = value.shape[first]
    flat = lax.reshape(moved, (size * size, *moved.shape[2:]))
    picked = lax.slice_in_dim(flat, 0, size * size, size + 1, 0)
    back = list(range(1, picked.ndim))
    back.insert(first, 0)
    return lax.transpose(picked, back)


def broadcast_labels(
    value: Array, names: Sequence[int], output: Sequence[int], sizes: dict[int, int]
) -> Array:
    """Permute axes to the order of `output` and repeat along labels that are missing."""
    order = sorted(range(len(names)), key=lambda k: output.index(names[k]))
    if order != list(range(len(names))):
        value = lax.transpose(value, order)
    if len(names) == len(output):
        return value
    places = [output.index(names[k]) for k in order]
    return lax.broadcast_in_dim(value, tuple(sizes[n] for n in output), places)


def einsum(
    operation: Einsum, operands: Sequence[Array], dot: Callable[..., Array] = lax.dot_general
) -> Array:
    """Evaluate one einsum of a program; `dot` is what products of matrices are made by."""
    sizes = dict(operation.sizes)
    output = operation.output
    views = [read(v, r, sizes) for v, r in zip(operands, operation.reads, strict=True)]
    if len(views) == 1:
        result = _sum(*views[0], output, sizes)
    else:
        same = operands[0] is operands[1] and operation.reads[0] == operation.reads[1]
        if same and all(name in views[0][1] for name in output):
            # One equation to differentiate and to transpose instead of two.
            result = _sum(lax.square(views[0][0]), views[0][1], output, sizes)
        elif operation.written_out or (operation.looped and _sums_few(operation)):
            result = _sum_of_products(views[0], views[1], output, sizes)
        else:
            form = lax.dot_general if operation.common else dot
            result = _product(
                views[0], views[1], output, sizes, form, operation.common, operation.looped
            )
    result = scaled(result, operation.coefficient)
    if operation.real and jnp.issubdtype(result.dtype, jnp.complexfloating):
        result = lax.real(result)
    return result


def _sums_few(operation: Einsum) -> bool:
    """Whether a product of two matrices is summed over so few entries that they are written out."""
    sizes = dict(operation.sizes)
    return math.prod(sizes[name] for name in operation.summed) <= FEW_TERMS_OF_MANY


def _sum(
    value: Array, names: tuple[int, ...], output: tuple[int, ...], sizes: dict[int, int]
) -> Array:
    """Summed over the labels that the output lacks."""
    summed = [k for k, name in enumerate(names) if name not in output]
    if summed:
        value = lax.reduce_sum(value, summed)
        names = tuple(name for name in names if name in output)
    return broadcast_labels(value, names, output, sizes)


def _product(
    first: tuple[Array, tuple[int, ...]],
    second: tuple[Array, tuple[int, ...]],
    output: tuple[int, ...],
    sizes: dict[int, int],
    dot: Callable[..., Array],
    common: bool,
    looped: bool,
) -> Array:
    sides = []
    for (value, names), (_, others) in ((first, second), (second, first)):
        alone = [k for k, name in enumerate(names) if name not in output and name not in others]
        if alone:  # summed on one side only: before the product
            value = lax.reduce_sum(value, alone)
            names = tuple(name for k, name in enumerate(names) if k not in alone)
        sides.append((value, names))
    (left, left_names), (right, right_names) = sides
    left, right = promoted([left, right])
    contracted = [name for name in left_names if name in right_names and name not in output]
    if not contracted:
        shape_left = broadcast_labels(left, left_names, output, sizes)
        return lax.mul(shape_left, broadcast_labels(right, right_names, output, sizes))
    batch = [name for name in output if name in left_names and name in right_names]
    if looped or (batch and len(batch) == len(output)):  # no matrix product: one fused loop
        axes = (*left_names, *(n for n in right_names if n not in left_names))
        if looped:  # along the result's rows
            axes = (*output[:-1], *contracted, output[-1])
        product = lax.mul(
            broadcast_labels(left, left_names, axes, sizes),
            broadcast_labels(right, right_names, axes, sizes),
        )
        reduced = lax.reduce_sum(product, [axes.index(n) for n in contracted])
        kept = [name for name in axes if name not in contracted]
        return broadcast_labels(reduced, kept, output, sizes)
    if not output:
        # With parameters on one side this is a matrix times a vector for a batch: no parameter is
        # repeated for every sample, as products before a sum are. Exact to the dtype, as a sum is.
        places = (
            [left_names.index(n) for n in contracted],
            [right_names.index(n) for n in contracted],
        )
        return dot(left, right, (places, ((), ())), precision=lax.Precision.HIGHEST)
    free = [name for name in output if name not in batch]
    if not common and free[0] not in left_names:
        left, left_names, right, right_names = right, right_names, left, left_names
    work = math.prod(sizes[n] for n in {*left_names, *right_names} - {*batch})
    # With a vector on the right, the left is often a matrix of weights that no sample has of its
    # own: one product for the whole batch, which this form would hinder.
    matrices = any(n not in left_names for n in right_names)
    unit = matrices and left_names[-1] not in contracted and work <= SMALL_PRODUCT and not common
    if unit:
        # Under `jax.vmap` the left operand has to hold the contracted axis last. XLA folds a
        # transposition into the product again, but turns operands with two free axes itself.
        left, left_names = lax.expand_dims(left, (0,)), (UNIT, *left_names)
    result = dot(
        left,
        right,
        (
            (
                [left_names.index(n) for n in contracted],
                [right_names.index(n) for n in contracted],
            ),
            ([left_names.index(n) for n in batch], [right_names.index(n) for n in batch]),
        ),
    )
    if unit:
        result = lax.squeeze(result, (len(batch),))
    result_names = [
        *batch,
        *(n for n in left_names if n not in batch and n not in contracted and n != UNIT),
        *(n for n in right_names if n not in batch and n not in contracted),
    ]
    return broadcast_labels(result, result_names, output, sizes)


def _sum_of_products(
    first: tuple[Array, tuple[int, ...]],
    second: tuple[Array, tuple[int, ...]],
    output: tuple[int, ...],
    sizes: dict[int, int],
) -> Array:
    """A product that is summed over a short label, written out as a sum of outer products."""
    (summed,) = {*first[1]} & {*second[1]} - {*output}
    left, right = promoted([first[0], second[0]])
    total: Array | None = None
    for place in range(sizes[summed]):
        part = None
        for value, names in ((left, first[1]), (right, second[1])):
            slab = lax.index_in_dim(value, place, names.index(summed), keepdims=False)
            rest = tuple(name for name in names if name != summed)
            slab = broadcast_labels(slab, rest, output, sizes)
            part = slab if part is None else lax.mul(part, slab)
        assert part is not None
        total = part if total is None else lax.add(total, part)
    assert total is not None
    return total


def combine(operation: Combine, operands: Sequence[Array]) -> Array:
    """Evaluate one sum of a program."""
    sizes = dict(operation.sizes)
    values = promoted(list(operands))
    total: Array | None = None
    # What is subtracted comes last, so that nothing is negated for a difference.
    summands = sorted(zip(values, operation.operands, strict=True), key=lambda s: s[1][0] == -1)
    for value, (coefficient, names) in summands:
        subtract = coefficient == -1 and total is not None
        part = value if subtract else scaled(value, coefficient)
        part = broadcast_labels(part, names, operation.output, sizes)
        if total is None:
            total = part
        else:
            total, part = promoted([total, part])
            total = lax.sub(total, part) if subtract else lax.add(total, part)
    assert total is not None
    if operation.constant:
        constant = operation.constant
        if isinstance(constant, complex) and not jnp.issubdtype(total.dtype, jnp.complexfloating):
            total = lax.convert_element_type(
                total, promoted_dtype(total.dtype, np.dtype(np.complex64))
            )
        total = lax.add(total, lax.full_like(total, np.asarray(constant).astype(total.dtype)))
    return total
