"""The suite `memory`: temporary memory of compiled programs. Nothing is run."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.compare import Case
from benchmarks.core.methods import prepared
from benchmarks.core.suite import (
    EXACT,
    OnStep,
    Outcome,
    Report,
    Reports,
    Settings,
    Suite,
    Task,
    ignore,
)
from benchmarks.core.tables import geometric_mean, median, memory, number, outcome, ratio, table
from benchmarks.jacobian import batches, task_name
from benchmarks.laplacian.measure import TASKS, batched
from benchmarks.laplacian.methods import METHODS
from benchmarks.names import JACOBIAN, LAPLACIAN, kind_of, names_of, problem_of
from benchmarks.problems.laplacian import LaplacianProblem
from benchmarks.problems.problem import Problem
from benchmarks.render import si
from benchmarks.timing import Ratio

OURS = "ours"
#: What is added to both sides of a ratio, in bytes: below it, memory is of no interest.
LEAST = 4096

CAPTION = (
    "Temporary memory of compiled programs as XLA states it, beside arguments and results, "
    f"float32. peer: the one that takes least. Ratios are of memory plus {LEAST} bytes."
)
HEADER = ("problem", "ours", "best peer", "ours / peer", "results")


def measure_problem(
    report: Report,
    settings: Settings = Settings(),  # noqa: B008
    on_step: OnStep = ignore,
    *,
    small: bool = False,
) -> None:
    """Compiles all methods; with `small` at the sizes of the tests."""
    problem = problem_of(report.name)
    with jax.enable_x64(False):
        if isinstance(problem, Problem):
            for batch in [2] if small else batches(problem):
                case = Case.of(problem, batch)
                methods: dict[str, Callable[[], Callable[..., Any]]] = {
                    OURS: lambda case=case: case.elimination("auto"),  # type: ignore[misc]
                    "jax.jacfwd": lambda case=case: case.compiled(jax.jacfwd),  # type: ignore[misc]
                    "jax.jacrev": lambda case=case: case.compiled(jax.jacrev),  # type: ignore[misc]
                }
                inputs = case.inputs(jnp.float32)
                _compile(report, task_name(batch), methods, inputs, settings, on_step)
            return
        assert isinstance(problem, LaplacianProblem)
        instance = problem.instance(jnp.float32, small=small)
        for name in TASKS:
            methods = {
                method: lambda make=make, name=name: batched(make(instance.fun), name)  # type: ignore[misc]
                for method, make in METHODS[problem.operator].items()
            }
            _compile(report, name, methods, (instance.params, instance.xs), settings, on_step)


def _compile(
    report: Report,
    name: str,
    methods: Mapping[str, Callable[[], Callable[..., Any]]],
    arguments: Sequence[Any],
    settings: Settings,
    on_step: OnStep,
) -> None:
    task = report.tasks[name] = Task(null=EXACT)
    for method, make in methods.items():
        on_step(report, method)
        if method in settings.without:
            task.outcomes[method] = Outcome(note="left out")
            continue
        _, task.outcomes[method] = prepared(make, arguments, settings.method_seconds)
    known = {m: o.temp_bytes for m, o in task.outcomes.items() if o.temp_bytes is not None}
    for above, bytes_above in known.items():
        ratios = {m: (bytes_above + LEAST) / (b + LEAST) for m, b in known.items() if m != above}
        task.ratios[above] = {m: Ratio(r, r, r) for m, r in ratios.items()}
    peers = [method for method in known if method != OURS]
    task.reference = min(peers, key=lambda method: known[method], default=None)


def tables(reports: Reports) -> str:
    """One line per problem and task, and geometric means."""
    tasks = [
        (report["name"], name, task) for report in reports for name, task in report["tasks"].items()
    ]
    rows = []
    for problem, name, task in tasks:
        peer = task["reference"]
        results = outcome(task, OURS).get("output_bytes")
        rows.append(
            (
                f"{problem}, {name}",
                memory(task, OURS),
                "-" if peer is None else f"{peer}, {memory(task, peer)}",
                ratio(task, OURS, peer),
                "-" if results is None else si(results, "B"),
            )
        )
    means = []
    for key in dict.fromkeys((kind_of(problem), name) for problem, name, _ in tasks):
        found = [median(t, OURS, t["reference"]) for p, n, t in tasks if (kind_of(p), n) == key]
        there = [value for value in found if value is not None]
        means.append((", ".join(key), str(len(there)), number(geometric_mean(there))))
    header = ("geometric means", "problems", "ours / peer")
    return "\n".join([CAPTION, "", table(HEADER, rows), table(header, means)])


SUITE = Suite(
    "memory",
    names_of(JACOBIAN, LAPLACIAN),
    measure_problem,
    tables,
    (OURS,),
    more=names_of(JACOBIAN, LAPLACIAN, group="more"),
)
