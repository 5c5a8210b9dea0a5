"""What a suite is, and what it finds out about a problem."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.timing import Ratio

#: Two candidates that are known to be equal, where nothing is timed.
EXACT = Ratio(1.0, 1.0, 1.0)


@dataclass
class Outcome:
    """What is known about one method in one task; None where it has no meaning or is not known.

    Attributes:
        trace_seconds: tracing and lowering, planning (or detection and colouring) included.
        compile_seconds: XLA's part.
        temp_bytes: temporary memory of the compiled program.
        output_bytes: memory of its results.
        seconds: median time of a call.
        device_seconds: of a call, in which a GPU computes.
        kernels: of a call, on a GPU.
        error: largest difference from the reference result, relative to its largest entry, in the
            precision of the benchmark.
        nse: stored entries of a sparse result.
        colours: number of compressed rows or columns.
        cost: counted multiplications.
        note: why a number is missing, or what a reader should know.
    """

    trace_seconds: float | None = None
    compile_seconds: float | None = None
    temp_bytes: int | None = None
    output_bytes: int | None = None
    seconds: float | None = None
    device_seconds: float | None = None
    kernels: float | None = None
    error: float | None = None
    nse: int | None = None
    colours: int | None = None
    cost: float | None = None
    note: str = ""


@dataclass
class Task:
    """One thing that all methods do, on the same inputs.

    Attributes:
        outcomes: by method.
        ratios: `{above: {below: ratio}}` of times (or whatever the suite compares), medians over
            interleaved rounds.
        reference: the peer that the others are compared with.
        null: the reference against itself.
        rounds: of the timer.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    ratios: dict[str, dict[str, Ratio]] = field(default_factory=dict)
    reference: str | None = None
    null: Ratio | None = None
    rounds: int = 0


@dataclass
class Report:
    """One problem.

    Attributes:
        name: of the problem.
        facts: what the tables say about it beside measurements, in plain types.
        tasks: by name.
    """

    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """How a problem is measured.

    Attributes:
        rounds: rounds of the timer.
        max_seconds: time for these rounds, in seconds, per task.
        method_seconds: time for preparing one method, in seconds; it is given up after that.
        without: names of methods to leave out.
    """

    rounds: int = 31
    max_seconds: float = 6.0
    method_seconds: float = 90.0
    without: tuple[str, ...] = ()


#: Called with the report as far as it is known, and with the method or stage that comes next.
OnStep = Callable[[Report, str], None]
#: Reports as `dataclasses.asdict` makes them.
Reports = Sequence[Mapping[str, Any]]


def ignore(report: Report, step: str) -> None:
    """An `OnStep` for a caller who waits for the end."""


@dataclass(frozen=True)
class Suite:
    """A suite of benchmarks.

    Attributes:
        name: as on the command line; files of results are called after it.
        problems: names of the problems that a run measures.
        measure: fills in the report of one problem.
        tables: Markdown tables of finished reports, with an explanation.
        ours: the methods whose ratio to the reference must not grow.
        timeout: seconds that one problem's process may take.
        asynchronous: whether the CPU may run computations on another thread than the caller's.
        more: names of further problems, measured when asked for, with tables of their own.
    """

    name: str
    problems: tuple[str, ...]
    measure: Callable[[Report, Settings, OnStep], None]
    tables: Callable[[Reports], str]
    ours: tuple[str, ...]
    timeout: float = 600.0
    asynchronous: bool = True
    more: tuple[str, ...] = ()

    @property
    def every(self) -> tuple[str, ...]:
        """Names of all problems."""
        return (*self.problems, *self.more)
