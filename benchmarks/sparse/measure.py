"""Measures one sparse problem; every method has a time limit and may fail without the others."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.core.methods import WRITES, Call, attempted, compiled, time_calls, writes
from benchmarks.core.suite import OnStep, Outcome, Report, Settings, Task, ignore
from benchmarks.core.supervisor import TIMING
from benchmarks.problems.sparse import SPARSE_PROBLEMS, Instance
from benchmarks.sparse.methods import METHODS, OURS, Prepared
from graphax_lapl import jacve

SEED = 0
LARGE, DENSE = "sparse", "dense"
DENSE_SIZE = 50  # numbers in x when dense derivatives are compared
REFERENCE = "by hand"

#: Problems that are also compared with JAX's dense derivatives, at about 50 variables.
SMALL = (
    "burgers_slices_1e4",
    "lorenz96",
    "lotka_volterra",
    "mass_action",
    "arrowhead",
    "robertson_chain",
    "rosenbrock",
    "powell",
)


def measure_problem(
    report: Report,
    settings: Settings = Settings(),  # noqa: B008
    on_step: OnStep = ignore,
    *,
    size: int | None = None,
) -> None:
    """Prepares every method on a problem and times those that work, interleaved, in float32.

    Args:
        report: where to; it has the problem's name.
        settings: how.
        on_step: called with what is known so far and with what happens next.
        size: n of the problem; that of the benchmark by default.
    """
    problem = SPARSE_PROBLEMS[report.name]
    with jax.enable_x64(False):
        instance = problem.make(size or problem.size, jnp.float32, SEED)
        out = jax.eval_shape(instance.fun, instance.x).size
        rows = out if problem.kind == "jacobian" else instance.x.size
        report.facts |= {
            "kind": problem.kind,
            "shape": [rows, instance.x.size],
            "nse": instance.nse,
        }
        _warm_up(instance, problem.kind)
        task, calls = Task(), {}
        report.tasks[LARGE] = task
        for name, method in METHODS.items():
            on_step(report, name)
            if name in settings.without:
                task.outcomes[name] = Outcome(note="left out")
                continue
            call, task.outcomes[name] = prepare(
                method, instance, problem.kind, settings.method_seconds
            )
            if call is not None:
                calls[name] = call
        on_step(report, TIMING)
        calls[WRITES] = writes(jax.ShapeDtypeStruct((instance.nse,), jnp.float32))
        time_calls(task, calls, (REFERENCE,), settings)
        if report.name in SMALL:
            measure_dense(report, settings)


def measure_dense(report: Report, settings: Settings) -> None:
    """A small instance, where the dense derivatives of JAX are the ones to beat."""
    problem = SPARSE_PROBLEMS[report.name]
    scale = problem.make(problem.small, jnp.float32, SEED).x.size / problem.small
    size = max(problem.small, round(DENSE_SIZE / scale / 4) * 4)
    with jax.enable_x64(False):
        instance = problem.make(size, jnp.float32, SEED)
        dense: dict[str, Callable[..., Any]] = (
            {"jax.jacfwd": jax.jacfwd(instance.fun), "jax.jacrev": jax.jacrev(instance.fun)}
            if problem.kind == "jacobian"
            else {"jax.hessian": jax.hessian(instance.fun)}
        )
        gradient = instance.fun if problem.kind == "jacobian" else jax.grad(instance.fun)
        out = jax.eval_shape(gradient, instance.x).size
        report.facts["small shape"] = [out, instance.x.size]
        task, calls = Task(), {}
        report.tasks[DENSE] = task
        for name, fun in {**dense, "ours, dense": jacve(gradient)}.items():
            call, task.outcomes[name] = compiled(fun, instance.x)
            calls[name] = _call(call, instance.x)
        for name in ("ours", "ours, data", "by hand", "f", "asdex"):
            small, task.outcomes[name] = prepare(
                METHODS[name], instance, problem.kind, settings.method_seconds
            )
            if small is not None:
                calls[name] = small
        calls[WRITES] = writes(jax.ShapeDtypeStruct((out, instance.x.size), jnp.float32))
        time_calls(task, calls, tuple(dense), settings)


def _warm_up(instance: Instance, kind: str) -> None:
    """Loads what every first use loads (backend, compiled planner): no method pays for it."""
    small = (lambda x: jnp.sum(x**3)) if kind == "hessian" else (lambda x: jnp.sum(jnp.sin(x)) * x)
    jax.block_until_ready(OURS[kind](small)(jnp.ones(3)))
    jax.block_until_ready(jax.jit(instance.fun)(instance.x))


def prepare(
    method: Callable[[Instance, str], Prepared], instance: Instance, kind: str, seconds: float
) -> tuple[Call | None, Outcome]:
    """The compiled call of a method, None where it fails."""
    found, note = attempted(lambda: method(instance, kind), seconds)
    if found is None:
        return None, Outcome(note=note)
    return _call(found.call, instance.x), found.outcome


def _call(fun: Callable[[jax.Array], Any], x: jax.Array) -> Call:
    return lambda: fun(x)
