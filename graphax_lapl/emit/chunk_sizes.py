"""How many samples of a program on numbers are evaluated at once, so that little is in memory."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence

from ..program.fusion import CACHED
from ..program.timings import expression_of
from .holding import BARRIERS_STAND
from .numbers import Numbers
from .recorded import computed_of
from .tape import CHUNK_HOLDING, Tape

__all__ = ["chunk_size"]

#: Of the results: what more is held without evaluating samples in chunks, and what a chunk takes.
HELD_SHARE = 0.25
CHUNK_SHARE = 1 / 7
#: Of what XLA keeps, and of the results: what more is held, beside sines, without a few chunks.
KEPT_SHARE = 0.75
CHOSEN_SHARE = 0.2
CHUNKS = 3
#: Chunks that a batch whose results are joined is worth: fewer save less than a loop costs.
FAR = 8
#: Of results and inputs: what is in memory where a large batch of joined results is evaluated at
#: once, and of results where most of it are sines.
AT_ONCE = 2.0
SINES_AT_ONCE = 0.5


def chunk_size(
    tape: Tape,
    results: Sequence[Numbers],
    samples: int,
    least: int,
    rows: bool = False,
    stored: int = 0,
) -> int:
    """How many of so many samples are best evaluated at once, so that little is held.

    XLA keeps dear numbers and results of products by itself, whoever writes the program; what is
    held beside these is ours. Where it is more, and much in comparison with the results, a chunk is
    so large that it fits into the cache, and that its numbers are a fraction of all results. Where
    it is less, but more than shares of both, a few chunks do. Arrays that are joined from numbers
    are written sooner in chunks that fit into the cache, where these are many. Before
    `BARRIERS_STAND` what is held is a kernel more in each chunk: other batches that are joined, or
    outside of the cache, are then evaluated at once.

    Where all results are joined, one kernel for each array evaluates most of what it needs by
    itself, and a loop over chunks runs on one core: they are evaluated in chunks only where rows
    are written from much that is in memory, outside of the cache and since `BARRIERS_STAND`, or
    where most of it are sines, which JAX does not keep.

    Args:
        tape: the program.
        results: numbers.
        samples: of the batch.
        least: samples in a chunk.
        rows: what branches of kernels write (see `branches_of`).
        stored: numbers that products and sums of arrays write, where a program has arrays.
    """
    needed, wanted, joined = tape.needed(results)
    apart = tape.apart(needed, samples)
    readers = Counter(number.place for o in needed for number in computed_of(o.operands))
    kept = sum(readers[o.place] > 1 and expression_of([o.name]).kept for o in needed)
    everything = sum(numbers.size for numbers in results)
    packed = sum(numbers.size for numbers in results if numbers.size > 1)
    if joined.issuperset(wanted):
        held = tape.worth_holding(results, samples, apart, rows)
        stays = kept + stored + len(apart | held)
        large = BARRIERS_STAND and stays > AT_ONCE * (everything + tape.inputs)
        outside = samples * everything > CACHED
        sines = len(apart) > kept + stored and stays > SINES_AT_ONCE * everything
        if not rows or not ((large and outside) or sines):
            return samples
    worth_holding = functools.partial(
        tape.worth_holding, results, apart=apart, holding=CHUNK_HOLDING
    )
    held = worth_holding(samples)
    together = len(apart | held) + kept + packed + everything
    # Fewer numbers are worth a pass through memory outside of the cache: what a chunk holds.
    inside = min(samples, max(least, CACHED // together))
    chosen = len(worth_holding(inside) - apart)
    if len(apart | held) > max(kept + stored, HELD_SHARE * everything):
        chunk = min(CACHED // together, int(CHUNK_SHARE * samples * everything / together))
    elif chosen <= max(stored, CHOSEN_SHARE * everything):
        return samples
    elif joined and FAR * inside <= samples:
        chunk = inside
    elif chosen > KEPT_SHARE * kept + stored and (
        BARRIERS_STAND or (not joined and inside == samples)
    ):
        chunk = min(inside, -(-samples // CHUNKS))
    else:
        return samples
    chunks = max(1, min(-(-samples // max(1, chunk)), samples // least))
    return -(-samples // chunks)
