"""Exceptions of the planner.

Every one derives from `PlannerError`, so that one ``except`` catches whatever the package raises on
purpose, and from `ValueError`, so that callers who know nothing of this package are served too.
"""

from __future__ import annotations

__all__ = ["InvalidGraphError", "InvalidObjectiveError", "InvalidOrderError", "PlannerError"]


class PlannerError(Exception):
    """Base class of the exceptions raised by `elimination_orders`."""


class InvalidGraphError(PlannerError, ValueError):
    """The description of a graph is not a valid elimination problem."""


class InvalidOrderError(PlannerError, ValueError):
    """An order does not fit its graph, or a name of an order is unknown."""


class InvalidObjectiveError(PlannerError, ValueError):
    """The name of an objective is unknown, or the objective does not apply to the graph."""
