"""Numbers that XLA would evaluate again for every way in which a result depends on them.

XLA's CPU compiler writes a kernel as functions: every branch of a concatenation is one, and every
number that more than one of them reads. Each calls those that it reads. What LLVM does not inline
is evaluated for each of its callers, and of these for each of theirs: in five Runge-Kutta steps
10^13 operations. A number in memory is evaluated once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from .recorded import Operation, computed_of

__all__ = ["held_for_calls"]

#: Evaluations of operations, for one sample, that are left to kernels, and to those of few samples:
#: loops with calls in them are not vectorised, and less is held for other reasons than of many.
MOST, MOST_OF_FEW = 30_000, 3_000
#: Most numbers that are held for this.
MOST_HELD = 64


def held_for_calls(
    operations: Sequence[Operation],
    wanted: Iterable[int],
    memory: Collection[int],
    few: bool,
) -> set[int]:
    """Numbers to be held, so that no kernel evaluates much again and again.

    Args:
        operations: all that are needed, in order.
        wanted: places of the results' numbers.
        memory: places of numbers that are in memory already.
        few: whether a few samples are evaluated at once.
    """
    most = MOST_OF_FEW if few else MOST
    held: set[int] = set()
    roots = [*dict.fromkeys(wanted)]
    while len(held) < MOST_HELD:
        calls, costs = _functions(operations, roots, {*memory, *held})
        if sum(costs[place] for place in {*roots, *memory, *held} if place in costs) <= most:
            break
        saved = {p: (calls[p] - 1) * costs[p] for p in costs if p not in held and p not in memory}
        most_saved = max(saved, key=lambda place: saved[place], default=None)
        if most_saved is None or not saved[most_saved]:
            break  # nothing is evaluated again
        held.add(most_saved)
    return held


def _functions(
    operations: Sequence[Operation], roots: Iterable[int], memory: Collection[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """How often each function is called, and what operations one call evaluates.

    Functions go by the place of the number that they return.
    """
    owners: dict[int, set[int]] = {place: {place} for place in (*roots, *memory)}
    own: dict[int, int] = {}
    reads: dict[int, set[int]] = {}
    for operation in reversed(operations):
        readers = owners.get(operation.place, set())
        function = operation.place if len(readers) != 1 else next(iter(readers))
        owners[operation.place] = {function}
        own[function] = own.get(function, 0) + 1
        for number in computed_of(operation.operands):
            reads.setdefault(function, set()).add(number.place)
            if number.place not in memory:
                owners.setdefault(number.place, set()).add(function)
    costs: dict[int, int] = {}
    called: dict[int, list[int]] = {}
    for operation in operations:
        function = operation.place
        if function in own:
            found = reads[function].difference(memory) if function in reads else ()
            called[function] = [place for place in found if place != function and place in own]
            costs[function] = own[function] + sum(costs[place] for place in called[function])
    calls = dict.fromkeys(costs, 0)
    for place in {*roots, *memory}:
        if place in calls:
            calls[place] += 1
    for function in reversed([*costs]):
        for place in called[function]:
            calls[place] += calls[function]
    return calls, costs
