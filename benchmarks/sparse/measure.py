"""Measures one sparse problem; every method has a time limit and may fail without the others."""

import contextlib
import signal
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.sparse import Instance, SparseProblem
from benchmarks.sparse.methods import METHODS, OURS, Prepared, Unavailable, compiled
from benchmarks.timing import Ratio, measure
from graphax_lapl import jacve

SEED = 0
DENSE_SIZE = 50  # numbers in x when dense derivatives are compared
REFERENCE = "by hand"


@dataclass
class Outcome:
    """What is known about one method on one problem."""

    nse: int | None = None
    colours: int | None = None
    plan_seconds: float | None = None
    compile_seconds: float | None = None
    temp_bytes: int | None = None
    error: float | None = None
    seconds: float | None = None
    note: str = ""


@dataclass
class SparseReport:
    """What is known about one problem.

    Attributes:
        name: of the problem.
        kind: which derivative.
        shape: rows and columns.
        nse: number of nonzeros of the derivative by hand.
        outcomes: by method.
        ratios: `{above: {below: ratio}}` of times, medians over interleaved rounds.
        null: the derivative by hand against itself.
        rounds: of the timer.
    """

    name: str
    kind: str
    shape: tuple[int, int]
    nse: int
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    ratios: dict[str, dict[str, Ratio]] = field(default_factory=dict)
    null: Ratio | None = None
    rounds: int = 0


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the body after so many seconds, once it runs Python again."""

    def stop(number: int, frame: types.FrameType | None) -> None:
        raise TimeoutError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def measure_problem(
    problem: SparseProblem,
    *,
    size: int | None = None,
    rounds: int = 31,
    max_seconds: float = 6.0,
    method_seconds: float = 60.0,
    on_step: Callable[[SparseReport, str], None] = lambda report, step: None,
) -> SparseReport:
    """Prepares every method on a problem and times those that work, interleaved, in float32.

    Args:
        problem: what to differentiate.
        size: its n; that of the benchmark by default.
        rounds: rounds of the timer.
        max_seconds: time for these rounds, in seconds.
        method_seconds: time for preparing one method, in seconds; it is given up after that.
        on_step: called with what is known so far and with what happens next.

    Returns:
        Outcomes and ratios; a method that failed has a note that says how.
    """
    with jax.enable_x64(False):
        instance = problem.make(size or problem.size, jnp.float32, SEED)
        out = jax.eval_shape(instance.fun, instance.x).size
        shape = (out if problem.kind == "jacobian" else instance.x.size, instance.x.size)
        report = SparseReport(problem.name, problem.kind, shape, instance.nse)
        _warm_up(instance, problem.kind)
        calls = {}
        for name, method in METHODS.items():
            on_step(report, name)
            prepared, outcome = _prepare(method, instance, problem.kind, method_seconds)
            report.outcomes[name] = outcome
            if prepared is not None:
                calls[name] = prepared.call
        on_step(report, "timing")
        _time(report, calls, instance.x, rounds, max_seconds)
    return report


def measure_dense(
    problem: SparseProblem, *, rounds: int = 31, max_seconds: float = 2.0
) -> SparseReport:
    """A small instance, where the dense derivatives of JAX are the ones to beat."""
    scale = problem.make(problem.small, jnp.float32, SEED).x.size / problem.small
    size = max(problem.small, round(DENSE_SIZE / scale / 4) * 4)
    with jax.enable_x64(False):
        instance = problem.make(size, jnp.float32, SEED)
        dense: dict[str, Callable[..., Any]] = (
            {"jax.jacfwd": jax.jacfwd(instance.fun), "jax.jacrev": jax.jacrev(instance.fun)}
            if problem.kind == "jacobian"
            else {"jax.hessian": jax.hessian(instance.fun)}
        )
        ours = instance.fun if problem.kind == "jacobian" else jax.grad(instance.fun)
        out = jax.eval_shape(ours, instance.x).size
        report = SparseReport(problem.name, problem.kind, (out, instance.x.size), instance.nse)
        calls = {name: compiled(fun, instance.x)[0] for name, fun in dense.items()}
        calls["ours, dense"] = compiled(jacve(ours), instance.x)[0]
        report.outcomes = {name: Outcome() for name in calls}
        for name in ("ours", "ours, data", "by hand", "asdex"):
            prepared, report.outcomes[name] = _prepare(METHODS[name], instance, problem.kind, 60.0)
            if prepared is not None:
                calls[name] = prepared.call
        _time(report, calls, instance.x, rounds, max_seconds)
    return report


def _warm_up(instance: Instance, kind: str) -> None:
    """Loads what every first use loads (backend, compiled planner): no method pays for it."""
    small = (lambda x: jnp.sum(x**3)) if kind == "hessian" else (lambda x: jnp.sum(jnp.sin(x)) * x)
    jax.block_until_ready(OURS[kind](small)(jnp.ones(3)))
    jax.block_until_ready(jax.jit(instance.fun)(instance.x))


def _prepare(
    method: Callable[[Instance, str], Prepared], instance: Instance, kind: str, seconds: float
) -> tuple[Prepared | None, Outcome]:
    try:
        with limit(seconds):
            prepared = method(instance, kind)
    except (Unavailable, TimeoutError) as error:
        return None, Outcome(note=str(error))
    except Exception as error:  # a peer may raise anything; the table says what
        return None, Outcome(note=f"raises {type(error).__name__}: {str(error)[:200]}")
    outcome = Outcome(
        prepared.nse,
        prepared.colours,
        prepared.plan_seconds,
        prepared.compile_seconds,
        prepared.temp_bytes,
        prepared.error,
        note=prepared.note,
    )
    return prepared, outcome


def _time(
    report: SparseReport,
    calls: dict[str, Callable[..., Any]],
    x: jax.Array,
    rounds: int,
    max_seconds: float,
) -> None:
    measured = measure(
        {name: lambda call=call: call(x) for name, call in calls.items()},  # type: ignore[misc]
        references=(REFERENCE,),
        rounds=rounds,
        max_seconds=max_seconds,
    )
    for name in calls:
        report.outcomes[name].seconds = measured.median_seconds(name)
        report.ratios[name] = {
            other: measured.ratio(name, to=other) for other in calls if other != name
        }
    report.null = measured.null(REFERENCE)
    report.rounds = measured.rounds
