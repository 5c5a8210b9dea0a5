"""Preparing methods, each with a time limit and free to fail, and timing those that work."""

import contextlib
import importlib
import signal
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from benchmarks.core.device_time import busy
from benchmarks.core.suite import Outcome, Settings, Task
from benchmarks.timing import Ratio, measure

Call = Callable[[], Any]
Made = TypeVar("Made")

#: The function itself, and the mere writing of the results: what nothing can be faster than is the
#: slower of the two.
FUNCTION, WRITES = "f", "writes"
FLOOR = (FUNCTION, WRITES)
# A method whose compiled program needs more than this is not run, in bytes.
MEMORY_LIMIT = 6_000_000_000


class Unavailable(Exception):
    """A method cannot be measured here; the message says why."""


def peer(name: str) -> ModuleType:
    """An optional package.

    Raises:
        Unavailable: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unavailable(
            f'{name} does not import here ({error}); install it with pip install -e ".[peers]"'
        ) from error


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the body after so many seconds, once it runs Python again."""

    def stop(number: int, frame: types.FrameType | None) -> None:
        raise TimeoutError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempted(make: Callable[[], Made], seconds: float) -> tuple[Made | None, str]:
    """What `make` makes, or None and a note on how it failed."""
    try:
        with limit(seconds):
            return make(), ""
    except (Unavailable, TimeoutError) as error:
        return None, str(error)
    except Exception as error:  # a method may raise anything; the table says what
        return None, f"raises {type(error).__name__}: {str(error)[:200]}"


def compiled(fun: Callable[..., Any], *arguments: Any) -> tuple[Callable[..., Any], Outcome]:
    """The jitted function, compiled for these arguments, and what that took."""
    jitted = jax.jit(fun)
    start = time.perf_counter()
    lowered = jitted.lower(*arguments)
    traced = time.perf_counter()
    program = lowered.compile()
    outcome = Outcome(traced - start, time.perf_counter() - traced)
    memory = program.memory_analysis()
    if memory is not None:
        outcome.temp_bytes = int(memory.temp_size_in_bytes)
        outcome.output_bytes = int(memory.output_size_in_bytes)
    return jitted, outcome


def prepared(
    make: Callable[[], Callable[..., Any]], arguments: Sequence[Any], seconds: float
) -> tuple[Callable[..., Any] | None, Outcome]:
    """The compiled function that `make` makes; None where it failed or does not fit into memory."""
    found, note = attempted(lambda: compiled(make(), *arguments), seconds)
    if found is None:
        return None, Outcome(note=note)
    call, outcome = found
    if (outcome.temp_bytes or 0) > MEMORY_LIMIT:
        outcome.note = f"needs {outcome.temp_bytes} B of temporary memory"
        return None, outcome
    return call, outcome


def writes(results: Any) -> Call:
    """Writes arrays like these results (arrays or their types), each once."""
    types = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(results)]

    def write(value: jax.Array) -> list[jax.Array]:
        # Different numbers, so that no array is a copy of another.
        return [jnp.full(t.shape, value + k, t.dtype) for k, t in enumerate(types)]

    call = jax.jit(write)
    start = jnp.zeros((), jnp.float32)
    return lambda: call(start)


def time_calls(
    task: Task,
    calls: Mapping[str, Call],
    references: Sequence[str],
    settings: Settings,
    *,
    hopeless: float = float("inf"),
    spared: Sequence[str] = (),
    min_rounds: int = 4,
) -> None:
    """Times calls, interleaved, and fills in their seconds, ratios and the null.

    On an accelerator calls are queued, and the time in which a GPU computes is filled in too.

    Args:
        task: where to.
        calls: compiled calls by the method's name.
        references: peers; the best of those among the calls becomes the task's reference.
        settings: rounds and seconds.
        hopeless: a call so many times slower than the best reference is timed once, with a note,
            and stays out of the rounds.
        spared: calls that stay in all the same.
        min_rounds: rounds that are kept whatever time they take.
    """
    there = [name for name in references if name in calls]
    if not there:
        return
    on_accelerator = jax.default_backend() != "cpu"
    once: dict[str, float] = {}
    slow: list[str] = []
    if hopeless < float("inf"):
        once = {name: _quick(call) for name, call in calls.items()}
        fastest = min(once[name] for name in there)
        slow = [n for n in calls if n not in spared and once[n] > hopeless * fastest]
    for name in slow:
        known = task.outcomes.get(name, Outcome())
        task.outcomes[name] = replace(known, seconds=once[name], note="timed once")
    kept = {name: call for name, call in calls.items() if name not in slow}
    measured = measure(
        kept,
        references=[name for name in there if name in kept],
        rounds=settings.rounds,
        max_seconds=settings.max_seconds,
        min_rounds=min_rounds,
        queued=on_accelerator,
    )
    for name, call in kept.items():
        known = task.outcomes.setdefault(name, Outcome())
        known.seconds = measured.median_seconds(name)
        if on_accelerator and (found := busy(call)) is not None:
            known.device_seconds, known.kernels = found
        task.ratios[name] = {
            **{other: measured.ratio(name, to=other) for other in kept if other != name},
            **{other: _single(once[name] / once[other]) for other in slow},
        }
    task.reference = measured.best_reference()
    task.null = measured.null()
    task.rounds = measured.rounds


def _quick(call: Call) -> float:
    """Seconds of a call, roughly: the better of the second and the third."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _single(ratio: float) -> Ratio:
    return Ratio(ratio, ratio, ratio)
