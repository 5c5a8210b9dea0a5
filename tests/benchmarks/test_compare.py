"""Errors, tables and the demo's way from a case to a report. Nothing here depends on a time."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

from benchmarks import demo
from benchmarks.compare import FUNCTION, Case, Report, Row, compare, relative_error
from benchmarks.problems import PROBLEMS, brusselator
from benchmarks.render import as_json, markdown, si, table
from benchmarks.timing import Ratio


def test_error_is_relative_to_the_largest_entry():
    expected = {"a": jnp.array([1.0, -4.0]), "b": jnp.array([[2.0]])}
    found = {"a": jnp.array([1.0, -4.0]), "b": jnp.array([[2.5]])}
    assert relative_error(found, expected, batched=False) == 0.125


def test_error_in_a_batch_is_that_of_the_worst_sample():
    expected = (jnp.array([1.0, 100.0]), jnp.array([2.0, 100.0]))
    found = (jnp.array([1.5, 100.0]), jnp.array([2.0, 101.0]))
    assert relative_error(found, expected, batched=True) == 0.25
    assert relative_error(found, expected, batched=False) == 0.01


@pytest.mark.slow
def test_error_of_a_sparse_leaf_counts_missing_wrong_and_needless_entries():
    class Leaf:
        def __init__(self, dense):
            self.dense = dense

        def to_bcoo(self):
            return sparse.BCOO.fromdense(self.dense)

    expected = jnp.array([[2.0, 0.0], [0.0, 4.0]])
    assert relative_error(Leaf(expected), expected, batched=False) == 0.0
    assert relative_error(Leaf(expected.at[1, 1].set(0.0)), expected, batched=False) == 1.0
    assert relative_error(Leaf(expected.at[0, 0].set(3.0)), expected, batched=False) == 0.25
    assert relative_error(Leaf(expected.at[0, 1].set(2.0)), expected, batched=False) == 0.5


def test_error_of_a_zero_jacobian_is_absolute():
    assert relative_error(jnp.array([0.5]), jnp.zeros(1), batched=False) == 0.5
    assert relative_error(jnp.zeros((0, 3)), jnp.zeros((0, 3)), batched=False) == 0.0


def test_error_is_infinite_where_something_is_not_finite():
    assert relative_error(jnp.array([jnp.nan]), jnp.ones(1), batched=False) == float("inf")


def test_leaves_of_another_shape_are_not_compared():
    with pytest.raises(ValueError, match=r"shape \(1, 2\), expected \(2, 1\)"):
        relative_error(jnp.ones((1, 2)), jnp.ones((2, 1)), batched=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 B"),
        (999.0, "999 B"),
        (999.9, "1 kB"),
        (1234.0, "1.23 kB"),
        (2.5e7, "25 MB"),
        (3.2e-4, "320 uB"),
        (5e-9, "5 nB"),
    ],
)
def test_si_prefixes(value, text):
    assert si(value, "B") == text


@pytest.fixture
def report():
    rows = (
        Row("jax.jacrev", None, None, None, 1.0, 2e-3, Ratio(1.0, 1.0, 1.0), None),
        Row("reverse", 364.0, 88.0, 1456.0, 0.9, 1e-3, Ratio(0.5, 0.4, 0.6), 2e-15),
        Row("forward", 620.0, 90.0, 2480.0, 1.1, 3e-3, Ratio(1.5, 1.4, 1.6), 0.0),
    )
    return Report("roe flux", rows, "jax.jacrev", Ratio(1.01, 0.97, 1.05), 21)


def test_tables_show_counts_ratio_error_and_null(report):
    text = markdown(report)
    assert "| reverse | 364 | 88 | 1.46 kB | 900 ms | 1 ms | 0.50 | 2e-15 |" in text
    assert "| jax.jacrev | - | - | - | 1 s | 2 ms | 1.00 | - |" in text
    assert "null (jax.jacrev against itself): 1.01 [0.97, 1.05]" in text
    assert table(report).row_count == 3
    assert report.largest_error == 2e-15


def test_report_as_json_names_versions(report):
    numbers = json.loads(json.dumps(as_json([report])))
    assert numbers["provenance"]["jax"] == jax.__version__
    assert numbers["reports"][0]["rows"][1]["muls"] == 364


@pytest.mark.smoke
def test_comparison_of_a_batch():
    report = compare(Case.of(PROBLEMS["lighthouse"], 8), ["forward", "reverse"], rounds=3)
    names = ["jax.jacfwd", "jax.jacrev", FUNCTION, "forward", "reverse"]
    assert [row.name for row in report.rows] == names
    assert report.largest_error < 1e-13
    assert report.reference in ("jax.jacfwd", "jax.jacrev")
    assert all(row.muls > 0 for row in report.rows[3:])


@pytest.mark.smoke
def test_comparison_of_a_sparse_jacobian():
    case = Case("brusselator", brusselator.brusselator, 0, brusselator.sampler(4), sparse=True)
    report = compare(case, ["reverse"], rounds=3)
    assert report.largest_error < 1e-13


def test_case_draws_repeatable_inputs_in_the_precision_asked_for():
    case = Case.of(PROBLEMS["roe_flux"], 3)
    low, high = case.inputs(jnp.float32), case.inputs(jnp.float64)
    assert [(x.shape, x.dtype) for x in low] == [((3,), jnp.float32)] * 6
    assert [(x.shape, x.dtype) for x in high] == [((3,), jnp.float64)] * 6
    np.testing.assert_array_equal(high, case.inputs(jnp.float64))


@pytest.mark.slow
def test_demo_writes_its_numbers(tmp_path, capsys):
    target = tmp_path / "numbers.json"
    small = ["--batch", "4", "--grid", "4", "--rounds", "3", "--orders", "reverse"]
    assert demo.main([*small, "--json", str(target)]) == 0
    numbers = json.loads(target.read_text())
    assert [entry["title"].partition(",")[0] for entry in numbers["reports"]] == [
        "roe_flux",
        "robot_arm",
        "brusselator",
    ]
    assert "3 problems" in capsys.readouterr().out
