"""Straight-line programs: eliminations as products and sums of numbered slots.

A slot holds a partial, whatever that is: a number, an array, a sparse matrix, a value under
tracing.  A compiler needs to know how to multiply two of them in sequence and how to add two of the
same edge; which graph and which kind of elimination a program comes from no longer matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from elimination_orders.beyond import EdgeStep, FaceStep, Pair, Run, run_edges, run_faces
from elimination_orders.dual import Move, run_moves
from elimination_orders.graph import EliminationGraph

__all__ = ["Program", "ProgramStep", "edge_program", "face_program", "moves_program"]


@dataclass(frozen=True)
class ProgramStep:
    """One operation on slots.

    ========== ================================ ================================================
    kind       meaning                          slots
    ========== ================================ ================================================
    `multiply` ``target = left @ right``        `left` is the outer partial, ``v -> w``, `right`
                                                the inner one, ``u -> v``; `target` is new
    `add`      ``target = left + right``        `target` is `left`: the slot holds the sum from
                                                now on; `right` is not used again
    ========== ================================ ================================================
    """

    kind: Literal["multiply", "add"]
    left: int
    right: int
    target: int


@dataclass(frozen=True)
class Program:
    """A sequence of steps from the partials of a graph to its Jacobian.

    Slots are names: ``add`` gives a slot a new value and need not change anything in place.

    Args:
        partials: edges of the graph; slot i holds the partial of the i-th before the first step.
        steps: operations in order.
        results: the Jacobian: (input, output) and the slot that holds it after the last step.
            Nothing is moved at the end, this is the only renaming.
        n_slots: number of slots.
    """

    partials: tuple[Pair, ...]
    steps: tuple[ProgramStep, ...]
    results: tuple[tuple[Pair, int], ...]
    n_slots: int = field(default=0)

    @property
    def multiplications(self) -> int:
        """Number of products."""
        return sum(step.kind == "multiply" for step in self.steps)

    @property
    def additions(self) -> int:
        """Number of sums."""
        return len(self.steps) - self.multiplications

    def last_uses(self) -> dict[int, int]:
        """Place of the step after which a slot is not read any more; results are left out."""
        last = {slot: place for place, s in enumerate(self.steps) for slot in (s.left, s.right)}
        for _, slot in self.results:
            last.pop(slot, None)
        return last

    def run(
        self,
        partials: Mapping[Pair, Any],
        multiply: Callable[[Any, Any], Any | None],
        add: Callable[[Any, Any], Any],
    ) -> dict[Pair, Any]:
        """Carry out the program.

        Args:
            partials: partial by edge.
            multiply: (outer, inner) to their product, or to None where it is structurally zero.
            add: (a, b) to their sum.

        Returns:
            The Jacobian by pair (input, output); entries that are structurally zero are left out.
        """
        slots: list[Any] = [partials[pair] for pair in self.partials]
        slots += [None] * (self.n_slots - len(slots))
        for step in self.steps:
            left, right = slots[step.left], slots[step.right]
            if step.kind == "multiply":
                zero = left is None or right is None
                slots[step.target] = None if zero else multiply(left, right)
            elif right is not None:
                slots[step.target] = right if left is None else add(left, right)
        return {pair: slots[slot] for pair, slot in self.results if slots[slot] is not None}

    def __str__(self) -> str:
        """One line for every step."""
        lines = [f"s{i} = partial of {u} -> {v}" for i, (u, v) in enumerate(self.partials)]
        sign = {"multiply": "*", "add": "+"}
        lines += [f"s{s.target} = s{s.left} {sign[s.kind]} s{s.right}" for s in self.steps]
        lines += [f"d {y} / d {x} = s{slot}" for (x, y), slot in self.results]
        return "\n".join(lines)


def edge_program(graph: EliminationGraph, edge_order: Iterable[EdgeStep]) -> Program:
    """The program of a sequence of edge eliminations.

    Args:
        graph: the graph; its partials are not looked at.
        edge_order: edge eliminations that leave no intermediate vertex.

    Returns:
        The program.

    Raises:
        InvalidOrderError: if a step does not apply, something is left over, or an output has
            successors.
    """
    return _recorded(run_edges, graph, edge_order)


def face_program(graph: EliminationGraph, face_order: Iterable[FaceStep]) -> Program:
    """The program of a sequence of face eliminations.

    Args:
        graph: the graph; its partials are not looked at.
        face_order: face eliminations that leave no face.

    Returns:
        The program.

    Raises:
        InvalidOrderError: as `edge_program`.
    """
    return _recorded(run_faces, graph, face_order)


def moves_program(graph: EliminationGraph, moves: Iterable[Move]) -> Program:
    """The program of a sequence of moves, see `elimination_orders.dual`.

    Args:
        graph: the graph; its partials are not looked at.
        moves: moves among which every eliminable vertex is named.

    Returns:
        The program.
    """
    return _recorded(run_moves, graph, moves)


def _recorded(run: Run, graph: EliminationGraph, steps: Iterable[Any]) -> Program:
    recorder = _Recorder(graph)
    results = run(graph, recorder.start, steps, recorder.multiply, recorder.add)
    return recorder.program(results)


class _Recorder:
    """Writes down what it is asked to multiply and to add."""

    def __init__(self, graph: EliminationGraph) -> None:
        self.partials = tuple(graph._edges)
        self.start: dict[Pair, Any] = {pair: i for i, pair in enumerate(self.partials)}
        self.steps: list[ProgramStep] = []
        self.n_slots = len(self.partials)

    def multiply(self, outer: int, inner: int) -> int:
        self.steps.append(ProgramStep("multiply", outer, inner, self.n_slots))
        self.n_slots += 1
        return self.n_slots - 1

    def add(self, a: int, b: int) -> int:
        self.steps.append(ProgramStep("add", a, b, a))
        return a

    def program(self, results: Mapping[Pair, int]) -> Program:
        return Program(self.partials, tuple(self.steps), tuple(results.items()), self.n_slots)
