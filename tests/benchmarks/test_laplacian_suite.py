"""The suite `laplacian`: what a run reports and what its tables say; untimed."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks.core.suite import Report, Settings
from benchmarks.laplacian import measure, methods
from benchmarks.laplacian.tables import main_table, peers_table, tables
from benchmarks.problems.laplacian import LAPLACIAN_PROBLEMS

QUICK = Settings(rounds=3, max_seconds=1.0, without=("folx 0.6", "folx 0"))


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["elementwise_sum", "divergence_mlp"])
def test_report_of_a_small_problem(name):
    problem = LAPLACIAN_PROBLEMS[name]
    report, steps = Report(name), []
    measure.measure_problem(report, QUICK, lambda report, step: steps.append(step), small=True)
    assert steps == [*measure.methods(problem.operator)] * 2 + ["timing"]
    assert report.facts["error"] < 1e-12
    for task in measure.TASKS:
        found = report.tasks[task]
        assert found.ratios[methods.OURS][found.reference].median > 0
        assert {"f", "writes"} <= set(found.ratios[methods.OURS])
        # Every method that is here and was not left out agrees with ours.
        for method, outcome in found.outcomes.items():
            if task == "value" and method not in ("f", "writes") and outcome.temp_bytes is not None:
                assert outcome.error < 1e-4
    if problem.operator == "laplacian":
        assert report.tasks["value"].outcomes["folx 0"].note == "left out"
    plain = json.loads(json.dumps(dataclasses.asdict(report)))
    assert f"| {name} | " in main_table([plain], "value")
    assert f"| {name} | " in peers_table([plain], "training")
    assert "Training, by peer:" in tables([plain])


@pytest.mark.parametrize("name", list(methods.METHODS["laplacian"])[-2:])
def test_peers_of_jax_follow_the_shape_of_x(name, float32):
    instance = LAPLACIAN_PROBLEMS["pair_potential"].instance(jnp.float32, small=True)
    method = methods.METHODS["laplacian"][name](instance.fun)
    found = jax.jit(method)(instance.params, instance.xs[0])
    expected = measure.truth(instance, "laplacian")
    assert found == pytest.approx(float(expected), rel=1e-4)


def test_a_problem_that_was_stopped_early_has_a_line():
    plain = dataclasses.asdict(Report("p"))
    assert "| p | - | - |" in main_table([plain], "value")
