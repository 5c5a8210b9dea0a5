"""Which numbers of a program XLA's CPU compiler writes in kernels of their own.

Few samples take as long as their kernels take to start, so how many there are is counted before
anything is compiled. A number is in memory because

* it is dear, and more than one kernel reads it;
* it has several operands, and cannot be evaluated within all that reads it, because one way there
  leads through a dear number with several readers (what would be written twice reads twice as
  much);
* a kernel would evaluate it for more than 15 groups of entries that it puts together.

These are XLA's rules (`instruction_fusion.cc`, `fusion_node_indexing_evaluation.cc`) for numbers
that keep an axis for themselves (`evaluation.py`). They know nothing of what one evaluation takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from ..program.timings import expression_of
from .numbers import Numbers
from .packing import innermost
from .recorded import MAX_BRANCHES, Operation, computed_of

__all__ = ["written_apart"]


def written_apart(
    operations: Sequence[Operation], results: Sequence[Numbers], memory: Collection[int] = ()
) -> list[int]:
    """Places of the numbers that are in memory before they are read, inputs among them.

    Args:
        operations: all that are needed, in order.
        results: numbers; the computed ones of an array are put together by one kernel.
        memory: places of what is held.
    """
    groups = _groups(results)
    shared = _shared(operations, groups, memory)
    # For each number the groups of entries that need it, as bits, by the kernel they belong to.
    needed: dict[int, dict[int, int]] = {}
    for number, (kernel, places) in enumerate(groups):
        for place in places:
            within = needed.setdefault(place, {})
            within[kernel] = within.get(kernel, 0) | 1 << number
    count, kernels = len(groups), len(results)
    found: list[int] = []
    for operation in reversed(operations):
        own = needed.get(operation.place, {})
        dear = expression_of([operation.name]).kept and len(own) > 1
        if dear or operation.place in shared or operation.place in memory or _is_crowded(own):
            found.append(operation.place)
            own = {kernels: 1 << count}
            count, kernels = count + 1, kernels + 1
        for operand in computed_of(operation.operands):
            within = needed.setdefault(operand.place, {})
            for kernel, bits in own.items():
                within[kernel] = within.get(kernel, 0) | bits
    computed = {operation.place for operation in operations}
    inputs = [place for place, own in needed.items() if place not in computed]
    return [*sorted(p for p in inputs if _is_crowded(needed[p])), *reversed(found)]


def _is_crowded(needed: dict[int, int]) -> bool:
    """Whether any kernel would evaluate a number for too many groups of entries."""
    return any(bits.bit_count() > MAX_BRANCHES for bits in needed.values())


def _groups(results: Sequence[Numbers]) -> list[tuple[int, list[int]]]:
    """The entries that are concatenated first, and of which result."""
    groups = []
    for kernel, numbers in enumerate(results):
        flat = numbers.ravel()
        length = innermost(numbers)
        for start in range(0, flat.size, length):
            entries = computed_of(flat[start : start + length])
            groups.append((kernel, [number.place for number in entries]))
    return groups


def _shared(
    operations: Sequence[Operation],
    groups: Sequence[tuple[int, list[int]]],
    memory: Collection[int],
) -> set[int]:
    """Numbers with several operands of their own that some reader cannot evaluate inside."""
    operands = {o.place: {n.place for n in computed_of(o.operands)} for o in operations}
    readers = Counter(place for own in operands.values() for place in own)
    readers.update(place for _, places in groups for place in set(places))
    dear = {
        o.place for o in operations if expression_of([o.name]).kept and readers[o.place] > 1
    }.union(memory)
    behind: dict[int, int] = {}  # for each number, as bits: what it is computed from, and itself
    blocked: dict[int, int] = {}  # and what of that not all ways lead to it within one kernel
    found: set[int] = set()

    def visit(read: Collection[int]) -> tuple[int, int]:
        before, not_inside = 0, 0
        for place in read:
            own = behind.get(place, 1 << place)
            before |= own
            not_inside |= own if place in dear or place in found else blocked.get(place, 0)
        found.update(p for p in read if not_inside >> p & 1 and len(operands.get(p, ())) > 1)
        return before, not_inside

    for operation in operations:
        before, not_inside = visit(operands[operation.place])
        behind[operation.place] = before | 1 << operation.place
        blocked[operation.place] = not_inside
    for _, places in groups:
        visit(places)
    return found
