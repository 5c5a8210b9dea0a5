"""Loops: how many rows are pulled back in the time of pushing all columns.

For a row every step is kept in memory and read again; a column is carried beside the state. Which
of both takes less depends on how many numbers are carried, and on what the steps do to them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from ..graph.listing import TRANSCENDENTAL, Equation, Listing, nested_primitives, scan_counts
from .loop_invariants import steps_for_rows
from .site import Site

__all__ = ["STORED", "columns_for_a_row", "rows_for_all_columns", "stored_by_rows"]

#: Numbers that the columns of all inputs carry through a loop, up to which they are pushed sooner
#: than rows are pulled back.
MAX_TANGENTS = 128
#: Columns that take as long as one row where every step sums what goes back to a constant, or where
#: single numbers are carried: their columns are one kernel, their rows are in memory one by one.
COLUMNS_OF_NUMBERS = 8
#: The same where such numbers are repeated as arrays, for rows.
COLUMNS_OF_REPEATED = 4
#: What a library is called for, and several times for every column: columns are never one kernel.
CALLED = "cholesky"
#: Columns that take as long as one row elsewhere: of up to `FEW` ones, and of more.
COLUMNS_OF_FEW, COLUMNS_OF_MORE = 2, 1.5
FEW = 4
#: Columns of the start that take no longer than one row where steps are plain arithmetic.
COLUMNS_OF_ARITHMETIC = 3

#: Where rows are pulled at par: most numbers that all steps store, for each one that columns carry.
STORED = 4
#: Most equations that put entries side by side in a step, without matrices: rows that pass several
#: of them are evaluated again for each entry that reads them.
CONCATENATIONS = 4
#: Whether XLA's CPU compiler writes moved columns (rolled, sliced, concatenated) to memory in every
#: step of a loop; before JAX 0.12 it fused them.
MOVES_IN_MEMORY = jax.__version_info__ >= (0, 12)


def rows_for_all_columns(site: Site, intos: Sequence[int], k: int) -> int | None:
    """Rows that take as long as the columns of these inputs, pushed at once, of few numbers.

    None where more numbers are carried, or where every step reads or returns something of its own:
    that is in memory in any case.
    """
    counts = scan_counts(site.params) if site.name == "scan" else None
    if counts is None or k >= counts[1] or any(i >= sum(counts) for i in intos):
        return None
    # What enters in several places moves with the same columns.
    places = {site.equation.inputs[i]: i for i in intos}
    columns = sum(math.prod(site.shape(i)) for i in places.values())
    if columns * _carried(site.equation, counts) > MAX_TANGENTS:
        return None
    constants = [i for i in intos if i < counts[0]]
    # Without branches such steps are written number by number for many samples.
    fused = not site.equation.inside >= {CALLED, "cond"}
    if fused and _is_of_numbers(site.equation, counts):
        return math.ceil(columns / COLUMNS_OF_NUMBERS)
    if fused and _repeats_numbers(site.equation):
        return math.ceil(columns / COLUMNS_OF_REPEATED)
    if columns <= COLUMNS_OF_ARITHMETIC and _is_plain(site.equation, constants):
        return 1
    return math.ceil(columns / (COLUMNS_OF_FEW if columns <= FEW else COLUMNS_OF_MORE))


def columns_for_a_row(listing: Listing) -> int:
    """Columns of a function with loops in the time of one of its rows, by JAX's own products."""
    if listing.freed_loops:
        return COLUMNS_OF_NUMBERS  # these pass the loops as they were
    moving = [equation for equation in listing.equations if any(equation.active)]
    loops = [e for e in moving if e.name == "scan" or "scan" in e.inside]
    return max(map(_columns_for_a_row, loops), default=COLUMNS_OF_NUMBERS)


def _columns_for_a_row(equation: Equation) -> int:
    if CALLED in equation.inside:
        return COLUMNS_OF_FEW
    counts = scan_counts(equation.params) if equation.name == "scan" else None
    if counts is None or len(equation.outputs) > counts[1] or any(equation.active[sum(counts) :]):
        return COLUMNS_OF_NUMBERS
    constants = [i for i, moves in enumerate(equation.active[: counts[0]]) if moves]
    small = _carried(equation, counts) <= math.sqrt(MAX_TANGENTS)
    if not small or _is_of_numbers(equation, counts):
        return COLUMNS_OF_NUMBERS
    if _repeats_numbers(equation):
        return COLUMNS_OF_REPEATED
    return COLUMNS_OF_ARITHMETIC if _is_plain(equation, constants) else COLUMNS_OF_FEW


def _is_plain(equation: Equation, constants: Sequence[int]) -> bool:
    """Whether steps are arithmetic of what they carry."""
    return not constants and TRANSCENDENTAL.isdisjoint(equation.inside)


def _carried(equation: Equation, counts: tuple[int, int]) -> float:
    """How many real numbers a `scan` carries; infinitely many where some are complex."""
    carries = equation.params["jaxpr"].jaxpr.outvars[: counts[1]]
    if any(jnp.issubdtype(carry.aval.dtype, jnp.complexfloating) for carry in carries):
        return math.inf
    return sum(map(_size, carries))


def _is_of_numbers(equation: Equation, counts: tuple[int, int]) -> bool:
    """Whether a loop carries single numbers, or sums arrays to some of its constants' numbers."""
    carries = equation.params["jaxpr"].jaxpr.outvars[: counts[1]]
    steps = steps_for_rows(equation)
    return all(carry.aval.size == 1 for carry in carries) or (steps is not None and steps.sums)


def _repeats_numbers(equation: Equation) -> bool:
    steps = steps_for_rows(equation)
    return steps is not None and bool(steps.repeated)


@lru_cache(maxsize=512)
def stored_by_rows(equation: Equation) -> float:
    """What all steps of a loop store for rows, for each number that it carries.

    Infinite where rows take longer than as many columns. Over arrays they take less: what moves
    entries is added in place by rows, and slopes are read, not evaluated for every column.
    """
    counts = scan_counts(equation.params) if equation.name == "scan" else None
    if counts is None:
        return math.inf
    if "dot_general" not in equation.inside:
        moves = list(nested_primitives(equation.params)).count("concatenate")
        if not MOVES_IN_MEMORY or moves > CONCATENATIONS:
            return math.inf
    constants, carries = counts
    jaxpr = equation.params["jaxpr"].jaxpr
    moving = set(jaxpr.invars[constants : constants + carries])
    moving |= {v for v, moves in zip(jaxpr.invars, equation.active, strict=True) if moves}
    largest = 0
    for step in jaxpr.eqns:
        if not moving.isdisjoint(atom for atom in step.invars if not hasattr(atom, "val")):
            moving.update(step.outvars)
            largest = max(largest, *map(_size, step.outvars), 0)
    carried = sum(map(_size, jaxpr.outvars[:carries]))
    return equation.params["length"] * largest / carried if carried else math.inf


def _size(variable: Any) -> int:
    """How many real or complex numbers a variable of a jaxpr holds."""
    aval = variable.aval
    inexact = hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jnp.inexact)
    return math.prod(aval.shape) if inexact else 0
