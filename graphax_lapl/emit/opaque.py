"""Opaque linear maps at run time: batched `jvp` and `vjp` of one equation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.operations import ApplyOpaque, MaterializeOpaque
from ..errors import NotDifferentiableError
from ..program.instructions import CurvatureInstruction
from ..rules.opaque import needs_all_tangents
from ..rules.site import OpaqueMap

__all__ = ["LinearMap", "apply_opaque", "materialize_opaque", "second_derivative"]


class LinearMap:
    """The derivative of an equation's output `out` along its input `into`, at given values."""

    def __init__(self, reference: OpaqueMap, values: Sequence[Any], types: Sequence[Any]):
        """Hold the point; an input without a value (the equation is linear in it) is zero."""
        self.reference = reference
        there = [value for value in values if value is not None]
        self.values = [
            _varying_like(jnp.zeros(type_.shape, type_.dtype), there) if value is None else value
            for value, type_ in zip(values, types, strict=True)
        ]
        self.moving = [reference.into]
        if not reference.slot and needs_all_tangents(reference.equation):
            self.moving += [k for k in _differentiable(self.values) if k != reference.into]

    def along(self, *moving: Array) -> Array:
        """The output as a function of the input, and of the operands that move with zero."""
        reference = self.reference
        values = list(self.values)
        for position, value in zip(self.moving, moving, strict=True):
            values[position] = value
        return reference.equation.evaluate(*values)[reference.out]

    @property
    def points(self) -> tuple[Array, ...]:
        """Values of the operands that `along` takes."""
        return tuple(self.values[k] for k in self.moving)

    @property
    def point(self) -> Array:
        """The input's value."""
        return self.values[self.reference.into]

    def push(self, tangents: Array) -> Array:
        """Push tangents of shape `(count, *batch, *in core)` forward.

        With `L(z) = A z + B conj(z)`, A is `(L(z) - i L(i z)) / 2` and B acts on `conj(z)`.
        """
        if self.reference.conjugate is None:
            return _by_parts(self._push, tangents, self.point.dtype)
        seeds = tangents.astype(self.point.dtype)
        if self.reference.conjugate:
            seeds = lax.conj(seeds)
        plain, turned = self._push(seeds), self._push(1j * seeds)
        return 0.5 * (plain + 1j * turned if self.reference.conjugate else plain - 1j * turned)

    def pull(self, cotangents: Array) -> Array:
        """Pull cotangents of shape `(count, *batch, *out core)` back.

        JAX's `vjp` of `L(z) = A z + B conj(z)` is `P(c) = A^T c + conj(B^T c)`.
        """
        if self.reference.conjugate is None:
            out = jax.eval_shape(self.along, *self.points)
            return _by_parts(self._pull, cotangents, out.dtype)
        plain, turned = self._pull(cotangents), self._pull(1j * cotangents)
        if self.reference.conjugate:
            return lax.conj(0.5 * (plain + 1j * turned))
        return 0.5 * (plain - 1j * turned)

    def _push(self, tangents: Array) -> Array:
        """The map of the equation, both halves of it."""
        reference = self.reference
        unpack = _layout(reference.batch_in, self.point.ndim)
        moved = _permute(tangents, unpack).astype(self.point.dtype)
        moved = _varying_like(moved, [self.point])
        packed = _packed(reference.batch_out, len(reference.batch_out) + reference.opaque.outputs)
        if reference.slot:
            return _permute(jax.vmap(self.along)(moved), packed)
        still = tuple(jnp.zeros_like(value) for value in self.points[1:])
        # The value is dropped inside: of a kernel that computes both it is batched too.
        pushed = jax.vmap(lambda t: jax.jvp(self.along, self.points, (t, *still))[1])(moved)
        return _permute(pushed, packed)

    def _pull(self, cotangents: Array) -> Array:
        """The transposed (not conjugated) map of the equation, both halves of it."""
        reference = self.reference
        out, pull = jax.vjp(self.along, *self.points)
        moved = _permute(cotangents, _layout(reference.batch_out, out.ndim))
        moved = _varying_like(moved.astype(out.dtype), [out])
        pulled = jax.vmap(lambda c: pull(c)[0])(moved)
        return _permute(pulled, _packed(reference.batch_in, pulled.ndim - 1))


def _varying_like(array: Array, others: Sequence[Any]) -> Array:
    """An array, marked as one that differs between devices where one of the others does.

    Inside `jax.shard_map` an equation takes operands of one kind, as it did when it was traced.
    """
    axes = frozenset().union(*map(_varying_axes, others)) - _varying_axes(array)
    return lax.pcast(array, tuple(sorted(axes)), to="varying") if axes else array


def _varying_axes(value: Any) -> frozenset[str]:
    """Axes of a mesh along which devices hold different values; JAX 0.11 renamed the attribute."""
    type_ = jax.typeof(value)
    axes: frozenset[str] | None = getattr(type_, "vma", None)
    if axes is None:
        axes = getattr(getattr(type_, "manual_axis_type", None), "varying", None)
    return axes or frozenset()


def _by_parts(apply: Callable[[Array], Array], seeds: Array, dtype: Any) -> Array:
    """A map of real arrays on complex seeds: of their real and imaginary parts."""
    if jnp.iscomplexobj(seeds) and not jnp.issubdtype(dtype, jnp.complexfloating):
        return apply(lax.real(seeds)) + 1j * apply(lax.imag(seeds))
    return apply(seeds)


def _differentiable(values: Sequence[Any]) -> list[int]:
    return [
        k for k, value in enumerate(values) if jnp.issubdtype(jnp.result_type(value), jnp.inexact)
    ]


def _packed(batch: Sequence[int], rank: int) -> list[int]:
    """Dimensions in the order (batch..., core...)."""
    return [*batch, *(d for d in range(rank) if d not in batch)]


def _layout(batch: Sequence[int], rank: int) -> list[int]:
    """The inverse of `_packed`."""
    packed = _packed(batch, rank)
    return [packed.index(d) for d in range(rank)]


def _permute(stacked: Array, order: Sequence[int]) -> Array:
    """Permute all axes but the first."""
    if list(order) == list(range(len(order))):
        return stacked
    return lax.transpose(stacked, [0, *(1 + d for d in order)])


def apply_opaque(operation: ApplyOpaque, linear: LinearMap, seeds: Array) -> Array:
    """Apply a map to seeds of shape `(*extra, *batch, *core)`."""
    count = math.prod(operation.extra)
    tail = seeds.shape[len(operation.extra) :]
    flat = lax.reshape(seeds, (count, *tail))
    moved = linear.pull(flat) if operation.reverse else linear.push(flat)
    return lax.reshape(moved, operation.shape)


def materialize_opaque(operation: MaterializeOpaque, linear: LinearMap) -> Array:
    """The map as an array of shape `(*batch, *out core, *in core)`."""
    opaque, shape = operation.opaque, operation.map_shape
    split = opaque.batch + opaque.outputs
    batch, out, into = shape[: opaque.batch], shape[opaque.batch : split], shape[split:]
    core = out if operation.by_rows else into
    count = math.prod(core)
    if 0 in shape:
        return jnp.zeros(shape, linear.point.dtype)
    eye = np.eye(count, dtype=np.float32).reshape(count, *(1,) * len(batch), *core)
    seeds = jnp.broadcast_to(jnp.asarray(eye, linear.point.dtype), (count, *batch, *core))
    moved = linear.pull(seeds) if operation.by_rows else linear.push(seeds)
    # From (count, *batch, *other core) to (*batch, *out, *in).
    rank = moved.ndim
    order = [*range(1, 1 + len(batch)), 0, *range(1 + len(batch), rank)]
    if not operation.by_rows:
        order = [*range(1, rank), 0]
    return lax.reshape(lax.transpose(moved, order), shape)


def second_derivative(instruction: CurvatureInstruction, operands: Sequence[Array]) -> Array:
    """An equation's second derivative, summed over the columns that it moves along."""
    moving = iter(operands)
    values = [
        next(moving) if there else jnp.zeros(type_.shape, type_.dtype)
        for there, type_ in zip(instruction.present, instruction.types, strict=True)
    ]
    tangents = [next(moving) if there else None for there in instruction.tangents]
    changes = [next(moving) if there else None for there in instruction.moving]
    columns = next(array for array in tangents if array is not None)
    count = math.prod(columns.shape[: instruction.rank])

    def flat(columns: Sequence[Array | None]) -> list[Array]:
        """Columns as one axis, of the dtype of what they move."""
        return [
            array.reshape(count, *value.shape).astype(value.dtype)
            for array, value in zip(columns, values, strict=True)
            if array is not None
        ]

    if needs_all_tangents(instruction.equation):
        # Zero columns for the operands that do not move.
        leading = columns.shape[: instruction.rank]
        for k in _differentiable(values):
            still = jnp.zeros((*leading, *values[k].shape), values[k].dtype)
            if changes[k] is None and instruction.present[k]:
                changes[k] = still
    chosen = [k for k, array in enumerate(tangents) if array is not None]
    moved = [k for k, array in enumerate(changes) if array is not None]

    def evaluate(point: list[Array]) -> Array:
        return instruction.equation.evaluate(*point)[instruction.out]

    def along(tangent: list[Array], change: list[Array]) -> Array:
        def pushed(*place: Array) -> Array:
            point = list(values)
            for k, value in zip(moved, place, strict=True):
                point[k] = value
            if all(instruction.present[k] for k in chosen):

                def inner(*x: Array) -> Array:
                    inside = list(point)
                    for k, value in zip(chosen, x, strict=True):
                        inside[k] = value
                    return evaluate(inside)

                return jax.jvp(inner, tuple(point[k] for k in chosen), tuple(tangent))[1]
            for k, value in zip(chosen, tangent, strict=True):
                point[k] = value  # the equation is linear in these
            return evaluate(point)

        return jax.jvp(pushed, tuple(values[k] for k in moved), tuple(change))[1]

    try:
        curved = jax.vmap(along)(flat(tangents), flat(changes))
    except (NotImplementedError, ValueError, TypeError) as error:
        equation = instruction.equation
        what = f"'{equation.name}' has no second derivative"
        raise NotDifferentiableError(what, equation.source, error) from error
    return lax.reduce_sum(curved, [0])
