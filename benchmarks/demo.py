"""The main job: elimination orders against JAX's own derivatives on three real inputs.

    python -m benchmarks.demo

Roe's flux through 100,000 interfaces, the pose of a six-joint robot arm at 100,000 sets of angles,
and the sparse Jacobian of the Brusselator on a 64 x 64 grid. Takes less than two minutes on two
cores, and ends with an error if any order's Jacobian differs from JAX's.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.compare import ORDERS, Case, Report, compare
from benchmarks.problems import PROBLEMS, brusselator
from benchmarks.render import as_json, provenance, table, terminal

TOLERANCE = 1e-10  # relative, float64


def cases(batch: int, grid: int) -> list[Case]:
    """The three inputs of the demo."""
    return [
        Case.of(PROBLEMS["roe_flux"], batch),
        Case.of(PROBLEMS["robot_arm"], batch),
        Case(
            title=f"brusselator, {grid} x {grid} grid, sparse Jacobian (JAX's own are dense)",
            fun=brusselator.brusselator,
            argnums=0,
            sample=brusselator.sampler(grid),
            sparse=True,
        ),
    ]


def run(
    chosen: Sequence[Case],
    console: Console,
    *,
    orders: Sequence[str] = ORDERS,
    rounds: int,
    max_seconds: float,
) -> list[Report]:
    """Compares on each case, with a progress bar, and prints each table as soon as it is there."""
    reports = []
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[what]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        for case in chosen:
            task = progress.add_task(case.title.partition(",")[0], what="", total=None)
            report = compare(
                case,
                orders,
                rounds=rounds,
                max_seconds=max_seconds,
                on_step=lambda what, done, total, task=task: progress.update(  # type: ignore[misc]
                    task, what=what, completed=done, total=total
                ),
            )
            progress.remove_task(task)
            progress.print(table(report))
            reports.append(report)
    return reports


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument("--batch", type=int, default=100_000, help="states and joint angles")
    parser.add_argument("--grid", type=int, default=64, help="side of the Brusselator's grid")
    parser.add_argument("--rounds", type=int, default=51, help="rounds of the timer")
    parser.add_argument("--max-seconds", type=float, default=6.0, help="timing, per problem")
    parser.add_argument("--orders", nargs="+", default=list(ORDERS), metavar="ORDER")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args(arguments)

    console = terminal()
    versions = provenance()
    console.print(
        f"Jacobians by vertex elimination. JAX {versions['jax']}, Python {versions['python']}, "
        f"{', '.join(versions['devices'])}. Counts are per input; times per batch, "
        "float32 (first: with tracing, planning and compiling); errors in float64."
    )
    start = time.perf_counter()
    reports = run(
        cases(options.batch, options.grid),
        console,
        orders=options.orders,
        rounds=options.rounds,
        max_seconds=options.max_seconds,
    )
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(as_json(reports), indent=1) + "\n", encoding="utf-8")
    worst = max(report.largest_error for report in reports)
    console.print(
        f"{len(reports)} problems in {time.perf_counter() - start:.0f} s, "
        f"largest error {worst:.0e} (allowed {TOLERANCE:.0e})"
    )
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
