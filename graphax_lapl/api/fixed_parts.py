"""Orders that multiply first what is the same for all samples of a batch.

Between two nonlinear functions there may be several maps that do not depend on the point:
transforms, filters, layers whose weights are not differentiated. Any order has their product; one
that takes it before slopes enter has it once for a batch, and a sample only multiplies it by them.
"""

from __future__ import annotations

from ..program.builder import Begun
from ..program.counts import work_per_sample
from .orders import EliminationOrder
from .plan import Plan

__all__ = ["with_fixed_parts_first"]

#: A single evaluation may take so many times the work of the cheapest order.
MORE_WORK = 1.25
#: One of many samples accumulates with at most this part of its work.
LESS_WORK = 0.7


def with_fixed_parts_first(begun: Begun, best: Plan) -> Plan:
    """The plan that eliminates vertices between arrows that no input moves before all others.

    Args:
        begun: of the plan's graph.
        best: the cheapest plan; it is returned where one of many samples is not much cheaper
            otherwise, or a single one is more expensive.
    """
    order = best.order
    if order.steps is not None:
        return best
    first = begun.between_fixed_arrows()
    if not first:
        return best
    vertices = (*(v for v in order.vertices if v in first),)
    vertices += (*(v for v in order.vertices if v not in first),)
    if vertices == order.vertices:
        return best
    limit = MORE_WORK * best.predicted_work
    name = f"{order.method}, fixed parts first"
    plan = Plan.build(begun, EliminationOrder(vertices, order.fingerprint, name), limit)
    if plan is None or plan.predicted_work > limit:
        return best
    one, other = (work_per_sample(p.program, p.moving, function=False) for p in (plan, best))
    return plan if one <= LESS_WORK * other else best
