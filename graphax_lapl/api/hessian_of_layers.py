"""Dense Hessians of networks: which of several programs evaluates them.

Curvatures are contracted with Jacobians, or columns pulled back through layers, and convolutions
taken window by window or as a whole. All have the same results and differ in what they do.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from ..program.columns_last import products_of_matrices
from ..program.counts import work_per_sample
from ..program.hessian import build_hessian
from ..program.hessian_columns import build_hessian_by_columns
from ..program.instructions import Program, moving_inputs
from ..program.repetition import rows_of_samples
from ..program.summed_weights import sum_weights
from ..program.tidying import arranged
from ..program.window_work import WINDOWS, overlaid_numbers
from ..rules.second_order import SecondOrderGraph
from .orders import EliminationOrder
from .plan import Plan
from .planning import Prepared

__all__ = ["plan_of_layers"]

#: What one of many small products of matrices takes that every sample has of its own, beside its
#: arithmetic, in operations of a product that all samples have in common.
OWN_PRODUCT = 12_000
#: Operations on partials, for each instruction of a program, after which another one is given up.
LONGER = 8
#: `WINDOWS` where columns are pulled back window by window.
COLUMNS_OF_WINDOWS = 3.0
#: Operations for each number of a sum of boxes and each pair of them, as windows over padding leave
#: them: what fills a box is computed for every place that it is read at, with the whole sum in it.
OVERLAID = 6
#: What an instruction takes in a program of a single input, in operations.
STARTED = 4000


class _Candidate(NamedTuple):
    """A program of all second derivatives, and what it takes for each of many samples."""

    work: float
    graph: SecondOrderGraph
    program: Program

    @property
    def single(self) -> float:
        """What it takes for a single input."""
        return self.work + STARTED * len(self.program.instructions)


def plan_of_layers(prepared: Prepared, order: EliminationOrder, program: Program) -> Plan:
    """The plan of dense second derivatives of a network.

    Args:
        prepared: the traced call.
        order: the elimination order; no program depends on it.
        program: curvatures contracted with Jacobians, on `prepared.second`.

    Returns:
        The plan with the least predicted work for each of many samples, and where convolutions
        have another one with less for a single input, that beside it.
    """
    graphs = prepared.second_choices
    has_windows = len(graphs) > 1
    limit = LONGER * len(program.instructions)
    contracted = [(prepared.second, program), *((g, build_hessian(g)) for g in graphs[1:])]
    by_columns = [(graph, build_hessian_by_columns(graph, limit)) for graph in graphs]
    found = [
        _Candidate(
            _work(graph, made, weight if has_windows and not graph.listing.whole_windows else None),
            graph,
            made,
        )
        for programs, weight in ((contracted, WINDOWS), (by_columns, COLUMNS_OF_WINDOWS))
        for graph, made in programs
        if made is not None
    ]
    many, single = (min(found, key=key) for key in (lambda c: c.work, lambda c: c.single))
    plan = _plan(many, order)
    if has_windows and single is not many:
        plan = dataclasses.replace(plan, single=_plan(single, order))
    return plan


def _plan(chosen: _Candidate, order: EliminationOrder) -> Plan:
    graph, program = chosen.graph, chosen.program
    own = moving_inputs(program, graph.listing, graph.inputs)
    if not rows_of_samples(program, own):
        return Plan(graph.graph, order, program)
    tidy = arranged(sum_weights(program, own), own)
    return Plan(graph.graph, order, tidy, again=True)


def _work(graph: SecondOrderGraph, program: Program, windows: float | None) -> float:
    """Operations for each of many samples; `windows` is the weight of products of windows."""
    own = moving_inputs(program, graph.listing, graph.inputs)
    work = work_per_sample(program, own)
    if windows is not None:
        work = windows * work + OVERLAID * overlaid_numbers(program)
    return work + OWN_PRODUCT * products_of_matrices(program, own).each
