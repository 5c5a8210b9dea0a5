"""Runs benchmark suites: `python -m benchmarks [SUITE ...]`, all of them by default.

Numbers with their provenance, and the same as Markdown tables, go to benchmarks/results/local/: one
JSON file per problem, and SUITE.json and SUITE.md made of all that lie there. With --against the
ratios to the in-process reference are compared with those of an earlier SUITE.json.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.core import supervisor
from benchmarks.core.regression import changes, read_result
from benchmarks.core.suite import Settings, Suite
from benchmarks.problems.groups import GROUPS
from benchmarks.render import terminal
from benchmarks.suites import SUITES

DEFAULTS = Settings()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the suites that are named.

    Returns:
        The exit status: 1 where a problem did not finish or a ratio has grown.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.suites) - set(SUITES))
    if unknown:
        parser.error(f"unknown suite {', '.join(unknown)}; there are: {', '.join(SUITES)}")
    suites = [SUITES[name] for name in options.suites] or list(SUITES.values())
    known = {name for suite in suites for name in suite.every}
    missing = sorted(set(options.problem) - known)
    if missing:
        parser.error(f"unknown problem {', '.join(missing)}; there are: {', '.join(sorted(known))}")
    if options.against is not None and len(suites) != 1:
        parser.error("--against compares the results of one suite; name it")
    settings = Settings(
        rounds=options.rounds, max_seconds=options.max_seconds, without=tuple(options.without)
    )
    if options.worker:
        for name in options.problem:
            supervisor.worker(suites[0], name, settings)
        return 0
    if options.tables:
        for suite in suites:
            print(supervisor.write_tables(suite))
        return 0
    # The earlier result is read first: it may lie where the new one will.
    try:
        earlier = None if options.against is None else read_result(options.against, suites[0].name)
    except (OSError, ValueError) as error:
        parser.error(f"--against: {error}")
    failed = 0
    for suite in suites:
        chosen = suite.more if options.group == "more" else suite.problems
        if options.problem:
            chosen = tuple(name for name in suite.every if name in options.problem)
        if chosen:
            failed += supervisor.run(suite, chosen, settings)
            terminal().print(f"{supervisor.RESULTS / suite.name}.md")
    compared = options.problem or (suites[0].more if options.group == "more" else ())
    grown = 0 if earlier is None else _compare(suites[0], earlier, compared)
    return min(failed + grown, 1)


def _compare(suite: Suite, earlier: list, names: Sequence[str]) -> int:
    """Prints which ratios have grown; returns their number."""
    found = changes(earlier, supervisor.entries_of(suite), suite.ours, names)
    worse = [change for change in found if change.is_worse]
    print(f"{len(found)} ratios compared, {len(worse)} worse than the nulls explain")
    for change in worse:
        print(f"* {change}")
    return len(worse)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    parser.add_argument(
        "-p", "--problem", action="append", default=[], help="only this one (may be repeated)"
    )
    parser.add_argument(
        "--group", choices=GROUPS, default="named", help="of problems; more: those beside the list"
    )
    parser.add_argument("--against", type=Path, metavar="RESULT.json", help="an earlier result")
    parser.add_argument("--rounds", type=int, default=DEFAULTS.rounds)
    parser.add_argument(
        "--max-seconds", type=float, default=DEFAULTS.max_seconds, help="timing, per task"
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="METHOD", help="leave it out"
    )
    parser.add_argument(
        "--tables", action="store_true", help="only write the tables again, of what lies there"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
