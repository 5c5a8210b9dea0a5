"""Figures of the planner: published graphs, layered graphs, and speed.

Run with ``python -m benchmarks.planner`` on one core; prints Markdown.  Times are CPU seconds of
the search alone.  Set ``ELIMINATION_ORDERS_KERNEL=python`` to measure without the compiled kernel.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from elimination_orders import OBJECTIVES, EliminationGraph, OrderResult, find_order
from elimination_orders.native import kernel_available
from elimination_orders.search.annealer import make_annealer
from elimination_orders.tensorgraph import number_problem

TASKS = ("RoeFlux_1d", "RobotArm_6DOF", "PropaneCombustion", "g")
DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "elimination_tasks"


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


def timed(graph: EliminationGraph, objective: str = "muls") -> tuple[OrderResult, float]:
    """Result of ``"auto"`` and its CPU seconds."""
    begin = time.process_time()
    result = find_order(graph, "auto", objective=objective)
    return result, time.process_time() - begin


def published() -> None:
    """The table of published graphs, for both ways to count."""
    print("| graph | counting | reverse | published | auto | seconds | search, seeds 1-5 | bound |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in TASKS:
        graph, data = load(name)
        for objective in ("muls", "unit_muls"):
            if objective == "unit_muls" and name == "g":
                continue  # its edges carry no kinds
            auto, seconds = timed(graph, objective)
            costs = [
                find_order(graph, "search", seed=seed, max_time=2, objective=objective).cost
                for seed in range(1, 6)
            ]
            reverse = find_order(graph, "reverse", objective=objective).cost
            best = data["published"]["alphagrad_best"] if objective == "muls" else ""
            proof = " (optimal)" if auto.optimal else ""
            print(
                f"| {name} | {objective} | {reverse} | {best} | {auto.cost}{proof} | {seconds:.3f} "
                f"| {min(costs)} to {max(costs)} | {auto.lower_bound:g} |"
            )


def speed() -> None:
    """Orders evaluated per second."""
    graph, _ = load("RoeFlux_1d")
    problem = number_problem(graph, OBJECTIVES["muls"])
    annealer = make_annealer(problem, range(problem.n - 1, -1, -1), 1)
    begin = time.process_time()
    while time.process_time() - begin < 2:
        annealer.run(3.0, 500)
    rate = annealer.evaluations / (time.process_time() - begin)
    kind = "compiled kernel" if kernel_available() else "Python"
    print(f"\nRoeFlux_1d, {kind}: {rate:,.0f} orders a second")


def scaling() -> None:
    """Long graphs."""
    print("\n| layered graph | forward | reverse | auto | seconds |")
    print("| --- | --- | --- | --- | --- |")
    for layers, width in ((10, 10), (100, 10), (50, 20), (1000, 10), (500, 20), (100, 100)):
        graph = layered(1, layers, width)
        forward, reverse = (find_order(graph, end).cost for end in ("forward", "reverse"))
        auto, seconds = timed(graph)
        print(
            f"| {len(graph)} vertices, width {width} | {forward} | {reverse} | {auto.cost} "
            f"| {seconds:.2f} |"
        )


if __name__ == "__main__":
    published()
    speed()
    scaling()
