"""Markdown tables of the suite `sparse`, from the numbers that its runs left behind."""

from benchmarks.core.suite import Reports
from benchmarks.core.tables import (
    Plain,
    floor_cells,
    geometric_mean,
    median,
    named,
    null,
    number,
    outcome,
    preparation,
    ratio,
    seconds,
    table,
)
from benchmarks.sparse.measure import DENSE, LARGE

HEADER = (
    "problem",
    "ours",
    "ours / asdex",
    "ours / hand",
    "null",
    "data",
    "data / asdex",
    "data / hand",
    "asdex / hand",
    "sparsejac / asdex",
    "ours / f",
    "floor",
    "ours / floor",
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
    "null",
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
    "its gradient). floor: the slower of f and writing the true entries once. null: quartiles of "
    "hand (for dense derivatives: of the best of JAX) against itself. nse: "
    "stored entries. temp: temporary memory of the compiled program in units of the true entries' "
    "size. plan+compile: for asdex detection, colouring and compilation."
)


def tables(reports: Reports) -> str:
    """The main table, small instances against dense derivatives, and geometric means."""
    found = [report["tasks"].get(LARGE, {}) for report in reports]
    means = [
        (f"{above} / {below}", number(geometric_mean(median(task, above, below) for task in found)))
        for above in ("ours", "ours, data")
        for below in ("asdex", "by hand")
    ]
    parts = [CAPTION, "", sparse_table(reports), table(("geometric means", "ratio"), means)]
    small = dense_table(reports)
    if small:
        parts += ["About 50 variables, against the better of JAX's dense derivatives:", "", small]
    return "\n".join(parts)


def sparse_table(reports: Reports) -> str:
    """The main table."""
    return table(HEADER, [_row(report, report["tasks"].get(LARGE, {})) for report in reports])


def dense_table(reports: Reports) -> str:
    """Small instances against JAX's dense derivatives."""
    rows = []
    for report in reports:
        task = report["tasks"].get(DENSE, {})
        best = task.get("reference")
        if best is None:
            continue
        rows.append(
            (
                report["name"],
                " x ".join(map(str, report["facts"]["small shape"])),
                named(task, best),
                null(task),
                *(
                    ratio(task, name, best)
                    for name in ("ours", "ours, data", "ours, dense", "asdex", "by hand")
                ),
            )
        )
    return table(DENSE_HEADER, rows)


def _row(report: Plain, task: Plain) -> tuple[str, ...]:
    facts = report["facts"]
    ours, data, asdex, f = (outcome(task, name) for name in ("ours", "ours, data", "asdex", "f"))
    size = 4 * facts["nse"]
    return (
        report["name"] + (" (H)" if facts["kind"] == "hessian" else ""),
        seconds(task, "ours"),
        ratio(task, "ours", "asdex"),
        ratio(task, "ours", "by hand"),
        null(task),
        seconds(task, "ours, data"),
        ratio(task, "ours, data", "asdex"),
        ratio(task, "ours, data", "by hand"),
        ratio(task, "asdex", "by hand"),
        ratio(task, "sparsejac", "asdex"),
        ratio(task, "ours", "f"),
        *floor_cells(task, "ours"),
        " / ".join(
            "-" if value is None else f"{value:,}"
            for value in (ours.get("nse"), asdex.get("nse"), facts["nse"])
        ),
        preparation(task, "ours"),
        preparation(task, "asdex"),
        *(
            "-" if found.get("temp_bytes") is None else f"{found['temp_bytes'] / size:.1f}"
            for found in (ours, data, asdex, f)
        ),
    )
