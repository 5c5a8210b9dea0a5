"""A paired, interleaved, null-calibrated timer.

Times on a shared machine drift by tens of per cent between two runs, so a candidate is never
compared with a number measured at another time. All candidates live in one process and take turns:
one *round* samples each of them once, in a random order (fixed seed) that the next round reverses,
so that each runs before each other equally often; a ratio is formed within a round, and the median
over rounds is taken. A sample repeats the call often enough to last a few milliseconds. Every
reference that may turn out the best is sampled twice per round; the ratio of its two series is the
*null*: what this timer reports for two candidates that are the same. A ratio nearer to 1 than the
null's spread says nothing.

Example:
    >>> result = measure(
    ...     {"fwd": lambda: fwd(x), "rev": lambda: rev(x), "ours": lambda: ours(x)},
    ...     references=("fwd", "rev"),
    ... )
    >>> best = result.best_reference()
    >>> print(result.ratio("ours", to=best), result.null(best))
"""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax

Call = Callable[[], object]

# A reference so many times slower than the best one in the last warm-up round cannot be the best
# of the measurement, and is not sampled twice.
HOPELESS = 3.0


@dataclass(frozen=True)
class Ratio:
    """A ratio of two times: the median over rounds, and the quartiles as its spread."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Shows the median and, in brackets, the quartiles."""
        return f"{_digits(self.median)} [{_digits(self.low)}, {_digits(self.high)}]"


@dataclass(frozen=True)
class Measurement:
    """What `measure` saw.

    Attributes:
        seconds: for each candidate its time per call in seconds, one entry per round.
        twins: the second series of each reference that was in the running, one entry per round.
        inner: for each candidate how many calls one sample consists of.
    """

    seconds: Mapping[str, tuple[float, ...]]
    twins: Mapping[str, tuple[float, ...]]
    inner: Mapping[str, int]

    @property
    def rounds(self) -> int:
        """How many rounds were kept."""
        return len(next(iter(self.seconds.values())))

    def median_seconds(self, name: str) -> float:
        """Median time of one call in seconds."""
        return statistics.median(self.seconds[name])

    def best_reference(self) -> str:
        """The reference with the smallest median time."""
        return min(self.twins, key=self.median_seconds)

    def ratio(self, name: str, to: str | None = None) -> Ratio:
        """Time of `name` divided by that of a reference (the best one by default)."""
        return _paired_ratio(self.seconds[name], self.seconds[to or self.best_reference()])

    def null(self, reference: str | None = None) -> Ratio:
        """A reference (the best one by default) divided by itself."""
        reference = reference or self.best_reference()
        return _paired_ratio(self.twins[reference], self.seconds[reference])


def measure(
    candidates: Mapping[str, Call],
    *,
    references: Sequence[str],
    rounds: int = 21,
    warmup: int = 2,
    sample_seconds: float = 5e-3,
    max_seconds: float = float("inf"),
    min_rounds: int = 4,
    queued: bool = False,
    on_round: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[object], object] = jax.block_until_ready,
) -> Measurement:
    """Times candidates against one another; see the head of this file for the protocol.

    Args:
        candidates: name -> function of no arguments, already compiled or not.
        references: names of the candidates that the others are to be compared with; those that
            may turn out the best are sampled twice per round.
        rounds: rounds to keep.
        warmup: rounds to throw away first, at least 2: the first compiles, the second fills caches
            and settles the clock of the processor.
        sample_seconds: how long one sample should last, in seconds; calls that take less are
            repeated within the sample.
        max_seconds: no new round is begun after so many seconds of kept rounds.
        min_rounds: rounds that are kept whatever `max_seconds` says.
        queued: whether the calls of a sample are dispatched one after the other and only the last
            one is waited for: on an accelerator, the time of a call without the way there and back.
        on_round: called with (rounds done, rounds planned) after every round, warm-up included.
        clock: returns the time in seconds.
        wait: blocks until the result of a call has been computed.

    Returns:
        All samples, with medians, ratios and null as methods.

    Raises:
        ValueError: a reference is not among the candidates, there is none, or there are too few
            rounds to speak of a median.
    """
    _check(candidates, references, rounds, warmup, min_rounds)
    inner = dict.fromkeys(candidates, 1)
    warm: dict[str, float] = {}

    def sample(name: str) -> float:
        call, repeats = candidates[name], inner[name]
        start = clock()
        for _ in range(repeats):
            result = call()
            if not queued:
                wait(result)
        if queued:
            wait(result)
        return (clock() - start) / repeats

    for done in range(1, warmup + 1):
        for name in candidates:
            # The last round's sample stays: the first one is compilation.
            warm[name] = sample(name)
        if on_round is not None:
            on_round(done, warmup + rounds)

    for name in candidates:
        # A call that others come before is a cold one: a sample of many short ones tells their
        # time. Longer calls are as often within a sample as they will be.
        while (repeats := _repeats(warm[name], sample_seconds)) > inner[name]:
            inner[name] = repeats
            warm[name] = sample(name)
    quickest = min(warm[name] for name in references)
    twinned = [name for name in references if warm[name] <= HOPELESS * quickest]
    slots = [(name, False) for name in candidates] + [(name, True) for name in twinned]
    kept: dict[tuple[str, bool], list[float]] = {slot: [] for slot in slots}
    shuffle = random.Random(0).shuffle
    begin = clock()
    for done in range(1, rounds + 1):
        if done > min_rounds and clock() - begin > max_seconds:
            break
        if done % 2:
            shuffle(slots)
        else:
            slots.reverse()
        for slot in slots:
            kept[slot].append(sample(slot[0]))
        if on_round is not None:
            on_round(warmup + done, warmup + rounds)

    return Measurement(
        seconds={name: tuple(kept[name, False]) for name in candidates},
        twins={name: tuple(kept[name, True]) for name in twinned},
        inner=inner,
    )


def _check(
    candidates: Mapping[str, Call],
    references: Sequence[str],
    rounds: int,
    warmup: int,
    min_rounds: int,
) -> None:
    unknown = [name for name in references if name not in candidates]
    if unknown or not references:
        raise ValueError(
            f"references must name at least one of the candidates {list(candidates)}, "
            f"got {list(references)}"
        )
    if warmup < 2:
        raise ValueError(f"warmup must be at least 2 (compilation, then caches), got {warmup}")
    if min(rounds, min_rounds) < 1:
        raise ValueError(
            "rounds and min_rounds must be at least 1, "
            f"got rounds={rounds}, min_rounds={min_rounds}"
        )


def _repeats(seconds: float, sample_seconds: float) -> int:
    """Number of calls that together last about `sample_seconds`."""
    return max(1, round(sample_seconds / max(seconds, 1e-9)))


def _paired_ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    ratios = sorted(a / b for a, b in zip(above, below, strict=True))
    if len(ratios) == 1:
        return Ratio(ratios[0], ratios[0], ratios[0])
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, low, high)


def _digits(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"
