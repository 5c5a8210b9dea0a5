r"""Segments: parts of a graph with one way in and one way out, found by dominators.

A vertex c *dominates* v if every path from a source to v runs through c, and d *post-dominates* v
if every path from v to a sink runs through d.  The *segment* of c and d is the largest set I of
vertices that c dominates and d post-dominates, such that edges lead into I from c alone and out of
it to d alone.

*Theorem.*  Let c be a source, or d a sink, or c dominate d and d post-dominate c.  Then eliminating
I first, in an order that is cheapest between c and d alone, loses nothing as far as the number of
multiplications is concerned.

*Proof.*  Take any order.  Move I to the front without changing the order within I; let the others
keep theirs, with one exception: if c and d both come before the last vertex z of I, then the later
one of the two is put off until the place of z.  Compare the costs.

- A vertex of I has at least as many predecessors in the old order as in the new one: those outside
  I come from c and count as one in the new order.  Likewise for successors.
- Another vertex w that leads to what is left of I in the old order leads to at least one vertex of
  I there.  In the new order it leads to d instead, one vertex; d is still there, or else c is, and
  then w leads to c in both.  Likewise for vertices to which I leads.
- If c or d is put off, it costs P * S in the new order, where P and S are the numbers of vertices
  that lead to c and that d leads to at the time of z, because nothing else leads to d or comes from
  c.  In the old order z costs P * S, and the vertex itself at least 1; in the new order z costs 1.

So no order is cheaper than one that begins with I, and what I costs does not depend on the rest.

*Where it ends.*  The parts before the first and behind the last of the vertices that everything
runs through are no segments if there are several inputs and outputs, and eliminating them first may
lose: with x0, ..., x4 -> a, x5, ..., x9 -> b, a -> c, b -> c and c -> y0, y1 it costs 30 to
eliminate a and b before c, but 24 to eliminate c first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elimination_orders.bitgraph import BitState, bits

__all__ = ["dominators", "find_segments"]


def dominators(rows: Sequence[int], vertices: Iterable[int], ends: int = 0) -> dict[int, int]:
    """For every vertex the vertices through which all paths to it run, itself included.

    Args:
        rows: vertices one step back, as bit sets by vertex.
        vertices: in an order in which every one comes after those one step back; vertices that are
            not listed are where paths begin.
        ends: listed vertices where a path may begin as well, as a bit set.

    Returns:
        Bit sets by vertex.
    """
    found: dict[int, int] = {}
    for vertex in vertices:
        common = -1
        for before in bits(rows[vertex]):
            common &= found.get(before, 1 << before)
        if common == -1 or ends >> vertex & 1:
            common = 0
        found[vertex] = common | 1 << vertex
    return found


def find_segments(state: BitState, left: Sequence[int], n: int) -> list[tuple[int, ...]]:
    """Segments that may be eliminated before everything else; no two have a vertex in common.

    Args:
        state: a state in which every vertex of `left` lies on a path from a source to a sink.
        left: eliminable vertices that are left, in topological order.
        n: number of eliminable vertices; all vertices from n on are sources or sinks.

    Returns:
        Segments that are neither empty nor all that lies between a source and a sink, smallest
        first.  Eliminating them may make further ones.
    """
    above = dominators(state.pred, left)
    below = dominators(state.succ, reversed(left), state.kept)
    under: dict[int, int] = {}  # what a vertex dominates
    over: dict[int, int] = {}  # what a vertex post-dominates
    for table, sets in ((under, above), (over, below)):
        for vertex, row in sets.items():
            for other in bits(row ^ 1 << vertex):
                table[other] = table.get(other, 0) | 1 << vertex
    inner = (1 << n) - 1
    pairs: dict[tuple[int, int], None] = {}
    for vertex in left:
        bit = 1 << vertex
        first, last = above[vertex] ^ bit, below[vertex] ^ bit
        # Sources and sinks are numbered last, whatever their place in the graph: an eliminable
        # vertex that dominates is always nearer.
        nearest_above = (first & inner or first).bit_length() - 1
        nearest_below = (last & inner or last) & -(last & inner or last)
        if first & ~inner and last:
            pairs[(first & ~inner).bit_length() - 1, nearest_below.bit_length() - 1] = None
        if last & ~inner and first:
            pairs[nearest_above, (last & ~inner).bit_length() - 1] = None
        candidates = first & inner & over.get(vertex, 0)
        if candidates:
            pairs[candidates.bit_length() - 1, vertex] = None
    regions = [
        _enclosed(state, under.get(c, 0) & over.get(d, 0), c, d) for c, d in pairs if c < n or d < n
    ]
    result = []
    taken = 0
    for region in sorted(regions, key=lambda region: (region.bit_count(), region)):
        if region and not region & taken:
            taken |= region
            result.append(tuple(bits(region)))
    return result


def _enclosed(state: BitState, region: int, first: int, last: int) -> int:
    """The largest part of `region` with edges from `first` alone and to `last` alone."""
    while True:
        inward, outward = region | 1 << first, region | 1 << last
        kept = 0
        for vertex in bits(region):
            if not (state.pred[vertex] & ~inward or state.succ[vertex] & ~outward):
                kept |= 1 << vertex
        if kept == region:
            return region
        region = kept
