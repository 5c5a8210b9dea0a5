"""Orders on disk, tables and plots."""

import importlib.util
import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from planner_graphs import MatrixShapeAlgebra, layered_graph, load_task

from elimination_orders import (
    Annealing,
    EliminationGraph,
    InvalidGraphError,
    OrderResult,
    PlanCache,
    find_order,
)
from elimination_orders.native import cache_folder
from elimination_orders.progress import ProgressLine, describe


def only_entry(folder: Path) -> Path:
    (path,) = folder.glob("plan-*.json")
    return path


def test_second_call_is_read(tmp_path):
    graph, _ = load_task("RoeFlux_1d")
    first = find_order(graph, "auto", cache=tmp_path)
    second = find_order(graph, "auto", cache=tmp_path)
    assert second.order == first.order
    assert second.evaluations == 0
    assert "cache" in second.method
    assert second.history[-1].cost == first.cost


def test_names_of_vertices_have_no_influence(tmp_path):
    graph, data = load_task("g")
    find_order(graph, "auto", cache=tmp_path)
    names = {v: f"v{i:04d}" for i, v in enumerate(graph.vertices)}
    other = EliminationGraph(
        [names[v] for v in graph.inputs],
        [names[v] for v in graph.outputs],
        [(names[u], names[v]) for u, v in graph.edges],
        vertices=[names[v] for v in graph.vertices],
    )
    result = find_order(other, "auto", cache=tmp_path)
    assert result.evaluations == 0
    assert result.cost == data["best_known"]


def test_options_and_objectives_have_their_own_entries(tmp_path):
    graph, _ = load_task("PropaneCombustion")
    for options in (
        {},
        {"seed": 1},
        {"max_time": 5},
        {"objective": "unit_muls"},
        {"order": "search"},
        {"order": Annealing(levels=7)},
    ):
        find_order(graph, cache=tmp_path, **options)
    assert len(PlanCache(tmp_path)) == 6


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: "{ not json",
        lambda data: "",
        lambda data: "[]",
        lambda data: json.dumps({**data, "order": data["order"][1:]}),
        lambda data: json.dumps({**data, "order": [data["order"][0], *data["order"][:-1]]}),
        lambda data: json.dumps({**data, "cost": data["cost"] - 1}),
        lambda data: json.dumps({**data, "lower_bound": data["cost"] + 1}),
        lambda data: json.dumps({**data, "lower_bound": "low"}),
        lambda data: json.dumps({k: v for k, v in data.items() if k != "method"}),
    ],
)
def test_corrupt_entries_are_rewritten(tmp_path, damage):
    graph, _ = load_task("RoeFlux_1d")
    first = find_order(graph, "auto", cache=tmp_path)
    path = only_entry(tmp_path)
    good = json.loads(path.read_text())
    path.write_text(damage(good))
    second = find_order(graph, "auto", cache=tmp_path)
    assert second.order == first.order
    assert second.evaluations > 0
    assert json.loads(path.read_text()) == good


def test_improved_keeps_the_better_order(tmp_path):
    graph, _ = load_task("RoeFlux_1d")
    weak = Annealing(starts=("reverse",), max_evaluations=1)
    poor = find_order(graph, weak, cache=tmp_path)
    path = only_entry(tmp_path)
    data = json.loads(path.read_text())
    good = find_order(graph, "auto")
    number = {v: i for i, v in enumerate(graph.eliminable)}
    data.update(order=[number[v] for v in good.order], cost=good.cost)
    path.write_text(json.dumps(data))

    kept = find_order(graph, weak, cache=PlanCache(tmp_path, overwrite="improved"))
    assert kept.order == good.order
    assert kept.cost < poor.cost
    assert json.loads(path.read_text())["cost"] == good.cost

    replaced = find_order(graph, weak, cache=PlanCache(tmp_path, overwrite=True))
    assert replaced.order == poor.order
    assert json.loads(path.read_text())["cost"] == poor.cost

    better = find_order(graph, weak, cache=PlanCache(tmp_path, overwrite="improved"))
    assert better.order == poor.order


def test_size_is_bounded_and_the_oldest_goes_first(tmp_path):
    graph, _ = load_task("PropaneCombustion")
    find_order(graph, seed=0, cache=tmp_path)
    size = only_entry(tmp_path).stat().st_size
    cache = PlanCache(tmp_path, max_bytes=2 * size + size // 2)
    oldest = only_entry(tmp_path)
    os.utime(oldest, ns=(1, 1))
    for seed in (1, 2):
        find_order(graph, seed=seed, cache=cache)
    assert len(cache) == 2
    assert not oldest.exists()
    cache.clear()
    assert len(cache) == 0


def test_folder_that_cannot_be_written_is_no_error(tmp_path):
    file = tmp_path / "file"
    file.write_text("in the way")
    graph, _ = load_task("PropaneCombustion")
    assert find_order(graph, cache=file / "folder").cost == 88


def test_what_cannot_be_told_apart_is_not_kept(tmp_path):
    edges = [("x", "a", (2, 4)), ("a", "b", (3, 2)), ("b", "y", (5, 3))]
    graph = EliminationGraph(["x"], ["y"], edges, MatrixShapeAlgebra())
    find_order(graph, cache=tmp_path)
    find_order(load_task("g")[0], objective=lambda step: step.cost, cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_algebra_with_fingerprints_is_kept(tmp_path):
    class Stable(MatrixShapeAlgebra):
        def fingerprint(self, edge):
            return str(edge)

    def chain(width):
        edges = [("x", "a", (2, 4)), ("a", "b", (width, 2)), ("b", "y", (5, width))]
        return EliminationGraph(["x"], ["y"], edges, Stable())

    find_order(chain(3), cache=tmp_path)
    assert find_order(chain(3), cache=tmp_path).evaluations == 0
    assert find_order(chain(30), cache=tmp_path).evaluations > 0


def _plan(folder: str) -> int:
    graph = layered_graph(1, 5, 5)
    return sum(find_order(graph, seed=seed, cache=folder).cost for seed in range(3))


@pytest.mark.slow
def test_several_processes_share_a_folder(tmp_path):
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        costs = set(pool.map(_plan, [str(tmp_path)] * 6))
    assert len(costs) == 1
    assert len(PlanCache(tmp_path)) == 3
    assert not list(tmp_path.glob("*.tmp"))


def test_cache_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("ELIMINATION_ORDERS_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    graph, _ = load_task("PropaneCombustion")
    find_order(graph, cache=True)
    assert len(list((tmp_path / "mine" / "plans").iterdir())) == 1
    monkeypatch.delenv("ELIMINATION_ORDERS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "elimination_orders"


def test_table_compares_with_the_baselines():
    graph, _ = load_task("RoeFlux_1d")
    lines = str(find_order(graph, "auto")).splitlines()
    assert lines[0].startswith("Elimination order  98 vertices, 177 edges   found by auto")
    assert [line.split()[:2] for line in lines[2:5]] == [
        ["forward", "620"],
        ["reverse", "364"],
        ["markowitz", "344"],
    ]
    assert lines[5].split()[-4] == "295"
    assert lines[5].endswith("0.81")
    assert lines[6] == "No order costs less than 223."
    propane = find_order(load_task("PropaneCombustion")[0], "optimal")
    assert str(propane).endswith("Proved optimal.")


def test_table_of_steps():
    graph = EliminationGraph(["x"], ["y"], [("x", 1), (1, 2), (2, "y"), (1, "y")])
    text = find_order(graph, [2, 1]).steps()
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["1", "2", "1", "x", "1", "1", "1", "0", "2"],
        ["2", "1", "1", "x", "1", "1", "0", "1", "1"],
    ]
    assert find_order(graph, [2, 1]).steps(limit=1).endswith("... 1 more steps")


def test_result_without_graph_says_so():
    result = OrderResult((1, 2), 3, "by hand")
    assert str(result) == repr(result) == "OrderResult(2 vertices, 3 muls, by by hand)"
    with pytest.raises(InvalidGraphError, match="does not know its graph"):
        result.steps()


def test_result_as_plain_types():
    result = find_order(load_task("PropaneCombustion")[0], "auto")
    data = json.loads(json.dumps(result.to_dict()))
    assert data["order"] == list(result.order)
    assert data["history"][-1]["cost"] == data["cost"] == 88


def test_text_of_the_progress_line():
    assert describe("search", 295, 364, 41_234, "T=1") == (
        "search: best 295 (0.81x reverse)  41k orders  T=1"
    )
    assert describe("search", float("inf"), None, 0, "") == "search: starting"
    assert describe("search", 5, None, 12, "") == "search: best 5  12 orders"


def test_progress_is_shown_on_stderr(capsys):
    graph, _ = load_task("RoeFlux_1d")
    with ProgressLine("search", enabled=True) as line:
        line.update(5, 10, 1, "")
    quiet = find_order(graph, "annealing", max_time=0.01)
    capsys.readouterr()
    shown = find_order(graph, "annealing", progress=True)
    assert shown.cost <= quiet.cost
    assert capsys.readouterr().out == ""


def test_plots(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    result = find_order(load_task("RoeFlux_1d")[0], "auto")
    plots = {
        "plot_history": "orders evaluated",
        "plot_steps": "eliminations",
        "plot_graph": "step of elimination",
    }
    # matplotlib is an extra: where it is not installed, the message has to say what to do.
    installed = importlib.util.find_spec("matplotlib") is not None
    for name, label in plots.items():
        if installed:
            fig, ax = getattr(result, name)()
            assert ax.get_xlabel() == label
            assert ax.figure is fig
        else:
            with pytest.raises(ImportError, match="need matplotlib"):
                getattr(result, name)()
    if installed:
        _, ax = result.plot_steps("reverse")
        assert {line.get_label() for line in ax.get_lines()} == {
            f"{result.method}: 295",
            "reverse: 364",
        }
        import matplotlib.pyplot as plt

        plt.close("all")
