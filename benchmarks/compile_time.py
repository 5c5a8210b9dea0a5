"""The suite `compile_time`: tracing, planning and compiling, from cold caches.

Every sample forgets what JAX and this package remember (traces, plans, compiled programs, composed
structures), then traces, lowers and compiles once more. Jacobians are compared with `jax.jacfwd`
and `jax.jacrev`, Laplacians and divergences with folx or JAX's own way.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.compare import Case
from benchmarks.core.methods import Call, compiled, prepared, time_calls
from benchmarks.core.suite import OnStep, Report, Reports, Settings, Suite, Task, ignore
from benchmarks.core.supervisor import TIMING
from benchmarks.core.tables import (
    geometric_mean,
    median,
    named,
    null,
    number,
    preparation,
    ratio,
    seconds,
    table,
)
from benchmarks.laplacian.measure import TASKS, batched, warm_up
from benchmarks.laplacian.methods import METHODS
from benchmarks.laplacian.tables import FOLX
from benchmarks.names import JACOBIAN, LAPLACIAN, kind_of, names_of, problem_of
from benchmarks.problems.laplacian import LaplacianProblem
from benchmarks.problems.problem import Problem
from graphax_lapl.api.planning import clear_caches

OURS = "ours"
#: Compilation takes so long that a few rounds must do.
ROUNDS = 5
MAX_BATCH = 4096
#: What Laplacians and divergences are compared with: the first that is here.
PEERS = {"laplacian": (FOLX, "jax.hessian"), "divergence": ("jax.jacfwd", "jax.jacrev")}

CAPTION = (
    "Seconds from cold caches to a compiled program, medians of interleaved rounds. Jacobians: "
    f"under `vmap` at the problem's largest batch of at most {MAX_BATCH:,}. Laplacians: of a "
    "batch, and of a training step. null: quartiles of the reference against itself. split: "
    "tracing, planning and lowering + XLA, of one compilation."
)
HEADER = ("problem", "ours", "reference", "ours / reference", "null", "split of ours", "reference")


def forget() -> None:
    """Empties all caches of JAX and of this package, those of single functions included."""
    jax.clear_caches()
    clear_caches()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "graphax_lapl":
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def measure_problem(
    report: Report,
    settings: Settings = Settings(),  # noqa: B008
    on_step: OnStep = ignore,
    *,
    small: bool = False,
) -> None:
    """Compiles again and again; with `small` at the sizes of the tests."""
    problem = problem_of(report.name)
    with jax.enable_x64(False):
        if isinstance(problem, Problem):
            _measure(report, "jacobian", *_jacobian(problem, small), settings, on_step)
            return
        assert isinstance(problem, LaplacianProblem)
        instance = problem.instance(jnp.float32, small=small)
        warm_up(problem.operator)
        for name in TASKS:
            methods = {
                method: lambda make=make, name=name: batched(make(instance.fun), name)
                for method, make in METHODS[problem.operator].items()
                if method in (OURS, *PEERS[problem.operator])
            }
            arguments = (instance.params, instance.xs)
            _measure(report, name, methods, arguments, settings, on_step, enough=1)


Methods = Mapping[str, Callable[[], Callable[..., Any]]]


def _jacobian(problem: Problem, small: bool) -> tuple[Methods, tuple[Any, ...]]:
    batch = 2 if small else max(b for b in problem.batches if b <= MAX_BATCH)
    case = Case.of(problem, None if batch == 1 else batch)
    methods = {
        OURS: lambda: case.elimination("auto"),
        "jax.jacfwd": lambda: case.compiled(jax.jacfwd),
        "jax.jacrev": lambda: case.compiled(jax.jacrev),
    }
    return methods, case.inputs(jnp.float32)


def _measure(
    report: Report,
    name: str,
    methods: Methods,
    arguments: Sequence[Any],
    settings: Settings,
    on_step: OnStep,
    enough: int = 2,
) -> None:
    """Samples ours and as many of the others, in their order, as are enough."""
    task = report.tasks[name] = Task()
    calls: dict[str, Call] = {}
    for method, make in methods.items():
        if method in settings.without or len(calls) > enough:
            continue
        on_step(report, method)
        forget()
        call, task.outcomes[method] = prepared(make, arguments, settings.method_seconds)
        if call is not None:

            def again(make: Callable[[], Callable[..., Any]] = make) -> None:
                forget()
                compiled(make(), *arguments)

            calls[method] = again
    on_step(report, TIMING)
    peers = [method for method in calls if method != OURS]
    few = replace(settings, rounds=min(settings.rounds, ROUNDS))
    time_calls(task, calls, peers, few, min_rounds=2)


def tables(reports: Reports) -> str:
    """One line per problem and task, and geometric means."""
    tasks = [
        (report["name"], name, task) for report in reports for name, task in report["tasks"].items()
    ]
    rows = [
        (
            f"{problem}, {name}" if name in TASKS else problem,
            seconds(task, OURS),
            named(task, task["reference"]),
            ratio(task, OURS, task["reference"]),
            null(task),
            preparation(task, OURS),
            preparation(task, task["reference"]),
        )
        for problem, name, task in tasks
    ]
    pairs = dict.fromkeys(
        (kind_of(problem), name, peer)
        for problem, name, task in tasks
        for peer in task["ratios"].get(OURS, {})
    )
    means = []
    for kind, name, peer in pairs:
        found = [median(t, OURS, peer) for p, n, t in tasks if (kind_of(p), n) == (kind, name)]
        there = [value for value in found if value is not None]
        mean = number(geometric_mean(there))
        means.append((f"{kind}, {name}: ours / {peer}", str(len(there)), mean))
    return "\n".join(
        [
            CAPTION,
            "",
            table(HEADER, rows),
            table(("geometric means", "problems", "ratio"), means),
        ]
    )


SUITE = Suite(
    "compile_time",
    names_of(JACOBIAN, LAPLACIAN),
    measure_problem,
    tables,
    (OURS,),
    timeout=1800.0,
    more=names_of(JACOBIAN, LAPLACIAN, group="more"),
)
