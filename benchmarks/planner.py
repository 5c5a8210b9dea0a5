"""The suite `planner`: what orders cost and how long they take to find, on abstract graphs.

Published graphs of scalars, counted with and without products by a known one, and random layered
graphs. Times are CPU seconds of the search alone, on one core. Set
``ELIMINATION_ORDERS_KERNEL=python`` to measure without the compiled kernel.
"""

import json
import random
import time
from pathlib import Path

from benchmarks.core.suite import (
    EXACT,
    OnStep,
    Outcome,
    Report,
    Reports,
    Settings,
    Suite,
    Task,
    ignore,
)
from benchmarks.core.tables import Plain, outcome, ratio, table
from benchmarks.timing import Ratio
from elimination_orders import OBJECTIVES, EliminationGraph, find_order
from elimination_orders.native import kernel_available
from elimination_orders.search.annealer import make_annealer
from elimination_orders.tensorgraph import number_problem

PUBLISHED = ("RoeFlux_1d", "RobotArm_6DOF", "PropaneCombustion", "g")
#: Layers and their width.
LAYERED = ((10, 10), (100, 10), (50, 20), (1000, 10), (500, 20), (100, 100))
DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "elimination_tasks"
OURS, REFERENCE = "auto", "reverse"
SEEDS = range(1, 6)
SEARCH_SECONDS, RATE_SECONDS = 2.0, 2.0

CAPTION = (
    "Multiplications (unit_muls: those by a known 1 or -1 are free), CPU seconds of the search. "
    "bound: no order is cheaper. rate: orders that the search evaluates per second."
)


def load(name: str) -> tuple[EliminationGraph, dict]:
    """A published graph and the figures that come with it."""
    data = json.loads((DATA / f"{name}.json").read_text())
    return EliminationGraph.from_dict(data), data


def layered(seed: int, layers: int, width: int) -> EliminationGraph:
    """A random layered graph in which every vertex takes two of the two layers before."""
    rng = random.Random(seed)
    rows = [list(range(width))]
    edges = []
    for layer in range(1, layers + 1):
        rows.append([layer * width + i for i in range(width)])
        pool = [vertex for row in rows[max(0, layer - 2) : layer] for vertex in row]
        edges += [(u, v) for v in rows[-1] for u in rng.sample(pool, 2)]
    return EliminationGraph(rows[0], rows[-1], edges)


def layered_name(layers: int, width: int) -> str:
    """Name of a layered graph."""
    return f"layered_{layers}x{width}"


SIZES = {layered_name(*size): size for size in LAYERED}


def measure_problem(
    report: Report,
    settings: Settings = Settings(),  # noqa: B008
    on_step: OnStep = ignore,
) -> None:
    """Costs of the orders that are found on one graph; `settings.max_seconds` limits searches."""
    if report.name in SIZES:
        graph = layered(1, *SIZES[report.name])
        _count(report, graph, "muls", on_step, settings, search=False)
        return
    graph, data = load(report.name)
    report.facts["published"] = data["published"]["alphagrad_best"]
    for objective in ("muls", "unit_muls"):
        if objective == "muls" or report.name != "g":  # the edges of g carry no kinds
            _count(report, graph, objective, on_step, settings, search=True)
    on_step(report, "rate")
    report.facts["rate"] = _rate(graph, min(RATE_SECONDS, settings.max_seconds))
    report.facts["kernel"] = "compiled" if kernel_available() else "Python"


def _count(
    report: Report,
    graph: EliminationGraph,
    objective: str,
    on_step: OnStep,
    settings: Settings,
    *,
    search: bool,
) -> None:
    report.facts["vertices"] = len(graph)
    task = report.tasks[objective] = Task(reference=REFERENCE, null=EXACT)
    for name in ("forward", REFERENCE, OURS):
        on_step(report, name)
        begin = time.process_time()
        result = find_order(graph, name, objective=objective)
        spent = time.process_time() - begin
        task.outcomes[name] = Outcome(seconds=spent, cost=float(result.cost))
        if name == OURS:
            report.facts[f"bound {objective}"] = float(result.lower_bound)
            report.facts[f"optimal {objective}"] = bool(result.optimal)
    if search:
        on_step(report, "search")
        longest = min(SEARCH_SECONDS, settings.max_seconds)
        costs = [
            find_order(graph, "search", seed=seed, max_time=longest, objective=objective).cost
            for seed in SEEDS
        ]
        report.facts[f"search {objective}"] = [float(min(costs)), float(max(costs))]
    below = task.outcomes[REFERENCE].cost or 1.0
    for name, found in task.outcomes.items():
        quotient = (found.cost or 0.0) / below
        task.ratios[name] = {REFERENCE: Ratio(quotient, quotient, quotient)}


def _rate(graph: EliminationGraph, seconds: float) -> float:
    """Orders evaluated per second."""
    problem = number_problem(graph, OBJECTIVES["muls"])
    annealer = make_annealer(problem, range(problem.n - 1, -1, -1), 1)
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        annealer.run(3.0, 500)
    return float(annealer.evaluations / (time.process_time() - begin))


def tables(reports: Reports) -> str:
    """Published graphs, then layered ones."""
    published = [report for report in reports if report["name"] not in SIZES]
    rows = [
        (
            f"{report['name']}, {objective}",
            _cost(task, REFERENCE),
            f"{report['facts']['published']}" if objective == "muls" else "-",
            _cost(task, OURS) + (" (optimal)" if report["facts"][f"optimal {objective}"] else ""),
            ratio(task, OURS, REFERENCE),
            _seconds(task),
            " to ".join(f"{cost:g}" for cost in report["facts"][f"search {objective}"]),
            f"{report['facts'][f'bound {objective}']:g}",
            f"{report['facts'].get('rate', 0):,.0f}",
        )
        for report in published
        for objective, task in report["tasks"].items()
    ]
    header = (
        "published graph, counting",
        "reverse",
        "published",
        "auto",
        "auto / reverse",
        "seconds",
        "search, seeds 1-5",
        "bound",
        "rate",
    )
    layers = [
        (
            f"{report['name']}, {report['facts']['vertices']} vertices",
            *(_cost(task, name) for name in ("forward", REFERENCE, OURS)),
            ratio(task, OURS, REFERENCE),
            _seconds(task),
        )
        for report in reports
        if report["name"] in SIZES
        for task in report["tasks"].values()
    ]
    below = ("layered graph", "forward", "reverse", "auto", "auto / reverse", "seconds")
    return "\n".join([CAPTION, "", table(header, rows), table(below, layers)])


def _cost(task: Plain, name: str) -> str:
    cost = outcome(task, name).get("cost")
    return "-" if cost is None else f"{cost:,.0f}"


def _seconds(task: Plain) -> str:
    spent = outcome(task, OURS).get("seconds")
    return "-" if spent is None else f"{spent:.3f}"


SUITE = Suite("planner", (*PUBLISHED, *SIZES), measure_problem, tables, (OURS,))
