"""Sliding windows: convolutions, window sums and pooling.

Along a spatial dimension, output position `o` and window position `k` meet the input at
`o * stride + k * dilation - padding`, where that lies within the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from jax import Array, lax

from ..edges.draft import Draft, DraftFactor
from ..edges.maps import IndexMap, label
from ..edges.terms import Factor
from ..edges.unify import Unsolvable, solve
from .registry import defrule
from .site import Local, Piece, Reference, Site, axes_of


@defrule("conv_general_dilated")
def _convolution(site: Site, i: int, k: int) -> list[Piece]:
    """Bilinear in input and kernel; feature and batch groups are extra digits of the labels."""
    del k
    params = site.params
    numbers = params["dimension_numbers"]
    lhs, rhs = site.shape(0), site.shape(1)
    out_shape = site.out_shape
    features, batches = params["feature_group_count"], params["batch_group_count"]
    groups = features if features > 1 else batches
    if site.listing.whole_windows and i == 0 and not site.equation.active[1]:
        shared = ([], []) if batches > 1 else ([numbers.lhs_spec[0]], [numbers.out_spec[0]])
        taps = math.prod(rhs) // rhs[numbers.rhs_spec[0]]
        return site.opaque(0, 0, *shared, work=taps)
    sizes: list[int] = []

    def fresh(size: int) -> int:
        sizes.append(size)
        return len(sizes) - 1

    group = fresh(groups)
    batch = fresh(out_shape[numbers.out_spec[0]])
    feature_in = fresh(rhs[numbers.rhs_spec[1]])
    feature_out = fresh(rhs[numbers.rhs_spec[0]] // groups)

    def grouped(inner: int, size: int) -> IndexMap:
        return IndexMap(0, tuple(sorted(((group, size), (inner, 1)))))

    lhs_maps: dict[int, IndexMap] = {
        numbers.lhs_spec[0]: grouped(batch, sizes[batch]) if batches > 1 else label(batch),
        numbers.lhs_spec[1]: (
            grouped(feature_in, sizes[feature_in]) if features > 1 else label(feature_in)
        ),
    }
    rhs_maps: dict[int, IndexMap] = {
        numbers.rhs_spec[0]: grouped(feature_out, sizes[feature_out]),
        numbers.rhs_spec[1]: label(feature_in),
    }
    out_maps: dict[int, IndexMap] = {
        numbers.out_spec[0]: label(batch),
        numbers.out_spec[1]: grouped(feature_out, sizes[feature_out]),
    }
    equations: list[IndexMap] = []
    padding = params["padding"]
    plain = all(d == 1 for d in params["lhs_dilation"])
    for d, (lhs_dim, rhs_dim, out_dim) in enumerate(
        zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    ):
        position = fresh(out_shape[out_dim])
        window = fresh(rhs[rhs_dim])
        rhs_maps[rhs_dim] = label(window)
        out_maps[out_dim] = label(position)
        meeting = IndexMap(
            -padding[d][0],
            ((position, params["window_strides"][d]), (window, params["rhs_dilation"][d])),
        )
        if plain:
            lhs_maps[lhs_dim] = meeting
        else:
            source = fresh(lhs[lhs_dim])
            lhs_maps[lhs_dim] = label(source)
            step = params["lhs_dilation"][d]
            equations.append(IndexMap(meeting.offset, (*meeting.parts, (source, -step))))

    maps = ([lhs_maps[d] for d in range(len(lhs))], [rhs_maps[d] for d in range(len(rhs))])
    out = [out_maps[d] for d in range(len(out_shape))]
    if i == 0:
        other: Reference = site.value(1)
        axes, shape = maps[1], rhs
    else:
        other, axes, shape = _padded(site, numbers.lhs_spec[2:], maps[0], plain)
    factor = (other, Factor(tuple(axes), shape))
    return _solved(site, i, sizes, out, maps[i], equations, [factor])


def _padded(
    site: Site, spatial: Sequence[int], axes: list[IndexMap], plain: bool
) -> tuple[Reference, list[IndexMap], tuple[int, ...]]:
    """The input with its padding written out, so that every window position can be read."""
    shape = site.shape(0)
    if not plain:
        return site.value(0), axes, shape
    config = [(0, 0, 0)] * len(shape)
    axes = list(axes)
    padded = list(shape)
    window = dict(zip(spatial, site.params["dimension_numbers"].rhs_spec[2:], strict=True))
    target = dict(zip(spatial, site.params["dimension_numbers"].out_spec[2:], strict=True))
    for d, dimension in enumerate(spatial):
        low = -axes[dimension].offset
        reach = (site.out_shape[target[dimension]] - 1) * site.params["window_strides"][d] + (
            site.shape(1)[window[dimension]] - 1
        ) * site.params["rhs_dilation"][d]
        high = reach + 1 - low - shape[dimension]
        config[dimension] = (max(low, 0), max(high, 0), 0)
        padded[dimension] = shape[dimension] + max(low, 0) + max(high, 0)
        axes[dimension] = axes[dimension].shifted(max(low, 0))
    if tuple(padded) == shape:
        return site.value(0), axes, shape
    frozen = tuple(config)

    def pad(x: Array) -> Array:
        return lax.pad(x, np.zeros((), x.dtype), frozen)

    return Local("padded", pad, (site.value(0),), tuple(padded)), axes, tuple(padded)


@defrule("reduce_window_sum")
def _window_sum(site: Site, i: int, k: int) -> list[Piece]:
    """Every entry in the window counts once."""
    params = site.params
    sizes: list[int] = []
    out, into, equations = [], [], []
    for d, size in enumerate(site.out_shape):
        position, window = len(sizes), len(sizes) + 1
        sizes += [size, params["window_dimensions"][d]]
        out.append(label(position))
        meeting = IndexMap(
            -params["padding"][d][0],
            ((position, params["window_strides"][d]), (window, params["window_dilation"][d])),
        )
        step = params["base_dilation"][d]
        if step == 1:
            into.append(meeting)
        else:
            sizes.append(site.shape(0)[d])
            into.append(label(window + 1))
            equations.append(IndexMap(meeting.offset, (*meeting.parts, (window + 1, -step))))
    del k
    return _solved(site, i, sizes, out, into, equations, [])


#: Most entries of a window whose largest is looked for position by position.
MAX_CHOICES = 128


@defrule("reduce_window_max", "reduce_window_min")
def _window_extremum(site: Site, i: int, k: int) -> list[Piece]:
    """The first of the largest entries of a window counts, as JAX has it."""
    params = site.params
    window = tuple(params["window_dimensions"])
    if any(d != 1 for d in params["base_dilation"]) or math.prod(window) > MAX_CHOICES:
        # JAX has no reverse mode of dilated windows.
        return site.opaque(i, k, reverse=all(d == 1 for d in params["window_dilation"]))
    rank = len(window)
    choose = _chosen(
        "max" in site.name,
        window,
        tuple(params["window_strides"]),
        tuple(tuple(pair) for pair in params["padding"]),
        tuple(params["window_dilation"]),
    )
    shape = (*site.out_shape, *window)
    chosen = Local(f"d{site.name}", choose, (site.value(0),), shape, mask=True)
    into = [
        IndexMap(-low, ((d, stride), (rank + d, dilation)))
        for d, ((low, _), stride, dilation) in enumerate(
            zip(params["padding"], params["window_strides"], params["window_dilation"], strict=True)
        )
    ]
    axes = axes_of(2 * rank)
    return site.piece(shape, axes[:rank], into, [site.factor(chosen, axes, shape)])


@lru_cache(maxsize=256)
def _chosen(
    largest: bool,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
) -> Callable[[Array], Array]:
    def choose(x: Array) -> Array:
        worst = np.asarray(-np.inf if largest else np.inf, x.dtype)
        padded = lax.pad(x, worst, [(low, high, 0) for low, high in padding])
        reach = [
            size - (extent - 1) * step
            for size, extent, step in zip(padded.shape, window, dilation, strict=True)
        ]
        entries = []
        for place in np.ndindex(*window):
            start = [p * step for p, step in zip(place, dilation, strict=True)]
            limit = [s + r for s, r in zip(start, reach, strict=True)]
            entries.append(lax.slice(padded, start, limit, strides))
        stacked = lax.concatenate([lax.expand_dims(e, (e.ndim,)) for e in entries], x.ndim)
        find = lax.argmax if largest else lax.argmin
        first = lax.broadcast_in_dim(
            find(stacked, x.ndim, np.int32), stacked.shape, tuple(range(x.ndim))
        )
        mask = lax.eq(first, lax.broadcasted_iota(np.int32, stacked.shape, x.ndim))
        return lax.reshape(mask.astype(x.dtype), (*stacked.shape[:-1], *window))

    return choose


def _solved(
    site: Site,
    i: int,
    sizes: list[int],
    out: list[IndexMap],
    into: list[IndexMap],
    equations: list[IndexMap],
    factors: list[tuple[Reference, Factor]],
) -> list[Piece]:
    """The terms left when the dilated positions are solved for."""
    if 0 in sizes:
        return []
    draft = Draft(
        dict(enumerate(sizes)),
        out,
        into,
        [DraftFactor(n, factor) for n, (_, factor) in enumerate(factors)],
        equations=equations,
    )
    try:
        solved = solve(draft)
    except Unsolvable:
        return site.opaque(i, 0)
    pieces = []
    for part in solved:
        finished = part.finish()
        if finished is not None:
            term, operands = finished
            pieces.append(Piece(term, tuple(factors[n][0] for n in operands)))
    return pieces
