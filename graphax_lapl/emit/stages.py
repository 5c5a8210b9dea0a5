"""Programs on numbers in stages: calls of few kernels each, which one thread runs.

XLA's CPU runtime runs up to eight kernels one after the other. More of them it hands to other
threads as they get ready, and a few samples are computed before another thread has woken up. A call
counts as one kernel there, and runs up to eight of its own, so a program that is few calls of few
kernels waits for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import jaxpr_as_fun

__all__ = ["FEW_KERNELS", "Stage", "Staged", "called", "most_ready", "staged"]

#: Most kernels and calls that XLA's runtime runs one after the other.
FEW_KERNELS = 8


class Stage(NamedTuple):
    """A part of a program.

    Attributes:
        reads: places of the numbers that it is given.
        writes: places of those that it returns.
        computes: places that it evaluates, in order, where it has no parts.
        parts: stages that it calls.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    computes: tuple[int, ...]
    parts: tuple[Stage, ...] = ()


class Staged(NamedTuple):
    """A program: stages that are called one after the other, and what is computed after them."""

    stages: tuple[Stage, ...]
    last: Stage

    @property
    def written(self) -> int:
        """How many operations all stages have together."""
        return _written(self.stages) + len(self.last.computes)

    def branched(self, operands: Mapping[int, Sequence[int]], results: Sequence[int]) -> int:
        """How many operations the last part evaluates, each result for itself."""
        inside: dict[int, int] = {}  # for each number a set of operations, as bits
        for k, place in enumerate(self.last.computes):
            inside[place] = 1 << k
            for operand in operands[place]:
                inside[place] |= inside.get(operand, 0)
        return sum(inside.get(place, 0).bit_count() for place in results)


def staged(
    operands: Mapping[int, Sequence[int]],
    stored: Sequence[int],
    results: Collection[int],
    most: int,
) -> Staged:
    """A program in at most so many stages.

    Args:
        operands: of every place that is computed the places that it is computed from, which are
            smaller numbers.
        stored: places of the numbers that are written to memory, in increasing order.
        results: places of the numbers that the program is for.
        most: stages, at least two; each of them has up to eight kernels or stages.
    """
    there = frozenset(stored)
    last = _part([p for p in results if p not in there], operands, there)
    last = Stage(tuple(sorted({*last.reads, *there.intersection(results)})), (), last.computes)
    leaves = [_part([place], operands, there) for place in stored]
    stages = [
        Stage((), tuple(stored[k : k + FEW_KERNELS]), _united(leaves[k : k + FEW_KERNELS]))
        for k in range(0, len(stored), FEW_KERNELS)
    ]
    reads = [
        {place for leaf in leaves[k : k + FEW_KERNELS] for place in leaf.reads}
        for k in range(0, len(stored), FEW_KERNELS)
    ]
    stages = _only_needed(stages, reads, last.reads)
    while len(stages) > most:
        groups = [tuple(stages[k : k + FEW_KERNELS]) for k in range(0, len(stages), FEW_KERNELS)]
        wholes = [
            Stage((), tuple(place for stage in group for place in stage.writes), (), group)
            for group in groups
        ]
        reads = [{place for stage in group for place in stage.reads} for group in groups]
        stages = _only_needed(wholes, reads, last.reads)
    return Staged(tuple(stages), last)


def most_ready(
    operands: Mapping[int, Sequence[int]], stored: Sequence[int], results: Sequence[Sequence[int]]
) -> int:
    """Most kernels that wait for none at once, run in the order in which they get ready.

    Args:
        operands: see `staged`.
        stored: places of the numbers that are written to memory, each by a kernel.
        results: for each array the places of the numbers that are put together.
    """
    there = frozenset(stored)

    def reads(places: Sequence[int]) -> set[int]:
        return {place for place in _part(places, operands, there).reads if place in there}

    waiting = [reads([place]) - {place} for place in stored]
    waiting += [
        reads([place for place in places if place not in there]) | there.intersection(places)
        for places in results
        if len(places) > 1 or not there.issuperset(places)
    ]
    readers: dict[int, list[int]] = {}
    for k, own in enumerate(waiting):
        for place in own:
            readers.setdefault(place, []).append(k)
    ready = [k for k, own in enumerate(waiting) if not own]
    most, left = len(ready), [len(own) for own in waiting]
    for turn, kernel in enumerate(ready):  # which grows
        for k in readers.get(stored[kernel], ()) if kernel < len(stored) else ():
            left[k] -= 1
            if left[k] == 0:
                ready.append(k)
        most = max(most, len(ready) - turn - 1)
    return most


def _part(
    wanted: Sequence[int], operands: Mapping[int, Sequence[int]], there: Collection[int]
) -> Stage:
    """What is computed for some places from what is there, and from inputs."""
    read, computed, waiting = set[int](), set[int](), list(wanted)
    while waiting:
        place = waiting.pop()
        if place not in operands:
            read.add(place)
        elif place not in computed:
            computed.add(place)
            read.update(own for own in operands[place] if own in there)
            waiting += [own for own in operands[place] if own not in there]
    return Stage(tuple(sorted(read)), (), tuple(sorted(computed)))


def _written(stages: Sequence[Stage]) -> int:
    return sum(len(stage.computes) + _written(stage.parts) for stage in stages)


def _united(parts: Sequence[Stage]) -> tuple[int, ...]:
    return tuple(sorted({place for part in parts for place in part.computes}))


def _only_needed(
    stages: Sequence[Stage], reads: Sequence[set[int]], last: Collection[int]
) -> list[Stage]:
    """The stages without results that are read by none behind them, and what they read."""
    later, found = set(last), list[Stage]()
    for stage, own in zip(reversed(stages), reversed(reads), strict=True):
        written = set(stage.writes)
        writes = tuple(place for place in stage.writes if place in later)
        later |= own - written
        found.append(stage._replace(reads=tuple(sorted(own - written)), writes=writes))
    return found[::-1]


def called(fun: Callable[..., Any], values: Sequence[Any]) -> Any:
    """What a function makes of arrays, by a call that XLA does not dissolve."""
    # Traced before: what is called in there is to be dissolved.
    closed = jax.make_jaxpr(fun)(*values)
    call = jax.jit(jaxpr_as_fun(closed))
    with set_xla_metadata(inlineable="false"):
        return call(*values)
