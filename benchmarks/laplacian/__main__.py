"""Runs the suite `laplacian`: `python -m benchmarks.laplacian [PROBLEM ...]`, all by default.

Each problem runs in a process of its own. A method that does not come back from compilation is
ended with its process, and the problem is measured again without it. Numbers go to
benchmarks/results/local/laplacian/, one file a problem; the tables are made of all that lie there.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks.laplacian.measure import LaplacianReport, measure_problem
from benchmarks.laplacian.methods import METHODS
from benchmarks.laplacian.tables import CAPTION, main_table, notes, peers_table
from benchmarks.problems.laplacian import LAPLACIAN_PROBLEMS
from benchmarks.render import provenance

RESULTS = Path(__file__).resolve().parent.parent / "results" / "local"
FOLDER = RESULTS / "laplacian"


def run(
    names: Sequence[str] = (), *, rounds: int = 31, max_seconds: float = 6.0, timeout: float = 600.0
) -> int:
    """Measures problems one after the other; returns the number of those that did not finish."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names or LAPLACIAN_PROBLEMS:
        start = time.perf_counter()
        ending = _supervise(name, rounds, max_seconds, timeout)
        failed += ending != "done"
        print(f"{name}: {ending}, {time.perf_counter() - start:.0f} s", flush=True)
    write_tables()
    return failed


def _supervise(name: str, rounds: int, max_seconds: float, timeout: float) -> str:
    """Measures one problem, again without the method that a process was stopped in."""
    without: list[str] = []
    while True:
        (FOLDER / f"{name}.json").unlink(missing_ok=True)
        command = [sys.executable, "-m", "benchmarks.laplacian", "--worker", name]
        command += ["--rounds", str(rounds), "--max-seconds", str(max_seconds)]
        for method in without:
            command += ["--without", method]
        try:
            status = subprocess.run(command, timeout=timeout, check=False).returncode
        except subprocess.TimeoutExpired:
            stopped = _step(name)
            peers = [m for methods in METHODS.values() for m in list(methods)[1:]]
            if stopped in peers and stopped not in without:
                without.append(stopped)
                continue
            return f"stopped after {timeout:g} s"
        return "done" if status == 0 else f"ended with status {status}"


def _step(name: str) -> str | None:
    """The method that a problem's process was at."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["step"] if path.exists() else None


def worker(
    name: str, rounds: int = 31, max_seconds: float = 6.0, without: Collection[str] = ()
) -> None:
    """Measures one problem in this process and writes its file, at every step what is known."""
    target = FOLDER / f"{name}.json"
    FOLDER.mkdir(parents=True, exist_ok=True)

    def write(report: LaplacianReport, step: str) -> None:
        numbers = {
            "provenance": provenance(),
            "step": step,
            "report": dataclasses.asdict(report),
        }
        target.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")

    report = measure_problem(
        LAPLACIAN_PROBLEMS[name],
        rounds=rounds,
        max_seconds=max_seconds,
        without=without,
        on_step=write,
    )
    write(report, "done")


def write_tables() -> str:
    """Gathers the files of all problems into laplacian.json and .md; returns the latter."""
    files = [FOLDER / f"{name}.json" for name in LAPLACIAN_PROBLEMS]
    found = [json.loads(path.read_text(encoding="utf-8")) for path in files if path.exists()]
    reports = [entry["report"] for entry in found]
    unfinished = [
        f"* {entry['report']['name']}: stopped during {entry['step']}"
        for entry in found
        if entry["step"] != "done"
    ]
    versions = found[0]["provenance"] if found else provenance()
    text = "\n".join(
        [
            f"Python {versions['python']}, JAX {versions['jax']}, "
            + ", ".join(versions["devices"]),
            CAPTION,
            "",
            main_table(reports),
            "Values, by peer:",
            "",
            peers_table(reports, "value"),
            "Training steps, by peer:",
            "",
            peers_table(reports, "training"),
            *unfinished,
            notes(reports),
            "",
        ]
    )
    (RESULTS / "laplacian.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "laplacian.md").write_text(text, encoding="utf-8")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the problems that are named; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.laplacian", description=__doc__)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--max-seconds", type=float, default=6.0, help="timing, per task")
    parser.add_argument("--without", action="append", default=[], metavar="METHOD")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.problems) - set(LAPLACIAN_PROBLEMS))
    if unknown:
        parser.error(
            f"unknown problem {', '.join(unknown)}; there are: {', '.join(LAPLACIAN_PROBLEMS)}"
        )
    if options.worker:
        for name in options.problems:
            worker(name, options.rounds, options.max_seconds, options.without)
        return 0
    return run(options.problems, rounds=options.rounds, max_seconds=options.max_seconds)


if __name__ == "__main__":
    sys.exit(main())
