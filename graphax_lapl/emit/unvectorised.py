"""Dear numbers that the branches of a kernel would evaluate for one sample after the other.

A kernel that writes numbers side by side branches for each of them, and what a branch evaluates is
not vectorised. Logarithms and exponentials take several times as long then, so that even one that
is evaluated once is worth a kernel of its own, along the samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ..program.fusion import CACHED, HOLDING
from ..program.timings import CACHE, MEMORY, UNVECTORISED, expression_of
from .recorded import Operation, computed_of, evaluations_of

__all__ = ["held_for_vectors", "unvectorised"]


def unvectorised(operations: Sequence[Operation], wanted: Sequence[int], samples: int) -> float:
    """Nanoseconds that branches for single numbers take longer for a sample than arrays would.

    Args:
        operations: all that are needed, in order.
        wanted: places of the results' numbers.
        samples: of the batch; what is worth a kernel of its own for so many is left out.
    """
    places: dict[str, set[int]] = {}
    for operation in operations:
        if 0 < UNVECTORISED.get(operation.name, 0.0) * samples <= HOLDING:
            places.setdefault(operation.name, set()).add(operation.place)
    branches = range(len(wanted))
    return sum(
        UNVECTORISED[name] * evaluations_of(operations, wanted, branches, found)
        for name, found in places.items()
    )


def held_for_vectors(
    operations: Sequence[Operation],
    joined: Iterable[int],
    memory: Collection[int],
    samples: int,
    holding: float,
) -> set[int]:
    """What is worth writing to memory although it is evaluated once, by its places.

    Args:
        operations: all that are needed, in order.
        joined: places of the numbers that are written side by side.
        memory: places of what is in memory in any case.
        samples: evaluated at once.
        holding: nanoseconds of holding a number, whatever the samples.
    """
    branched = set(joined)
    passing = MEMORY if samples * len(branched) > CACHED else CACHE
    held: set[int] = set()
    for operation in reversed(operations):
        if operation.place not in branched or operation.place in memory:
            continue
        operands = computed_of(operation.operands)
        saved = UNVECTORISED.get(operation.name, 0.0) - passing
        if any(number.moves for number in operands) and samples * saved > holding:
            held.add(operation.place)
        elif expression_of([operation.name]).inside:
            branched.update(number.place for number in operands)
    return held
