"""What the tables of all suites are made of: lines, ratios, memory, means and notes.

Reports and tasks are as `dataclasses.asdict` makes them; a dash stands where a number has no
meaning.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.core.methods import FLOOR
from benchmarks.render import si

Plain = Mapping[str, Any]

#: Places of one note that are written out.
SHOWN_PLACES = 3


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose first column is text and whose others are numbers; "" without rows."""
    rows = list(rows)
    if not rows:
        return ""
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def outcome(task: Plain, name: str | None) -> Plain:
    """What is known about a method; empty where there is nothing."""
    found: Plain = task.get("outcomes", {}).get(name) or {}
    return found


def median(task: Plain, above: str | None, below: str | None) -> float | None:
    """The median ratio of two methods."""
    ratio = task.get("ratios", {}).get(above, {}).get(below)
    return None if ratio is None else float(ratio["median"])


def number(value: float | None) -> str:
    """A ratio with two or three digits."""
    if value is None or not math.isfinite(value):
        return "-"
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def ratio(task: Plain, above: str | None, below: str | None) -> str:
    """The median ratio of two methods as text."""
    return number(median(task, above, below))


def null(task: Plain) -> str:
    """The quartiles of the reference against itself."""
    found = task.get("null")
    return "-" if found is None else f"{found['low']:.2f} to {found['high']:.2f}"


def seconds(task: Plain, name: str | None) -> str:
    """Time of a call."""
    found = outcome(task, name).get("seconds")
    return "-" if found is None else si(found, "s")


def named(task: Plain, name: str | None) -> str:
    """A method and its time."""
    return "-" if name is None else f"{name}, {seconds(task, name)}"


def preparation(task: Plain, name: str | None) -> str:
    """Seconds to trace and plan, and to compile."""
    found = outcome(task, name)
    if found.get("compile_seconds") is None:
        return "-"
    return f"{found['trace_seconds']:.2f} + {found['compile_seconds']:.2f} s"


def memory(task: Plain, name: str | None) -> str:
    """Temporary memory of a compiled program."""
    found = outcome(task, name).get("temp_bytes")
    return "-" if found is None else si(found, "B")


def floor(task: Plain) -> str | None:
    """The slower of the function itself and the writing of the results."""
    known = [name for name in FLOOR if outcome(task, name).get("seconds") is not None]
    return max(known, key=lambda name: float(outcome(task, name)["seconds"]), default=None)


def floor_cells(task: Plain, ours: str) -> tuple[str, str]:
    """The floor, and how far ours is from it."""
    below = floor(task)
    return named(task, below), ratio(task, ours, below)


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of the numbers that are known; None without any."""
    logs = [math.log(value) for value in values if value is not None and value > 0]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def notes(reports: Iterable[Plain]) -> str:
    """One line for each thing that methods have to say, with the places where they say it."""
    places: dict[str, list[str]] = {}
    for report in reports:
        for task, content in report["tasks"].items():
            for name, found in content["outcomes"].items():
                if found["note"]:
                    places.setdefault(found["note"], []).append(f"{report['name']}, {task}, {name}")
    return "\n".join(f"* {_listed(where)}: {note}" for note, where in places.items())


def _listed(places: Sequence[str]) -> str:
    """The first few of them; the JSON file has them all."""
    more = len(places) - SHOWN_PLACES
    return "; ".join(places[:SHOWN_PLACES]) + (f"; and {more} more" if more > 0 else "")
