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
from ..rules.opaque import needs_all_tangents, runs_rules
from ..rules.site import OpaqueMap
from .assembly import assemble
from .few_samples import for_few_samples
from .numbers import BATCH
from .small_loops import for_batches, is_small_loop
from .sorting import pulled_by_places, pushed_by_places, written_by_places
from .varying import varying_like

__all__ = [
    "LinearMap",
    "apply_opaque",
    "apply_sums",
    "apply_together",
    "differentiable",
    "is_reversed",
    "pull_sums",
    "pull_together",
    "values_and_written",
    "written_together",
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
        there = [value for value in values if value is not None]
        self.values = [
            varying_like(jnp.zeros(type_.shape, type_.dtype), there) if value is None else value
            for value, type_ in zip(values, types, strict=True)
        ]
        self.moving = [reference.into]
        if not reference.slot and needs_all_tangents(reference.equation, reference.into):
            self.moving += [k for k in differentiable(self.values) if k != reference.into]

    def _along(
        self, values: Sequence[Array], places: Sequence[int], outs: Sequence[int]
    ) -> Callable[..., tuple[list[Array], list[Array]]]:
        """Some outputs as a function of what stands at some places, and beside them all."""

        def along(*moving: Array) -> tuple[list[Array], list[Array]]:
            moved = list(values)
            for position, value in zip(places, moving, strict=True):
                moved[position] = value
            results = list(self.reference.equation.evaluate(*moved))
            return [results[out] for out in outs], results

        return along

    @property
    def along(self) -> Callable[..., Array]:
        """The output as a function of the input, and of the operands that move with zero."""
        return self._alone(self.values)

    def _alone(self, values: Sequence[Array]) -> Callable[..., Array]:
        along = self._along(values, self.moving, [self.reference.out])
        return lambda *moving: along(*moving)[0][0]

    def _for_all(self, fun: Callable[..., Any], seeds: Array) -> Any:
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
        unpack = _layout(reference.batch_in, self.point.ndim)
        moved = _permute(tangents, unpack).astype(self.point.dtype)
        moved = varying_like(moved, [self.point])
        packed = _packed(reference.batch_out, len(reference.batch_out) + reference.opaque.outputs)

        def pushed(tangent: Array, *values: Array) -> Array:
            along = self._alone(values)
            if reference.slot:
                return along(tangent)
            points = [values[k] for k in self.moving]
            still = [jnp.zeros_like(value) for value in points[1:]]
            # The value is dropped inside: of a kernel that computes both it is batched too.
            return jax.jvp(along, points, [tangent, *still])[1]

        with self._in_mode("forward"):
            return _permute(self._for_all(pushed, moved), packed)

    def _in_mode(self, mode: str) -> AbstractContextManager[None]:
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
        _permute(array, _layout(own[0].reference.batch_out, array.ndim - 1))
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
        return [lax.reshape(part, shape) for part, shape in zip(flat, shapes, strict=True)]

    def pulled(row: Array, *values: Array) -> list[Array]:
        along = first._along(values, places, [own[0].reference.out for own in maps])
        outs, pull, _ = jax.vjp(along, *(values[k] for k in places), has_aux=True)
        rows = [
            varying_like(part.astype(out.dtype), [out])
            for part, out in zip(apart(row), outs, strict=True)
        ]
        return list(pull(rows)[: len(intos)])

    def pulled_on(row: Array) -> list[Array]:
        found = [own[0].kept for own in maps if own[0].kept is not None]
        arrived = found[0][0]({kept[1]: part for kept, part in zip(found, apart(row), strict=True)})
        return [arrived[linear.kept[2]] for linear in maps[0] if linear.kept is not None]

    together = seeds[0]
    if len(seeds) > 1:
        flat = [lax.reshape(seed, (seed.shape[0], math.prod(seed.shape[1:]))) for seed in seeds]
        together = lax.concatenate(flat, 1)
    with first._in_mode("reverse"):
        if first.kept is None:
            pulled_all = first._for_all(pulled, together)
        else:
            pulled_all = jax.vmap(pulled_on)(together)
    return [
        _permute(into, _packed(linear.reference.batch_in, into.ndim - 1))
        for linear, into in zip(maps[0], pulled_all, strict=True)
    ]


def written_together(
    operations: Sequence[MaterializeOpaque], maps: Sequence[LinearMap]
) -> list[Array]:
    """Maps between inputs and outputs of one equation as arrays, by columns of all inputs.

    Where many samples share a loop over small arrays, rows of one output after the other are pulled
    back all the same where they are fewer: columns of both inputs, as single numbers, take longer.

    Args:
        operations: how each would be written out by itself; nothing is diagonal.
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
    return values_and_written(operations, maps)[1]


def values_and_written(
    operations: Sequence[MaterializeOpaque], maps: Sequence[LinearMap]
) -> tuple[list[Array], list[Array]]:
    """What an equation computes, and maps of it as arrays, by one evaluation along all columns.

    Args:
        operations: how each would be written out by itself; nothing is diagonal.
        maps: between real arrays.
    """
    first = maps[0]
    intos = list(dict.fromkeys(linear.reference.into for linear in maps))
    outs = list(dict.fromkeys(linear.reference.out for linear in maps))
    places = list(dict.fromkeys([*intos, *(k for linear in maps for k in linear.moving)]))
    shapes = [first.values[k].shape for k in intos]
    ends = [0, *itertools.accumulate(map(math.prod, shapes))]
    counts, seeds = _all_columns(operations, maps)

    def pushed(column: Array, *values: Array) -> tuple[list[Array], list[Array]]:
        points = [values[k] for k in places]
        flat = (lax.slice(column, (low,), (high,)) for low, high in itertools.pairwise(ends))
        moved = (lax.reshape(part, shape) for part, shape in zip(flat, shapes, strict=True))
        tangents = [part.astype(x.dtype) for part, x in zip(moved, points, strict=False)]
        tangents += [jnp.zeros_like(x) for x in points[len(intos) :]]
        tangents = [varying_like(t, [x]) for t, x in zip(tangents, points, strict=True)]
        along = first._along(values, places, outs)
        _, moved, results = jax.jvp(along, points, tangents, has_aux=True)
        return moved, results

    with first._in_mode("forward"):
        if not any(operation.by_rows for operation in operations):
            columns, results = first._for_all(pushed, seeds)
        else:
            columns, results = jax.vmap(lambda column: pushed(column, *first.values))(seeds)
    arrays = []
    for operation, linear in zip(operations, maps, strict=True):
        place = intos.index(linear.reference.into)
        image = columns[outs.index(linear.reference.out)]
        own = lax.slice_in_dim(image, counts[place], counts[place + 1])
        own = _permute(own, _packed(linear.reference.batch_out, own.ndim - 1))
        if not operation.columns_first:  # also what would be written by rows on its own
            own = lax.transpose(own, [*range(1, own.ndim), 0])
        arrays.append(lax.reshape(own, operation.shape))
    # Values are the same along all columns.
    return [lax.index_in_dim(result, 0, keepdims=False) for result in results], arrays


def _all_columns(
    operations: Sequence[MaterializeOpaque], maps: Sequence[LinearMap]
) -> tuple[list[int], Array]:
    """Columns of the identities of all inputs, and where those of each input begin.

    A column holds what all inputs are moved by, one after the other; along dimensions that the maps
    are diagonal about it is the same everywhere.
    """
    first = {linear.reference.into: k for k, linear in reversed([*enumerate(maps)])}
    own = [k for _, k in sorted(first.items(), key=lambda item: item[1])]
    parts = [_parts(operations[k]) for k in own]
    counts = [0, *itertools.accumulate(math.prod(core) for _, _, core in parts)]
    identity = assemble(_identity((counts[-1],)), (), maps[0].point.dtype)
    if not parts[0][0]:
        return counts, identity
    seeds = []
    for k, low, high, (batch, _, core) in zip(own, counts, counts[1:], parts, strict=False):
        part = lax.reshape(lax.slice_in_dim(identity, low, high, axis=1), (counts[-1], *core))
        places = [0, *range(1 + len(batch), 1 + len(batch) + len(core))]
        wide = lax.broadcast_in_dim(part, (counts[-1], *batch, *core), places)
        wide = _permute(wide, _layout(maps[k].reference.batch_in, wide.ndim - 1))
        seeds.append(lax.reshape(wide, (counts[-1], math.prod((*batch, *core)))))
    return counts, lax.concatenate(seeds, 1)


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
    batch, out, into = _parts(operation)
    core = out if operation.by_rows else into
    count = math.prod(core)
    # As identities are written out elsewhere: XLA applies the map to both of them once.
    dtype = linear.point.dtype
    if operation.by_rows and jnp.issubdtype(dtype, jnp.complexfloating):
        dtype = jax.eval_shape(linear.along, *linear.points).dtype  # one transform, not two
    identity = lax.reshape(assemble(_identity(core), (), dtype), (count, *core))
    places = [0, *range(1 + len(batch), 1 + len(batch) + len(core))]
    return lax.broadcast_in_dim(identity, (count, *batch, *core), places)


@functools.cache
def _identity(core: tuple[int, ...]) -> Structure:
    """The identity on arrays of a shape."""
    kept = [n for n in range(len(core)) if core[n] != 1]
    axes = tuple(label(kept.index(n)) if n in kept else constant(0) for n in range(len(core)))
    term = Term(tuple(core[n] for n in kept), axes, axes)
    return intern_structure(core, core, (term,))


def _result(operation: OpaqueOperation, moved: Array) -> Array:
    if isinstance(operation, ApplyOpaque) or operation.columns_first:
        return lax.reshape(moved, operation.shape)
    # From (count, *batch, *other core) to (*batch, *out, *in).
    batch, rank = len(_parts(operation)[0]), moved.ndim
    order = [*range(1, 1 + batch), 0, *range(1 + batch, rank)]
    if not operation.by_rows:
        order = [*range(1, rank), 0]
    return lax.reshape(lax.transpose(moved, order), operation.map_shape)


def _parts(operation: MaterializeOpaque) -> tuple[tuple[int, ...], ...]:
    """Sizes of the dimensions of batch, output and input."""
    opaque, shape = operation.opaque, operation.map_shape
    split = opaque.batch + opaque.outputs
    return shape[: opaque.batch], shape[opaque.batch : split], shape[split:]
