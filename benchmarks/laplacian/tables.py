"""Markdown tables of the suite `laplacian`, from the numbers that its runs left behind."""

from typing import Any

from benchmarks.laplacian.methods import OURS
from benchmarks.render import si
from benchmarks.sparse.tables import _table

FOLX = "folx 6"
HEADER = (
    "problem",
    "ours",
    "ours / best peer",
    "best peer",
    "ours / f",
    "training, ours",
    "ours / best peer",
    "best peer",
    "trace + compile ours",
    "folx 6",
    "training, ours",
    "folx 6",
    "temp ours / best peer",
    "training",
    "error",
)
CAPTION = (
    "Ratios of times, medians of interleaved rounds, float32, a batch under `vmap` in one `jit`. "
    "training: the gradient with respect to the parameters of the mean square of the values. "
    "f: the function over the batch. trace: planning and lowering included. temp: temporary memory "
    "of the compiled program. error: against the trace of `jax.hessian` (a divergence: of "
    "`jax.jacfwd`) at a small size in float64, relative."
)


def main_table(reports: list[dict[str, Any]]) -> str:
    """One line per problem; reports as `dataclasses.asdict` makes them."""
    return _table(HEADER, [_row(report) for report in reports])


def peers_table(reports: list[dict[str, Any]], task: str) -> str:
    """The time of ours divided by that of each peer, for one task."""
    names = list(
        dict.fromkeys(
            name for report in reports for name in report["tasks"].get(task, {}).get("ratios", {})
        )
    )
    rows = [
        (report["name"], *(_ratio(report["tasks"].get(task, {}), name) for name in names))
        for report in reports
    ]
    return _table(("problem", *(f"ours / {name}" for name in names)), rows)


def notes(reports: list[dict[str, Any]]) -> str:
    """One line for each method that failed or that has something to say."""
    return "\n".join(
        f"* {report['name']}, {task}, {name}: {outcome['note']}"
        for report in reports
        for task, found in report["tasks"].items()
        for name, outcome in found["outcomes"].items()
        if outcome["note"]
    )


def _row(report: dict[str, Any]) -> tuple[str, ...]:
    value, training = (report["tasks"].get(task, {}) for task in ("value", "training"))
    return (
        report["name"],
        _seconds(value, OURS),
        _ratio(value, value.get("best")),
        _peer(value),
        _ratio(value, "f"),
        _seconds(training, OURS),
        _ratio(training, training.get("best")),
        _peer(training),
        *(_preparation(task, name) for task in (value, training) for name in (OURS, FOLX)),
        *(_memory(task) for task in (value, training)),
        "-" if report["agreement"] is None else f"{report['agreement']:.0e}",
    )


def _outcome(task: dict[str, Any], name: str | None) -> dict[str, Any]:
    found: dict[str, Any] = task.get("outcomes", {}).get(name) or {}
    return found


def _seconds(task: dict[str, Any], name: str | None) -> str:
    seconds = _outcome(task, name).get("seconds")
    return "-" if seconds is None else si(seconds, "s")


def _peer(task: dict[str, Any]) -> str:
    best = task.get("best")
    return "-" if best is None else f"{best}, {_seconds(task, best)}"


def _preparation(task: dict[str, Any], name: str) -> str:
    outcome = _outcome(task, name)
    if outcome.get("compile_seconds") is None:
        return "-"
    return f"{outcome['trace_seconds']:.1f} + {outcome['compile_seconds']:.1f} s"


def _memory(task: dict[str, Any]) -> str:
    ours, peer = (_outcome(task, name).get("temp_bytes") for name in (OURS, task.get("best")))
    if ours is None or peer is None:
        return "-"
    return f"{si(ours, 'B')} / {si(peer, 'B')}"


def _ratio(task: dict[str, Any], name: str | None) -> str:
    ratio = task.get("ratios", {}).get(name)
    if ratio is None:
        return "-"
    median = float(ratio["median"])
    return f"{median:.2g}" if median < 0.1 else f"{median:.2f}" if median < 10 else f"{median:.0f}"
