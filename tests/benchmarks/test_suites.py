"""Each suite on a small problem: what it reports and what its tables say. Nothing is timed."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from benchmarks import compile_time, gpu, jacobian, memory, planner
from benchmarks.core.device_time import busy, busy_in
from benchmarks.core.suite import Outcome, Report, Settings, Task
from benchmarks.lowering import exported, host_calls
from benchmarks.suites import SUITES
from graphax_lapl import jacve
from graphax_lapl.api import planning
from graphax_lapl.edges import algebra

QUICK = Settings(rounds=2, max_seconds=0.1)
FEW = dataclasses.replace(QUICK, without=jacobian.ORDERS[1:])


def plain(report):
    """As it is read from a file."""
    return json.loads(json.dumps(dataclasses.asdict(report)))


def test_every_suite_that_is_documented():
    assert list(SUITES) == [
        "jacobian",
        "sparse",
        "laplacian",
        "planner",
        "compile_time",
        "memory",
        "gpu",
    ]
    for suite in SUITES.values():
        assert len(set(suite.problems)) == len(suite.problems)
        assert suite.tables([])  # nothing measured yet


@pytest.mark.smoke
def test_jacobian():
    report, steps = Report("lighthouse"), []
    jacobian.measure_problem(report, QUICK, lambda report, step: steps.append(step), sizes=[4])
    assert list(report.tasks) == ["batch of 4"]
    assert report.facts["error"] < 1e-13
    names = ["f", "jax.jacfwd", "jax.jacrev", *jacobian.ORDERS]
    assert steps == ["float64", *names, "timing"]
    task = report.tasks["batch of 4"]
    assert set(task.outcomes) == {*names, "writes"}
    assert task.reference in ("jax.jacfwd", "jax.jacrev")
    text = jacobian.tables([plain(report)])
    assert "| lighthouse, batch of 4 | " in text
    assert "| batch of 4 | 1 | " in text  # geometric means


def test_batches_of_the_jacobian_suite():
    assert jacobian.batches(jacobian.PROBLEMS["roe_flux"]) == [None, 4096, 100_000]


def test_method_that_is_left_out():
    report = Report("lighthouse")
    jacobian.measure_problem(report, FEW, sizes=[None])
    assert list(report.tasks) == ["single input"]
    assert report.tasks["single input"].outcomes["search"].note == "left out"
    assert jacobian.best_order(plain(report)["tasks"]["single input"]) is None
    assert "| lighthouse, single input | " in jacobian.tables([plain(report)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jacobian.lighthouse", "laplacian.rosenbrock"])
def test_compile_time(name, monkeypatch):
    forgotten = []
    monkeypatch.setattr(compile_time, "forget", lambda: forgotten.append(True))
    report = Report(name)
    compile_time.measure_problem(report, QUICK, small=True)
    tasks = ["jacobian"] if name.startswith("jacobian") else ["value", "training"]
    assert list(report.tasks) == tasks
    for task in report.tasks.values():
        assert task.reference is not None
        assert task.outcomes["ours"].trace_seconds > 0
    assert len(forgotten) > 4 * len(tasks)  # before every compilation
    text = compile_time.tables([plain(report)])
    assert f"ours / {report.tasks[tasks[0]].reference} | 1 | " in text


@pytest.mark.slow
def test_forgetting_makes_planning_start_again():
    jax.block_until_ready(jacve(lambda x: jnp.sum(jnp.sin(x) ** 2))(jnp.ones(3)))
    assert planning._plans.entries
    assert algebra.compose.cache_info().currsize
    compile_time.forget()
    assert not planning._plans.entries
    assert not algebra.compose.cache_info().currsize


@pytest.mark.parametrize("name", ["jacobian.lighthouse", "laplacian.elementwise_sum"])
def test_memory(name):
    report = Report(name)
    settings = dataclasses.replace(QUICK, without=("loop", "folx 0", "folx 0.6"))
    memory.measure_problem(report, settings, small=True)
    for task in report.tasks.values():
        peers = {n: o.temp_bytes for n, o in task.outcomes.items() if n != "ours"}
        known = {n: size for n, size in peers.items() if size is not None}
        assert known[task.reference] == min(known.values())
        assert task.outcomes["ours"].seconds is None
        assert task.outcomes["ours"].output_bytes > 0
    assert f"| {name}, " in memory.tables([plain(report)])


def test_planner():
    published, layers = Report("PropaneCombustion"), Report("layered_10x10")
    for report in (published, layers):
        planner.measure_problem(report, Settings(max_seconds=0.05))
    task = published.tasks["muls"]
    assert task.outcomes["auto"].cost <= task.outcomes["reverse"].cost
    assert task.ratios["auto"]["reverse"].median <= 1.0
    assert published.facts["rate"] > 0
    text = planner.tables([plain(published), plain(layers)])
    assert "| PropaneCombustion, unit_muls | " in text
    assert "| layered_10x10, 90 vertices | " in text


def test_without_an_accelerator_programs_are_lowered_and_the_table_says_so(monkeypatch):
    monkeypatch.setattr(gpu, "accelerator", lambda: None)
    report = Report("jacobian.lighthouse")
    gpu.measure_problem(report, QUICK)
    assert list(report.tasks) == ["lowering"]
    text = gpu.tables([plain(report)])
    assert "No accelerator here" in text
    assert "| jacobian.lighthouse | yes |" in text


def test_with_an_accelerator_the_problem_is_timed(monkeypatch):
    monkeypatch.setattr(gpu, "accelerator", lambda: "a large one")
    measured = []

    def measure(report, settings, on_step):
        measured.append(report.name)
        jacobian.measure_problem(report, settings, on_step, sizes=[2])

    monkeypatch.setitem(gpu.MEASURES, "jacobian", measure)
    report, steps = Report("jacobian.lighthouse"), []
    gpu.measure_problem(report, FEW, lambda found, step: steps.append((found.name, step)))
    assert measured == ["lighthouse"]
    assert set(report.tasks) == {"lowering", "batch of 2"}
    assert {name for name, _ in steps} == {"jacobian.lighthouse"}
    text = gpu.tables([plain(report)])
    assert "No accelerator" not in text
    assert "| jacobian.lighthouse, batch of 2 | " in text


def test_the_time_in_which_a_gpu_computes_is_compared_with_the_best_peer(monkeypatch):
    monkeypatch.setattr(gpu, "accelerator", lambda: "a large one")
    known = {"auto": (2e-6, 1), "f": (1e-7, 1), "jax.jacfwd": (8e-6, 5), "jax.jacrev": (4e-6, 3)}
    task = Task({name: Outcome(device_seconds=t, kernels=k) for name, (t, k) in known.items()})
    task.reference = "jax.jacfwd"
    report = Report("jacobian.lighthouse", {"accelerator": "a large one"}, {"batch of 2": task})
    text = gpu.tables([plain(report)])
    assert "| jacobian.lighthouse, batch of 2 | 2 us, 1 | jax.jacrev, 4 us, 3 | 0.50 |" in text


def test_kernels_are_those_on_streams_of_gpus():
    def named(name, **more):
        return SimpleNamespace(name=name, **more)

    kernels = [SimpleNamespace(duration_ns=1500.0), SimpleNamespace(duration_ns=500.0)]
    lines = [named("Stream #13(Compute)", events=kernels), named("XLA Modules", events=kernels)]
    planes = [named("/device:GPU:0", lines=lines), named("/host:CPU", lines=lines)]
    seconds, count = busy_in(SimpleNamespace(planes=planes), 2)
    assert (seconds, count) == (pytest.approx(1e-6), 1.0)
    assert busy_in(SimpleNamespace(planes=planes[1:]), 2) is None
    assert busy(lambda: jnp.zeros(())) is None


def test_a_program_that_asks_the_host_or_does_not_lower_is_a_note(monkeypatch):
    report = Report("jacobian.lighthouse")
    monkeypatch.setattr(gpu, "accelerator", lambda: None)
    monkeypatch.setattr(gpu, "host_calls", lambda program: ["xla_python_callback"])
    gpu.measure_problem(report, QUICK)
    assert report.tasks["lowering"].outcomes["ours"].note == "asks the host: xla_python_callback"
    assert "| jacobian.lighthouse | no |" in gpu.tables([plain(report)])
    assert host_calls(exported(jnp.sin, 1.0)) == []
