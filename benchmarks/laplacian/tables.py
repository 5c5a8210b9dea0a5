"""Markdown tables of the suite `laplacian`, from the numbers that its runs left behind."""

from benchmarks.core.methods import FUNCTION
from benchmarks.core.suite import Reports
from benchmarks.core.tables import (
    Plain,
    floor_cells,
    geometric_mean,
    median,
    memory,
    named,
    null,
    number,
    preparation,
    ratio,
    seconds,
    table,
)
from benchmarks.laplacian.measure import TASKS
from benchmarks.laplacian.methods import OURS

FOLX = "folx 6"
HEADER = (
    "problem",
    "ours",
    "best peer",
    "ours / peer",
    "null",
    "ours / f",
    "floor",
    "ours / floor",
    "trace + compile ours",
    FOLX,
    "temp ours",
    "peer",
    "error",
)
CAPTION = (
    "Ratios of times, medians of interleaved rounds, float32, a batch under `vmap` in one `jit`. "
    "training: the gradient with respect to the parameters of the mean square of the values. "
    "null: quartiles of the best peer against itself. f: the function over the batch (training: "
    "its gradient). floor: the slower of f and writing the results. trace: planning and lowering "
    "included. temp: temporary memory of the compiled program. error: against the trace of "
    "`jax.hessian` (a divergence: of `jax.jacfwd`) at a small size in float64, relative."
)


def tables(reports: Reports) -> str:
    """For each task the main table, ratios to every peer, and the geometric mean."""
    parts = [CAPTION, ""]
    for task in TASKS:
        mean = geometric_mean(_to_peer(report, task) for report in reports)
        parts += [
            f"{task.capitalize()}, geometric mean of ours / peer {number(mean)}:",
            "",
            main_table(reports, task),
            f"{task.capitalize()}, by peer:",
            "",
            peers_table(reports, task),
        ]
    return "\n".join(parts)


def main_table(reports: Reports, task: str) -> str:
    """One line per problem."""
    return table(HEADER, [_row(report, report["tasks"].get(task, {})) for report in reports])


def peers_table(reports: Reports, task: str) -> str:
    """The time of ours divided by that of each peer."""
    found = [report["tasks"].get(task, {}) for report in reports]
    names = list(
        dict.fromkeys(n for content in found for n in content.get("ratios", {}).get(OURS, {}))
    )
    rows = [
        (report["name"], *(ratio(content, OURS, name) for name in names))
        for report, content in zip(reports, found, strict=True)
    ]
    return table(("problem", *(f"ours / {name}" for name in names)), rows)


def _to_peer(report: Plain, task: str) -> float | None:
    content = report["tasks"].get(task, {})
    return median(content, OURS, content.get("reference"))


def _row(report: Plain, task: Plain) -> tuple[str, ...]:
    peer = task.get("reference")
    error = report["facts"].get("error")
    return (
        report["name"],
        seconds(task, OURS),
        named(task, peer),
        ratio(task, OURS, peer),
        null(task),
        ratio(task, OURS, FUNCTION),
        *floor_cells(task, OURS),
        preparation(task, OURS),
        preparation(task, FOLX),
        memory(task, OURS),
        memory(task, peer),
        "-" if error is None else f"{error:.0e}",
    )
