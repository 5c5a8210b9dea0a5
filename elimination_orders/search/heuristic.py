"""Heuristics as strategies."""

from __future__ import annotations

from dataclasses import dataclass

from elimination_orders.heuristics import HEURISTICS, check_names
from elimination_orders.search.base import Search, Strategy

__all__ = ["Heuristic"]


@dataclass(frozen=True)
class Heuristic(Strategy):
    """One or more heuristics; of several orders the cheapest, of equals the first.

    Args:
        names: keys of `elimination_orders.heuristics.HEURISTICS`.
    """

    names: tuple[str, ...] = ("markowitz",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("names", self.names)

    @property
    def name(self) -> str:
        """The names of the heuristics."""
        return "+".join(self.names)

    def run(self, search: Search) -> None:
        """Try every heuristic once."""
        for name in self.names:
            search.try_order(HEURISTICS[name](search.problem), name)
