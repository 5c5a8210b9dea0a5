"""Numbers that are the opposite of an earlier one: pairs are often taken in both directions.

Exact but for the sign of a zero, which a difference of equal numbers has in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .recorded import Number

__all__ = ["turned", "unsigned"]

#: Functions of one number that are the same of its opposite, and that are the opposite. Sines and
#: cosines are not among them: what several entries read of them goes through memory, which takes
#: longer than each entry's own, inside of its kernel.
EVEN = frozenset({"abs", "cosh"})
ODD = frozenset(["tanh", "sinh", "asin", "atan", "asinh", "atanh", "erf", "erf_inv", "cbrt"])

Opposite = Callable[[Number], Number | None]


def unsigned(name: str, options: str, operands: Sequence[Any], opposite: Opposite) -> Sequence[Any]:
    """The operands of an even function of one number, without a sign that does not matter.

    Args:
        name: of an operation.
        options: its parameters, as they are recorded.
        operands: numbers.
        opposite: finds the earlier number that another is the opposite of.
    """
    first = operands[0]
    if not _is_real(first) or any(other is not first for other in operands):
        return operands
    square = name == "mul" and len(operands) == 2
    if not (square or name in EVEN or (name == "integer_pow" and int(options) % 2 == 0)):
        return operands
    while (found := opposite(first)) is not None:
        first = found
    return (first,) * len(operands)


def turned(
    name: str, options: str, operands: Sequence[Any], opposite: Opposite
) -> Iterator[Sequence[Any]]:
    """Operands of which the same operation gives the opposite; arguments as there."""
    # A quotient is odd in both operands. Products are too, but sharing them saves nothing.
    if name == "div" or name in ODD or (name == "integer_pow" and int(options) % 2 == 1):
        for k, operand in enumerate(operands):
            found = opposite(operand) if _is_real(operand) else None
            if found is not None:
                yield (*operands[:k], found, *operands[k + 1 :])


def _is_real(number: Any) -> bool:
    return isinstance(number, Number) and np.issubdtype(number.dtype, np.floating)
