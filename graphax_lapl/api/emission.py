"""A program as a function of arrays, in the forms that suit what it is evaluated for.

A single input, a few samples of `jax.vmap`, a batch and a very large one may each have a program of
their own, with the same results. Which of them are made is decided when the function is called, so
none is traced that is not used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from ..emit.chunks import can_be_in_chunks, chunked_where_large
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
from ..graph.tracing import is_traced
from ..program.at_once import Footprint, can_be_divided
from ..program.before_sums import in_memory_before, shared_in_sums
from ..program.columns_last import columns_last
from ..program.common_weights import products_with_weights, weights_first
from ..program.convolutions import convolution_results, scales_before_convolutions
from ..program.fusion import UNBOUNDED
from ..program.holding import (
    MAX_INSTRUCTIONS,
    deep_expressions,
    worth_holding,
    worth_holding_for_derivatives,
)
from ..program.instructions import Program
from ..program.orientation import contracted_last, oriented, plain_products
from ..program.placed_first import placed_at_once, placed_before_products
from ..program.powers import powers_of_reciprocals
from ..program.quotients import divided_after_sums
from ..program.recomputation import compared_with_results, shared_work
from ..program.regions import regions
from ..program.repetition import numbers_of_layers, repeated_by_samples, rows_of_samples
from ..program.running_sums import added_in_turn
from ..program.scaled_rows import scaled_rows
from ..program.seeds_first import seeds_first
from ..program.selections import with_selections
from ..program.signs import signs_inside
from ..program.sines import sines
from ..program.slopes_outside import ForManySamples, slopes_outside
from ..program.small_products import products_of_many_whole, small_products_in_loops
from ..program.window_work import sums_of_boxes

__all__ = ["Emission", "Run"]

#: Of a list of constants and leaves: the kept values of outputs, and for every output leaf and
#: every differentiated leaf a dense block, or the arrays that a sparse one keeps.
Run = Callable[[Sequence[Any]], tuple[list[Any], list[list[Any]]]]

#: Samples from which on products of weights are made that hold many more numbers than these do, and
#: small products of the function are written out.
MANY = 128
#: Columns of weights from which on rows of all samples are multiplied with them as one matrix,
#: however few numbers the product sums.
LONG_ROWS = 16


@dataclass(frozen=True)
class Emission:
    """What the forms of a program depend on beside it.

    Attributes:
        moving: of a program, those of its inputs that are differentiated or come with the operator.
        common: multiplications with weights that all samples share, where products of matrices are
            most of the operations; otherwise none.
        again: whether results will probably be differentiated again.
        pieces: whether large batches are evaluated in pieces.
    """

    moving: Callable[[Program], set[int]]
    common: int
    again: bool
    pieces: bool

    def emitted(self, program: Program, sparse: bool, few: tuple[Run, int] | None = None) -> Run:
        """The program as a function of its inputs (not jitted).

        Args:
            program: the complete program.
            sparse: whether the arrays that blocks keep are wanted, instead of dense ones.
            few: what dense results are evaluated by instead, and for less than how many samples.
        """
        program = self.placed(powers_of_reciprocals(seeds_first(program)))
        if self.again:
            program = products_of_many_whole(program)
            program = with_selections(program if sparse else oriented(program))
            if sparse:
                return self.evaluation(program, sparse)
            return self.of_second_order(program, few)
        program = weights_first(added_in_turn(program))
        if sparse:
            return self.evaluation(with_selections(contracted_last(program)), sparse)
        return self.of_first_order(program, few)

    def placed(self, program: Program) -> Program:
        """The program, and that for few samples, with products after what tables place."""
        if program.few_samples is not None:
            program = replace(program, few_samples=self.placed(program.few_samples))
        program = placed_at_once(program)
        return placed_before_products(program, self.fixed(program))

    def fixed(self, program: Program) -> set[int]:
        """Slots that no differentiated input enters, most often the same for all samples."""
        return program.unreached(self.moving(program))

    def of_second_order(self, program: Program, few: tuple[Run, int] | None) -> Run:
        """Dense results that are probably differentiated, large batches in pieces."""
        if not _has_rules_for_batches(program):
            return self.evaluation(program)
        made = self.by_samples(program)
        # What is the same for all samples JAX evaluates without reading any.
        same = self.fixed(program).issuperset(program.results)
        if not same and is_small_program(program) and has_arrays(program):
            made = self.in_numbers(program, made, None)
        return made if few is None else for_few_samples(few[0], made, few[1], types=_types(program))

    def by_samples(self, program: Program) -> Run:
        """A program of second order, in the form for as many samples as there are."""

        def divided(program: Program) -> Run:
            return self.in_pieces(program, self.evaluation(program))

        few = program if program.few_samples is None else program.few_samples
        looped = self.in_loops(few)
        one = divided(few)
        several = one if looped is few else divided(looped)
        many = several if few is program else divided(self.in_loops(program))
        return one if many is one else _by_size(one, several, many)

    def of_first_order(self, program: Program, few: tuple[Run, int] | None) -> Run:
        """Dense results, with forms for single inputs and for batches."""
        wide: Program | None = None
        if self.common:
            wide = columns_last(_settled(program), self.moving(program))
        program = contracted_last(oriented(_settled(contracted_last(program))))
        outside = None if is_gpu() else self.for_many(program, wide is not None)
        program = with_selections(program)
        # Programs in numbers decide for themselves what is held.
        holding = functools.cache(lambda: self.holding(program))

        def run(inputs: Sequence[Any]) -> Any:
            return _run(program, inputs, holding(), fixed=self.fixed(program))

        if not _has_rules_for_batches(program):
            return run
        matrices = plain_products(program) if has_plain_equations(program) else None

        def by_matrices(inputs: Sequence[Any]) -> Any:
            assert matrices is not None
            # Regions hold instructions, which read arrays as they lie.
            own = self.holding(matrices) if holding().regions else holding()
            return _run(matrices, inputs, own)

        one = None if matrices is None else by_matrices
        batch: Run = run
        for_batch = self.for_batches(program if wide is None else wide)
        for_many = self.in_loops(for_batch, many=True)
        if for_many is not program:
            one, batch = one or run, self.evaluation(with_selections(for_many))
        if for_many is not for_batch:
            several = run if for_batch is program else self.evaluation(with_selections(for_batch))
            batch = _by_size(several, several, batch)
        if outside is not None:
            together = self.in_loops(self.for_batches(outside.program), many=True)
            together = with_selections(together)
            one = one or run
            batch = for_many_samples(
                batch, self.evaluation(together), outside.samples, outside.shared
            )
        arrays, types = has_arrays(program), _types(program)
        made = batch
        if is_small_program(program) and (arrays or holding().values or holding().sines):
            made = self.in_numbers(program, batch, one, wide is not None)
        elif one is not None:
            made = for_few_samples(one, batch, 2, types=types)
        if is_gpu() and not arrays and _can_be_side_by_side(program):
            several = made
            made = for_few_samples(lambda x: several(side_by_side(x)), several, 2, types=types)
        if few is not None:
            made = for_few_samples(few[0], made, few[1], types=types)
        return self.in_pieces(program, made) if self.pieces else made

    def in_numbers(self, program: Program, run: Run, one: Run | None, wide: bool = False) -> Run:
        """`run`, number by number where that suits it better; the others as in `in_numbers`."""
        plain = functools.partial(_run, program, holding=Holding())
        numbers = in_numbers(run, plain, has_arrays(program), _types(program), one, wide)
        return functools.partial(_as_traced, numbers)

    def evaluation(self, program: Program, sparse: bool = False) -> Run:
        """The program as it is."""
        holding = functools.cache(lambda: self.holding(program, sparse))
        return lambda inputs: _run(program, inputs, holding(), sparse, self.fixed(program))

    def for_batches(self, program: Program) -> Program:
        """The program with products of matrices in the forms that suit batches."""
        moving = self.moving(program)
        # Of several inputs that are differentiated some may be weights, and the rest a sample's.
        if self.common and len(moving) == 1:
            program = products_with_weights(program, self.fixed(program), LONG_ROWS)
        return self.in_loops(program)

    def in_loops(self, program: Program, many: bool = False) -> Program:
        """The program with small products of what each sample has of its own in loops, on CPUs."""
        if is_gpu():
            return program
        return small_products_in_loops(program, self.moving(program), self.again, many)

    def for_many(self, program: Program, wide: bool) -> ForManySamples | None:
        """The program of many samples with common weights, if that is another one.

        Args:
            program: the program of few.
            wide: whether the products of that are wide ones, which not all may become then.
        """
        found = slopes_outside(program, self.moving(program))
        if found is None or (wide and 2 * found.replaced < self.common):
            return None
        return found

    def in_pieces(self, program: Program, run: Run) -> Run:
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

    def holding(self, program: Program, sparse: bool = False) -> Holding:
        """What is written to memory before it is read."""
        pairs, whole = sines(program), regions(program)
        moving = self.moving(program)
        boxes = sums_of_boxes(program, moving)
        if sparse:
            values = dict.fromkeys(shared_work(program) - pairs.keys(), HELD_SIZES)
        else:
            values = worth_holding(program, self.again)
        if self.again and BARRIERS_STAND:  # before JAX 0.12 values take longer with them
            values |= dict.fromkeys(scales_before_convolutions(program), HELD_SIZES)
        values |= dict.fromkeys(compared_with_results(program), (2, UNBOUNDED))
        values |= dict.fromkeys(program.sums | boxes, HELD_SIZES)
        if BARRIERS_STAND:
            values |= dict.fromkeys(deep_expressions(program, self.again), (2, UNBOUNDED))
        if sparse or not self.again:
            return Holding(values, sines=pairs, regions=whole)
        values = dict.fromkeys(in_memory_before(program, moving), HELD_SIZES) | values
        return Holding(
            values,
            worth_holding_for_derivatives(program),
            convolution_results(program) | boxes,
            pairs,
            whole,
            scaled_rows(program, moving),
            repeated_by_samples(program, moving),
            numbers_of_layers(program),
            rows_of_samples(program, moving),
            shared_in_sums(program, moving),
            again=True,
        )


def _run(
    program: Program,
    inputs: Sequence[Any],
    holding: Holding,
    sparse: bool = False,
    fixed: Collection[int] = (),
) -> Any:
    """Values and blocks of a program; no differentiated input enters its `fixed` slots."""
    slots = run_program(program, inputs, holding)
    write = stored_arrays if sparse else functools.partial(dense_block, fixed=fixed)
    blocks = [[write(block, program, slots) for block in row] for row in program.blocks]
    return [slots[slot] for slot in program.values], blocks


def _by_size(one: Run, several: Run, many: Run) -> Run:
    """The form for as many samples as `jax.vmap` evaluates; `one` where that is not known."""

    def run(inputs: Sequence[Any]) -> Any:
        size = samples_of(inputs)
        if size is None:
            return one(inputs)
        return (several if size < MANY else many)(inputs)

    return run


def _has_rules_for_batches(program: Program) -> bool:
    """Whether forms can be chosen by the batch.

    `jax.vmap` of a function with a derivative rule has no tangents for integers.
    """
    inexact = all(jnp.issubdtype(program.slots[s].dtype, jnp.inexact) for s in program.values)
    return inexact and not has_cotangent_rules(program)


def _types(program: Program) -> tuple[list[Any], list[list[Any]]]:
    """Shapes and dtypes of the values and dense blocks of a program."""
    slots = (program.slots[slot] for slot in program.values)
    values = [jax.ShapeDtypeStruct(slot.shape, slot.dtype) for slot in slots]
    blocks = [
        [jax.ShapeDtypeStruct((*b.out_shape, *b.in_shape), b.dtype) for b in row]
        for row in program.blocks
    ]
    return values, blocks


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
