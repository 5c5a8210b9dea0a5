"""The suite `sparse`: what a run reports, how it fails, what the tables say. Nothing is timed."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.core.methods import Unavailable
from benchmarks.core.suite import Report, Settings
from benchmarks.core.tables import notes
from benchmarks.problems.sparse import SPARSE_PROBLEMS, Instance
from benchmarks.sparse import measure, methods
from benchmarks.sparse.tables import sparse_table, tables

QUICK = Settings(rounds=3, max_seconds=1.0)


@pytest.fixture
def instance(float32):
    return SPARSE_PROBLEMS["arrowhead"].make(9, jnp.float32, 0)


@pytest.mark.smoke
def test_report_of_a_small_problem():
    report, steps = Report("arrowhead"), []
    measure.measure_problem(report, QUICK, lambda report, step: steps.append(step), size=9)
    assert steps == [*methods.METHODS, "timing"]
    assert report.facts["shape"] == [9, 9]
    task = report.tasks["sparse"]
    assert (task.outcomes["ours"].nse, report.facts["nse"]) == (25, 25)
    assert task.outcomes["ours"].error < 1e-6
    # The peers may or may not be here; everything else is timed against everything else.
    assert {"ours", "ours, data", "by hand", "f", "writes"} <= set(task.ratios)
    assert task.reference == "by hand"
    # A second task compares a small instance with JAX's dense derivatives.
    dense = report.tasks["dense"]
    assert dense.reference in ("jax.jacfwd", "jax.jacrev")
    text = tables([json.loads(json.dumps(dataclasses.asdict(report)))])
    assert "| arrowhead | " in text
    assert "| arrowhead | 48 x 48 | jax.jac" in text


def test_hessian_of_a_small_problem(monkeypatch):
    monkeypatch.setattr(measure, "SMALL", ())
    report = Report("rosenbrock")
    measure.measure_problem(report, dataclasses.replace(QUICK, without=("ours, data",)), size=9)
    assert list(report.tasks) == ["sparse"]
    assert report.tasks["sparse"].outcomes["ours, data"].note == "left out"
    assert "| rosenbrock (H) | " in sparse_table([dataclasses.asdict(report)])


def test_absent_peer_is_a_note(instance, monkeypatch):
    def absent(name):
        raise Unavailable(f"{name} does not import here")

    monkeypatch.setattr(methods, "peer", absent)
    call, outcome = measure.prepare(methods.asdex, instance, "jacobian", 60.0)
    assert call is None
    facts = {"kind": "jacobian", "nse": 25}
    report = Report("p", facts, {"sparse": measure.Task({"asdex": outcome})})
    assert "* p, sparse, asdex: asdex does not import" in notes([dataclasses.asdict(report)])
    assert "| p | - | - |" in sparse_table([dataclasses.asdict(report)])


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


def test_data_of_an_instance_follows_its_coordinates():
    values = (jnp.array([1.0, 2.0]), jnp.array([[3.0]]))
    instance = Instance(
        lambda x: x, jnp.ones(2), lambda x: values, np.array([1, -1, 0]), np.array([0, 5, 1])
    )
    assert instance.nse == 2
    assert list(instance.data(values)) == [3.0, 1.0]
