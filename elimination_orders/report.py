"""Tables and plots that explain a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elimination_orders.cost import elimination_trace
from elimination_orders.errors import InvalidGraphError
from elimination_orders.graph import EliminationGraph
from elimination_orders.heuristics import HEURISTICS
from elimination_orders.objectives import OBJECTIVES, Objective
from elimination_orders.state import EliminationStep
from elimination_orders.tensorgraph import number_problem

if TYPE_CHECKING:
    from elimination_orders.result import OrderResult

__all__ = ["compare_table", "plot_graph", "plot_history", "plot_steps", "step_table"]

#: Greedy baselines are left out of the table for larger graphs.
MAX_BASELINE = 2000


def compare_table(result: OrderResult) -> str:
    """A header and a line for every baseline and for the result."""
    graph, objective = _require_graph(result)
    problem = number_problem(graph, objective)
    names = ["forward", "reverse"] + (["markowitz"] if len(graph) <= MAX_BASELINE else [])
    rows = []
    for name in names:
        numbers = HEURISTICS[name](problem)
        rows.append((name, [graph.eliminable[i] for i in numbers]))
    rows.append((f"-> {result.method}", list(result.order)))
    lines = []
    width = max(len(name) for name, _ in rows)
    reverse = None
    for name, order in rows:
        steps = elimination_trace(graph, order, objective)
        cost = objective.total(objective.score(step) for step in steps)
        if name == "reverse":
            reverse = cost
        lines.append((name, cost, sum(s.additions for s in steps), max_edges(steps)))
    text = [
        f"Elimination order  {len(graph)} vertices, {len(graph.edges)} edges   "
        f"found by {result.method} in {_seconds(result.seconds)} ({result.evaluations} orders)",
        f"{'order':>{width}}  {objective.name:>10}  {'adds':>8}  {'most edges':>10}  vs reverse",
    ]
    for name, cost, adds, edges in lines:
        ratio = f"{cost / reverse:10.2f}" if reverse else " " * 10
        text.append(f"{name:>{width}}  {cost:>10g}  {adds:>8}  {edges:>10}  {ratio}")
    if result.optimal:
        text.append("Proved optimal.")
    elif result.lower_bound:
        text.append(f"No order costs less than {result.lower_bound:g}.")
    return "\n".join(text)


def step_table(result: OrderResult, limit: int | None = 20) -> str:
    """A line for every elimination.

    Args:
        result: the result.
        limit: at most so many lines; None for all.
    """
    graph, objective = _require_graph(result)
    steps = elimination_trace(graph, result.order, objective)
    shown = steps if limit is None else steps[:limit]
    width = max([6, *(len(str(step.vertex)) for step in shown)])
    lines = [f"step  {'vertex':>{width}}  {'in x out':>9}  {objective.name:>10}  adds  fill  edges"]
    for number, step in enumerate(shown, start=1):
        shape = f"{step.predecessors} x {step.successors}"
        lines.append(
            f"{number:>4}  {step.vertex!s:>{width}}  {shape:>9}  {objective.score(step):>10g}  "
            f"{step.additions:>4}  {step.fill:>4}  {step.edges:>5}"
        )
    if len(shown) < len(steps):
        lines.append(f"... {len(steps) - len(shown)} more steps")
    return "\n".join(lines)


def max_edges(steps: list[EliminationStep]) -> int:
    """The largest number of edges left after a step; 0 without steps."""
    return max((step.edges for step in steps), default=0)


def plot_history(result: OrderResult) -> tuple[Any, Any]:
    """Best cost against the number of orders evaluated.

    Returns:
        Figure and axes of matplotlib.
    """
    plt = _pyplot()
    fig, ax = plt.subplots()
    x = [entry.evaluations for entry in result.history] + [result.evaluations]
    y = [entry.cost for entry in result.history]
    ax.step(x, [*y, *y[-1:]], where="post")
    if result.lower_bound:
        ax.axhline(result.lower_bound, linestyle="--", color="grey", label="lower bound")
        ax.legend()
    ax.set_xscale("symlog")
    ax.set_xlabel("orders evaluated")
    ax.set_ylabel(f"best {result.objective}")
    ax.set_title(repr(result))
    return fig, ax


def plot_steps(result: OrderResult, *others: str) -> tuple[Any, Any]:
    """Cost accumulated along the order, beside heuristics such as ``"reverse"``.

    Args:
        result: the result.
        *others: names of heuristics to compare with; by default forward and reverse.

    Returns:
        Figure and axes of matplotlib.
    """
    plt = _pyplot()
    graph, objective = _require_graph(result)
    problem = number_problem(graph, objective)
    fig, ax = plt.subplots()
    orders = {result.method: list(result.order)}
    for name in others or ("forward", "reverse"):
        orders[name] = [graph.eliminable[i] for i in HEURISTICS[name](problem)]
    for name, order in orders.items():
        total: float = 0
        totals = [total]
        for step in elimination_trace(graph, order, objective):
            total += objective.score(step)
            totals.append(total)
        ax.plot(totals, label=f"{name}: {total:g}", linewidth=2 if name == result.method else 1)
    ax.set_xlabel("eliminations")
    ax.set_ylabel(f"{objective.name} so far")
    ax.legend()
    return fig, ax


def plot_graph(result: OrderResult) -> tuple[Any, Any]:
    """The graph, every vertex at the step of its elimination and coloured by its cost.

    Inputs stand at the bottom, outputs at the top; the height is the length of the longest path
    from an input.

    Returns:
        Figure and axes of matplotlib.
    """
    plt = _pyplot()
    graph, objective = _require_graph(result)
    steps = elimination_trace(graph, result.order, objective)
    place = {step.vertex: i for i, step in enumerate(steps)}
    cost = {step.vertex: objective.score(step) for step in steps}
    level: dict[Any, int] = {}
    for vertex in graph.vertices:
        level[vertex] = 1 + max((level[u] for u in graph.predecessors(vertex)), default=-1)
    top = max(level.values(), default=0) + 1
    position = {}
    for row, height in ((graph.inputs, 0), (graph.outputs, top)):
        for i, vertex in enumerate(row):
            position[vertex] = ((i + 0.5) * max(1, len(steps)) / len(row), height)
    for vertex, step in place.items():
        position[vertex] = (step, level[vertex])
    for vertex in graph.vertices:
        position.setdefault(vertex, (0, level[vertex]))
    fig, ax = plt.subplots()
    for u, v in graph.edges:
        (x0, y0), (x1, y1) = position[u], position[v]
        ax.plot([x0, x1], [y0, y1], color="lightgrey", linewidth=0.5, zorder=1)
    ends = [v for v in graph.vertices if v not in place]
    x, y = zip(*[position[v] for v in ends], strict=True)
    ax.scatter(x, y, color="black", s=12, zorder=2)
    if place:
        x, y = zip(*[position[v] for v in place], strict=True)
        points = ax.scatter(
            x,
            y,
            c=[cost[v] for v in place],
            cmap="viridis",
            s=20,
            zorder=2,
        )
        fig.colorbar(points, ax=ax, label=objective.name)
    ax.set_xlabel("step of elimination")
    ax.set_ylabel("longest path from an input")
    ax.set_title(repr(result))
    return fig, ax


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "Plots of elimination orders need matplotlib. Install it with "
            "`pip install matplotlib`; str(result) and result.steps() do without."
        ) from error
    return plt


def _require_graph(result: OrderResult) -> tuple[EliminationGraph, Objective]:
    if result.graph is None:
        raise InvalidGraphError(
            "result: does not know its graph, so that it cannot be explained. Use a result of "
            "find_order or of a strategy."
        )
    return result.graph, result.reference or OBJECTIVES["muls"]


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 0.95 else f"{1000 * value:.0f} ms"
