"""Measures one problem of second order: its value over a batch, and a training step through it."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.core.methods import FLOOR, FUNCTION, WRITES, Call, prepared, time_calls, writes
from benchmarks.core.suite import OnStep, Outcome, Report, Settings, Task, ignore
from benchmarks.core.supervisor import TIMING
from benchmarks.laplacian.methods import METHODS, OURS, Fun, Method
from benchmarks.problems.laplacian import LAPLACIAN_PROBLEMS, Instance

TASKS = ("value", "training")
#: A peer so many times slower than the fastest one is timed once and stays out of the rounds.
HOPELESS = 6.0

_SMALL: dict[str, Fun] = {
    "laplacian": lambda params, x: jnp.sum(params * jnp.tanh(x)),
    "divergence": lambda params, x: params * jnp.tanh(x),
}


def truth(instance: Instance, operator: str) -> jax.Array:
    """The operator at the first input by JAX's dense derivatives."""
    name = "jax.hessian" if operator == "laplacian" else "jax.jacfwd"
    return jax.jit(METHODS[operator][name](instance.fun))(instance.params, instance.xs[0])


def methods(operator: str) -> dict[str, Method]:
    """The methods for an operator, and the function itself."""
    return {FUNCTION: lambda fun: fun, **METHODS[operator]}


def measure_problem(
    report: Report,
    settings: Settings = Settings(),  # noqa: B008
    on_step: OnStep = ignore,
    *,
    small: bool = False,
) -> None:
    """Compiles every method for every task and times those that work, interleaved, in float32.

    Args:
        report: where to; it has the problem's name.
        settings: how.
        on_step: called with what is known so far and with the method that comes next.
        small: whether to take the sizes of the tests.
    """
    problem = LAPLACIAN_PROBLEMS[report.name]
    with jax.enable_x64(True):
        check = problem.instance(jnp.float64, small=True)
        found = METHODS[problem.operator][OURS](check.fun)(check.params, check.xs[0])
        expected = truth(check, problem.operator)
        report.facts["error"] = float(abs(found - expected) / abs(expected))
    with jax.enable_x64(False):
        instance = problem.instance(jnp.float32, small=small)
        report.facts |= {"operator": problem.operator, "shape": list(instance.xs.shape)}
        warm_up(problem.operator)
        calls: dict[str, dict[str, Call]] = {task: {} for task in TASKS}
        for task in TASKS:
            report.tasks[task] = Task()
            for name, method in methods(problem.operator).items():
                on_step(report, name)
                if name in settings.without:
                    report.tasks[task].outcomes[name] = Outcome(note="left out")
                    continue
                call, outcome = prepare(method, instance, task, settings.method_seconds)
                report.tasks[task].outcomes[name] = outcome
                if call is not None:
                    calls[task][name] = call
        on_step(report, TIMING)
        for task in TASKS:
            time_task(report.tasks[task], calls[task], instance, task, settings)


def batched(operator: Fun, task: str) -> Callable[[Any, jax.Array], Any]:
    """The task for an operator: its values over a batch, or the gradient of their mean square."""

    def values(params: Any, xs: jax.Array) -> jax.Array:
        return jax.vmap(lambda x: operator(params, x))(xs)

    if task == "value":
        return values
    return jax.grad(lambda params, xs: jnp.mean(values(params, xs) ** 2))


def warm_up(operator: str) -> None:
    """Loads what every first use loads (packages, backend), so that no method pays for it."""
    for method in METHODS[operator].values():
        with contextlib.suppress(Exception):  # the problem's own report will say what is wrong
            compiled = jax.jit(method(_SMALL[operator])).lower(jnp.ones(3), jnp.ones(3)).compile()
            jax.block_until_ready(compiled(jnp.ones(3), jnp.ones(3)))


def prepare(
    method: Method, instance: Instance, task: str, seconds: float
) -> tuple[Call | None, Outcome]:
    """The compiled call of a method, None where it fails."""
    arguments = (instance.params, instance.xs)
    call, outcome = prepared(lambda: batched(method(instance.fun), task), arguments, seconds)
    return (None if call is None else lambda: call(*arguments)), outcome


def time_task(
    task: Task, calls: dict[str, Call], instance: Instance, name: str, settings: Settings
) -> None:
    """Compares the values with ours, and times."""
    if name == "value" and OURS in calls:
        ours = calls[OURS]()
        scale = jnp.max(jnp.abs(ours))
        for method in calls.keys() - {FUNCTION}:
            difference = jnp.max(jnp.abs(calls[method]() - ours))
            task.outcomes[method].error = float(difference / scale)
    results = batched(instance.fun, name)
    if name == "value":  # an operator's values are scalars, whatever the function returns
        written: Any = jax.ShapeDtypeStruct(instance.xs.shape[:1], instance.xs.dtype)
    else:
        written = jax.eval_shape(results, instance.params, instance.xs)
    peers = [method for method in calls if method not in (OURS, FUNCTION)]
    calls = {**calls, WRITES: writes(written)}
    time_calls(task, calls, peers, settings, hopeless=HOPELESS, spared=(OURS, *FLOOR))
