"""Checks of arguments that several modules share."""

from __future__ import annotations

import math
import operator
from typing import Any

from elimination_orders.errors import InvalidObjectiveError, InvalidOrderError

__all__ = ["check_between", "check_flag", "check_score", "check_seed"]


def check_seed(seed: Any) -> int:
    """The seed as an int.

    Raises:
        InvalidOrderError: if it is not an integer.
    """
    try:
        return operator.index(seed)
    except TypeError:
        raise InvalidOrderError(
            f"seed: expected an integer, got {seed!r}. Every integer gives a reproducible search."
        ) from None


def check_flag(name: str, flag: Any) -> None:
    """Make sure that a setting is True or False: "no" would be taken for True.

    Raises:
        InvalidOrderError: if it is something else.
    """
    if not isinstance(flag, bool):
        raise InvalidOrderError(f"{name}: expected True or False, got {flag!r}.")


def check_between(name: str, value: Any, low: float, high: float = math.inf) -> None:
    """Make sure that a setting is a number in a range.

    Args:
        name: of the setting.
        value: what was given.
        low: least allowed value; an int stands for "an integer", a float for "a number above".
        high: largest allowed value.

    Raises:
        InvalidOrderError: if it is not.
    """
    whole = isinstance(low, int)
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if is_number and (value >= low if whole else value > low) and value <= high:
        return
    least = f"an integer of at least {low}" if whole else f"a number above {low:g}"
    most = "" if math.isinf(high) else f" and at most {high:g}"
    raise InvalidOrderError(f"{name}: expected {least}{most}, got {value!r}.")


def check_score(name: str, score: Any) -> float:
    """A number that an objective of the caller's own gave to a step.

    Raises:
        InvalidObjectiveError: if it is no number, or not a number that can be compared.
    """
    try:
        value = float(score)
    except (TypeError, ValueError):
        value = math.nan
    if math.isnan(value):
        raise InvalidObjectiveError(
            f"objective: {name} returned {score!r} for a step. Return a number."
        )
    return score
