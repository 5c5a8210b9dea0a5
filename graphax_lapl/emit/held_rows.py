"""What is worth holding where the branches of a kernel write rows."""

from __future__ import annotations

from dataclasses import replace

from ..program.fusion import Fusion
from ..program.timings import KERNEL
from .array_forms import DEAR

__all__ = ["JOINED_HELD", "held_for_rows"]

#: Nanoseconds of holding a number: branches evaluate what a row shares once, and cheap operations
#: of one sample are fast. Dear numbers, which no branch vectorises, are worth a kernel.
ROWS_HOLDING = 16 * KERNEL
#: Most numbers that are held where kernels write them side by side.
JOINED_HELD = 100


def held_for_rows(fusion: Fusion, samples: int) -> set[int]:
    """The slots that are held for a batch of so many samples, dear numbers first.

    Args:
        fusion: the program; a kernel of it is a branch that writes a row.
        samples: of the batch.
    """
    shared = set(fusion.shared)
    dear = {step.outputs[0] for step in fusion.steps if step.nanoseconds >= DEAR}
    fusion.shared = dear
    held = fusion.held_at(samples, JOINED_HELD, KERNEL)
    steps = [replace(step, kept=step.kept or step.outputs[0] in held) for step in fusion.steps]
    unheld = [slot not in held for slot in range(len(fusion.sizes))]
    others = Fusion(
        steps, fusion.sizes, fusion.results, unheld, fusion.side_by_side, fusion.kernels
    )
    others.shared.intersection_update(shared)
    return held | others.held_at(samples, JOINED_HELD - len(held), ROWS_HOLDING)
