"""Which entries of a loop's or branch's results depend on which entries of its inputs.

Boolean columns, one per entry of an input, are pushed through the bodies (`boolean_columns.py`):
through all branches of a `cond`, whose patterns are joined; through a `while` until nothing new is
reached; through the steps of a `scan` one by one (`scan_patterns.py`).

This is done for small maps only: larger ones are diagonal along some dimensions and full along the
others (`control_flow.py`).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ..edges.masks import MAX_MASK
from ..edges.unify import Unsolvable
from ..errors import NO_MODE_ERRORS, GraphaxLaplError
from ..graph.listing import Equation, scan_counts
from .bodies import Body, body_of, jaxprs_of
from .boolean_columns import Patterns, Pushed, TooLarge, columns_of, identities, limited
from .possible_values import Possible
from .scan_patterns import ScanSteps
from .site import Integers

__all__ = ["Patterns", "entry_patterns", "through_body"]


def _unpacked(given: Integers) -> dict[int, Possible]:
    return {
        position: Possible(*(np.frombuffer(side, np.int64).reshape(shape) for side in bounds))
        for position, shape, *bounds in given
    }


@lru_cache(maxsize=256)
def entry_patterns(equation: Equation, given: Integers) -> Patterns:
    """Patterns of the maps of a `scan`, `while` or `cond`.

    Args:
        equation: the equation.
        given: what is known of its integers.

    Returns:
        Those that are small enough; where nothing is known of a map, it is not among them.
    """
    find = {"scan": _scan, "while": _while, "cond": _cond}[equation.name]
    inner = jaxprs_of(equation)[0].jaxpr
    sizes = [_size(v) for v in inner.invars]
    largest = max((_size(v) for v in inner.outvars), default=0)
    if not any(size > 0 and size * largest <= MAX_MASK for size in sizes):
        return {}
    try:
        with limited():
            return find(equation, _unpacked(given))
    except (GraphaxLaplError, *NO_MODE_ERRORS, Unsolvable, TooLarge):
        return {}


def _size(variable: Any) -> int:
    return math.prod(getattr(variable.aval, "shape", (0,)))


def through_body(body: Body) -> Patterns:
    """Patterns of what is evaluated once.

    Raises:
        GraphaxLaplError: what a rule raises.
    """
    try:
        with limited():
            places, count = columns_of(body)
            out = Pushed(body, {}).step(identities(places, count), count)
    except TooLarge:
        return {}
    return {(i, k): out[k][:, place] for i, place in places.items() for k in out}


def _cond(equation: Equation, given: dict[int, Possible]) -> Patterns:
    """What any branch reads that may be taken."""
    count = len(jaxprs_of(equation))
    branches = range(count)
    index = given.pop(0, None)
    if index is not None:
        low, high = (int(np.clip(n, 0, count - 1)) for n in (index.low, index.high))
        branches = branches[low : high + 1]
    operands = {k - 1: possible for k, possible in given.items()}
    found: Patterns = {}
    for branch in branches:
        for (i, k), pattern in through_body(body_of(equation, branch, operands)).items():
            known = found.get((i + 1, k))
            found[i + 1, k] = pattern if known is None else known | pattern
    return found


def _while(equation: Equation, given: dict[int, Possible]) -> Patterns:
    """What any number of steps reads, none included."""
    constants, skipped = (equation.params[name] for name in ("body_nconsts", "cond_nconsts"))
    operands = {k - skipped: p for k, p in given.items() if skipped <= k < skipped + constants}
    body = body_of(equation, 0, operands)
    places, count = columns_of(body)
    pushed = Pushed(body, {})
    state = identities(places, count)
    _until_settled(pushed, state, constants, count)
    return {
        (i + skipped, k): state[constants + k][:, place]
        for i, place in places.items()
        for k in range(len(body.outputs))
        if constants + k in state
    }


def _until_settled(
    pushed: Pushed,
    state: dict[int, np.ndarray],
    constants: int,
    count: int,
) -> dict[int, np.ndarray]:
    """Add to the carries of a state what further steps reach; the outputs of the last step."""
    carries = range(constants, len(pushed.body.inputs))
    while True:
        out = pushed.step(state, count)
        grown = False
        for place in carries:
            columns = out.get(place - constants)
            if columns is None:
                continue
            before = state.get(place)
            if before is None:
                state[place] = columns.copy()
                grown = True
            elif (columns & ~before).any():
                state[place] = before | columns
                grown = True
        if not grown:
            return out


def _scan(equation: Equation, given: dict[int, Possible]) -> Patterns:
    """What each step reads; `given` are the integers of all steps."""
    counts = scan_counts(equation.params)
    if counts is None or not equation.params["length"]:
        return {}
    constants, carries = counts
    return ScanSteps(equation, constants, carries, given).patterns()
