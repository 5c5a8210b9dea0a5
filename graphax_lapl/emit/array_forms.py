"""Which programs on small arrays many samples evaluate sooner as arrays than number by number.

Written in numbers, a layer of a network is a kernel for every neuron whose function is dear, and a
kernel with a branch for every entry. As arrays it is a product of matrices, one vectorised kernel
for all neurons, and one for all entries. What is gained in numbers is what an array would repeat or
fill with zeros; where nothing is, they lose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..program.timings import PRIMITIVES
from .numbers import Numbers, called_by
from .packing import FUSED
from .small_factors import FACTORS

__all__ = [
    "DEAR",
    "has_factors",
    "has_known_matrix",
    "has_long_products",
    "has_wide_arrays",
    "is_compared",
    "is_cumulative",
    "is_full",
]

#: Products that a number is the sum of from which on kernels of arrays are vectorised well enough:
#: in numbers these are more operands than XLA fuses. Dear functions are from `FUSED` elements on.
WIDE = FUSED + 1
#: Nanoseconds of an elementwise primitive that is worth a kernel for every number.
DEAR = 0.8
#: What XLA's CPU compiler adds or multiplies up from the beginning for every element of an array.
CUMULATIVE = frozenset({"cumsum", "cumprod"})
#: Of all entries: most zeros of results that are full.
ZEROS = 0.5
#: What picks or places entries one by one.
PICKED = frozenset({"gather", "scatter", "scatter-add", "squeeze", "pad", "dynamic_slice"})


def is_compared(jaxpr: Any) -> bool:
    """Whether a program puts its results together by comparing positions only."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in PICKED and not (name == "squeeze" and _size(equation.outvars[0]) > 1):
            return False
        called = called_by(name, equation.params)
        if called is not None and not is_compared(called.program.jaxpr):
            return False
    return True


def is_full(results: Sequence[Numbers]) -> bool:
    """Whether most entries of the results are computed, so that no zeros are written as such."""
    everything = sum(numbers.size for numbers in results)
    zeros = sum(int(np.count_nonzero(numbers == 0)) for numbers in results)
    return zeros <= ZEROS * everything


def has_wide_arrays(jaxpr: Any, own: Sequence[bool]) -> bool:
    """Whether a program has dear functions of wide arrays, or long products with a known matrix.

    With its exponents known each number's power is a few products, or one itself: arrays whose
    powers take longer than all that is dear lose.

    Args:
        jaxpr: of one sample.
        own: for each of its inputs whether every sample has its own.
    """
    if has_long_products(jaxpr, own):
        return True
    wide, powers = 0.0, 0.0
    for equation, moves in _moving(jaxpr, own):
        name, size = equation.primitive.name, _size(equation.outvars[0])
        time = PRIMITIVES.get(name, 0.0)
        if name == "pow" and not moves[1]:
            powers += time * size
        elif time >= DEAR and size >= FUSED:
            wide += time * size
    return wide > powers


def is_cumulative(jaxpr: Any, own: Sequence[bool]) -> bool:
    """Whether a program adds or multiplies up numbers one after the other; arguments as there."""
    return any(equation.primitive.name in CUMULATIVE for equation, _ in _moving(jaxpr, own))


def has_long_products(jaxpr: Any, own: Sequence[bool]) -> bool:
    """Whether a program has long products with a known matrix; arguments as there."""
    return any(
        equation.primitive.name == "dot_general"
        and not all(moves)
        and _contracted(equation) >= WIDE
        for equation, moves in _moving(jaxpr, own)
    )


def has_factors(jaxpr: Any, own: Sequence[bool]) -> bool:
    """Whether a program factors matrices or solves with them; arguments as there.

    As arrays these are calls of a library for every sample.
    """
    return any(equation.primitive.name in FACTORS for equation, _ in _moving(jaxpr, own))


def has_known_matrix(jaxpr: Any, own: Sequence[bool], least: int) -> bool:
    """Whether a program multiplies by a matrix of so many entries that no sample has of its own.

    Args:
        jaxpr: of one sample.
        own: for each of its inputs whether every sample has its own.
        least: entries of the matrix.
    """
    return any(
        not moves and _size(operand) >= least
        for equation, own in _moving(jaxpr, own)
        if equation.primitive.name == "dot_general"
        for operand, moves in zip(equation.invars, own, strict=True)
    )


def _moving(jaxpr: Any, own: Sequence[bool]) -> Iterator[tuple[Any, list[bool]]]:
    """Equations of which samples have their own operands, and which of these they are."""
    moving = {variable for variable, moves in zip(jaxpr.invars, own, strict=True) if moves}
    for equation in jaxpr.eqns:
        # Literals are not hashable; they do not move.
        moves = [not hasattr(atom, "val") and atom in moving for atom in equation.invars]
        if not any(moves):
            continue
        moving.update(equation.outvars)
        called = called_by(equation.primitive.name, equation.params, moves)
        if called is not None:
            yield from _moving(called.program.jaxpr, called.operands)
        else:
            yield equation, moves


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)


def _contracted(equation: Any) -> int:
    """How many products each number of a product of matrices is the sum of."""
    (contracted, _), _ = equation.params["dimension_numbers"]
    return math.prod(equation.invars[0].aval.shape[d] for d in contracted)
