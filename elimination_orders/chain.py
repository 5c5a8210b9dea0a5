"""Chains of maps: how to bracket a product of Jacobians of which some are matrix-free.

A program that runs through stages ``F = F_q o ... o F_1`` has the Jacobian ``F'_q ... F'_1``.  What
is known of a stage is its size, rows times columns, and one or more of

* the matrix itself;
* a *tangent*: the product of the Jacobian with a column, at a cost per column;
* an *adjoint*: the product of a row with the Jacobian, at a cost per row and with a tape that has
  to be held meanwhile.

The Jacobian of the stages ``first`` to ``last`` comes out of one of three operations: the product
of two accumulated Jacobians, the tangent of the last stage applied to the columns of the rest, or
the adjoint of the first stage applied to the rows of the rest. A stage by itself is accumulated by
its tangent applied to an identity, by its adjoint, or is a matrix already. Sub-chains are
independent of each other, so that dynamic programming over all of them finds the optimum in time
cubic in the number of stages (the dense, matrix-free Jacobian chain problem with limited memory:
Naumann, arXiv 2003.05755 and 2406.11862).

*Memory.*  The argument of every stage is kept, so that the tape of a stage can be recorded when its
adjoint is needed and dropped afterwards.  Tapes are therefore held one at a time, and a limit rules
out the adjoints of those stages whose own tape is larger.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from elimination_orders.errors import InvalidGraphError, InvalidOrderError
from elimination_orders.graph import EliminationGraph, Vertex

__all__ = [
    "ChainResult",
    "ChainStage",
    "ChainStep",
    "chain_of",
    "cut_places",
    "find_chain_order",
]

#: Stages that an accumulated Jacobian covers: first and last, counted from 0.
Range = tuple[int, int]
StepKind = Literal["matrix", "accumulate_tangent", "accumulate_adjoint", "multiply"]
ApplyKind = Literal["tangent", "adjoint"]


@dataclass(frozen=True)
class ChainStage:
    """One map of a chain.

    Args:
        rows: size of its value, the rows of its Jacobian.
        columns: size of its argument, the columns of its Jacobian.
        tangent: multiplications for the Jacobian times one column; None if there is no tangent.
        adjoint: multiplications for one row times the Jacobian; None if there is no adjoint.
        memory: what the tape of the adjoint occupies, in the unit of the limit (bytes or elements).
        matrix: whether the Jacobian itself is there, at no cost.
        name: what to call the stage in tables.
        edges: the edges of the graph that the stage consists of, if it comes from `chain_of`.

    Raises:
        InvalidGraphError: if a size is not positive, a cost is negative, or nothing is known of the
            Jacobian.
    """

    rows: int
    columns: int
    tangent: float | None = None
    adjoint: float | None = None
    memory: float = 0
    matrix: bool = False
    name: str = ""
    edges: tuple[tuple[Vertex, Vertex], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Check sizes and costs."""
        if self.rows < 1 or self.columns < 1:
            raise InvalidGraphError(
                f"rows, columns: expected at least 1, got {self.rows} and {self.columns}. Leave "
                "out stages without values."
            )
        for key in ("tangent", "adjoint", "memory"):
            value = getattr(self, key)
            if value is not None and not value >= 0:
                raise InvalidGraphError(f"{key}: expected a number of at least 0, got {value!r}.")
        if self.tangent is None and self.adjoint is None and not self.matrix:
            raise InvalidGraphError(
                "tangent, adjoint, matrix: nothing is known of the Jacobian of the stage. Give the "
                "cost of a tangent or of an adjoint, or set matrix=True."
            )


@dataclass(frozen=True)
class ChainStep:
    """One operation; what it computes is known by the stages that it covers.

    ===================== ==================================================== ====================
    kind                  value of ``target``                                  operands
    ===================== ==================================================== ====================
    `matrix`              the matrix of `stage`                                none
    `accumulate_tangent`  tangent of `stage` applied to an identity            none
    `accumulate_adjoint`  adjoint of `stage` applied to an identity            none
    `multiply`            second operand times first operand                   inner, outer
    `tangent`             tangent of `stage` applied to the operand's columns  inner
    `adjoint`             adjoint of `stage` applied to the operand's rows     outer
    ===================== ==================================================== ====================

    Args:
        kind: see above.
        target: first and last stage of the Jacobian that is computed.
        operands: accumulated Jacobians that it is computed from; none is used a second time.
        stage: number of the stage that is applied, from 0; None for `multiply`.
        cost: multiplications.
        memory: tape that is held meanwhile.
    """

    kind: StepKind | ApplyKind
    target: Range
    operands: tuple[Range, ...] = ()
    stage: int | None = None
    cost: float = 0
    memory: float = 0


@dataclass(frozen=True)
class ChainResult:
    """A cheapest way to accumulate the Jacobian of a chain.

    Args:
        cost: multiplications.
        program: steps in an order in which they can be carried out.
        lower: lower triangle of the table: ``lower[last][first]`` is the least cost of the Jacobian
            of these stages; ``inf`` where the limit leaves no way.
        peak_memory: largest tape that is held.
        forward: cost of tangents alone (of products from the right where there is a matrix only);
            ``inf`` if that is impossible.
        reverse: cost of adjoints alone within the limit, likewise.
    """

    cost: float
    program: tuple[ChainStep, ...]
    lower: tuple[tuple[float, ...], ...] = field(repr=False)
    peak_memory: float
    forward: float
    reverse: float

    def replay(
        self,
        *,
        tangent: Callable[[int, Any], Any] | None = None,
        adjoint: Callable[[int, Any], Any] | None = None,
        matrix: Callable[[int], Any] | None = None,
        identity: Callable[[int, str], Any] | None = None,
    ) -> Any:
        """Carry out the program.

        Args:
            tangent: (stage, columns) to the product of its Jacobian with columns; an array of shape
                (stage's columns, c) becomes one of shape (stage's rows, c).
            adjoint: (stage, rows) to the product of rows with its Jacobian; shape (r, stage's rows)
                becomes (r, stage's columns).
            matrix: stage to its Jacobian, for stages with a matrix.
            identity: (stage, "tangent" or "adjoint") to the identity of the stage's columns or
                rows, for stages that are accumulated.

        Returns:
            The Jacobian; products are those of the operator ``@``.

        Raises:
            InvalidOrderError: if a function that the program needs is missing.
        """
        apply = {"tangent": tangent, "adjoint": adjoint}
        held: dict[Range, Any] = {}
        for step in self.program:
            operands = [held.pop(operand) for operand in step.operands]
            if step.kind == "multiply":
                held[step.target] = operands[1] @ operands[0]
                continue
            if step.kind == "matrix":
                held[step.target] = _given(matrix, "matrix")(step.stage)
                continue
            mode = step.kind.removeprefix("accumulate_")
            seed = operands[0] if operands else _given(identity, "identity")(step.stage, mode)
            held[step.target] = _given(apply[mode], mode)(step.stage, seed)
        return held[0, len(self.lower) - 1]

    def __str__(self) -> str:
        """A table with a line for every step."""
        lines = [f"{'step':<20}{'stages':<12}{'from':<20}{'cost':>12}"]
        for step in self.program:
            covered = f"{step.target[0]}..{step.target[1]}"
            operands = ", ".join(f"{first}..{last}" for first, last in step.operands)
            lines.append(f"{step.kind:<20}{covered:<12}{operands:<20}{step.cost:>12g}")
        lines.append(
            f"{self.cost:g} multiplications (tangents alone {self.forward:g}, adjoints alone "
            f"{self.reverse:g}), tape of at most {self.peak_memory:g}"
        )
        return "\n".join(lines)


def find_chain_order(chain: Iterable[ChainStage], memory_limit: float | None = None) -> ChainResult:
    """The cheapest way to accumulate the Jacobian of a chain of maps.

    With ``M[l, f]`` for the least cost of the stages f to l, m and n for rows and columns, t and a
    for the costs of a tangent and of an adjoint::

        M[k, k] = min(0 if matrix, n_k t_k, m_k a_k)
        M[l, f] = min(M[l, k+1] + M[k, f] + m_l m_k n_f  for f <= k < l,
                      M[l-1, f] + n_f t_l,
                      M[l, f+1] + m_l a_f)

    where adjoints with a tape above the limit are left out.  Runs of tangents or adjoints follow
    from single ones.  Of equals the one with the least tape is taken: tangent, product, adjoint.

    Args:
        chain: stages, the one that is applied first at the front.
        memory_limit: no tape of an adjoint may be larger, in the unit of `ChainStage.memory`; None
            for no limit.

    Returns:
        Cost, program and table.

    Raises:
        InvalidGraphError: if the chain is empty or neighbours do not fit.
        InvalidOrderError: if the limit leaves no way to accumulate a stage.
    """
    stages = tuple(chain)
    _check_chain(stages)
    limit = math.inf if memory_limit is None else memory_limit
    tangents = [math.inf if s.tangent is None else s.tangent for s in stages]
    adjoints = [math.inf if s.adjoint is None or s.memory > limit else s.adjoint for s in stages]
    best: dict[Range, tuple[float, ChainStep]] = {}
    for k, stage in enumerate(stages):
        best[k, k] = _accumulation(k, stage, tangents[k], adjoints[k])
    for length in range(2, len(stages) + 1):
        for first in range(len(stages) - length + 1):
            last = first + length - 1
            best[first, last] = _best_step(stages, best, tangents, adjoints, first, last)
    whole = (0, len(stages) - 1)
    if math.isinf(best[whole][0]):
        k = next(
            k
            for k, s in enumerate(stages)
            if s.tangent is None and not s.matrix and s.memory > limit
        )
        raise InvalidOrderError(
            f"memory_limit: {memory_limit!r} leaves no way to accumulate the chain: stage {k} has "
            f"an adjoint with a tape of {stages[k].memory:g} and nothing else. Raise the limit, or "
            "give the stage a tangent."
        )
    program = tuple(_unroll(best, whole))
    return ChainResult(
        cost=best[whole][0],
        program=program,
        lower=tuple(
            tuple(best[first, last][0] for first in range(last + 1)) for last in range(len(stages))
        ),
        peak_memory=max(step.memory for step in program),
        forward=_sweep(stages, tangents, "tangent"),
        reverse=_sweep(stages, adjoints, "adjoint"),
    )


def _accumulation(
    k: int, stage: ChainStage, tangent: float, adjoint: float
) -> tuple[float, ChainStep]:
    by_tangent, by_adjoint = stage.columns * tangent, stage.rows * adjoint
    if stage.matrix:
        return 0, ChainStep("matrix", (k, k), stage=k)
    if by_tangent <= by_adjoint:
        return by_tangent, ChainStep("accumulate_tangent", (k, k), (), k, by_tangent)
    return by_adjoint, ChainStep("accumulate_adjoint", (k, k), (), k, by_adjoint, stage.memory)


def _best_step(
    stages: Sequence[ChainStage],
    best: dict[Range, tuple[float, ChainStep]],
    tangents: Sequence[float],
    adjoints: Sequence[float],
    first: int,
    last: int,
) -> tuple[float, ChainStep]:
    target, columns, rows = (first, last), stages[first].columns, stages[last].rows
    inner, outer = (first, last - 1), (first + 1, last)
    cost = columns * tangents[last]
    found = best[inner][0] + cost, ChainStep("tangent", target, (inner,), last, cost)
    for k in range(first, last):
        left, right = (first, k), (k + 1, last)
        cost = rows * stages[k].rows * columns
        total = best[left][0] + best[right][0] + cost
        if total < found[0]:
            found = total, ChainStep("multiply", target, (left, right), None, cost)
    cost = rows * adjoints[first]
    total = best[outer][0] + cost
    if total < found[0]:
        memory = stages[first].memory
        found = total, ChainStep("adjoint", target, (outer,), first, cost, memory)
    return found


def _unroll(best: dict[Range, tuple[float, ChainStep]], target: Range) -> list[ChainStep]:
    """Steps that lead to `target`, operands first."""
    # An explicit stack: chains may be longer than Python's recursion limit.
    steps: list[ChainStep] = []
    stack = [target]
    while stack:
        step = best[stack.pop()][1]
        steps.append(step)
        stack.extend(step.operands)
    return steps[::-1]


def _sweep(stages: Sequence[ChainStage], costs: Sequence[float], mode: str) -> float:
    """Cost of one sweep through the chain, by matrices where there is nothing else."""
    seeds = stages[0].columns if mode == "tangent" else stages[-1].rows
    start = 0 if mode == "tangent" else len(stages) - 1
    total: float = 0
    for k, (stage, cost) in enumerate(zip(stages, costs, strict=True)):
        if stage.matrix and k == start:
            continue
        total += seeds * min(cost, stage.rows * stage.columns if stage.matrix else math.inf)
    return total


def _check_chain(stages: Sequence[ChainStage]) -> None:
    if not stages:
        raise InvalidGraphError("chain: expected at least one stage, got none.")
    for k, (inner, outer) in enumerate(itertools.pairwise(stages)):
        if inner.rows != outer.columns:
            raise InvalidGraphError(
                f"chain: stage {k} has {inner.rows} rows, but stage {k + 1} has {outer.columns} "
                "columns. Give the stages in the order in which they are applied."
            )


def _given(function: Callable[..., Any] | None, name: str) -> Callable[..., Any]:
    if function is None:
        raise InvalidOrderError(f"{name}: the program needs it. Give a function.")
    return function


# -- chains in graphs ------------------------------------------------------------------------------


def chain_of(
    graph: EliminationGraph,
    size: Callable[[Vertex], int] | None = None,
    edge_cost: Callable[[Any], float] | None = None,
) -> tuple[ChainStage, ...]:
    """Cut a graph at the vertices that every path from an input to an output runs through.

    A tangent or an adjoint of a stage visits every edge of it once, and the tape of the adjoint
    holds as many partials; all three are the sum of `edge_cost` (Naumann, arXiv 2406.11862, counts
    the edges).  Outputs are no cuts, because they are part of the Jacobian themselves.

    Args:
        graph: any graph; dead vertices are left out.
        size: number of elements of a vertex; by default 1, for scalar graphs.
        edge_cost: multiplications for a partial times one column; by default 1.

    Returns:
        The stages, from the inputs to the outputs; only one if there is no cut, none if no input
        reaches an output.
    """
    size = size or (lambda vertex: 1)
    edge_cost = edge_cost or (lambda edge: 1)
    live = _live_edges(graph)
    if not live:
        return ()
    inputs = tuple(x for x in graph.inputs if any(u == x for u, _ in live))
    outputs = tuple(y for y in graph.outputs if y in set(inputs) or any(w == y for _, w in live))
    cuts = _cuts(graph, live)
    place = {vertex: i for i, vertex in enumerate(cuts)}
    # A vertex that is no cut belongs to the stage that ends at the next cut after it.
    bounds = [graph.position(vertex) for vertex in cuts]
    members: list[list[tuple[Vertex, Vertex]]] = [[] for _ in range(len(cuts) + 1)]
    for u, w in live:
        members[place[w] if w in place else sum(b < graph.position(w) for b in bounds)].append(
            (u, w)
        )
    ends: list[tuple[Vertex, ...]] = [inputs, *((vertex,) for vertex in cuts), outputs]
    edges = graph.edges
    stages = []
    for inner, outer, pairs in zip(ends, ends[1:], members, strict=False):
        work = sum(edge_cost(edges[pair]) for pair in pairs)
        stages.append(
            ChainStage(
                rows=sum(size(vertex) for vertex in outer),
                columns=sum(size(vertex) for vertex in inner),
                tangent=work,
                adjoint=work,
                memory=work,
                name=f"{', '.join(map(str, inner))} -> {', '.join(map(str, outer))}",
                edges=tuple(pairs),
            )
        )
    return tuple(stages)


def _live_edges(graph: EliminationGraph) -> list[tuple[Vertex, Vertex]]:
    """Edges on a path from an input to an output."""
    reached = set(graph.inputs)
    for vertex in graph.vertices:
        if any(u in reached for u in graph.predecessors(vertex)):
            reached.add(vertex)
    needed = set(graph.outputs)
    for vertex in reversed(graph.vertices):
        if any(w in needed for w in graph.successors(vertex)):
            needed.add(vertex)
    return [(u, w) for u, w in graph.edges if u in reached and w in needed]


def _cuts(graph: EliminationGraph, live: Sequence[tuple[Vertex, Vertex]]) -> list[Vertex]:
    """Vertices on every path, in topological order.

    Every live vertex is before or after such a vertex in any topological order, so that a vertex is
    a cut if and only if no path leads past its position: inputs stand before all, outputs after.
    """
    n = len(graph.vertices)
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    spans = [
        (
            -1 if u in inputs else graph.position(u),
            n if w in outputs else graph.position(w),
        )
        for u, w in live
    ]
    spans += [(-1, n) for x in inputs if x in outputs]
    on_path = {vertex for pair in live for vertex in pair} - inputs - outputs
    places = cut_places(spans, n)
    return [graph.vertices[place] for place in places if graph.vertices[place] in on_path]


def cut_places(spans: Iterable[tuple[int, int]], n: int) -> list[int]:
    """Places 0..n-1 that no span leads past.

    Args:
        spans: places of the two ends of every edge in a topological order; -1 for a source and n
            for a sink, wherever it stands.
        n: number of places.
    """
    change = [0] * (n + 1)
    for low, high in spans:
        change[low + 1] += 1
        change[high] -= 1
    found, passing = [], 0
    for place in range(n):
        passing += change[place]
        if passing == 0:
            found.append(place)
    return found
