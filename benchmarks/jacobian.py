"""The suite `jacobian`: every elimination order against `jax.jacfwd` and `jax.jacrev`.

Each problem at each batch size that suits it. A batch is compared with `jax.vmap` of JAX's own
derivative.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.compare import REFERENCES, Case, relative_error
from benchmarks.core.methods import FLOOR, FUNCTION, WRITES, Call, prepared, time_calls, writes
from benchmarks.core.suite import OnStep, Outcome, Report, Reports, Settings, Suite, Task, ignore
from benchmarks.core.supervisor import TIMING
from benchmarks.core.tables import (
    Plain,
    floor,
    floor_cells,
    geometric_mean,
    median,
    memory,
    named,
    null,
    number,
    outcome,
    preparation,
    ratio,
    seconds,
    table,
)
from benchmarks.problems import PROBLEMS, Problem
from benchmarks.problems.groups import names_in

OURS = "auto"
ORDERS = (
    OURS,
    "forward",
    "reverse",
    "markowitz",
    "search",
    "compressed_forward",
    "compressed_reverse",
)
CHECKED_BATCH = 8  # samples that are compared in float64
#: Orders so many times slower than the best of JAX's are timed once.
HOPELESS = 6.0

CAPTION = (
    "Ratios of times, medians of interleaved rounds, float32. JAX: the better of `jax.jacfwd` and "
    "`jax.jacrev`, under `jax.vmap` where there is a batch. null: quartiles of that one against "
    "itself. best order: the fastest of " + ", ".join(ORDERS[1:]) + ". floor: the slower of the "
    "function itself (f) and writing the results. temp: temporary memory of the compiled program. "
    "error: of auto in float64, relative to the largest entry of a sample's Jacobian."
)
HEADER = (
    "problem",
    "f",
    "JAX",
    "auto",
    "auto / JAX",
    "null",
    "best order",
    "auto / best order",
    "floor",
    "auto / floor",
    "temp auto",
    "JAX",
    "trace + compile auto",
    "JAX",
    "error",
)


def task_name(batch: int | None) -> str:
    """Of a batch size; None is a single input without `vmap`."""
    return "single input" if batch is None else f"batch of {batch:,}"


def batches(problem: Problem) -> list[int | None]:
    """The batch sizes of a problem, None for a single input."""
    return [None if batch == 1 else batch for batch in problem.batches]


def methods(case: Case) -> dict[str, Callable[[], Callable[..., Any]]]:
    """What makes the function of each method; it is jitted afterwards."""
    return {
        FUNCTION: lambda: case.compiled(None),
        **{
            name: lambda jacobian=jacobian: case.compiled(jacobian)  # type: ignore[misc]
            for name, jacobian in REFERENCES.items()
        },
        **{
            order: lambda order=order: case.elimination(order)  # type: ignore[misc]
            for order in ORDERS
        },
    }


def measure_problem(
    report: Report,
    settings: Settings = Settings(),  # noqa: B008
    on_step: OnStep = ignore,
    *,
    sizes: list[int | None] | None = None,
) -> None:
    """Measures a problem at its batch sizes, or at those that are given."""
    problem = PROBLEMS[report.name]
    on_step(report, "float64")
    report.facts["error"] = agreement(problem)
    for batch in batches(problem) if sizes is None else sizes:
        task = report.tasks[task_name(batch)] = Task()
        with jax.enable_x64(False):
            _measure(report, task, Case.of(problem, batch), settings, on_step)


def agreement(problem: Problem) -> float:
    """Largest difference of ours from JAX in float64, relative."""
    case = Case.of(problem, CHECKED_BATCH if max(problem.batches) > 1 else None)
    with jax.enable_x64(True):
        inputs = case.inputs(jnp.float64)
        expected = case.compiled(jax.jacrev)(*inputs)
        found = case.elimination(OURS)(*inputs)
        return relative_error(found, expected, batched=case.batch is not None)


def _measure(report: Report, task: Task, case: Case, settings: Settings, on_step: OnStep) -> None:
    inputs = case.inputs(jnp.float32)
    calls: dict[str, Call] = {}
    for name, make in methods(case).items():
        on_step(report, name)
        if name in settings.without:
            task.outcomes[name] = Outcome(note="left out")
            continue
        call, task.outcomes[name] = prepared(make, inputs, settings.method_seconds)
        if call is not None:
            calls[name] = lambda call=call: call(*inputs)  # type: ignore[misc]
    on_step(report, TIMING)
    calls[WRITES] = writes(jax.eval_shape(case.compiled(jax.jacfwd), *inputs))
    spared = (OURS, *FLOOR, *REFERENCES)
    time_calls(task, calls, tuple(REFERENCES), settings, hopeless=HOPELESS, spared=spared)


def best_order(task: Plain) -> str | None:
    """The fastest order beside auto."""
    known = [name for name in ORDERS[1:] if outcome(task, name).get("seconds") is not None]
    return min(known, key=lambda name: float(outcome(task, name)["seconds"]), default=None)


def tables(reports: Reports) -> str:
    """One line per problem and batch, and geometric means by batch."""
    rows = [
        (f"{report['name']}, {name}", *_row(task, report))
        for report in reports
        for name, task in report["tasks"].items()
    ]
    return "\n".join([CAPTION, "", table(HEADER, rows), _means(reports)])


def _row(task: Plain, report: Plain) -> tuple[str, ...]:
    reference, best = task["reference"], best_order(task)
    error = report["facts"].get("error")
    return (
        seconds(task, FUNCTION),
        named(task, reference),
        seconds(task, OURS),
        ratio(task, OURS, reference),
        null(task),
        named(task, best),
        ratio(task, OURS, best),
        *floor_cells(task, OURS),
        memory(task, OURS),
        memory(task, reference),
        preparation(task, OURS),
        preparation(task, reference),
        "-" if error is None else f"{error:.0e}",
    )


def _means(reports: Reports) -> str:
    names = dict.fromkeys(name for report in reports for name in report["tasks"])
    rows = []
    for name in names:
        there = [report["tasks"][name] for report in reports if name in report["tasks"]]
        columns = [
            [median(task, OURS, below(task)) for task in there]
            for below in (lambda task: task["reference"], best_order, floor)
        ]
        counted = sum(value is not None for value in columns[0])
        rows.append((name, str(counted), *(number(geometric_mean(c)) for c in columns)))
    header = ("geometric means", "problems", "auto / JAX", "auto / best order", "auto / floor")
    return table(header, rows)


SUITE = Suite(
    "jacobian",
    names_in(PROBLEMS, "named"),
    measure_problem,
    tables,
    (OURS,),
    timeout=900.0,
    more=names_in(PROBLEMS, "more"),
)
