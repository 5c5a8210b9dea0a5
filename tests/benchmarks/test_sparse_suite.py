"""The suite `sparse`: what a run reports, how it fails, what the tables say. Nothing is timed."""

import dataclasses
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.problems.sparse import SPARSE_PROBLEMS, Instance
from benchmarks.sparse import __main__ as suite
from benchmarks.sparse import measure, methods
from benchmarks.sparse.tables import dense_table, notes, sparse_table


@pytest.fixture
def instance(float32):
    return SPARSE_PROBLEMS["arrowhead"].make(9, jnp.float32, 0)


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["arrowhead", "rosenbrock"])
def test_report_of_a_small_problem(name):
    problem = SPARSE_PROBLEMS[name]
    steps = []
    report = measure.measure_problem(
        problem, size=9, rounds=3, on_step=lambda report, step: steps.append(step)
    )
    assert steps == [*methods.METHODS, "timing"]
    assert report.shape == (9, 9)
    ours = report.outcomes["ours"]
    assert (ours.nse, report.nse) == (25, 25)
    assert ours.error < 1e-6
    # The peers may or may not be here; everything else is timed against everything else.
    assert {"ours", "ours, data", "by hand", "f"} <= set(report.ratios)
    assert report.ratios["ours"]["f"].median > 0
    assert f"| {name}" in sparse_table([dataclasses.asdict(report)])


@pytest.mark.smoke
def test_dense_comparison():
    report = measure.measure_dense(SPARSE_PROBLEMS["lotka_volterra"], rounds=3)
    assert report.shape == (48, 48)
    row = dense_table([json.loads(json.dumps(dataclasses.asdict(report)))]).splitlines()[-1]
    assert row.startswith("| lotka_volterra | 48 x 48 | jax.jac")


def test_absent_peer_is_a_note(instance, monkeypatch):
    def absent(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(methods.importlib, "import_module", absent)
    prepared, outcome = measure._prepare(methods.asdex, instance, "jacobian", 60.0)
    assert prepared is None
    assert "asdex does not import here" in outcome.note
    assert 'pip install -e ".[peers]"' in outcome.note
    report = measure.SparseReport("p", "jacobian", (9, 9), 25, {"asdex": outcome})
    assert "* p, asdex: asdex does not import" in notes([dataclasses.asdict(report)])
    assert "| p | - | - |" in sparse_table([dataclasses.asdict(report)])


def test_method_that_raises_is_a_note(instance):
    def broken(instance, kind):
        raise KeyError("no rule")

    prepared, outcome = measure._prepare(broken, instance, "jacobian", 60.0)
    assert prepared is None
    assert outcome.note == "raises KeyError: 'no rule'"


def test_method_that_hangs_is_given_up(instance):
    def hangs(instance, kind):
        while True:
            time.sleep(0.001)

    prepared, outcome = measure._prepare(hangs, instance, "jacobian", 0.05)
    assert prepared is None
    assert outcome.note == "more than 0.05 s"


def test_error_counts_missing_wrong_and_needless_entries(instance):
    rows, cols = instance.coordinates()
    data = instance.data(instance.by_hand(instance.x))
    scale = abs(data).max()
    assert methods._error(instance, rows, cols, data) == 0.0
    missing = methods._error(instance, rows[1:], cols[1:], data[1:])
    assert missing == pytest.approx(abs(data[0]) / scale)
    needless = methods._error(
        instance, np.append(rows, 1), np.append(cols, 2), np.append(data, 2 * scale)
    )
    assert needless == pytest.approx(2.0)


@pytest.mark.smoke
def test_worker_writes_numbers_and_tables(tmp_path, monkeypatch):
    small = dataclasses.replace(SPARSE_PROBLEMS["lorenz96"], size=9)
    monkeypatch.setitem(suite.SPARSE_PROBLEMS, "lorenz96", small)
    monkeypatch.setattr(suite, "RESULTS", tmp_path)
    monkeypatch.setattr(suite, "FOLDER", tmp_path / "sparse")
    monkeypatch.setattr(suite, "DENSE", ())
    assert suite.main(["--worker", "lorenz96", "--rounds", "3"]) == 0
    numbers = json.loads((tmp_path / "sparse" / "lorenz96.json").read_text())
    assert numbers["provenance"]["jax"] == jax.__version__
    assert numbers["step"] == "done"
    text = suite.write_tables()
    assert "| lorenz96 | " in text
    assert (tmp_path / "sparse.md").read_text() == text
    assert json.loads((tmp_path / "sparse.json").read_text()) == [numbers]


def test_unknown_problem_is_refused(capsys):
    with pytest.raises(SystemExit):
        suite.main(["lorenz97"])
    assert "unknown problem lorenz97; there are: burgers_slices_1e4" in capsys.readouterr().err


def test_data_of_an_instance_follows_its_coordinates():
    values = (jnp.array([1.0, 2.0]), jnp.array([[3.0]]))
    instance = Instance(
        lambda x: x, jnp.ones(2), lambda x: values, np.array([1, -1, 0]), np.array([0, 5, 1])
    )
    assert instance.nse == 2
    assert list(instance.data(values)) == [3.0, 1.0]
