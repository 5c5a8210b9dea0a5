"""The suite `gpu`: the problems of `jacobian`, `laplacian` and `sparse` on an accelerator.

Arrays stay on the device. The calls of a sample are dispatched one after the other, and the last
one is waited for (`jax.block_until_ready`); beside that stands how long a GPU computes. Where there
is no accelerator nothing is timed, and the tables say so; that every program lowers for CPU, CUDA
and TPU and asks nothing of the host is checked everywhere, for every problem.
"""

import time
from typing import Any

import jax

from benchmarks import jacobian, laplacian, sparse
from benchmarks.core.methods import FLOOR, attempted
from benchmarks.core.suite import OnStep, Outcome, Report, Reports, Settings, Suite, Task, ignore
from benchmarks.core.tables import Plain, number, outcome, table
from benchmarks.lowering import PLATFORMS, example, exported, host_calls
from benchmarks.names import JACOBIAN, LAPLACIAN, SPARSE, AnyProblem, kind_of, names_of, problem_of
from benchmarks.render import si

LOWERING = "lowering"
OURS = "ours"
MEASURES = {
    JACOBIAN: jacobian.SUITE.measure,
    LAPLACIAN: laplacian.SUITE.measure,
    SPARSE: sparse.SUITE.measure,
}
TABLES = {
    JACOBIAN: jacobian.SUITE.tables,
    LAPLACIAN: laplacian.SUITE.tables,
    SPARSE: sparse.SUITE.tables,
}
#: What is timed beside ours, and is no peer.
OTHERS = (*FLOOR, *jacobian.ORDERS)
BUSY = "How long the GPU computes in a call, in how many kernels, and the ratio of the times."
NONE_HERE = (
    "**No accelerator here: JAX found {device} only. Nothing below is timed; run this suite on a "
    "machine with a GPU or TPU for that.**"
)


def accelerator() -> str | None:
    """Kind of the default device, None where it is a CPU."""
    device = jax.devices()[0]
    return None if device.platform == "cpu" else str(device.device_kind)


def measure_problem(
    report: Report,
    settings: Settings = Settings(),  # noqa: B008
    on_step: OnStep = ignore,
) -> None:
    """Lowers a problem's program for all platforms, and times it where there is a device."""
    report.facts["device"] = jax.devices()[0].device_kind
    report.facts["accelerator"] = accelerator()
    on_step(report, LOWERING)
    task = report.tasks[LOWERING] = Task()
    problem = problem_of(report.name)
    start = time.perf_counter()
    with jax.enable_x64(False):
        program, note = attempted(lambda: exported(*_call(problem)), settings.method_seconds)
    found = [] if program is None else host_calls(program)
    task.outcomes[OURS] = Outcome(
        trace_seconds=time.perf_counter() - start,
        note=note or (f"asks the host: {', '.join(found)}" if found else ""),
    )
    if report.facts["accelerator"] is None:
        return
    own = Report(report.name.partition(".")[2])
    MEASURES[kind_of(report.name)](own, settings, lambda _, step: on_step(report, step))
    report.facts |= own.facts
    report.tasks |= own.tasks


def _call(problem: AnyProblem) -> tuple[Any, ...]:
    fun, arguments = example(problem)
    return fun, *arguments


def tables(reports: Reports) -> str:
    """What lowers, and where there is a device the tables of the two suites."""
    parts = []
    devices = sorted({report["facts"].get("device", "nothing") for report in reports})
    timed = [report for report in reports if report["facts"].get("accelerator")]
    if not timed:
        parts += [NONE_HERE.format(device=", ".join(devices) or "nothing"), ""]
    parts += _busy(timed)
    for kind, write in TABLES.items():
        own = [_without_lowering(report) for report in timed if kind_of(report["name"]) == kind]
        parts += [write(own)] if own else []
    rows = [(report["name"], _lowered(report["tasks"].get(LOWERING, {}))) for report in reports]
    clean = sum(text == "yes" for _, text in rows)
    parts += [
        f"Lowered for {', '.join(PLATFORMS)} without calls to the host: {clean} of {len(rows)}.",
        "",
        table(("problem", "lowers"), rows),
    ]
    return "\n".join(parts)


def _lowered(task: Plain) -> str:
    found = outcome(task, OURS)
    return "-" if not found else "no" if found["note"] else "yes"


def _busy(reports: Reports) -> list[str]:
    """A table of the time in which the device computes, and of its kernels; none without any."""
    rows = []
    for report in reports:
        for name, task in report["tasks"].items():
            mine = next((m for m in SUITE.ours if outcome(task, m).get("kernels")), None)
            peers = [
                method
                for method, found in task["outcomes"].items()
                if found["kernels"] and method not in (*SUITE.ours, *OTHERS)
            ]
            if mine is None or not peers:
                continue
            best = min(peers, key=lambda method: outcome(task, method)["device_seconds"])
            own, other = outcome(task, mine), outcome(task, best)
            rows.append(
                (
                    f"{report['name']}, {name}",
                    f"{si(own['device_seconds'], 's')}, {own['kernels']:.0f}",
                    f"{best}, {si(other['device_seconds'], 's')}, {other['kernels']:.0f}",
                    number(own["device_seconds"] / other["device_seconds"]),
                )
            )
    return [BUSY, "", table(("problem", OURS, "best peer", "ours / peer"), rows)] if rows else []


def _without_lowering(report: Plain) -> Plain:
    return {**report, "tasks": {k: v for k, v in report["tasks"].items() if k != LOWERING}}


SUITE = Suite(
    "gpu",
    names_of(JACOBIAN, LAPLACIAN, SPARSE),
    measure_problem,
    tables,
    (jacobian.OURS, *sparse.SUITE.ours),
    timeout=900.0,
    more=names_of(JACOBIAN, LAPLACIAN, SPARSE, group="more"),
)
