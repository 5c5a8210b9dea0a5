"""Laplacians of functions that are mostly loops over layers, from their Hessians.

The second derivative of a loop as a whole is a loop of its own beside that of its Jacobian, and in
each of them every column passes the matrices of all layers, twice in the second one: three products
for each layer and column. Through the gradient, whose values are in memory, it passes two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..graph.listing import Equation, Listing, scan_counts
from ..program.laplacian import Metric
from ..rules.control_flow import diagonal_pairs
from .planning import Prepared

__all__ = ["hessian_takes_less"]

#: Share of a function's products of matrices that loops multiply, at least.
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
    total = 0
    for equation in listing.equations:
        first = listing.type_of(equation.inputs[0]).shape if equation.inputs else ()
        out = listing.variables[equation.outputs[0]].shape if equation.outputs else ()
        total += _products(equation.name, equation.params, first, out)
    inside = sum(_products(loop.name, loop.params, (), ()) for loop in loops)
    return inside > 0 and inside >= IN_LOOPS * total


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


def _products(
    name: str, params: Mapping[str, Any], first: Sequence[int], out: Sequence[int]
) -> int:
    """Multiplications of the products of matrices in an equation, of all steps of a loop.

    Args:
        name: of the primitive.
        params: its parameters.
        first: shape of the first operand.
        out: shape of the first result.
    """
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return math.prod(out) * math.prod(first[d] for d in contracted)
    total = 0
    for value in params.values():
        for body in value if isinstance(value, tuple | list) else (value,):
            for equation in getattr(getattr(body, "jaxpr", body), "eqns", ()):
                shapes = [
                    getattr(atom.aval, "shape", ())
                    for atoms in (equation.invars, equation.outvars)
                    for atom in atoms[:1]
                ]
                if len(shapes) == 2:
                    total += _products(str(equation.primitive.name), equation.params, *shapes)
    return total * (params["length"] if name == "scan" else 1)
