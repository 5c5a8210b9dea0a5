"""The exceptions this package raises on purpose.

All of them derive from `GraphaxLaplError`, and each also derives from the built-in exception a
caller would expect (`ValueError`, `TypeError`), so that either can be caught.
"""

from __future__ import annotations

__all__ = [
    "FallbackError",
    "GraphaxLaplError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidOrderError",
    "InvalidTypeError",
    "PlanMismatchError",
]


class GraphaxLaplError(Exception):
    """Base class of every error raised on purpose by this package."""


class InvalidArgumentError(GraphaxLaplError, ValueError):
    """An argument has a value outside what the function accepts."""


class InvalidTypeError(GraphaxLaplError, TypeError):
    """An argument or a result has a type or dtype that cannot be differentiated."""


class InvalidOrderError(GraphaxLaplError, ValueError):
    """An elimination order is unknown, or is not a permutation of the eliminable vertices."""


class PlanMismatchError(InvalidOrderError):
    """An order or plan was made for another graph than the one it is used on."""


class FallbackError(GraphaxLaplError, NotImplementedError):
    """Under `strict=True`: a part of the function has no rule."""


class InternalError(GraphaxLaplError, RuntimeError):
    """An invariant of the compiler is broken: a bug in this package, not in the caller's code."""

    def __init__(self, message: str):
        """Append the request to report the bug to `message`."""
        super().__init__(f"{message} This is a bug in graphax_lapl; please report it.")
