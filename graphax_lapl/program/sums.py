"""Sums of very many parallel arrows, which must not cost the square of their number."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .builder import Edge

__all__ = ["RunningSum"]

#: So many arrows are added up one after the other. Each addition reads the whole sum again, which
#: is the cheapest as long as the sum is small.
FEW = 16


class RunningSum:
    """The sum of arrows that arrive one by one and that nobody reads before the last.

    Hundreds of unrolled scalar equations give the arrow from the input to the output hundreds of
    terms, one from each elimination. Beyond the first few, sums of equally many are joined, as a
    binary counter carries, so that every term is read once per doubling.

    Args:
        join: adds two arrows; None for zero.
    """

    def __init__(self, join: Callable[[Edge, Edge], Edge | None]):
        self.join = join
        self.head: Edge | None = None
        self.count = 0
        self.waiting: list[tuple[int, Edge]] = []

    def add(self, edge: Edge | None) -> None:
        """One arrow more, None for zero."""
        if edge is None:
            return
        self.count += 1
        if self.count <= FEW:
            self.head = edge if self.head is None else self.join(self.head, edge)
            return
        rank, made = 0, edge
        while self.waiting and self.waiting[-1][0] == rank:
            joined = self.join(self.waiting.pop()[1], made)
            if joined is None:
                return
            rank, made = rank + 1, joined
        self.waiting.append((rank, made))

    def total(self) -> Edge | None:
        """The sum; further arrows may still follow."""
        for _, edge in reversed(self.waiting):
            self.head = edge if self.head is None else self.join(self.head, edge)
        self.waiting.clear()
        return self.head
