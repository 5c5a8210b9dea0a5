"""Opaque linear maps at run time: batched `jvp` and `vjp` of one equation."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..edges.maps import constant, label
from ..edges.operations import ApplyOpaque, MaterializeOpaque
from ..edges.terms import Structure, Term, intern_structure
from ..errors import no_rule_refused
from ..rules.loop_invariants import evaluated_for_rows
from ..rules.opaque import needs_all_tangents, runs_rules
from ..rules.site import OpaqueMap
from .arrays import promoted
from .assembly import assemble
from .small_loops import for_batches, is_small_loop
from .sorting import pulled_by_places, pushed_by_places, written_by_places

__all__ = [
    "LinearMap",
    "OpaqueOperation",
    "apply_opaque",
    "apply_sums",
    "apply_together",
    "differentiable",
    "identity_along",
    "identity_of",
    "is_reversed",
    "laid_out_axes",
    "packed_axes",
    "parts_of",
    "permuted",
    "pull_sums",
    "pull_together",
]

OpaqueOperation = ApplyOpaque | MaterializeOpaque


class LinearMap:
    """The derivative of an equation's output `out` along its input `into`, at given values.

    Attributes:
        kept: the way back for rows of some outputs to several inputs, where it was kept when the
            equation was evaluated, and the places of `out` and `into` among these.
        places: of an equation that selects, which input each output is, axes (batch..., core).
    """

    kept: tuple[Callable[[dict[int, Array]], Sequence[Array]], int, int] | None = None
    places: Array | None = None

    def __init__(self, reference: OpaqueMap, values: Sequence[Any], types: Sequence[Any]):
        """Hold the point; an input without a value (the equation is linear in it) is zero."""
        self.reference = reference
        self.values = [
            jnp.zeros(type_.shape, type_.dtype) if value is None else value
            for value, type_ in zip(values, types, strict=True)
        ]
        self.moving = [reference.into]
        if not reference.slot and needs_all_tangents(reference.equation, reference.into):
            self.moving += [k for k in differentiable(self.values) if k != reference.into]

    def at_places(
        self,
        values: Sequence[Array],
        places: Sequence[int],
        outs: Sequence[int],
        rows: bool = False,
    ) -> Callable[..., tuple[list[Array], list[Array]]]:
        """Some outputs as a function of what stands at some places, and beside them all.

        With `rows`, evaluated as is best for what is pulled back.
        """
        equation = self.reference.equation

        def along(*moving: Array) -> tuple[list[Array], list[Array]]:
            moved = list(values)
            for position, value in zip(places, moving, strict=True):
                moved[position] = value
            results = evaluated_for_rows(equation, moved) if rows else equation.evaluate(*moved)
            return [results[out] for out in outs], results

        return along

    @property
    def along(self) -> Callable[..., Array]:
        """The output as a function of the input, and of the operands that move with zero."""
        return self._alone(self.values)

    def _alone(self, values: Sequence[Array]) -> Callable[..., Array]:
        along = self.at_places(values, self.moving, [self.reference.out])
        return lambda *moving: along(*moving)[0][0]

    def for_all(self, fun: Callable[..., Any], seeds: Array) -> Any:
        """`fun` of each seed and the values of the equation's inputs."""
        if is_small_loop(self.reference.equation):
            return for_batches(fun)(seeds, *self.values)
        return jax.vmap(lambda seed: fun(seed, *self.values))(seeds)

    @property
    def points(self) -> tuple[Array, ...]:
        """Values of the operands that `along` takes."""
        return tuple(self.values[k] for k in self.moving)

    @property
    def has_complex_output(self) -> bool:
        """Whether the output is complex; finding out traces the equation."""
        out = jax.eval_shape(self.along, *self.points)
        return bool(jnp.issubdtype(out.dtype, jnp.complexfloating))

    @property
    def point(self) -> Array:
        """The input's value."""
        return self.values[self.reference.into]

    def push(self, tangents: Array) -> Array:
        """Push tangents of shape `(count, *batch, *in core)` forward.

        With `L(z) = A z + B conj(z)`, A is `(L(z) - i L(i z)) / 2` and B acts on `conj(z)`.
        """
        if self.places is not None:
            return pushed_by_places(self.places, tangents)
        if self.reference.conjugate is None:
            return _by_parts(self._push, tangents, self.point.dtype)
        seeds = tangents.astype(self.point.dtype)
        if self.reference.conjugate:
            seeds = lax.conj(seeds)
        plain, turned = self._push(seeds), self._push(1j * seeds)
        return 0.5 * (plain + 1j * turned if self.reference.conjugate else plain - 1j * turned)

    def pull(self, cotangents: Array) -> Array:
        """Pull cotangents of shape `(count, *batch, *out core)` back."""
        if self.places is not None:
            size = math.prod(self.point.shape) // max(1, math.prod(self.places.shape[:-1]))
            return pulled_by_places(self.places, cotangents, size)
        return pull_together([self], cotangents)[0]

    def _push(self, tangents: Array) -> Array:
        """The map of the equation, both halves of it."""
        reference = self.reference
        unpack = laid_out_axes(reference.batch_in, self.point.ndim)
        moved = permuted(tangents, unpack).astype(self.point.dtype)
        packed = packed_axes(
            reference.batch_out, len(reference.batch_out) + reference.opaque.outputs
        )

        def pushed(tangent: Array, *values: Array) -> Array:
            along = self._alone(values)
            if reference.slot:
                return along(tangent)
            points = [values[k] for k in self.moving]
            still = [jnp.zeros_like(value) for value in points[1:]]
            # The value is dropped inside: of a kernel that computes both it is batched too.
            return jax.jvp(along, points, [tangent, *still])[1]

        with self.in_mode("forward"):
            return permuted(self.for_all(pushed, moved), packed)

    def in_mode(self, mode: str) -> AbstractContextManager[None]:
        """What names the equation where it has no derivative in a mode."""
        equation = self.reference.equation
        what = f"'{equation.name}' has no derivative in {mode} mode"
        own = runs_rules(equation.name, equation.params)
        return no_rule_refused(what, equation.source, rules_run=own)


def pull_together(maps: Sequence[LinearMap], cotangents: Array) -> list[Array]:
    """Pull cotangents back through maps of one output of an equation, by one evaluation of it.

    The two parts of a complex cotangent, and what is left of one times i, are pulled side by side.
    JAX's `vjp` of `L(z) = A z + B conj(z)` is `P(c) = A^T c + conj(B^T c)`: both halves come from
    `P(c)` and `P(i c)`.

    Args:
        maps: from different inputs, or different halves of one; they agree on what is diagonal
            about the output.
        cotangents: of shape `(count, *batch, *out core)`.
    """
    first = maps[0]
    halves = first.reference.conjugate is not None
    by_parts = not halves and jnp.iscomplexobj(cotangents) and not first.has_complex_output
    count, seeds = len(cotangents), [cotangents]
    if halves:
        seeds = [cotangents + 0j, 1j * cotangents]
    elif by_parts:
        seeds = [lax.real(cotangents), lax.imag(cotangents)]
    alone = {linear.reference.into: linear for linear in maps}
    together = lax.concatenate(seeds, 0) if len(seeds) > 1 else cotangents
    arrived = dict(zip(alone, pull_sums([list(alone.values())], [together]), strict=True))
    if len(seeds) == 1:
        return [arrived[linear.reference.into] for linear in maps]
    found = []
    for linear in maps:
        both = arrived[linear.reference.into]
        plain, turned = both[:count], both[count:]
        if by_parts:
            plain = plain + 1j * turned
        elif linear.reference.conjugate:
            plain = lax.conj(0.5 * (plain + 1j * turned))
        else:
            plain = 0.5 * (plain - 1j * turned)
        found.append(plain)
    return found


def pull_sums(maps: Sequence[Sequence[LinearMap]], cotangents: Sequence[Array]) -> list[Array]:
    """Pull cotangents back from several outputs of an equation, and add what meets at an input.

    Args:
        maps: for every output maps to the same inputs, as for `pull_together`.
        cotangents: for every output an array of shape `(count, *batch, *out core)`.
    """
    first = maps[0][0]
    seeds = [
        permuted(array, laid_out_axes(own[0].reference.batch_out, array.ndim - 1))
        for own, array in zip(maps, cotangents, strict=True)
    ]
    shapes = [seed.shape[1:] for seed in seeds]
    ends = [0, *itertools.accumulate(map(math.prod, shapes))]
    intos = [linear.reference.into for linear in maps[0]]
    places = list(dict.fromkeys([*intos, *(k for linear in maps[0] for k in linear.moving)]))

    def apart(row: Array) -> list[Array]:
        """One row from every output."""
        if len(shapes) == 1:
            return [row]
        flat = (lax.slice(row, (low,), (high,)) for low, high in itertools.pairwise(ends))
        parts = [lax.reshape(part, shape) for part, shape in zip(flat, shapes, strict=True)]
        return [_again(part, seed.dtype) for part, seed in zip(parts, seeds, strict=True)]

    def pulled(row: Array, *values: Array) -> list[Array]:
        along = first.at_places(values, places, [own[0].reference.out for own in maps], rows=True)
        outs, pull, _ = jax.vjp(along, *(values[k] for k in places), has_aux=True)
        rows = [part.astype(out.dtype) for part, out in zip(apart(row), outs, strict=True)]
        return list(pull(rows)[: len(intos)])

    def pulled_on(row: Array) -> list[Array]:
        found = [own[0].kept for own in maps if own[0].kept is not None]
        arrived = found[0][0]({kept[1]: part for kept, part in zip(found, apart(row), strict=True)})
        return [arrived[linear.kept[2]] for linear in maps[0] if linear.kept is not None]

    together = seeds[0]
    if len(seeds) > 1:
        flat = [lax.reshape(seed, (seed.shape[0], math.prod(seed.shape[1:]))) for seed in seeds]
        # Rows of real and of complex outputs are complex side by side.
        together = lax.concatenate(promoted(flat), 1)
    with first.in_mode("reverse"):
        if first.kept is None:
            pulled_all = first.for_all(pulled, together)
        else:
            pulled_all = jax.vmap(pulled_on)(together)
    return [
        permuted(into, packed_axes(linear.reference.batch_in, into.ndim - 1))
        for linear, into in zip(maps[0], pulled_all, strict=True)
    ]


def _again(array: Array, dtype: Any) -> Array:
    """A promoted array in the type that it had before."""
    if jnp.iscomplexobj(array) and not jnp.issubdtype(dtype, jnp.complexfloating):
        array = lax.real(array)
    return lax.convert_element_type(array, dtype)


def _by_parts(apply: Callable[[Array], Array], seeds: Array, dtype: Any) -> Array:
    """A map of real arrays on complex seeds: of their real and imaginary parts."""
    if jnp.iscomplexobj(seeds) and not jnp.issubdtype(dtype, jnp.complexfloating):
        return apply(lax.real(seeds)) + 1j * apply(lax.imag(seeds))
    return apply(seeds)


def differentiable(values: Sequence[Any]) -> list[int]:
    """Places of the values that may have a tangent."""
    return [
        k for k, value in enumerate(values) if jnp.issubdtype(jnp.result_type(value), jnp.inexact)
    ]


def packed_axes(batch: Sequence[int], rank: int) -> list[int]:
    """Dimensions in the order (batch..., core...)."""
    return [*batch, *(d for d in range(rank) if d not in batch)]


def laid_out_axes(batch: Sequence[int], rank: int) -> list[int]:
    """The inverse of `packed_axes`."""
    packed = packed_axes(batch, rank)
    return [packed.index(d) for d in range(rank)]


def permuted(stacked: Array, order: Sequence[int]) -> Array:
    """Permute all axes but the first."""
    if list(order) == list(range(len(order))):
        return stacked
    return lax.transpose(stacked, [0, *(1 + d for d in order)])


def apply_opaque(operation: OpaqueOperation, linear: LinearMap, *arrays: Array) -> Array:
    """Apply a map to seeds of shape `(*extra, *batch, *core)`, or write it out as an array."""
    if isinstance(operation, MaterializeOpaque) and linear.places is not None:
        return written_by_places(operation, linear.places, linear.point.dtype)
    seeds = _seeds(operation, linear, arrays)
    moved = linear.pull(seeds) if is_reversed(operation) else linear.push(seeds)
    return _result(operation, moved)


def apply_sums(
    operations: Sequence[ApplyOpaque],
    maps: Sequence[Sequence[LinearMap]],
    arrays: Sequence[Array],
) -> list[Array]:
    """What `apply_opaque` makes of rows of several outputs, added for every input.

    Args:
        operations: for every input the operation, as for any of the outputs.
        maps: for every output the maps to the inputs.
        arrays: for every output the rows.
    """
    seeds = [_seeds(operations[0], own[0], [rows]) for own, rows in zip(maps, arrays, strict=True)]
    pulled = pull_sums(maps, seeds)
    return [_result(*pair) for pair in zip(operations, pulled, strict=True)]


def apply_together(
    operations: Sequence[OpaqueOperation], maps: Sequence[LinearMap], *arrays: Array
) -> list[Array]:
    """`apply_opaque` of operations that pull the same rows, see `pull_together`."""
    pulled = pull_together(maps, _seeds(operations[0], maps[0], arrays))
    return [_result(*pair) for pair in zip(operations, pulled, strict=True)]


def is_reversed(operation: OpaqueOperation) -> bool:
    """Whether cotangents are pulled back."""
    if isinstance(operation, ApplyOpaque):
        return operation.reverse
    return operation.by_rows


def _seeds(operation: OpaqueOperation, linear: LinearMap, arrays: Sequence[Array]) -> Array:
    """Columns or rows as one axis; those of the identity where there are none."""
    if isinstance(operation, ApplyOpaque):
        (seeds,) = arrays
        tail = seeds.shape[len(operation.extra) :]
        return lax.reshape(seeds, (math.prod(operation.extra), *tail))
    batch, out, into = parts_of(operation)
    core = out if operation.by_rows else into
    # As identities are written out elsewhere: XLA applies the map to both of them once.
    dtype = linear.point.dtype
    if operation.by_rows and jnp.issubdtype(dtype, jnp.complexfloating):
        dtype = jax.eval_shape(linear.along, *linear.points).dtype  # one transform, not two
    return identity_along(batch, core, dtype)


def identity_along(batch: Sequence[int], core: tuple[int, ...], dtype: Any) -> Array:
    """The columns of the identity of `core`, the same along the dimensions of `batch`."""
    count = math.prod(core)
    identity = lax.reshape(assemble(identity_of(core), (), dtype), (count, *core))
    places = [0, *range(1 + len(batch), 1 + len(batch) + len(core))]
    return lax.broadcast_in_dim(identity, (count, *batch, *core), places)


@functools.cache
def identity_of(core: tuple[int, ...]) -> Structure:
    """The identity on arrays of a shape."""
    kept = [n for n in range(len(core)) if core[n] != 1]
    axes = tuple(label(kept.index(n)) if n in kept else constant(0) for n in range(len(core)))
    term = Term(tuple(core[n] for n in kept), axes, axes)
    return intern_structure(core, core, (term,))


def _result(operation: OpaqueOperation, moved: Array) -> Array:
    if isinstance(operation, ApplyOpaque) or operation.columns_first:
        return lax.reshape(moved, operation.shape)
    # From (count, *batch, *other core) to (*batch, *out, *in).
    batch, rank = len(parts_of(operation)[0]), moved.ndim
    order = [*range(1, 1 + batch), 0, *range(1 + batch, rank)]
    if not operation.by_rows:
        order = [*range(1, rank), 0]
    return lax.reshape(lax.transpose(moved, order), operation.map_shape)


def parts_of(operation: MaterializeOpaque) -> tuple[tuple[int, ...], ...]:
    """Sizes of the dimensions of batch, output and input."""
    opaque, shape = operation.opaque, operation.map_shape
    split = opaque.batch + opaque.outputs
    return shape[: opaque.batch], shape[opaque.batch : split], shape[split:]
