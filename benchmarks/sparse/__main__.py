"""Runs the suite `sparse`: `python -m benchmarks.sparse [PROBLEM ...]`, all of them by default.

Each problem runs in a process of its own, so that no method finds the caches of another problem and
one that hangs or dies takes nothing with it. Numbers go to benchmarks/results/local/sparse/, one
file a problem; the tables are made of all the files that lie there.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax

from benchmarks.problems.sparse import SPARSE_PROBLEMS
from benchmarks.render import provenance
from benchmarks.sparse.measure import SparseReport, measure_dense, measure_problem
from benchmarks.sparse.tables import CAPTION, dense_table, notes, sparse_table

RESULTS = Path(__file__).resolve().parent.parent / "results" / "local"
FOLDER = RESULTS / "sparse"

#: Problems that are also compared with JAX's dense derivatives, at about 50 variables.
DENSE = (
    "burgers_slices_1e4",
    "lorenz96",
    "lotka_volterra",
    "mass_action",
    "arrowhead",
    "robertson_chain",
    "rosenbrock",
    "powell",
)


def run(
    names: Sequence[str] = (), *, rounds: int = 31, max_seconds: float = 6.0, timeout: float = 300.0
) -> int:
    """Measures problems one after the other; returns the number of those that did not finish."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names or SPARSE_PROBLEMS:
        start = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.sparse", "--worker", name]
        command += ["--rounds", str(rounds), "--max-seconds", str(max_seconds)]
        try:
            status = subprocess.run(command, timeout=timeout, check=False).returncode
            ending = "done" if status == 0 else f"ended with status {status}"
        except subprocess.TimeoutExpired:
            status, ending = 1, f"stopped after {timeout:g} s"
        failed += status != 0
        print(f"{name}: {ending}, {time.perf_counter() - start:.0f} s", flush=True)
    write_tables()
    return failed


def worker(name: str, rounds: int, max_seconds: float) -> None:
    """Measures one problem in this process and writes its file, at every step what is known."""
    target = FOLDER / f"{name}.json"
    FOLDER.mkdir(parents=True, exist_ok=True)
    dense: SparseReport | None = None

    def write(report: SparseReport, step: str) -> None:
        numbers = {
            "provenance": provenance(),
            "step": step,
            "report": dataclasses.asdict(report),
            "dense": None if dense is None else dataclasses.asdict(dense),
        }
        target.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")

    problem = SPARSE_PROBLEMS[name]
    report = measure_problem(problem, rounds=rounds, max_seconds=max_seconds, on_step=write)
    if name in DENSE:
        write(report, "dense")
        dense = measure_dense(problem, rounds=rounds)
    write(report, "done")


def write_tables() -> str:
    """Gathers the files of all problems into sparse.json and sparse.md; returns the latter."""
    files = [FOLDER / f"{name}.json" for name in SPARSE_PROBLEMS]
    found = [json.loads(path.read_text(encoding="utf-8")) for path in files if path.exists()]
    reports = [entry["report"] for entry in found]
    small = [entry["dense"] for entry in found if entry["dense"]]
    unfinished = [
        f"* {entry['report']['name']}: stopped during {entry['step']}"
        for entry in found
        if entry["step"] != "done"
    ]
    versions = found[0]["provenance"] if found else provenance()
    text = "\n".join(
        [
            "Python {python}, JAX {jax}, {machine}.".format(**versions),
            CAPTION,
            "",
            sparse_table(reports),
            "About 50 variables, against the better of JAX's dense derivatives:",
            "",
            dense_table(small),
            *unfinished,
            notes(reports),
            "",
        ]
    )
    (RESULTS / "sparse.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "sparse.md").write_text(text, encoding="utf-8")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the problems that are named; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sparse", description=__doc__)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--max-seconds", type=float, default=6.0, help="timing, per problem")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.problems) - set(SPARSE_PROBLEMS))
    if unknown:
        parser.error(
            f"unknown problem {', '.join(unknown)}; there are: {', '.join(SPARSE_PROBLEMS)}"
        )
    if options.worker:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        for name in options.problems:
            worker(name, options.rounds, options.max_seconds)
        return 0
    failed = run(options.problems, rounds=options.rounds, max_seconds=options.max_seconds)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
