"""Long programs on small arrays: what single inputs and small batches are evaluated by instead.

An elimination has an array for every block of entries that is not zero, products with seed
matrices have one for all rows or columns. A robot's dynamics written out over six joints is 3,800
operations on small arrays in the one form and 2,500 in the other, 560 kernels and 230, and a single
input costs what is started, not what is computed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from ..emit.numbers import BATCH
from ..emit.small_programs import is_long, is_small_program
from ..graph.computational_graph import ComputationalGraph
from ..graph.listing import TRANSCENDENTAL, Equation
from ..graph.tracing import Traced
from ..program.counts import TracedWork
from ..program.recomputation import all_primitives
from ..program.timings import expression_of
from ..rules.elementwise import INFINITE_SLOPES, has_finite_slopes
from .compressed import CompressedPlan, compressed_plan, has_branches, has_loops, suits
from .compression import Compressed
from .full_rows import guarded_function, zeros_meet_finite_slopes
from .plan import Plan

__all__ = ["attached", "with_few_samples", "with_products_alone"]

#: Programs with fewer instructions are left as they are: there is little to save, and tracing both
#: programs would take longer than planning. One Runge-Kutta step of Lorenz's equations has 150.
LONG = 100
#: Jacobians of more entries are left as they are: it is not the kernels that they wait for.
MAX_ENTRIES = 2**14
#: What an equation on small arrays costs, whatever it computes, in operations on one sample: 23
#: nanoseconds in a robot's dynamics, 60 to 70 in Runge-Kutta steps, and 0.11 an operation.
EQUATION = 400
#: By how much fewer the equations must be, or how much more loops that are evaluated once may do.
MARGIN = 1.25
#: How many times the arithmetic, on numbers too, an elimination has where columns are pushed sooner
#: through a single input and few samples: XLA repeats it for every entry that is put together.
REPEATED = 2
#: How much more the steps of loops may do, and start, than a program of all of them, whose kernels
#: are handed to other threads from the ninth on.
MORE = 2
#: How often, in the mean, equations are started where most of a program is loops.
LOOPED = 2
#: How many times the equations of nested products second derivatives have before a single input is
#: left to the products. Up to 1.9 elimination took 0.4 to 1.0 of their time, from 2.3 on up to 1.7.
TIMES = 2
#: Below so many samples two forms are not worth it, and from so many on what is computed decides.
FEWEST, MOST = 8, 64
#: Below so many samples columns are pushed with guards: selections take longer than elimination for
#: more.
GUARDED = 17
#: More samples than there are.
ANY = 1 << 62
#: Equations that elimination meets as maps it cannot see into, one for each input or output.
LOOPS = frozenset({"scan", "while"})
#: What lays entries out, adds them, or multiplies them with matrices. Seeds of zeros times slopes
#: that are no finite numbers would be NaN where elimination leaves an entry out.
LINEAR = frozenset(
    """
    dot_general reduce_sum select_n reshape broadcast_in_dim squeeze expand_dims transpose slice
    split unstack rev copy concatenate stack pad tile gather dynamic_slice dynamic_update_slice
    scatter scatter-add cumsum complex real imag conj
    """.split()  # noqa: SIM905
)
#: What writes entries into an array.
WRITING = frozenset(["scatter", "scatter-add", "dynamic_update_slice"])
#: Where slopes of these are infinite, so are their values, or those of what they are part of.
INFINITE_ALIKE = frozenset(
    """
    div exp exp2 expm1 sinh cosh log log1p rsqrt integer_pow abs sign max min cholesky
    triangular_solve magnitude
    """.split()  # noqa: SIM905
)


def with_few_samples(plan: Plan, traced: Traced) -> Plan:
    """The plan, with compressed evaluation of dense results where that is predicted to be faster.

    Either for few samples, or for any number where it neither does more nor starts more: loops
    are then evaluated once for all columns, as JAX does it. With branches beside the loops it is
    the one plan for any number, or none.
    """
    wanted = Compressed()
    loops, branches = has_loops(traced), has_branches(traced)
    if (len(plan.program.instructions) <= LONG and not loops) or not suits(
        traced, plan.graph, wanted
    ):
        return plan
    small = is_small_program(plan.program)
    if small and not is_long(plan.program):
        return plan  # a single input is evaluated number by number, in hardly any kernels
    unsure = _unsure(plan.graph)
    # Of what a loop does inside elimination takes JAX's products, too.
    inside = any(map(_has_loops, unsure))
    written_out = loops and not inside  # all steps of all loops
    if branches and not inside:
        return plan  # two programs could not be differentiated in reverse mode under `jax.vmap`
    if not inside and any(e.name not in INFINITE_SLOPES for e in unsure):
        return plan
    blocks = [block for row in plan.whole.blocks for block in row]
    if sum(math.prod((*b.out_shape, *b.in_shape)) for b in blocks) > MAX_ENTRIES:
        return plan
    found = _pushed(plan, traced, wanted, unsure)
    if found is None or found.compressed is None:
        return plan
    if branches:
        # There is one program then, for any number of samples.
        columns = not found.coloring.rows
        return found if columns and _does_hardly_more(found, plan) else plan
    guarded = found.compressed.guarded is not None
    one, two = plan.traced_work, found.traced_work
    if written_out:
        if found.coloring.rows or not _is_sooner_in_loops(one, two):
            return plan
        limit = MOST
    elif one.arithmetic > REPEATED * two.arithmetic and not (
        _writes_entries(plan.graph) and two.predicted > REPEATED * one.predicted
    ):
        # A row that goes back through loops is all of it: nothing is evaluated for every column.
        rows = inside and not found.coloring.columns and two.predicted < one.predicted
        limit = GUARDED if guarded else ANY if rows else BATCH - 1
    elif small:
        return plan
    elif two.predicted < one.predicted and two.equations < one.equations:
        # A loop for every column works on whole vectors of samples, but evaluates its state again.
        alike = _have_cheap_loops(unsure) and two.equations * MARGIN > one.equations
        limit = GUARDED if guarded else MOST if alike else ANY
    elif inside or guarded or two.equations * MARGIN > one.equations:
        return plan
    else:
        saved, more = EQUATION * (one.equations - two.equations), two.predicted - one.predicted
        limit = MOST if saved >= MOST * more else int(saved / more)
        if limit < FEWEST:
            return plan
    order = dataclasses.replace(plan.order, few=wanted, few_limit=limit)
    return dataclasses.replace(plan, order=order, few=found.compressed)


def with_products_alone(plan: Plan, products: Callable[[], Plan | None]) -> Plan:
    """A plan of second order, with another one for single inputs where that starts far less.

    Not where a zero could meet an infinite slope of a value that is finite: all forms of a plan
    have the same results.

    Args:
        plan: an elimination.
        products: makes the plan that nests products instead; None where there is none.
    """
    if plan.single is not None or len(plan.program.instructions) <= LONG:
        return plan
    if is_small_program(plan.program) and not is_long(plan.program):
        return plan
    if any(equation.name not in INFINITE_ALIKE for equation in _unsure(plan.graph)):
        return plan
    found = products()
    if found is None or TIMES * found.traced_work.equations > plan.traced_work.equations:
        return plan
    return dataclasses.replace(plan, single=found)


def _does_hardly_more(found: Plan, plan: Plan) -> bool:
    """Whether a plan, whose loops are evaluated once, does little more than another one if at all.

    What is predicted of a long one without a trace, with a guess for each loop, is enough: a trace
    of loops that are evaluated for every column takes seconds.
    """
    less = found.traced_work
    if len(plan.program.instructions) > LONG and less.predicted < plan.predicted_work:
        return True
    more = plan.traced_work
    return less.predicted < MARGIN * more.predicted and less.equations <= more.equations


def _has_loops(equation: Equation) -> bool:
    """Whether an equation is a loop, or a branch or call with one inside."""
    return equation.name in LOOPS or not LOOPS.isdisjoint(equation.inside)


def _have_cheap_loops(equations: Sequence[Equation]) -> bool:
    """Whether there are loops among them, all of them without transcendental functions."""
    bodies = [all_primitives(e.name, e.params) for e in equations if e.name in LOOPS]
    return bool(bodies) and all(map(TRANSCENDENTAL.isdisjoint, bodies))


def _writes_entries(graph: ComputationalGraph) -> bool:
    """Whether entries are written into arrays that move, which columns write for each of them."""
    return any(e.name in WRITING and any(e.active) for e in graph.listing.equations)


def _unsure(graph: ComputationalGraph) -> list[Equation]:
    """Equations that move whose slopes may be infinite, for all that is known of them."""
    moving = [equation for equation in graph.listing.equations if any(equation.active)]
    return [e for e in moving if e.name not in LINEAR and not has_finite_slopes(e)]


def _pushed(
    plan: Plan, traced: Traced, wanted: Compressed, unsure: Sequence[Equation]
) -> CompressedPlan | None:
    """Products with seeds, with guards where zeros would meet infinite slopes of some equations.

    None where they can have no guards. Into loops elimination does not see either.
    """
    found = compressed_plan(plan, traced, wanted)
    columns, rows = found.coloring.columns > 0, found.coloring.rows > 0
    inside = any(map(_has_loops, unsure))
    if inside or zeros_meet_finite_slopes(plan.graph, unsure, columns, rows):
        return found
    guarded = None if has_loops(traced) else guarded_function(plan.graph, unsure, found.coloring)
    if guarded is None or found.compressed is None:
        return None
    compressed = dataclasses.replace(found.compressed, guarded=guarded)
    return dataclasses.replace(found, compressed=compressed)


def _is_sooner_in_loops(eliminated: TracedWork, pushed: TracedWork) -> bool:
    """Whether columns pushed through loops take less than a program of all steps written out.

    A loop's few kernels wait for nobody. Rows would need every step's values, and what stands
    beside the loops is better off eliminated.
    """
    (own, dear), (theirs, others) = map(_starts, (eliminated, pushed))
    mostly_loops = own == eliminated.equations and theirs >= LOOPED * pushed.equations
    few = pushed.predicted <= MORE * eliminated.predicted
    return mostly_loops and few and theirs <= MORE * own and others <= MORE * dear


def _starts(work: TracedWork) -> tuple[int, int]:
    """Equations that are started, and how many of them are kernels whatever stands around them."""
    counts = work.starts.items()
    return sum(work.starts.values()), sum(n for name, n in counts if expression_of([name]).kept)


def attached(plan: Plan, traced: Traced) -> Plan:
    """The plan of an elimination, with what its order says about few samples."""
    wanted = plan.order.few
    if wanted is None:
        return plan
    found = _pushed(plan, traced, wanted, _unsure(plan.graph))
    return plan if found is None else dataclasses.replace(plan, few=found.compressed)
