"""What all suites share: measuring, processes and files, tables, comparison. Nothing is timed."""

import dataclasses
import json
import subprocess
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from benchmarks import __main__ as command
from benchmarks.core import methods, supervisor
from benchmarks.core.regression import changes, read_result
from benchmarks.core.suite import EXACT, Outcome, Report, Settings, Suite, Task
from benchmarks.core.tables import floor, geometric_mean, notes, number, table
from benchmarks.timing import Ratio

QUICK = Settings(rounds=3, max_seconds=1.0)


def measured(report, settings, on_step):
    """A suite that needs no clock: the ratio of ours is its problem's name."""
    on_step(report, "peer")
    task = report.tasks["only"] = Task(reference="peer", null=EXACT)
    value = float(report.name)
    task.outcomes = {"ours": Outcome(note="as expected"), "peer": Outcome()}
    task.ratios = {"ours": {"peer": Ratio(value, value, value)}}
    report.facts["rounds"] = settings.rounds


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """Results go to a temporary folder."""
    monkeypatch.setattr(supervisor, "RESULTS", tmp_path)
    made = Suite("made_up", ("1.5", "0.5"), measured, lambda reports: f"{len(reports)}", ("ours",))
    monkeypatch.setitem(command.SUITES, "made_up", made)
    return made


def replace_run(monkeypatch, run):
    """The supervisor alone starts its processes by another function."""
    replaced = SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(supervisor, "subprocess", replaced)


def in_this_process(monkeypatch, change=lambda report: None):
    """Workers run here instead of in processes of their own."""

    def run(arguments, timeout, check):
        status = command.main(arguments[3:])
        return subprocess.CompletedProcess(arguments, status)

    replace_run(monkeypatch, run)


def test_a_suite_writes_numbers_and_tables(suite, tmp_path, monkeypatch, capsys):
    in_this_process(monkeypatch)
    assert command.main(["made_up", "--rounds", "3"]) == 0
    entries = json.loads((tmp_path / "made_up.json").read_text())
    assert [entry["report"]["name"] for entry in entries] == ["1.5", "0.5"]
    assert entries[0]["provenance"]["jax"] == jax.__version__
    assert entries[0]["step"] == "done"
    assert entries[0]["report"]["facts"]["rounds"] == 3
    text = (tmp_path / "made_up.md").read_text()
    assert f"JAX {jax.__version__}" in text
    assert "* 1.5, only, ours; 0.5, only, ours: as expected" in text
    assert "made_up 1.5 (1 of 2): done" in capsys.readouterr().out


@pytest.mark.parametrize("asked", [["--group", "more"], ["--problem", "2.5"]])
def test_further_problems_are_measured_when_asked_for(asked, suite, tmp_path, monkeypatch):
    in_this_process(monkeypatch)
    monkeypatch.setitem(command.SUITES, "made_up", dataclasses.replace(suite, more=("2.5",)))
    assert command.main(["made_up"]) == 0
    assert sorted(path.stem for path in (tmp_path / "made_up").iterdir()) == ["0.5", "1.5"]
    assert "More problems" not in (tmp_path / "made_up.md").read_text()
    assert command.main(["made_up", *asked]) == 0
    named, more = (tmp_path / "made_up.md").read_text().split("## More problems\n")
    assert "\n2\n" in named  # reports in the named tables, and in those of the further ones
    assert more.startswith("\n1\n")


def test_tables_say_which_numbers_are_of_another_state(suite, tmp_path, monkeypatch):
    in_this_process(monkeypatch)
    assert command.main(["made_up"]) == 0
    path = supervisor.file_of(suite, "0.5")
    entry = json.loads(path.read_text())
    entry["provenance"] |= {"jax": "0.0.1", "commit": "abc"}
    path.write_text(json.dumps(entry))
    lines = supervisor.write_tables(suite).splitlines()
    assert f"JAX {jax.__version__}," in lines[0]
    assert lines[0].endswith(" 1.5.")
    assert "JAX 0.0.1," in lines[1]
    assert lines[1].endswith("commit abc. 0.5.")


def test_against_an_earlier_result(suite, tmp_path, monkeypatch, capsys):
    in_this_process(monkeypatch)
    assert command.main(["made_up"]) == 0
    earlier = tmp_path / "earlier.json"
    earlier.write_text((tmp_path / "made_up.json").read_text())
    assert command.main(["made_up", "--against", str(earlier)]) == 0
    assert "2 ratios compared, 0 worse" in capsys.readouterr().out
    entries = json.loads(earlier.read_text())
    entries[0]["report"]["tasks"]["only"]["ratios"]["ours"]["peer"]["median"] = 1.2
    earlier.write_text(json.dumps(entries))
    assert command.main(["made_up", "--against", str(earlier)]) == 1
    assert "* 1.5, only, ours: 1.50 of peer, was 1.20" in capsys.readouterr().out
    assert command.main(["made_up", "--against", str(earlier), "-p", "0.5"]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no JSON", "Expecting value"),
        ("[]", "is not a result of the suite made_up"),
        ("[1]", "is not a result"),
        ('[{"suite": "another"}]', "is not a result"),
    ],
)
def test_what_is_no_result_is_refused(suite, tmp_path, text, message, capsys):
    path = tmp_path / "earlier.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_result(path, "made_up")
    with pytest.raises(SystemExit):
        command.main(["made_up", "--against", str(path)])
    assert "--against" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["jacobain"], "unknown suite jacobain; there are: jacobian, sparse, laplacian, planner"),
        (["planner", "-p", "RoeFlux"], "unknown problem RoeFlux; there are: PropaneCombustion"),
        (["--against", "x.json"], "--against compares the results of one suite"),
    ],
)
def test_unknown_names_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert message in capsys.readouterr().err


def entry(name, ratio, null=EXACT, note="", reference="peer"):
    task = Task(reference=reference, null=null)
    task.outcomes = {"ours": Outcome(note=note), reference: Outcome()}
    if ratio is not None:
        task.ratios = {"ours": {reference: Ratio(ratio, ratio, ratio)}}
    report = Report(name, tasks={"t": task})
    return {"suite": "s", "report": dataclasses.asdict(report)}


@pytest.mark.parametrize(
    ("before", "now", "null", "is_worse"),
    [
        (1.0, 1.09, Ratio(1.0, 0.98, 1.05), False),  # both nulls together allow 1.1025
        (1.0, 1.11, Ratio(1.0, 0.98, 1.05), True),
        (1.0, 1.09, Ratio(1.0, 0.8, 1.0), False),
        (1.0, 0.5, EXACT, False),
        (1.0, None, EXACT, True),
    ],
)
def test_a_ratio_has_grown_where_the_nulls_do_not_explain_it(before, now, null, is_worse):
    (change,) = changes([entry("p", before, null)], [entry("p", now, null, "raises")], ["ours"])
    assert change.is_worse == is_worse
    assert ("no result (raises)" in str(change)) == (now is None)


def test_an_absent_peer_is_no_regression():
    present = entry("p", None)
    present["report"]["tasks"]["t"]["outcomes"]["peer"]["note"] = "peer does not import here"
    assert changes([entry("p", 1.0)], [present], ["ours"]) == []


def test_a_process_that_hangs_is_repeated_without_its_method(suite, tmp_path, monkeypatch):
    commands = []

    def run(arguments, timeout, check):
        commands.append(arguments)
        if len(commands) < 3:
            path = supervisor.file_of(suite, "1.5")
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"step": ["slow peer", "ours"][len(commands) - 1]}))
            raise subprocess.TimeoutExpired(arguments, timeout)

    replace_run(monkeypatch, run)
    assert supervisor._supervise(suite, "1.5", QUICK) == "stopped after 600 s"
    assert [arguments.count("--without") for arguments in commands] == [0, 1]
    assert commands[1][-1] == "slow peer"


def test_method_that_is_absent_raises_hangs_or_is_too_large_is_a_note(monkeypatch):
    def absent():
        raise methods.Unavailable("folx does not import here")

    def broken():
        raise KeyError("no rule")

    def hangs():
        while True:
            time.sleep(0.001)

    for make, note in (
        (absent, "folx does not import here"),
        (broken, "raises KeyError: 'no rule'"),
        (hangs, "more than 0.05 s"),
    ):
        call, outcome = methods.prepared(make, (), 0.05)
        assert (call, outcome.note) == (None, note)
    monkeypatch.setattr(methods, "MEMORY_LIMIT", -1)
    call, outcome = methods.prepared(lambda: jnp.sin, (jnp.ones(3),), 60.0)
    assert call is None
    assert "temporary memory" in outcome.note


def test_absent_peer_names_the_extra(monkeypatch):
    def fails(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(methods.importlib, "import_module", fails)
    with pytest.raises(methods.Unavailable, match=r'folx does not .* pip install -e "\.\[peers\]"'):
        methods.peer("folx")


def test_calls_are_compared_with_the_best_reference_and_a_floor():
    task, x = Task(), jnp.ones(4)
    calls = {name: lambda: jnp.sin(x) for name in ("ours", "f", "peer")}
    calls["writes"] = methods.writes({"a": x, "b": jnp.ones((2, 3))})
    assert [leaf.shape for leaf in calls["writes"]()] == [(4,), (2, 3)]
    methods.time_calls(task, calls, ("peer", "not here"), QUICK)
    assert task.reference == "peer"
    assert task.rounds >= 3
    assert set(task.ratios["ours"]) == {"f", "peer", "writes"}
    plain = dataclasses.asdict(task)
    assert floor(plain) in ("f", "writes")
    slower = max(("f", "writes"), key=lambda name: task.outcomes[name].seconds)
    assert floor(plain) == slower


def test_a_hopeless_call_stays_out_of_the_rounds():
    task, x = Task(outcomes={"slow": Outcome(temp_bytes=3)}), jnp.ones(4)

    def slow():
        time.sleep(0.02)
        return x

    calls = {"ours": slow, "slow": slow, "peer": lambda: x}
    methods.time_calls(task, calls, ("peer",), QUICK, hopeless=3.0, spared=("ours",))
    assert (task.outcomes["slow"].note, task.outcomes["slow"].temp_bytes) == ("timed once", 3)
    assert task.ratios["ours"]["slow"].median > 0
    assert task.outcomes["ours"].note == ""


def test_numbers_means_and_tables():
    assert [number(v) for v in (0.0123, 1.234, 12.3, None, float("inf"))] == [
        "0.012",
        "1.23",
        "12",
        "-",
        "-",
    ]
    assert geometric_mean([0.5, None, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([None]) is None
    assert table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | ---: |\n| 1 | 2 |\n"
    assert table(("a", "b"), []) == ""
    assert notes([]) == ""


def test_a_note_that_many_methods_have_is_one_line():
    tasks = {"value": {"outcomes": {name: {"note": "no folx"} for name in "abcd"}}}
    tasks["training"] = {"outcomes": {"a": {"note": "timed once"}, "b": {"note": ""}}}
    assert notes([{"name": "p", "tasks": tasks}]) == (
        "* p, value, a; p, value, b; p, value, c; and 1 more: no folx\n* p, training, a: timed once"
    )
