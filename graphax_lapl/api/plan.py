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
from ..emit.chunks import can_be_in_chunks, chunked_where_large
from ..emit.compressed import CompressedProgram
from ..emit.few_samples import for_few_samples, for_many_samples
from ..emit.gpu_batches import is_gpu, side_by_side
from ..emit.holding import BARRIERS_STAND, HELD_SIZES, Holding
from ..emit.innermost import samples_of
from ..emit.run import dense_block, has_cotangent_rules, run_program
from ..emit.small_programs import (
    has_arrays,
    has_plain_equations,
    in_numbers,
    is_small_program,
)
from ..emit.stored import stored_arrays
from ..errors import InvalidArgumentError, NotPicklableError
from ..graph.computational_graph import ComputationalGraph
from ..graph.tracing import is_traced
from ..program.at_once import Footprint, can_be_divided
from ..program.before_sums import in_memory_before, shared_in_sums
from ..program.builder import Begun
from ..program.columns_last import Products, columns_last, products_of_matrices
from ..program.common_weights import products_with_weights, weights_first
from ..program.convolutions import convolution_results, scales_before_convolutions
from ..program.counts import (
    BYTES_PER_OPERATION,
    OpCounts,
    TracedWork,
    count_function,
    count_program,
    traced_work,
)
from ..program.fusion import UNBOUNDED
from ..program.holding import MAX_INSTRUCTIONS, worth_holding, worth_holding_for_derivatives
from ..program.instructions import Program, moving_inputs
from ..program.orientation import contracted_last, oriented, plain_products
from ..program.powers import powers_of_reciprocals
from ..program.quotients import divided_after_sums
from ..program.recomputation import compared_with_results, shared_work
from ..program.regions import regions
from ..program.repetition import numbers_of_layers, repeated_by_samples, rows_of_samples
from ..program.scaled_rows import scaled_rows
from ..program.selections import with_selections
from ..program.signs import signs_inside
from ..program.sines import sines
from ..program.slopes_outside import ForManySamples, slopes_outside
from ..program.small_products import small_products_in_loops
from . import saved_plans
from .orders import EliminationOrder
from .saved_plans import SavedPlan

__all__ = ["Plan", "SavedPlan"]

#: How many more operations a multiplication weighs in a product of two matrices that every sample
#: has of its own: in a batch each of them is a product by itself.
OWN = 4
#: Share of its operations that make products with common weights most of a program.
MOSTLY = 0.5
#: Samples from which on products of weights are made that hold many more numbers than these do.
MANY = 128
#: Columns of weights from which on rows of all samples are multiplied with them as one matrix,
#: however few numbers the product sums.
LONG_ROWS = 16


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
    """

    graph: ComputationalGraph
    order: EliminationOrder
    whole: Program = field(repr=False)
    follow: Callable[[Any], Callable[..., Any]] | None = field(default=None, repr=False)
    again: bool = field(default=False, repr=False)
    pieces: bool = field(default=False, repr=False)
    mesh: Any = field(default_factory=jax.sharding.get_abstract_mesh, repr=False)
    few: CompressedProgram | None = field(default=None, repr=False)

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
        program = powers_of_reciprocals(self.pruned(values))
        wide: Program | None = None
        outside: ForManySamples | None = None
        if not self.again:
            program = weights_first(program)
            if not sparse and self.is_mostly_products:
                wide = columns_last(_settled(program), self._moving(program))
            program = contracted_last(program)
        if not sparse:
            program = oriented(program if self.again else _settled(program))
            if not self.again:
                program = contracted_last(program)
            if not self.again and not is_gpu():
                outside = self._for_many_samples(program, wide is not None)
        program = with_selections(program)
        write: Callable[..., Any] = stored_arrays if sparse else dense_block

        def run(
            inputs: Sequence[Any], holding: Holding, program: Program = program
        ) -> tuple[list[Any], list[list[Any]]]:
            slots = run_program(program, inputs, holding)
            blocks = [[write(block, program, slots) for block in row] for row in program.blocks]
            return [slots[slot] for slot in program.values], blocks

        # Programs in numbers decide for themselves what is held.
        holding = functools.cache(lambda: self._holding(program, sparse))

        def held(inputs: Sequence[Any]) -> tuple[list[Any], list[list[Any]]]:
            return run(inputs, holding())

        # `jax.vmap` of a function with a derivative rule has no tangents for integers.
        inexact = all(jnp.issubdtype(program.slots[s].dtype, jnp.inexact) for s in program.values)
        if sparse or not inexact or has_cotangent_rules(program):
            return held
        if self.again and program.few_samples is not None:
            small = program.few_samples
            holding_few = functools.cache(lambda: self._holding(small, sparse))
            many = self._in_pieces(program, held)
            few_in_pieces = self._in_pieces(small, lambda x: run(x, holding_few(), small))

            def by_samples(inputs: Sequence[Any]) -> tuple[list[Any], list[list[Any]]]:
                size = samples_of(inputs)
                return (many if size is not None and size >= MANY else few_in_pieces)(inputs)

            return by_samples
        if self.again:
            return self._in_pieces(program, held)
        matrices = plain_products(program) if has_plain_equations(program) else None

        def by_matrices(inputs: Sequence[Any]) -> tuple[list[Any], list[list[Any]]]:
            assert matrices is not None
            # Regions hold instructions, which read arrays as they lie.
            own = self._holding(matrices, sparse) if holding().regions else holding()
            return run(inputs, own, matrices)

        one = None if matrices is None else by_matrices
        batch: Callable[[Sequence[Any]], Any] = held
        many_samples = self._for_batches(program if wide is None else wide)
        if many_samples is not program:
            one, batch = one or held, self._carried_out(many_samples, run)
        if outside is not None:
            together = self._carried_out(self._for_batches(outside.program), run)
            one = one or held
            batch = for_many_samples(batch, together, outside.samples, outside.shared)
        arrays, types = has_arrays(program), _types(program)
        made = batch
        if is_small_program(program) and (arrays or holding().values or holding().sines):
            plain = functools.partial(run, holding=Holding())
            numbers = in_numbers(batch, plain, arrays, types, one, wide=wide is not None)
            made = functools.partial(_as_traced, numbers)
        elif one is not None:
            made = for_few_samples(one, batch, 2, types=types)
        if is_gpu() and not arrays and _can_be_side_by_side(program):
            several = made
            made = for_few_samples(lambda x: several(side_by_side(x)), several, 2, types=types)
        if (few := self.few) is not None:
            pushed = functools.partial(few.run, values=values, sparse=False)
            made = for_few_samples(pushed, made, self.order.few_limit, types=types)
        return self._in_pieces(program, made) if self.pieces else made

    def _carried_out(
        self, program: Program, run: Callable[..., Any]
    ) -> Callable[[Sequence[Any]], Any]:
        """Another program of dense results as a function of its inputs."""
        selected = with_selections(program)
        holding = functools.cache(lambda: self._holding(selected, sparse=False))
        return lambda inputs: run(inputs, holding(), selected)

    def _for_batches(self, program: Program) -> Program:
        """The program with products of matrices in the forms that suit batches."""
        moving = self._moving(program)
        # Of several inputs that are differentiated some may be weights, and the rest a sample's.
        if self.is_mostly_products and len(moving) == 1:
            program = products_with_weights(program, program.unreached(moving), LONG_ROWS)
        return program if is_gpu() else small_products_in_loops(program, moving)

    def _for_many_samples(self, program: Program, wide: bool) -> ForManySamples | None:
        """The program of many samples with common weights, if that is another one.

        Args:
            program: the program of few.
            wide: whether the products of that are wide ones, which not all may become then.
        """
        found = slopes_outside(program, self._moving(program))
        if found is None or (wide and 2 * found.replaced < self._products.common):
            return None
        return found

    def _in_pieces(
        self, program: Program, run: Callable[[Sequence[Any]], Any]
    ) -> Callable[[Sequence[Any]], Any]:
        """A program of dense results, under `jax.vmap` as many samples at once as are worth it."""
        if len(program.instructions) > MAX_INSTRUCTIONS or not can_be_divided(program):
            return run

        @functools.cache
        def footprint(own: tuple[bool, ...]) -> Footprint:
            pairs = zip(program.inputs, own, strict=True)
            return Footprint.of(program, {slot for slot, moves in pairs if moves})

        def samples(own: Sequence[bool], size: int) -> int:
            return footprint(tuple(own)).samples(size) if can_be_in_chunks() else size

        return chunked_where_large(run, _types(program), samples)

    def _holding(self, program: Program, sparse: bool) -> Holding:
        """What is written to memory before it is read."""
        pairs, whole = sines(program), regions(program)
        if sparse:
            values = dict.fromkeys(shared_work(program) - pairs.keys(), HELD_SIZES)
        else:
            values = worth_holding(program, self.again)
        if self.again and BARRIERS_STAND:  # before JAX 0.12 values take longer with them
            values |= dict.fromkeys(scales_before_convolutions(program), HELD_SIZES)
        values |= dict.fromkeys(compared_with_results(program), (2, UNBOUNDED))
        values |= dict.fromkeys(program.sums, HELD_SIZES)
        if sparse or not self.again:
            return Holding(values, sines=pairs, regions=whole)
        moving = self._moving(program)
        values = dict.fromkeys(in_memory_before(program, moving), HELD_SIZES) | values
        return Holding(
            values,
            worth_holding_for_derivatives(program),
            convolution_results(program),
            pairs,
            whole,
            scaled_rows(program, moving),
            repeated_by_samples(program, moving),
            numbers_of_layers(program),
            rows_of_samples(program, moving),
            shared_in_sums(program, moving),
            again=True,
        )

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


def _types(program: Program) -> tuple[list[Any], list[list[Any]]]:
    """Shapes and dtypes of the values and dense blocks of a program."""
    slots = (program.slots[slot] for slot in program.values)
    values = [jax.ShapeDtypeStruct(slot.shape, slot.dtype) for slot in slots]
    blocks = [
        [jax.ShapeDtypeStruct((*b.out_shape, *b.in_shape), b.dtype) for b in row]
        for row in program.blocks
    ]
    return values, blocks


@functools.partial(jax.jit, inline=True)
def _passed_on(inputs: list[Any]) -> list[Any]:
    """The inputs as JAX's own functions return them.

    Within `jax.jit`, `jax.vmap` hands on an array of numpy as it is, and neither `jax.custom_jvp`
    nor `jax.custom_vjp` takes it.
    """
    return inputs


def _settled(program: Program) -> Program:
    """The program with denominators and signs where the fewest operations have them."""
    return signs_inside(divided_after_sums(program))


def _as_traced(run: Callable[[Sequence[Any], bool], Any], inputs: Sequence[Any]) -> Any:
    """`run`, told whether what it does is recorded by a trace."""
    return run(inputs, is_traced(jnp.zeros(())))


def _can_be_side_by_side(program: Program) -> bool:
    """Whether several numbers of one type are all that a program reads."""
    types = {(program.slots[slot].shape, program.slots[slot].dtype) for slot in program.inputs}
    return len(program.inputs) > 1 and len(types) == 1 and not any(shape for shape, _ in types)
