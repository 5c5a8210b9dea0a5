"""Shows reports: as a table in the terminal, as Markdown, as JSON."""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.compare import Report, Row

HEADER = ("", "mults", "adds", "bytes", "first", "time", "ratio", "error")


def terminal() -> Console:
    """The console to print to; a log file, which has no width of its own, gets 100 columns."""
    return Console(width=None if sys.stdout.isatty() else 100)


def table(report: Report) -> Table:
    """A report for the terminal: one line per candidate, fits into 80 columns.

    `first` is the time of the first call (tracing, planning, compiling, one run), `time` that of a
    later one; a ratio below 1 is faster than the better of JAX's two.
    """
    shown = Table(
        title=report.title,
        caption=caption(report),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in HEADER:
        shown.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in report.rows:
        faster = row.error is not None and row.ratio.median < report.null.low
        shown.add_row(*cells(row), style="green" if faster else None)
    return shown


def markdown(report: Report) -> str:
    """A report as a Markdown table."""
    lines = [f"**{report.title}**", "", "| " + " | ".join(HEADER) + " |"]
    lines.append("| --- |" + " ---: |" * (len(HEADER) - 1))
    lines += ["| " + " | ".join(cells(row)) + " |" for row in report.rows]
    return "\n".join([*lines, "", caption(report), ""])


def caption(report: Report) -> str:
    """What the ratios refer to, and what the timer shows for two equal candidates."""
    return (
        f"ratio: time / time of {report.reference}, median of {report.rounds} interleaved rounds; "
        f"null ({report.reference} against itself): {report.null}"
    )


def cells(row: Row) -> tuple[str, ...]:
    """One line of the table; a dash where a number has no meaning."""
    return (
        row.name,
        _count(row.muls),
        _count(row.adds),
        "-" if row.bytes is None else si(row.bytes, "B"),
        si(row.first_seconds, "s"),
        si(row.seconds, "s"),
        f"{row.ratio.median:.2g}" if row.ratio.median < 0.1 else f"{row.ratio.median:.2f}",
        "-" if row.error is None else _error(row.error),
    )


def si(value: float, unit: str) -> str:
    """A number with three digits and a decimal prefix: 1230 B is 1.23 kB."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u")):
        if abs(value) >= 0.9995 * factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value / 1e-9:.3g} n{unit}" if value else f"0 {unit}"


def _error(value: float) -> str:
    return f"{value:.0e}" if value else "0"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def provenance() -> dict[str, Any]:
    """Versions and device that a result was obtained with, the commit and the date."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "peers": _installed("asdex", "folx", "sparsejac"),
        "devices": [device.device_kind for device in jax.devices()],
    }


def _commit() -> str | None:
    """The commit that these files are of, "-dirty" where they differ; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        run = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except OSError:  # no git on this machine
        return None
    return run.stdout.strip() or None


def _installed(*packages: str) -> list[str]:
    """Those packages that are here, with their versions."""
    found = []
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return found


def as_json(reports: list[Report]) -> dict[str, Any]:
    """Reports with their provenance, in plain types."""
    return {
        "provenance": provenance(),
        "reports": [dataclasses.asdict(report) for report in reports],
    }
