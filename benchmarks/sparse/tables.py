"""Markdown tables of the suite `sparse`, from the numbers that its runs left behind."""

from typing import Any

from benchmarks.render import si

HEADER = (
    "problem",
    "ours",
    "ours / asdex",
    "ours / hand",
    "data",
    "data / asdex",
    "data / hand",
    "asdex / hand",
    "sparsejac / asdex",
    "ours / f",
    "nse ours / asdex / true",
    "plan+compile ours",
    "asdex",
    "temp ours",
    "data",
    "asdex",
    "f",
)
DENSE_HEADER = (
    "problem",
    "shape",
    "best of JAX",
    "ours / JAX",
    "data / JAX",
    "ours, dense / JAX",
    "asdex / JAX",
    "hand / JAX",
)
CAPTION = (
    "Medians of interleaved rounds, float32, one call after the other has ended, dispatched on the "
    "calling thread (JAX would hand some of them to another, which on a busy machine takes longer "
    "than they do). ours: what `jit(jacve(f, sparse_representation=True))` returns, the arrays of "
    "a `SparseJacobian`: entries that are one known number are one number, and an array that "
    "several terms read is returned once. data: all entries in one array in row-major order "
    "(`to_bcoo().data`), as asdex and sparsejac return them. hand: written on the structure, "
    "one array per band or block, known numbers written out. f: the function (for a Hessian with "
    "its gradient). nse: "
    "stored entries. temp: temporary memory of the compiled program in units of the true entries' "
    "size. plan+compile: for asdex detection, colouring and compilation."
)


def sparse_table(reports: list[dict[str, Any]]) -> str:
    """The main table; reports as `dataclasses.asdict` makes them."""
    return _table(HEADER, [_row(report) for report in reports])


def dense_table(reports: list[dict[str, Any]]) -> str:
    """Small instances against JAX's dense derivatives."""
    rows = []
    for report in reports:
        jax_names = [name for name in report["outcomes"] if name.startswith("jax.")]
        best = min(jax_names, key=lambda name: float(report["outcomes"][name]["seconds"]))
        rows.append(
            (
                report["name"],
                f"{report['shape'][0]} x {report['shape'][1]}",
                f"{best}, {si(report['outcomes'][best]['seconds'], 's')}",
                *(
                    _ratio(report, name, best)
                    for name in ("ours", "ours, data", "ours, dense", "asdex", "by hand")
                ),
            )
        )
    return _table(DENSE_HEADER, rows)


def notes(reports: list[dict[str, Any]]) -> str:
    """One line for each method that failed or that has something to say."""
    return "\n".join(
        f"* {report['name']}, {name}: {outcome['note']}"
        for report in reports
        for name, outcome in report["outcomes"].items()
        if outcome["note"]
    )


def _row(report: dict[str, Any]) -> tuple[str, ...]:
    ours, data, asdex, f = (
        report["outcomes"].get(name) or {} for name in ("ours", "ours, data", "asdex", "f")
    )
    size = 4 * report["nse"]
    return (
        report["name"] + (" (H)" if report["kind"] == "hessian" else ""),
        "-" if not ours.get("seconds") else si(ours["seconds"], "s"),
        _ratio(report, "ours", "asdex"),
        _ratio(report, "ours", "by hand"),
        "-" if not data.get("seconds") else si(data["seconds"], "s"),
        _ratio(report, "ours, data", "asdex"),
        _ratio(report, "ours, data", "by hand"),
        _ratio(report, "asdex", "by hand"),
        _ratio(report, "sparsejac", "asdex"),
        _ratio(report, "ours", "f"),
        " / ".join(
            "-" if value is None else f"{value:,}"
            for value in (ours.get("nse"), asdex.get("nse"), report["nse"])
        ),
        *(_preparation(outcome) for outcome in (ours, asdex)),
        *(
            "-" if outcome.get("temp_bytes") is None else f"{outcome['temp_bytes'] / size:.1f}"
            for outcome in (ours, data, asdex, f)
        ),
    )


def _preparation(outcome: dict[str, Any]) -> str:
    if outcome.get("plan_seconds") is None:
        return "-"
    return f"{outcome['plan_seconds']:.2f} + {outcome['compile_seconds']:.2f} s"


def _ratio(report: dict[str, Any], above: str, below: str) -> str:
    ratio = report["ratios"].get(above, {}).get(below)
    if ratio is None:
        return "-"
    median = float(ratio["median"])
    return f"{median:.2g}" if median < 0.1 else f"{median:.2f}" if median < 10 else f"{median:.0f}"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
