"""A plan: an order, what it costs, and the program it stands for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from ..edges.operations import EVALUATION, ApplyOpaque, MaterializeOpaque
from ..edges.terms import Structure
from ..emit.compressed import CompressedProgram
from ..errors import InvalidArgumentError, NotPicklableError
from ..graph.computational_graph import ComputationalGraph
from ..graph.tracing import is_traced
from ..program.builder import Begun
from ..program.columns_last import Products, products_of_matrices
from ..program.counts import (
    BYTES_PER_OPERATION,
    OpCounts,
    TracedWork,
    count_function,
    count_program,
    traced_work,
)
from ..program.instructions import Program, moving_inputs
from . import saved_plans
from .emission import Emission, Run
from .orders import EliminationOrder
from .saved_plans import SavedPlan

__all__ = ["Plan", "SavedPlan"]

#: How many more operations a multiplication weighs in a product of two matrices that every sample
#: has of its own: in a batch each of them is a product by itself.
OWN = 4
#: Share of its operations that make products with common weights most of a program.
MOSTLY = 0.5


@dataclass(eq=False)
class Plan:
    """How the Jacobian of a function will be accumulated.

    Attributes:
        graph: the computational graph.
        order: the elimination order, with the graph's fingerprint.
        whole: the program that yields values and Jacobian.
        follow: makes the Jacobian function that follows an order (set by `make_plan`).
        again: whether results will probably be differentiated again, as operators in a loss are.
        pieces: whether large batches are evaluated in pieces, where results are few beside what is
            in memory between; programs whose results are differentiated always are.
        mesh: the mesh that was set where it was made, explicit axes automatic.
        few: what dense results of fewer samples than `order.few_limit` are evaluated by instead.
        single: the plan that dense results of a single input are evaluated by instead.
    """

    graph: ComputationalGraph
    order: EliminationOrder
    whole: Program = field(repr=False)
    follow: Callable[[Any], Callable[..., Any]] | None = field(default=None, repr=False)
    again: bool = field(default=False, repr=False)
    pieces: bool = field(default=False, repr=False)
    mesh: Any = field(default_factory=jax.sharding.get_abstract_mesh, repr=False)
    few: CompressedProgram | None = field(default=None, repr=False)
    single: Plan | None = field(default=None, repr=False)

    @classmethod
    def build(
        cls, begun: Begun, order: EliminationOrder, max_work: float | None = None
    ) -> Plan | None:
        """Build the program of an order; None where its accumulation exceeds `max_work` flops."""
        program = begun.program(order.steps or order.vertices, max_work)
        return None if program is None else cls(begun.graph, order, program)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the graph."""
        return self.order.fingerprint

    def is_same_program(self, other: Plan) -> bool:
        """Whether another plan of the same graph and operator leads to the same program."""
        one, two = self.order, other.order
        return (
            type(self) is type(other)
            and one.vertices == two.vertices
            and one.steps == two.steps
            and one.compression == two.compression
            and (one.few, one.few_limit) == (two.few, two.few_limit)
        )

    @cached_property
    def program(self) -> Program:
        """The program of the Jacobian alone, without what only the values need."""
        return self.pruned(values=False)

    @cached_property
    def _pruned(self) -> dict[bool, Program]:
        return {}

    def pruned(self, values: bool) -> Program:
        """The program with all outputs' values, or with the auxiliary ones only."""
        if values not in self._pruned:
            aux = len(self.graph.listing.outputs) - len(self.graph.outputs)
            self._pruned[values] = self.whole.without_dead_code(None if values else aux)
        return self._pruned[values]

    @cached_property
    def counts(self) -> OpCounts:
        """Counted cost in the literature's convention."""
        return count_program(self.program, "ad")

    def count(self, convention: str) -> OpCounts:
        """Counted cost in a convention, see `OpCounts`."""
        return (
            self._emitted_counts
            if convention == "flops"
            else count_program(self.program, convention)
        )

    @cached_property
    def _emitted_counts(self) -> OpCounts:
        return count_program(self.program, "flops")

    @cached_property
    def predicted_work(self) -> float:
        """Emitted operations plus memory traffic, in operations."""
        counts = self.count("flops")
        steps = (getattr(i, "operation", None) for i in self.program.instructions)
        evaluations = sum(isinstance(step, ApplyOpaque | MaterializeOpaque) for step in steps)
        work = counts.flops + EVALUATION * evaluations
        if self.is_mostly_products:
            work += OWN * self._products.own
        return work + counts.bytes / BYTES_PER_OPERATION

    @cached_property
    def _products(self) -> Products:
        return products_of_matrices(self.program, self.moving)

    @property
    def is_mostly_products(self) -> bool:
        """Whether most operations are products of matrices, some of them with common weights."""
        common, own, _ = self._products
        return common > 0 and 2 * (common + own) >= MOSTLY * self.count("flops").flops

    @cached_property
    def function_flops(self) -> int:
        """Multiplications and additions of the function itself."""
        return count_function(self.whole)

    @cached_property
    def traced_work(self) -> TracedWork:
        """Work read off an abstract trace of the emitted program, which sees into opaque maps."""
        listing = self.graph.listing
        places = (*listing.constants, *listing.inputs)
        types = [
            jax.ShapeDtypeStruct(listing.variables[v].shape, listing.variables[v].dtype)
            for v in places
        ]
        with jax.sharding.use_abstract_mesh(self.mesh):
            return traced_work(self.emit(values=False, sparse=True), types)

    @cached_property
    def _compiled(self) -> dict[tuple[bool, bool, bool], Callable[..., Any]]:
        return {}

    def run(self, inputs: Sequence[Any], values: bool, sparse: bool, stable: bool) -> Any:
        """Carry the plan out, compiled where the plan will be met again (`stable`)."""
        # Within a program that is traced as a whole, one more would be traced to be read again.
        staged = is_traced(jnp.zeros(()))
        jitted = stable and not staged and not jax.config.jax_disable_jit  # type: ignore[attr-defined]
        if staged and any(map(is_traced, inputs)):
            inputs = _passed_on([*inputs])
        return self.emitted(values, sparse, jitted)(inputs)

    def emit(self, values: bool, sparse: bool) -> Callable[[Sequence[Any]], tuple[Any, Any]]:
        """The program as a function of its inputs (not jitted).

        Returns:
            A function from the list of constants and leaves to `(values, blocks)`: the kept output
            values, and for every output leaf and every differentiated leaf a dense block, or with
            `sparse` the arrays that it keeps.
        """
        common = 0
        if not sparse and not self.again and self.is_mostly_products:
            common = self._products.common
        few: tuple[Run, int] | None = None
        single = self.single
        if single is not None and not sparse:
            few = (lambda inputs: single.emitted(values, sparse, jitted=False)(inputs)), 2
        if self.few is not None:
            few = functools.partial(self.few.run, values=values, sparse=False), self.order.few_limit
        emission = Emission(self._moving, common, self.again, self.pieces)
        return emission.emitted(self.pruned(values), sparse, few)

    @property
    def moving(self) -> set[int]:
        """Slots of the inputs that are differentiated, or come with the operator."""
        return self._moving(self.program)

    def _moving(self, program: Program) -> set[int]:
        """Inputs of the program that are differentiated, or come with the operator."""
        graph = self.graph
        leaves = {graph.by_name[name].variable for name in graph.inputs}
        return moving_inputs(program, graph.listing, leaves)

    def emitted(
        self, values: bool, sparse: bool, jitted: bool = True
    ) -> Callable[..., tuple[Any, Any]]:
        """`emit`, remembered, and jitted where asked."""
        key = (values, sparse, jitted)
        if key not in self._compiled:
            run = self.emit(values, sparse)
            self._compiled[key] = jax.jit(run, inline=True) if jitted else run
        return self._compiled[key]

    def compile(self) -> Callable[..., Any]:
        """The jitted Jacobian: takes the function's arguments, returns what `jacve` returns.

        Raises:
            InvalidArgumentError: for a plan that was not made by `make_plan`.
        """
        if self.follow is None:
            raise InvalidArgumentError(
                "This plan does not know its function; make it with graphax_lapl.make_plan, or "
                "pass it as jacve(fun, order=plan)."
            )
        return jax.jit(self.follow(self.order))

    def structure(self, output: int = 0, leaf: int = 0) -> Structure | None:
        """Structure of one block; None where it is zero."""
        return self.program.blocks[output][leaf].structure

    def save(self, path: str | Path) -> None:
        """Write the order and the graph's fingerprint to a JSON file."""
        saved_plans.save(SavedPlan(self.order, self.graph.function, self.counts.muls), path)

    @staticmethod
    def load(path: str | Path) -> SavedPlan:
        """Read a saved plan; pass it as `order=` for the function it was made for.

        Raises:
            InvalidArgumentError: where the file is not a saved plan.
        """
        return saved_plans.load(path)

    def __copy__(self) -> Plan:
        """The plan itself: it does not change."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        """The plan itself: it does not change."""
        return self

    def __reduce__(self) -> str:
        """Say what of a plan can be stored.

        Raises:
            NotPicklableError: always.
        """
        raise NotPicklableError(
            f"The plan of {self.graph.function} holds equations that JAX has traced, and they "
            "cannot be pickled. What was searched for can: its order. Pickle plan.order, or "
            "write it with plan.save(path), and pass it as order= where the function is "
            "differentiated; or send the function and make the plan there."
        )

    def __str__(self) -> str:
        graph, counts = self.graph, self.counts
        lines = [
            f"Elimination plan  {graph.function}   {len(graph.eliminable)} vertices to eliminate, "
            f"{len(graph.arrows)} edges   order: {self.order.method}",
            f"{counts.muls} multiplications, {counts.adds} additions, {counts.bytes} bytes moved, "
            f"{counts.peak_bytes} bytes at peak",
            f"{'step':>6} {'vertex':>8}  {'primitive':<24} {'in x out':>9} {'mults':>10} "
            f"{'fill-in':>8}",
        ]
        for step, elimination in enumerate(self.whole.eliminations, start=1):
            vertex = graph.by_name.get(elimination.vertex)
            primitive = vertex.primitive if vertex is not None else self.order.method
            degree = f"{elimination.predecessors} x {elimination.successors}"
            lines.append(
                f"{step:>6} {elimination.vertex:>8}  {primitive:<24} {degree:>9} "
                f"{elimination.cost.ad:>10} {elimination.fill_in:>8}"
            )
        others = counts.muls - sum(counts.by_vertex.values())
        if others:  # second derivatives, columns and traces
            lines.append(f"{'':>6} {'':>8}  {'outside of eliminations':<24} {'':>9} {others:>10}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"Plan({self.graph.function}: {len(self.graph.eliminable)} vertices, "
            f"{self.counts.muls} mults, {self.order.method})"
        )


@functools.partial(jax.jit, inline=True)
def _passed_on(inputs: list[Any]) -> list[Any]:
    """The inputs as JAX's own functions return them.

    Within `jax.jit`, `jax.vmap` hands on an array of numpy as it is, and neither `jax.custom_jvp`
    nor `jax.custom_vjp` takes it.
    """
    return inputs
