"""Runs benchmark suites: `python -m benchmarks [SUITE ...]`, all of them by default.

Tables go to the terminal; numbers with their provenance, and the same tables as Markdown, to
benchmarks/results/local/.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.compare import Case
from benchmarks.demo import run
from benchmarks.laplacian.__main__ import run as run_laplacian
from benchmarks.problems import PROBLEMS
from benchmarks.render import as_json, markdown, terminal
from benchmarks.sparse.__main__ import run as run_sparse

RESULTS = Path(__file__).parent / "results" / "local"


def jacobian() -> list[Case]:
    """Every problem at every batch size that suits it."""
    return [
        Case.of(problem, None if batch == 1 else batch)
        for problem in PROBLEMS.values()
        for batch in problem.batches
    ]


SUITES: dict[str, Callable[[], list[Case]]] = {"jacobian": jacobian}

#: Suites that compare other things than orders; they run and write their tables themselves.
OTHERS: dict[str, Callable[..., int]] = {"sparse": run_sparse, "laplacian": run_laplacian}
NAMES = (*SUITES, *OTHERS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the suites that are named; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--max-seconds", type=float, default=20.0, help="timing, per case")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.suites) - set(NAMES))
    if unknown:
        parser.error(f"unknown suite {', '.join(unknown)}; there are: {', '.join(NAMES)}")

    RESULTS.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.suites or NAMES:
        if name in OTHERS:
            failed += OTHERS[name](rounds=options.rounds, max_seconds=options.max_seconds)
            continue
        reports = run(
            SUITES[name](), terminal(), rounds=options.rounds, max_seconds=options.max_seconds
        )
        numbers = json.dumps(as_json(reports), indent=1) + "\n"
        (RESULTS / f"{name}.json").write_text(numbers, encoding="utf-8")
        tables = "\n".join(markdown(report) for report in reports)
        (RESULTS / f"{name}.md").write_text(tables, encoding="utf-8")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
