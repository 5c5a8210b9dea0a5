"""Indexing by the data: extremal scatters, segments, interpolation, top-k, traced positions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.random_operations.builder import NotApplicable, OperationTable, ProgramBuilder
from tests.random_operations.indexing import integer_inputs

operation = OperationTable()


@operation(weight=3)
def extremal_scatter(builder: ProgramBuilder) -> None:
    """`.at[...]` min, max and multiply with static or traced positions, without ties."""
    x = builder.pick_rank(1, 2, nonempty=True)
    y = builder.pick(where=lambda v: v.shape == x.shape, partner=x)
    shift = builder.dither(x)
    count = builder.integer(1, x.shape[0])
    index = builder.rng.permutation(x.shape[0])[:count]
    kind = builder.choice(["min", "max", "multiply", "add", "set"])
    by_data = builder.chance(0.4)

    def run(x: Any, y: Any) -> Any:
        place: Any = index
        if by_data:
            place = jnp.argsort(y.reshape(y.shape[0], -1)[:, 0] + shift.reshape(-1)[: y.shape[0]])
            place = place[:count]
        at = (x + shift).at[place]
        return getattr(at, kind)(jnp.sin(2.0 * y[:count]), unique_indices=True)

    builder.apply(f"x.at[{'by data' if by_data else index}].{kind}", run, x, y, bound=4.0)


@operation(weight=2)
def segments(builder: ProgramBuilder) -> None:
    """Sums, products and extrema over segments."""
    x = builder.pick_rank(1, 2, nonempty=True)
    count = builder.integer(1, 3)
    shift = builder.dither(x)
    kind = builder.choice(["sum", "max", "min", "sum", "prod"])
    if kind == "prod":
        ids = builder.rng.permutation(x.shape[0])
        count = x.shape[0]  # one factor each: JAX has no derivative of repeated products
    else:
        ids = builder.rng.integers(0, count, x.shape[0])
    fun = getattr(jax.ops, f"segment_{kind}")

    def run(x: Any) -> Any:
        found = fun(x + shift, ids, num_segments=count)
        return jnp.where(jnp.isfinite(found), found, 0.0)

    if kind == "prod":
        raise NotApplicable
    builder.apply(f"segment_{kind} {ids}", run, x, bound=2.0 * x.shape[0])


@operation(weight=2)
def interpolation(builder: ProgramBuilder) -> None:
    """interp, searchsorted and polynomials through the data."""
    x = builder.pick_rank(1, 1, nonempty=True)
    y = builder.pick_rank(0, 2, nonempty=True, partner=x)
    shift = builder.dither(y)
    kind = builder.choice(["interp", "interp nodes", "searchsorted", "polyval", "digitize"])
    n = x.shape[0]
    steps = np.arange(float(n)) * 3.5 - 2.0

    def run(x: Any, y: Any) -> Any:
        nodes, at = x + steps, y + shift
        if kind == "interp":
            return jnp.interp(3.0 * at, steps, jnp.sin(x))
        if kind == "interp nodes":
            return jnp.interp(3.0 * at, nodes, x * x)
        if kind == "searchsorted":
            return x[jnp.minimum(jnp.searchsorted(nodes, 3.0 * at), n - 1)] * y
        if kind == "digitize":
            return x[jnp.digitize(3.0 * at, nodes) % n] + y
        return jnp.polyval(0.3 * x, y)

    builder.apply(kind, run, x, y, bound=10.0)


@operation(weight=2)
def selection_by_rank(builder: ProgramBuilder) -> None:
    """top_k, median, quantile, argmax positions, sorting by several keys."""
    x = builder.pick_rank(1, 2, nonempty=True)
    y = builder.pick(where=lambda v: v.shape == x.shape, partner=x)
    shift = builder.dither(x)
    k = builder.integer(1, x.shape[-1])
    kind = builder.choice(["top_k", "top_k indices", "median", "quantile", "argmin", "lexsort"])

    def run(x: Any, y: Any) -> Any:
        x = x + shift
        if kind == "top_k":
            return lax.top_k(x, k)[0]
        if kind == "top_k indices":
            return jnp.take_along_axis(y, lax.top_k(x, k)[1], -1)
        if kind == "median":
            return jnp.median(x, axis=-1)
        if kind == "quantile":
            return jnp.quantile(x, 0.3, axis=-1)
        if kind == "argmin":
            return jnp.take_along_axis(y, jnp.argmin(x, -1, keepdims=True), -1) * x
        return lax.sort((jnp.round(2.0 * x), x, y), num_keys=2)[2]

    builder.apply(f"{kind} {k}", run, x, y, bound=4.0)


@operation(weight=3)
def traced_positions(builder: ProgramBuilder) -> None:
    """Gathers, scatters and slices at positions that are computed from values or are inputs."""
    x = builder.pick_rank(1, 2, nonempty=True)
    y = builder.pick_rank(0, 1, nonempty=True, partner=x)
    shift = builder.dither(y)
    integers = integer_inputs(builder)
    kind = builder.choice(["gather", "clipped", "scatter add", "slice", "update", "roll", "loop"])
    n = x.shape[0]
    width = builder.integer(1, n)
    by_input = bool(integers) and builder.chance(0.4)

    def run(x: Any, y: Any, *index: Any) -> Any:
        values = jnp.floor(2.0 * (y + shift)).astype(int)
        at = index[0] if index else values.ravel()[0]
        if kind == "gather":
            return x[values % n] * (index[0].astype(x.dtype) if index else 1.0)
        if kind == "clipped":
            return jnp.take(x, values + at, axis=0, mode="clip")
        if kind == "scatter add":
            return x.at[values % n].add(jnp.sin(x[0]))
        if kind == "slice":
            return lax.dynamic_slice_in_dim(x, at, width, 0)
        if kind == "update":
            return lax.dynamic_update_slice_in_dim(x, jnp.cos(x[:width]), at, 0)
        if kind == "roll":
            return jnp.roll(x, at, 0)
        return lax.fori_loop(0, 3, lambda i, c: c.at[(at + i) % n].add(jnp.sin(c[i % n])), x)

    operands = (x, y, builder.choice(integers)) if by_input else (x, y)
    builder.apply(f"{kind} at traced positions", run, *operands, bound=8.0)
