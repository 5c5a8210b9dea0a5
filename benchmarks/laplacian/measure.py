"""Measures one problem of second order: its value over a batch, and a training step through it."""

import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.laplacian.methods import METHODS, OURS, Fun, Method
from benchmarks.problems.laplacian import Instance, LaplacianProblem
from benchmarks.sparse.measure import limit
from benchmarks.sparse.methods import Unavailable
from benchmarks.timing import Ratio, measure

FUNCTION = "f"
TASKS = ("value", "training")

# A method whose compiled program needs more than this is not run, in bytes.
MEMORY_LIMIT = 6_000_000_000
# A peer so many times slower than the fastest one is timed once and stays out of the rounds.
HOPELESS = 6.0

_SMALL: dict[str, Fun] = {
    "laplacian": lambda params, x: jnp.sum(params * jnp.tanh(x)),
    "divergence": lambda params, x: params * jnp.tanh(x),
}


@dataclass
class Outcome:
    """What is known about one method in one task.

    Attributes:
        trace_seconds: tracing and lowering, planning included.
        compile_seconds: XLA's part.
        temp_bytes: temporary memory of the compiled program.
        difference: largest difference from ours over the batch, relative to the largest value, in
            the precision of the benchmark (values only).
        seconds: median time of a call.
        note: why a number is missing.
    """

    trace_seconds: float | None = None
    compile_seconds: float | None = None
    temp_bytes: int | None = None
    difference: float | None = None
    seconds: float | None = None
    note: str = ""


@dataclass
class TaskReport:
    """One task of one problem.

    Attributes:
        outcomes: by method.
        ratios: time of ours divided by that of every other method, medians over interleaved rounds.
        best: the fastest peer.
        null: the fastest peer against itself.
        rounds: of the timer.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    ratios: dict[str, Ratio] = field(default_factory=dict)
    best: str | None = None
    null: Ratio | None = None
    rounds: int = 0


@dataclass
class LaplacianReport:
    """One problem.

    Attributes:
        name: of the problem.
        operator: what is taken of the function.
        batch: number of inputs.
        shape: of one input.
        agreement: difference of ours from the trace of `jax.hessian` (for a divergence of
            `jax.jacfwd`) at the small size in float64, relative.
        tasks: reports by task.
    """

    name: str
    operator: str
    batch: int
    shape: tuple[int, ...]
    agreement: float | None = None
    tasks: dict[str, TaskReport] = field(default_factory=dict)


def truth(instance: Instance, operator: str) -> jax.Array:
    """The operator at the first input by JAX's dense derivatives."""
    name = "jax.hessian" if operator == "laplacian" else "jax.jacfwd"
    return jax.jit(METHODS[operator][name](instance.fun))(instance.params, instance.xs[0])


def measure_problem(
    problem: LaplacianProblem,
    *,
    small: bool = False,
    without: Collection[str] = (),
    rounds: int = 31,
    max_seconds: float = 6.0,
    method_seconds: float = 90.0,
    on_step: Callable[[LaplacianReport, str], None] = lambda report, step: None,
) -> LaplacianReport:
    """Compiles every method for every task and times those that work, interleaved, in float32.

    Args:
        problem: what to differentiate.
        small: whether to take the sizes of the tests.
        without: names of methods to leave out.
        rounds: rounds of the timer.
        max_seconds: time for these rounds, in seconds, per task.
        method_seconds: time for compiling one method, in seconds; it is given up after that.
        on_step: called with what is known so far and with the method that comes next.

    Returns:
        Outcomes and ratios; a method that failed has a note that says how.
    """
    with jax.enable_x64(True):
        check = problem.instance(jnp.float64, small=True)
        found = METHODS[problem.operator][OURS](check.fun)(check.params, check.xs[0])
        expected = truth(check, problem.operator)
        agreement = float(abs(found - expected) / abs(expected))
    with jax.enable_x64(False):
        instance = problem.instance(jnp.float32, small=small)
        batch, *shape = instance.xs.shape
        report = LaplacianReport(problem.name, problem.operator, batch, tuple(shape), agreement)
        methods = {FUNCTION: lambda fun: fun, **METHODS[problem.operator]}
        _warm_up(problem.operator)
        calls: dict[str, dict[str, Callable[..., Any]]] = {task: {} for task in TASKS}
        for task in TASKS:
            report.tasks[task] = TaskReport()
            for name, method in methods.items():
                on_step(report, name)
                if name in without:
                    report.tasks[task].outcomes[name] = Outcome(note="left out")
                    continue
                call, outcome = _prepare(method, instance, task, method_seconds)
                report.tasks[task].outcomes[name] = outcome
                if call is not None:
                    calls[task][name] = call
        on_step(report, "timing")
        for task in TASKS:
            _time(report.tasks[task], calls[task], instance, task, rounds, max_seconds)
    return report


def batched(operator: Fun, task: str) -> Callable[[Any, jax.Array], Any]:
    """The task for an operator: its values over a batch, or the gradient of their mean square."""

    def values(params: Any, xs: jax.Array) -> jax.Array:
        return jax.vmap(lambda x: operator(params, x))(xs)

    if task == "value":
        return values
    return jax.grad(lambda params, xs: jnp.mean(values(params, xs) ** 2))


def _warm_up(operator: str) -> None:
    """Loads what every first use loads (packages, backend), so that no method pays for it."""
    for method in METHODS[operator].values():
        with contextlib.suppress(Exception):  # the problem's own report will say what is wrong
            compiled = jax.jit(method(_SMALL[operator])).lower(jnp.ones(3), jnp.ones(3)).compile()
            jax.block_until_ready(compiled(jnp.ones(3), jnp.ones(3)))


def _prepare(
    method: Method, instance: Instance, task: str, seconds: float
) -> tuple[Callable[..., Any] | None, Outcome]:
    outcome = Outcome()
    start = time.perf_counter()
    try:
        with limit(seconds):
            operator = method(instance.fun)
            lowered = jax.jit(batched(operator, task)).lower(instance.params, instance.xs)
            outcome.trace_seconds = time.perf_counter() - start
            start = time.perf_counter()
            compiled = lowered.compile()
            outcome.compile_seconds = time.perf_counter() - start
    except (Unavailable, TimeoutError) as error:
        outcome.note = str(error)
    except Exception as error:  # a method may raise anything; the table says what
        outcome.note = f"raises {type(error).__name__}: {str(error)[:200]}"
    if outcome.note:
        return None, outcome
    memory = compiled.memory_analysis()
    outcome.temp_bytes = None if memory is None else int(memory.temp_size_in_bytes)
    if (outcome.temp_bytes or 0) > MEMORY_LIMIT:
        outcome.note = f"needs {outcome.temp_bytes} B of temporary memory"
        return None, outcome
    return compiled, outcome


def _time(
    report: TaskReport,
    calls: dict[str, Callable[..., Any]],
    instance: Instance,
    task: str,
    rounds: int,
    max_seconds: float,
) -> None:
    results, once = {}, {}
    for name, call in calls.items():
        results[name] = jax.block_until_ready(call(instance.params, instance.xs))
        start = time.perf_counter()
        jax.block_until_ready(call(instance.params, instance.xs))
        once[name] = report.outcomes[name].seconds = time.perf_counter() - start
    if task == "value" and OURS in results:
        scale = jnp.max(jnp.abs(results[OURS]))
        for name in set(results) - {FUNCTION}:
            largest = jnp.max(jnp.abs(results[name] - results[OURS]))
            report.outcomes[name].difference = float(largest / scale)
    peers = [name for name in calls if name not in (OURS, FUNCTION)]
    if not peers:
        return
    fastest = min(once[name] for name in peers)
    for name in [name for name in peers if once[name] > HOPELESS * fastest]:
        report.outcomes[name].note = "timed once"
        if OURS in once:
            ratio = once[OURS] / once[name]
            report.ratios[name] = Ratio(ratio, ratio, ratio)
        peers.remove(name)
        del calls[name]
    measured = measure(
        {
            name: lambda call=call: call(instance.params, instance.xs)  # type: ignore[misc]
            for name, call in calls.items()
        },
        references=peers,
        rounds=rounds,
        max_seconds=max_seconds,
    )
    for name in calls:
        report.outcomes[name].seconds = measured.median_seconds(name)
        if OURS in calls and name != OURS:
            report.ratios[name] = _inverse(measured.ratio(name, to=OURS))
    report.best = measured.best_reference()
    report.null = measured.null()
    report.rounds = measured.rounds


def _inverse(ratio: Ratio) -> Ratio:
    return Ratio(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)
