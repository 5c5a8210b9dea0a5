"""Greedy painting such that every two-coloured component is a star.

Used for symmetric matrices (one set of colours) and for rows and columns of any matrix (the graph
is bipartite and each side has colours of its own). Sets of colours are the bits of integers.
"""

from __future__ import annotations

__all__ = ["StarPainter"]


class StarPainter:
    """A partly coloured graph.

    Attributes:
        neighbours: adjacent vertices of each vertex.
        neutral: vertices that will never have a colour; their neighbours' colours must differ.
        cautious: whether the neighbours of a vertex that has no colour yet must differ, too. That
            costs colours now and may save them later.
        color: colour of each vertex, -1 where it has none.
        once: for each vertex the colours among its neighbours.
        twice: for each vertex the colours that two of its neighbours or more have: it is the hub
            of a star with them.
        spoken: for a coloured vertex w the colours k such that w belongs to a star in colours
            (k, colour of w) whose hub is a neighbour of w.
    """

    def __init__(
        self,
        neighbours: list[list[int]],
        neutral: list[bool] | None = None,
        cautious: bool = False,
    ):
        """Start without colours."""
        count = len(neighbours)
        self.neighbours = neighbours
        self.neutral = neutral or [False] * count
        self.cautious = cautious
        self.color = [-1] * count
        self.once = [0] * count
        self.twice = [0] * count
        self.spoken = [0] * count

    def paint(self, vertex: int, proper: bool) -> None:
        """Give a vertex the first colour that keeps all two-coloured components stars.

        Args:
            vertex: a vertex without a colour.
            proper: whether its neighbours' own colours are forbidden (in a bipartite graph with
                separate colours they are not).
        """
        bit = self._first_allowed(vertex, proper)
        color, once, twice = self.color, self.once, self.twice
        k = color[vertex] = bit.bit_length() - 1
        for w in self.neighbours[vertex]:
            if not once[w] & bit:
                once[w] |= bit
                continue
            if not twice[w] & bit:
                twice[w] |= bit
                if color[w] >= 0:
                    self._speak(w, bit)
            elif color[w] >= 0:
                self.spoken[vertex] |= 1 << color[w]
        if twice[vertex]:
            for w in self.neighbours[vertex]:
                if color[w] >= 0 and twice[vertex] >> color[w] & 1:
                    self.spoken[w] |= 1 << k

    def _speak(self, hub: int, bit: int) -> None:
        """The neighbours of a new hub that have the colour `bit` become its leaves."""
        own = 1 << self.color[hub]
        for leaf in self.neighbours[hub]:
            if self.color[leaf] >= 0 and 1 << self.color[leaf] == bit:
                self.spoken[leaf] |= own

    def _first_allowed(self, vertex: int, proper: bool) -> int:
        """The lowest allowed colour, as a bit."""
        forbidden = self.once[vertex] if proper else 0
        several = self.twice[vertex]
        for w in self.neighbours[vertex]:
            own = self.color[w]
            if own >= 0:
                # The vertex would be a hub with w as one of several leaves: w may have no other
                # neighbour of its colour. Or a leaf of w: then w must not be a leaf already.
                forbidden |= self.once[w] if several >> own & 1 else self.spoken[w]
            elif self.cautious or self.neutral[w]:
                forbidden |= self.once[w]
        return ~forbidden & (forbidden + 1)
