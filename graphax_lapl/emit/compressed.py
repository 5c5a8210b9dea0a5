"""Evaluating a compressed Jacobian: products with seed matrices, then one gather per block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend import core

from ..coloring import Coloring
from ..edges.maps import from_values, label
from ..edges.terms import Factor, Structure, Term, intern_structure
from ..errors import no_rule_refused
from .assembly import assemble

__all__ = ["CompressedBlock", "CompressedProgram", "Guarded", "positions_structure"]

_LACKING = (
    "Compressed evaluation takes JAX's products in {} mode, which a part of the function does not "
    "have (another order may do: 'auto')"
)


def positions_structure(
    flat: np.ndarray, out_shape: tuple[int, ...], in_shape: tuple[int, ...]
) -> Structure:
    """Entries at sorted flat positions as one term: a coordinate list, or the dense block."""
    shape = (*out_shape, *in_shape)
    if len(flat) == math.prod(shape):
        kept = [d for d, extent in enumerate(shape) if extent != 1]
        names = {d: k for k, d in enumerate(kept)}
        sizes = tuple(shape[d] for d in kept)
        maps = [label(names[d]) if d in names else label(0, 0) for d in range(len(shape))]
    else:
        sizes = (len(flat),) if len(flat) != 1 else ()
        maps = [from_values(0, index) for index in np.unravel_index(flat, shape)]
    factor = Factor(tuple(label(k) for k in range(len(sizes))), sizes)
    out, into = tuple(maps[: len(out_shape)]), tuple(maps[len(out_shape) :])
    return intern_structure(out_shape, in_shape, (Term(sizes, out, into, (factor,)),))


class Guarded(Protocol):
    """A function with arguments beside its own whose tangents say which of its own are zero."""

    def guards(self) -> tuple[list[Array], list[Array]]:
        """These arguments, and their seeds."""

    def __call__(self, inputs: Sequence[Any], guards: Sequence[Any]) -> list[Any]:
        """The function's results, of its constants and leaves."""


@dataclass(frozen=True, eq=False)
class CompressedBlock:
    """How one block is read off the compressed values.

    Attributes:
        structure: where its entries stand; None where it is zero.
        source: flat position of each entry's value in the compressed values.
        shape: `(*output shape, *input shape)`.
        dtype: dtype of the block.
    """

    structure: Structure | None
    source: np.ndarray
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True, eq=False)
class CompressedProgram:
    """A function, the colours of its Jacobian, and how blocks are read off.

    Attributes:
        jaxpr: the function, without its constants.
        differentiated: for each argument of the jaxpr whether it is differentiated.
        outputs: number of outputs that are differentiated; auxiliary ones follow.
        coloring: colours of all columns and rows, leaves one after the other.
        blocks: `blocks[o][i]`, output leaf o with respect to differentiated leaf i.
        check: whether a product with a random vector is compared; on failure all entries are NaN.
        guarded: the function with guards against slopes that zeros must not meet, where there are
            columns only.
    """

    jaxpr: Any = field(repr=False)
    differentiated: tuple[bool, ...]
    outputs: int
    coloring: Coloring
    blocks: list[list[CompressedBlock]] = field(repr=False)
    check: bool = False
    guarded: Guarded | None = field(default=None, repr=False)

    def run(
        self, inputs: Sequence[Any], values: bool, sparse: bool
    ) -> tuple[list[Any], list[list[Any]]]:
        """Evaluate on the constants and the leaves; what `Plan.emit` promises."""
        count = len(self.jaxpr.constvars)
        fun = core.jaxpr_as_fun(core.ClosedJaxpr(self.jaxpr, list(inputs[:count])))
        leaves = [x if isinstance(x, Array) else jnp.asarray(x) for x in inputs[count:]]
        moving = tuple(x for x, d in zip(leaves, self.differentiated, strict=True) if d)

        def split(*moved: Array) -> tuple[tuple[Array, ...], list[Any]]:
            own, guards = iter(moved), moved[len(moving) :]
            whole = [
                next(own) if d else x for x, d in zip(leaves, self.differentiated, strict=True)
            ]
            if self.guarded is None:
                results = fun(*whole)
            else:
                results = self.guarded([*inputs[:count], *whole], guards)
            return tuple(results[: self.outputs]), list(results)

        # Derivative rules of JAX mix dtypes in places; the user's strictness is about their code.
        with jax.numpy_dtype_promotion("standard"):
            compressed, probed, results = self._products(split, moving)
            spoiled = None if probed is None else self._contradicts(compressed, probed)
            if spoiled is not None:
                compressed = jnp.where(spoiled, jnp.asarray(jnp.nan, compressed.dtype), compressed)
            blocks = [
                [_read(block, compressed, spoiled, sparse) for block in row] for row in self.blocks
            ]
        return (results if values else results[self.outputs :]), blocks

    def _products(
        self, split: Any, moving: tuple[Array, ...]
    ) -> tuple[Array, Array | None, list[Any]]:
        """The compressed values, the product with the probe, and the function's outputs."""
        coloring, parts, probed = self.coloring, [], None
        results: list[Any] | None = None
        if coloring.columns or not coloring.rows:
            seeds = _seeds(coloring.column_colors, coloring.columns, moving, self._column_probe)
            if self.guarded is not None:
                guards, reached = self.guarded.guards()
                moving, seeds = (*moving, *guards), [*seeds, *reached]
            if coloring.columns or self.check:
                with no_rule_refused(_LACKING.format("forward"), ""):
                    pushed, results = jax.vmap(
                        lambda *tangents: jax.jvp(split, moving, tangents, has_aux=True)[1:],
                        out_axes=(0, None),
                    )(*seeds)
                flat = _raveled(pushed)
                parts.append(flat[: coloring.columns])
                probed = flat[-1] if self.check else None
            else:
                results = split(*moving)[1]
        if coloring.rows:
            probe = self._row_probe if probed is None else None
            with no_rule_refused(_LACKING.format("reverse"), ""):
                outputs, pull, results = jax.vjp(split, *moving, has_aux=True)
                seeds = _seeds(coloring.row_colors, coloring.rows, outputs, probe)
                flat = _raveled(jax.vmap(lambda *cotangents: pull(cotangents))(*seeds))
            parts.append(flat[: coloring.rows])
            probed = flat[-1] if probe is not None else probed
        assert results is not None
        if not parts:
            return jnp.zeros(0), None, results
        kind = jnp.result_type(*parts)
        flat_parts = [lax.convert_element_type(part, kind).reshape(-1) for part in parts]
        return jnp.concatenate(flat_parts), probed, results

    @cached_property
    def _column_probe(self) -> np.ndarray | None:
        return _probe(self.coloring.pattern.shape[1]) if self.check else None

    @cached_property
    def _row_probe(self) -> np.ndarray | None:
        return _probe(self.coloring.pattern.shape[0]) if self.check else None

    def _contradicts(self, compressed: Array, probed: Array) -> Array:
        """Whether the entries do not explain the product with the probe."""
        pattern, coloring = self.coloring.pattern, self.coloring
        by_columns = bool(coloring.columns) or not coloring.rows
        probe = self._column_probe if by_columns else self._row_probe
        assert probe is not None
        into, out = (pattern.cols, pattern.rows) if by_columns else (pattern.rows, pattern.cols)
        entries = compressed.at[coloring.source].get(mode="promise_in_bounds")
        products = entries * jnp.asarray(probe[into], entries.dtype)
        zero = jnp.zeros(probed.shape, entries.dtype)
        explained = zero.at[out].add(products)
        scale = zero.at[out].add(jnp.abs(products)) + jnp.abs(probed)
        tolerance = float(jnp.finfo(entries.dtype).eps) ** 0.5
        return jnp.any(jnp.abs(explained - probed) > tolerance * scale)


def _read(block: CompressedBlock, compressed: Array, spoiled: Array | None, sparse: bool) -> Any:
    """The dense block, or the list of its terms' values."""
    if block.structure is None:
        if sparse:
            return []
        zero = jnp.zeros(block.shape, block.dtype)
        return (
            zero if spoiled is None else jnp.where(spoiled, jnp.asarray(jnp.nan, zero.dtype), zero)
        )
    values = _entries(compressed, block.source)
    values = lax.convert_element_type(values, block.dtype)
    values = values.reshape(block.structure.terms[0].sizes)
    return [values] if sparse else assemble(block.structure, [values], block.dtype)


def _entries(compressed: Array, source: np.ndarray) -> Array:
    """The entries at some places; a box of the products is sliced, as it lies or transposed."""
    total = compressed.shape[0]
    if len(source) == total and (source == np.arange(total)).all():
        return compressed
    if len(source) > 1:
        inner = int(source[1] - source[0])
        length = next((k for k in range(1, len(source)) if source[k] - source[k - 1] != inner), 0)
        outer = int(source[length] - source[0])
        if length and len(source) % length == 0 and 1 in (inner, outer):
            first, shape = int(source[0]), (len(source) // length, length)
            counted = first + outer * np.arange(shape[0])[:, None] + inner * np.arange(length)
            row, turned = max(inner, outer), inner > outer
            rows, columns = shape[::-1] if turned else shape
            fits = row > 1 and total % row == 0 and first % row + columns <= row
            if fits and (counted.reshape(-1) == source).all():
                low, left = divmod(first, row)
                box = compressed.reshape(total // row, row)
                box = lax.slice(box, (low, left), (low + rows, left + columns))
                return (box.T if turned else box).reshape(-1)
    return compressed.at[source].get(mode="promise_in_bounds")


def _probe(size: int) -> np.ndarray:
    """A fixed vector in general position."""
    return np.random.default_rng(0).uniform(0.5, 1.5, size)


def _seeds(
    colors: np.ndarray, count: int, leaves: Sequence[Array], probe: np.ndarray | None
) -> list[Array]:
    """For each leaf the indicator of every colour, and the probe; shape `(count, *leaf)`."""
    seeds, start = [], 0
    for leaf in leaves:
        own = slice(start, start + leaf.size)
        start += leaf.size
        indicator = jnp.arange(count)[:, None] == jnp.asarray(colors[own])
        seed = indicator.astype(leaf.dtype)
        if probe is not None:
            seed = jnp.concatenate([seed, jnp.asarray(probe[own], leaf.dtype)[None]])
        seeds.append(seed.reshape(seed.shape[0], *leaf.shape))
    return seeds


def _raveled(stacked: Sequence[Array]) -> Array:
    """Leaves with a leading axis of products, side by side."""
    flat = [leaf.reshape(leaf.shape[0], math.prod(leaf.shape[1:])) for leaf in stacked]
    return jnp.concatenate(flat, 1) if len(flat) > 1 else flat[0]
