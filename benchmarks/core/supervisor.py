"""Runs a suite: each problem in a process of its own, results in files, tables made of the files.

So no method finds the caches of another problem, and one that hangs or dies takes nothing with it:
a problem whose process does not come back is measured again without the method that it was at.
"""

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks.core.suite import Report, Settings, Suite
from benchmarks.core.tables import notes
from benchmarks.render import provenance

RESULTS = Path(__file__).resolve().parents[1] / "results" / "local"
TIMING = "timing"
DONE = "done"
#: Where a terminal shows what is measured now, the line of a finished problem takes that place.
_LINE_START = "\r\x1b[K" if sys.stdout.isatty() else ""


def run(suite: Suite, names: Sequence[str], settings: Settings) -> int:
    """Measures problems one after the other; returns the number of those that did not finish."""
    failed = 0
    chosen = names or suite.problems
    for position, name in enumerate(chosen, 1):
        start = time.perf_counter()
        ending = _supervise(suite, name, settings)
        failed += ending != DONE
        spent = f"{time.perf_counter() - start:.0f} s"
        place = f"{position} of {len(chosen)}"
        print(f"{_LINE_START}{suite.name} {name} ({place}): {ending}, {spent}", flush=True)
    write_tables(suite)
    return failed


def _supervise(suite: Suite, name: str, settings: Settings) -> str:
    """Measures one problem, again without the method that a process was stopped in."""
    without = list(settings.without)
    while True:
        file_of(suite, name).unlink(missing_ok=True)
        command = [sys.executable, "-m", "benchmarks", suite.name, "--worker", "--problem", name]
        command += ["--rounds", str(settings.rounds), "--max-seconds", str(settings.max_seconds)]
        for method in without:
            command += ["--without", method]
        try:
            status = subprocess.run(command, timeout=suite.timeout, check=False).returncode
        except subprocess.TimeoutExpired:
            stopped = _step(suite, name)
            if stopped is not None and stopped not in (*suite.ours, *without, TIMING, DONE):
                without.append(stopped)
                continue
            return f"stopped after {suite.timeout:g} s"
        return DONE if status == 0 else f"ended with status {status}"


def worker(suite: Suite, name: str, settings: Settings) -> None:
    """Measures one problem in this process and writes its file, at every step what is known."""
    target = file_of(suite, name)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not suite.asynchronous:  # read when the backend starts, which asking for its devices does
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    versions = provenance()

    def write(report: Report, step: str) -> None:
        numbers = {
            "suite": suite.name,
            "provenance": versions,
            "step": step,
            "report": dataclasses.asdict(report),
        }
        target.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
        if _LINE_START and step != DONE:
            print(f"{_LINE_START}{suite.name} {name}: {step} ...", end="", flush=True)

    report = Report(name)
    suite.measure(report, settings, write)
    write(report, DONE)


def write_tables(suite: Suite) -> str:
    """Gathers the files of all problems into SUITE.json and SUITE.md; returns the latter."""
    entries = entries_of(suite)
    reports = [entry["report"] for entry in entries]
    named = [report for report in reports if report["name"] not in suite.more]
    more = [report for report in reports if report["name"] in suite.more]
    unfinished = [
        f"* {entry['report']['name']}: stopped during {entry['step']}"
        for entry in entries
        if entry["step"] != DONE
    ]
    text = "\n".join(
        [
            *_origins(entries),
            "",
            suite.tables(named),
            *(["## More problems", "", suite.tables(more)] if more else []),
            *unfinished,
            notes(reports),
            "",
        ]
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    numbers = json.dumps(entries, indent=1) + "\n"
    (RESULTS / f"{suite.name}.json").write_text(numbers, encoding="utf-8")
    (RESULTS / f"{suite.name}.md").write_text(text, encoding="utf-8")
    return text


def _origins(entries: Sequence[dict[str, Any]]) -> list[str]:
    """What the numbers were obtained with: a line for each state that files are of."""
    problems: dict[str, list[str]] = {}
    for entry in entries:
        problems.setdefault(_origin(entry["provenance"]), []).append(entry["report"]["name"])
    if len(problems) < 2:
        return list(problems) or [_origin(provenance())]
    return [f"* {origin} {', '.join(names)}." for origin, names in problems.items()]


def _origin(versions: dict[str, Any]) -> str:
    """Versions and device in words; the date of each problem is in its file."""
    said = [f"Python {versions['python']}, JAX {versions['jax']}, {versions['machine']}"]
    if versions.get("cpus"):
        said.append(f"{versions['cpus']} CPUs")
    said.append(", ".join(versions["devices"]))
    if versions.get("commit"):
        said.append(f"commit {versions['commit']}")
    peers = f" Peers: {', '.join(versions['peers'])}." if versions["peers"] else ""
    return f"{', '.join(said)}.{peers}"


def file_of(suite: Suite, name: str) -> Path:
    """Where the numbers of one problem are."""
    return RESULTS / suite.name / f"{name}.json"


def entries_of(suite: Suite) -> list[dict[str, Any]]:
    """What is known about all problems, from the files of this and earlier runs."""
    files = [file_of(suite, name) for name in suite.every]
    return [json.loads(path.read_text(encoding="utf-8")) for path in files if path.exists()]


def _step(suite: Suite, name: str) -> str | None:
    """The method that a problem's process was at."""
    path = file_of(suite, name)
    return json.loads(path.read_text(encoding="utf-8"))["step"] if path.exists() else None
