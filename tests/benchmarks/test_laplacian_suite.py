"""The suite `laplacian`: what a run reports, how it fails, what its tables say; untimed."""

import dataclasses
import json
import subprocess
import time

import jax
import jax.numpy as jnp
import pytest

from benchmarks.laplacian import __main__ as suite
from benchmarks.laplacian import measure, methods
from benchmarks.laplacian.tables import main_table, notes, peers_table
from benchmarks.problems.laplacian import LAPLACIAN_PROBLEMS
from benchmarks.sparse.methods import Unavailable


@pytest.fixture
def instance(float32):
    return LAPLACIAN_PROBLEMS["elementwise_sum"].instance(jnp.float32, small=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Results go to a temporary folder, and the problem has the size of the tests."""
    problem = LAPLACIAN_PROBLEMS["rosenbrock"]
    small = dataclasses.replace(problem, sizes=problem.small)
    monkeypatch.setitem(suite.LAPLACIAN_PROBLEMS, "rosenbrock", small)
    monkeypatch.setattr(suite, "RESULTS", tmp_path)
    monkeypatch.setattr(suite, "FOLDER", tmp_path / "laplacian")
    (tmp_path / "laplacian").mkdir()
    return tmp_path


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["elementwise_sum", "divergence_mlp"])
def test_report_of_a_small_problem(name):
    problem = LAPLACIAN_PROBLEMS[name]
    steps = []
    report = measure.measure_problem(
        problem,
        small=True,
        rounds=3,
        without=("folx 0.6", "folx 0"),
        on_step=lambda report, step: steps.append(step),
    )
    assert steps == [measure.FUNCTION, *methods.METHODS[problem.operator]] * 2 + ["timing"]
    assert report.agreement < 1e-12
    for task in measure.TASKS:
        found = report.tasks[task]
        assert found.best is not None
        assert found.ratios[found.best].median > 0
        # Every method that is here and was not left out agrees with ours.
        for method, outcome in found.outcomes.items():
            if task == "value" and method != measure.FUNCTION and outcome.temp_bytes is not None:
                assert outcome.difference < 1e-4
    plain = json.loads(json.dumps(dataclasses.asdict(report)))
    assert f"| {name} | " in main_table([plain])
    assert f"| {name} | " in peers_table([plain], "training")


@pytest.mark.parametrize("name", list(methods.METHODS["laplacian"])[-2:])
def test_peers_of_jax_follow_the_shape_of_x(name, float32):
    instance = LAPLACIAN_PROBLEMS["pair_potential"].instance(jnp.float32, small=True)
    method = methods.METHODS["laplacian"][name](instance.fun)
    found = jax.jit(method)(instance.params, instance.xs[0])
    expected = measure.truth(instance, "laplacian")
    assert found == pytest.approx(float(expected), rel=1e-4)


def test_method_that_is_absent_raises_or_hangs_is_a_note(instance):
    def absent(fun):
        raise Unavailable("folx does not import here")

    def broken(fun):
        raise KeyError("no rule")

    def hangs(fun):
        while True:
            time.sleep(0.001)

    expected = {
        absent: "folx does not import here",
        broken: "raises KeyError: 'no rule'",
        hangs: "more than 0.05 s",
    }
    report = measure.TaskReport()
    for method, note in expected.items():
        call, outcome = measure._prepare(method, instance, "value", 0.05)
        assert call is None
        assert outcome.note == note
        report.outcomes[method.__name__] = outcome
    whole = measure.LaplacianReport("p", "laplacian", 2, (5,), None, {"value": report})
    plain = dataclasses.asdict(whole)
    assert "* p, value, hangs: more than 0.05 s" in notes([plain])
    assert "| p | - | - |" in main_table([plain])


def test_a_program_that_does_not_fit_is_not_run(instance, monkeypatch):
    monkeypatch.setattr(measure, "MEMORY_LIMIT", -1)
    call, outcome = measure._prepare(methods.hessian, instance, "training", 60.0)
    assert call is None
    assert "temporary memory" in outcome.note


def test_a_hopeless_peer_stays_out_of_the_rounds(instance, monkeypatch):
    monkeypatch.setattr(measure, "HOPELESS", 1.0)
    peers, calls, report = ("loop", "jax.hessian"), {}, measure.TaskReport()
    for name in (methods.OURS, *peers):
        method = methods.METHODS["laplacian"][name]
        calls[name], report.outcomes[name] = measure._prepare(method, instance, "value", 60.0)
    measure._time(report, calls, instance, "value", 3, 1.0)
    slower = next(name for name in peers if name != report.best)
    assert report.outcomes[slower].note == "timed once"
    assert report.ratios[slower].median > 0


@pytest.mark.smoke
def test_worker_writes_numbers_and_tables(folder):
    arguments = ["--worker", "rosenbrock", "--rounds", "3", "--without", "folx 0.6"]
    assert suite.main(arguments) == 0
    numbers = json.loads((folder / "laplacian" / "rosenbrock.json").read_text())
    assert numbers["provenance"]["jax"] == jax.__version__
    assert numbers["step"] == "done"
    text = suite.write_tables()
    assert "| rosenbrock | " in text
    assert "* rosenbrock, value, folx 0.6: left out" in text
    assert (folder / "laplacian.md").read_text() == text
    assert json.loads((folder / "laplacian.json").read_text()) == [numbers]


def test_a_method_that_blocks_its_process_is_left_out_of_the_next(folder, monkeypatch):
    commands = []

    def run(command, timeout, check):
        commands.append(command)
        if len(commands) < 3:
            step = ["folx 0", "ours"][len(commands) - 1]
            path = folder / "laplacian" / "rosenbrock.json"
            path.write_text(json.dumps({"step": step}))
            raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(suite.subprocess, "run", run)
    assert suite._supervise("rosenbrock", 3, 1.0, 7.0) == "stopped after 7 s"
    assert [command.count("--without") for command in commands] == [0, 1]
    assert commands[1][-1] == "folx 0"


def test_unknown_problem_is_refused(capsys):
    with pytest.raises(SystemExit):
        suite.main(["rosenbrok"])
    assert "unknown problem rosenbrok; there are: per_node_mlp" in capsys.readouterr().err
