"""Laplacians of functions that are mostly loops over layers, from their Hessians.

The second derivative of a loop as a whole is a loop of its own beside that of its Jacobian, and in
each of them every column passes the matrices of all layers, twice in the second one: three products
for each layer and column. Through the gradient, whose values are in memory, it passes two.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..graph.listing import Equation, Listing, scan_counts
from ..program.counts import primitive_counts
from ..program.laplacian import Metric
from ..rules.control_flow import diagonal_pairs
from .planning import Prepared

__all__ = ["hessian_takes_less"]

#: Share of a function's multiplications that are in loops, at least.
IN_LOOPS = 0.5
#: Most numbers of a sample that all steps store for all columns.
STORED = 1 << 20


def hessian_takes_less(prepared: Prepared, order: Any, metric: Metric) -> bool:
    """Whether the contraction of a number's Hessian is sooner evaluated than columns are pushed.

    Where the order is left to us, and columns of all inputs are full behind the loops. (Of more
    inputs than a loop has, fewer columns may pass it, see `LaplacianPrograms`.)

    Args:
        prepared: the function.
        order: as the user gave it.
        metric: what the Hessian is contracted with.
    """
    if not (isinstance(order, str) and order.lower() == "auto" and metric.spans_all):
        return False
    traced, listing = prepared.traced, prepared.listing
    results = [variable.aval for variable in traced.closed.jaxpr.outvars[: traced.n_out]]
    if [result.size for result in results] != [1]:
        return False
    columns = sum(math.prod(aval.shape) for aval in traced.in_types)
    loops = [item.equation for item in prepared.second.opaque]
    real = np.issubdtype(results[0].dtype, np.floating)
    if not (real and loops and all(_is_full(loop, listing, columns) for loop in loops)):
        return False
    if columns * sum(map(_carried, loops)) > STORED:
        return False
    total = sum(_multiplications(equation, listing) for equation in listing.equations)
    inside = sum(_multiplications(loop, listing) for loop in loops)
    return any("dot_general" in loop.inside for loop in loops) and inside >= IN_LOOPS * total


def _is_full(equation: Equation, listing: Listing, columns: int) -> bool:
    """Whether a loop has both modes, is diagonal along no dimension, and has inputs for columns."""
    if equation.name != "scan" or "while" in equation.inside:
        return False
    moving = [a for a, moves in zip(equation.inputs, equation.active, strict=True) if moves]
    if sum(math.prod(listing.type_of(atom).shape) for atom in moving) < columns:
        return False
    pairs = diagonal_pairs(equation)
    return pairs is None or not any(pairs.values())


def _carried(loop: Equation) -> int:
    """How many numbers all steps of a loop carry."""
    counts = scan_counts(loop.params)
    carries = counts[1] if counts else 0
    types = [variable.aval for variable in loop.params["jaxpr"].jaxpr.outvars[:carries]]
    return int(loop.params["length"]) * sum(math.prod(type_.shape) for type_ in types)


def _multiplications(equation: Equation, listing: Listing) -> int:
    """Those of an equation, of all steps of a loop."""
    shapes = [listing.type_of(atom).shape for atom in equation.inputs]
    outputs = [listing.variables[variable].shape for variable in equation.outputs]
    return primitive_counts(equation.name, equation.params, shapes, outputs)[0]
