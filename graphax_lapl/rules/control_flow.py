"""Loops, branches, backward functions: along which dimensions their derivative is diagonal.

A loop is one opaque linear map from each input to each output. Where the body treats the entries
along some dimension independently of one another, so does the loop, and the map is diagonal along
that dimension. This is found as the greatest fixed point: suppose that an input moves along
position p of its dimension d; which dimensions of a value then hold changes at position p only? The
local structures of the body's equations say so, and what a carry holds has to hold again when it
comes around. Where no path leads from an input to an output, there is no derivative. The same is
asked of the backward function of a user's rule, and of the solver of a linear solve: which
dimensions hold the cotangent's position? Of small maps single entries are told apart
(`entry_patterns.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache

import jax
import numpy as np

from ..edges.masks import Limit, pattern_mask
from ..edges.unify import Unsolvable
from ..errors import NO_MODE_ERRORS, GraphaxLaplError
from ..graph.listing import Equation, scan_counts
from .bodies import Aligned, Body, body_of, jaxprs_of
from .cotangents import linear_backward
from .entry_patterns import entry_patterns, through_body
from .opaque import AS_A_WHOLE, modes
from .registry import defrule
from .rows_of_loops import STORED, rows_for_all_columns, stored_by_rows
from .site import Piece, Site, not_before

__all__ = ["diagonal_pairs", "scan_counts"]

#: For each input and output that it reaches: pairs of dimensions along which a map is diagonal.
Pairs = dict[tuple[int, int], tuple[tuple[int, int], ...]]


@lru_cache(maxsize=512)
def diagonal_pairs(equation: Equation) -> Pairs | None:
    """What is known of the maps of a `scan`, `while` or `cond`; None where nothing is."""
    find = {"scan": _scan, "while": _while, "cond": _cond}[equation.name]
    try:
        return find(equation)
    except (GraphaxLaplError, *NO_MODE_ERRORS, Unsolvable):
        return None  # an operation inside has no structure on its own; the whole may be fine


def _scan(equation: Equation) -> Pairs | None:
    counts = scan_counts(equation.params)
    if counts is None:
        return None
    body = body_of(equation)
    constants, carries = counts
    found = _fixed_points(body, constants, carries)
    result = {}
    for (i, k), pairs in found.items():
        mapped, stacked = i >= constants + carries, k >= carries
        # Along the steps too, where nothing is carried from one to the next.
        apart = mapped and stacked and not any((i, other) in found for other in range(carries))
        shifted = [(d + mapped, e + stacked) for d, e in pairs]
        result[i, k] = tuple([(0, 0)] * apart + shifted)
    return result


def _while(equation: Equation) -> Pairs:
    constants, skipped = (equation.params[name] for name in ("body_nconsts", "cond_nconsts"))
    body = body_of(equation)
    found = _fixed_points(body, constants, len(body.outputs))
    return {(i + skipped, k): pairs for (i, k), pairs in found.items()}


def _cond(equation: Equation) -> Pairs:
    joined: Pairs = {}
    for number in range(len(jaxprs_of(equation))):
        body = body_of(equation, number)
        for pair, dims in _fixed_points(body, len(body.inputs), 0).items():
            shifted = (pair[0] + 1, pair[1])
            known = joined.get(shifted, dims)
            joined[shifted] = tuple(d for d in dims if d in known)
    return joined


def _fixed_points(body: Body, constants: int, carries: int) -> Pairs:
    """Diagonal pairs of dimensions of the body's inputs and outputs, carries included.

    Inputs are (constants, carries, the rest), outputs (carries, the rest). A carry is also an
    output when nothing is done to it: the loop may take no step.
    """
    result: dict[tuple[int, int], dict[int, int]] = {}
    for i, variable in enumerate(body.inputs):
        type_ = body.listing.variables[variable]
        if not body.moves[i]:
            continue
        for k in _reached(body, i, frozenset(), constants, carries):
            result[i, k] = {}
        for d, size in enumerate(type_.shape):
            if size == 1:
                continue
            for k, aligned in _reached(body, i, frozenset({d}), constants, carries).items():
                taken, shape = result[i, k], body.shape(k)
                free = [e for e in sorted(aligned - {*taken.values()}) if shape[e] == size]
                if free:
                    taken[d] = free[0]
    return {pair: tuple(dims.items()) for pair, dims in result.items()}


def _reached(
    body: Body, i: int, start: Aligned, constants: int, carries: int
) -> dict[int, Aligned]:
    """Aligned dimensions of the outputs that input `i` reaches, in any number of steps."""
    held = {i: start}
    while True:
        out = body.push(held)
        before = dict(held)
        for k, aligned in out.items():
            place = constants + k
            if k < carries:
                held[place] = held[place] & aligned if place in held else aligned
        if held == before:
            break
    if constants <= i < constants + carries:
        k = i - constants  # no step at all
        out[k] = out[k] & start if k in out else start
    return out


@defrule("scan", "while", "cond")
def _loop(site: Site, i: int, k: int) -> list[Piece]:
    """One map per pair of input and output, diagonal and zero where the body says so."""
    found = diagonal_pairs(site.equation)
    pairs = () if found is None else found.get((i, k))
    if pairs is None:
        return []
    site.note(AS_A_WHOLE)
    forward, reverse = (True, False) if site.name == "while" else modes(site, i, k)
    moving = [j for j, active in enumerate(site.equation.active) if active]
    reached = [j for j in moving if found is None or (j, k) in found]
    several = len(reached) > 1  # rows go to all of them by one evaluation
    stored = stored_by_rows(site.equation)
    rows_at_par = several or stored <= STORED * math.prod(site.shape(i))
    diagonal = found is not None and any(found[j, k] for j in reached)
    worth = None if diagonal else rows_for_all_columns(site, reached, k)
    pattern = entry_patterns(site.equation, site.integers).get((i, k))
    limits: list[Limit] = []
    if pattern is None and all(d != 0 for d, _ in pairs):
        limits = [not_before(*pair) for pair in _ordered_steps(site, i, k)]
    return _linear(site, i, k, pairs, pattern, limits, forward, reverse, rows_at_par, worth)


def _within(
    pattern: np.ndarray,
    in_shape: tuple[int, ...],
    out_shape: tuple[int, ...],
    known: Iterable[tuple[int, int]],
) -> tuple[tuple[tuple[int, int], ...], list[Limit]]:
    """Pairs of dimensions (of input, of output) along which a pattern is diagonal, and its mask."""
    whole = pattern.reshape((*out_shape, *in_shape))
    places = np.nonzero(np.atleast_1d(whole))
    pairs = dict(known)
    for d, size in enumerate(in_shape):
        for e, extent in enumerate(out_shape):
            if d in pairs or e in pairs.values() or size != extent or size == 1:
                continue
            if (places[e] == places[len(out_shape) + d]).all():
                pairs[d] = e
    return tuple(pairs.items()), [pattern_mask(whole)]


def _ordered_steps(site: Site, i: int, k: int) -> list[tuple[int, int]]:
    """A scan says at one step nothing of what it reads at later ones."""
    counts = scan_counts(site.params) if site.name == "scan" else None
    if counts is None or i < sum(counts) or k < counts[1]:
        return []
    read = len(site.outputs[k].shape)
    return [(read, 0)] if site.params["reverse"] else [(0, read)]


#: Whether a backward function is being looked at.
_in_backward: ContextVar[bool] = ContextVar("in_backward", default=False)


#: What is known of a linear function: its pairs of dimensions, and its pattern where it is small;
#: None where it leads nowhere.
Known = tuple[tuple[tuple[int, int], ...], np.ndarray | None] | None


def _known_of(body: Body, ends: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Known]:
    """What is known of maps from inputs of a body, all that move, to outputs."""
    every = _fixed_points(body, len(body.inputs), 0)
    patterns: Mapping[tuple[int, int], np.ndarray] | None = None
    known: dict[tuple[int, int], Known] = {}
    for i, k in ends:
        pairs = every.get((i, k))
        shape = body.listing.variables[body.inputs[i]].shape
        if pairs is None:
            known[i, k] = None
        elif len(pairs) == len(shape) == len(body.shape(k)):
            known[i, k] = pairs, None
        else:
            patterns = through_body(body) if patterns is None else patterns
            known[i, k] = pairs, patterns.get((i, k))
    return known


@lru_cache(maxsize=512)
def _backward_known(
    equation: Equation, types: tuple[jax.ShapeDtypeStruct, ...]
) -> Mapping[tuple[int, int], Known]:
    """What is known of a backward function, from cotangents of outputs to those of moving inputs.

    It is told what moves, as JAX tells it. Nothing where it is not linear step by step, or cannot
    be looked at.
    """
    if _in_backward.get():
        return {}  # one that calls itself would be asked for ever
    token = _in_backward.set(True)
    try:
        backward = linear_backward(equation, *types)
        if backward is None:
            return {}  # a sign, whose derivative is zero, is none that does not depend
        outs, moving = backward.outs, backward.moving
        ends = itertools.product(range(len(outs)), range(len(moving)))
        known = _known_of(Body(backward.traced, moving=range(len(outs))), ends)
        return {(moving[into], outs[out]): found for (out, into), found in known.items()}
    except (GraphaxLaplError, *NO_MODE_ERRORS, Unsolvable):
        return {}
    finally:
        _in_backward.reset(token)


@defrule("custom_vjp_call")
def _custom_vjp(site: Site, i: int, k: int) -> list[Piece]:
    """The user's backward function; it has no forward mode."""
    types = tuple(jax.ShapeDtypeStruct(t.shape, t.dtype) for t in site.inputs)
    known = _backward_known(site.equation, types).get((i, k), ((), None))
    if known is None:
        return []
    pairs, pattern = tuple((e, d) for d, e in known[0]), known[1]
    return _linear(site, i, k, pairs, None if pattern is None else pattern.T, forward=False)


def _linear(
    site: Site,
    i: int,
    k: int,
    pairs: tuple[tuple[int, int], ...],
    pattern: np.ndarray | None,
    limits: Sequence[Limit] = (),
    forward: bool = True,
    reverse: bool = True,
    rows_at_par: bool = False,
    rows_for_columns: int | None = None,
) -> list[Piece]:
    """One map, diagonal along pairs of dimensions (of input, of output), within a pattern."""
    if pattern is not None:
        pairs, limits = _within(pattern, site.shape(i), site.outputs[k].shape, pairs)
    batch_in, batch_out = [d for d, _ in pairs], [e for _, e in pairs]
    return site.opaque(
        i,
        k,
        batch_in,
        batch_out,
        forward=forward,
        reverse=reverse,
        limits=limits,
        rows_at_par=rows_at_par,
        rows_for_columns=None if pairs else rows_for_columns,
    )


@lru_cache(maxsize=512)
def _solution_known(equation: Equation, i: int, k: int) -> Known:
    """What is known of a linear solve, from a right-hand side to a solution."""
    solve, lengths = equation.params["jaxprs"].solve, equation.params["const_lengths"]
    place = i - sum(lengths) + lengths.solve
    if place < lengths.solve:
        return (), None
    try:
        return _known_of(Body(solve, moving=[place]), [(place, k)])[place, k]
    except (GraphaxLaplError, *NO_MODE_ERRORS, Unsolvable):
        return (), None


@defrule("custom_linear_solve")
def _linear_solve(site: Site, i: int, k: int) -> list[Piece]:
    """Linear in its right-hand sides, as it stands in its own tangent program."""
    known = _solution_known(site.equation, i, k)
    return [] if known is None else _linear(site, i, k, *known)
