"""Operations on single numbers: known ones, arrays without axes, or notes on a tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

__all__ = ["carried_out", "chosen", "is_known"]


def is_known(number: Any) -> bool:
    """Whether a number is known before anything is evaluated."""
    return isinstance(number, np.ndarray | np.generic | bool | int | float | complex)


def carried_out(name: str, of: Callable[..., Any], operands: Sequence[Any], dtype: Any) -> Any:
    """What an equation makes of numbers, recorded where one of them is yet to be computed.

    Args:
        name: of its primitive.
        of: carries it out on arrays.
        operands: numbers.
        dtype: of the result.
    """
    tape = next((number.tape for number in operands if hasattr(number, "tape")), None)
    if tape is not None:
        return tape.record(name, of, operands, dtype)
    if not all(map(is_known, operands)):
        return of(*operands)
    with jax.ensure_compile_time_eval():  # whatever is traced around it
        return np.asarray(of(*operands))[()]


def chosen(which: Any, first: Any, second: Any) -> Any:
    """The second number where `which` is true."""
    if is_known(which):
        return second if which else first
    if is_known(first) and is_known(second) and first.tobytes() == second.tobytes():
        return first
    dtype = np.dtype((second if is_known(first) else first).dtype)
    return carried_out("select_n", lax.select_n, (which, first, second), dtype)
