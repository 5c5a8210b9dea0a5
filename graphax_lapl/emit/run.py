"""Replaying a program under JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..edges.operations import Einsum, Read
from ..edges.storage import stored_placement
from ..program.instructions import (
    Block,
    ConstantInstruction,
    CurvatureInstruction,
    EdgeInstruction,
    LocalInstruction,
    OpaqueInstruction,
    PrimalInstruction,
    Program,
    RowHessianInstruction,
)
from ..program.regions import Region
from ..program.scaled_rows import ScaledRows
from ..program.sines import Sine
from ..program.summed import SINES_INSIDE
from .arrays import at_least, broadcast_labels, promoted, read, scaled
from .assembly import assemble
from .blocks_on_diagonal import are_blocks_on_diagonal
from .coordinates import MAX_GATHERED, gathered_dense, is_gathered
from .curvature import second_derivative
from .diagonals import by_samples, diagonals, masked_sum
from .holding import Holding, held, linear_barrier
from .innermost import samples_first
from .joined_pulls import joined_pulls
from .joined_pushes import joined_pushes
from .kept_pulls import kept_pulls, value_and_pull
from .opaque import (
    LinearMap,
    apply_sums,
    apply_together,
)
from .products import as_exact, matrix_product, sum_with_weights, vector_first
from .pushed_together import values_and_pushed, written_together
from .recipes import operate
from .regions import Body, evaluated, sum_of_products, summed
from .rows import row_hessian
from .sines import Pair, sine_and_cosine, sine_and_cosine_inside
from .sorting import selected_places, selecting, values_and_places
from .stacked import is_stacked
from .stored import block_storage, cast_to, stored_arrays
from .summed_pulls import SummedPulls, summed_pulls
from .valued_pushes import valued_pushes

__all__ = ["dense_block", "has_cotangent_rules", "run_program"]

_NOTHING = Holding()


def run_program(program: Program, inputs: Sequence[Any], holding: Holding = _NOTHING) -> list[Any]:
    """Evaluate all instructions; returns the slots' contents.

    Args:
        program: the program.
        inputs: constants of the trace, then the arguments' leaves (arrays or tracers).
        holding: what is written to memory before it is read.
    """
    slots: list[Any] = [None] * len(program.slots)
    for slot, value in zip(program.inputs, inputs, strict=True):
        # Constants of a trace may be arrays of other kinds, without the methods of JAX's.
        slots[slot] = value if isinstance(value, jax.Array) else jnp.asarray(value)
    inexact = [
        s for s in map(slots.__getitem__, program.inputs) if jnp.issubdtype(s.dtype, jnp.inexact)
    ]
    # Derivative rules of JAX mix dtypes in places; the user's strictness is about the user's code.
    of_function = matrix_product if holding.again else lax.dot_general
    # What common weights on the left multiply has the batch behind it; so has what comes out.
    behind = any(
        isinstance(i, EdgeInstruction) and isinstance(i.operation, Einsum) and i.operation.common
        for i in program.instructions
    )
    dot = of_function if behind else functools.partial(vector_first, of_function)
    of_partials = (
        functools.partial(matrix_product, stored=True)
        if holding.again
        else functools.partial(vector_first, lax.dot_general)
    )
    of_numbers = functools.partial(matrix_product, stored=True, numbers_summed=True)
    of_vectors = functools.partial(vector_first, of_partials)
    with jax.numpy_dtype_promotion("standard"):
        whole = frozenset().union(*(region.slots for region in holding.regions.values()))
        summed = summed_pulls(program, whole)
        sums = {pull.place: pull for pull in summed}
        done = {place for pull in summed for place in (*pull.pulls, *pull.entries)}
        pushes = {k: g for k, g in joined_pushes(program).items() if done.isdisjoint(g)}
        apart = done.union(*pushes.values())
        joined = {k: group for k, group in joined_pulls(program).items() if apart.isdisjoint(group)}
        kept = kept_pulls(program, inputs, joined, summed)
        valued = valued_pushes(program, inputs, pushes)
        valued = {k: group for k, group in valued.items() if done.isdisjoint(group)}
        ways: dict[int, tuple[Any, int, int]] = {}
        select = selecting(program)
        places: dict[int, Sequence[Array | None]] = {}
        early: dict[int, Sequence[Any]] = {}
        pairs: dict[int, Pair] = {}
        totals = {r.place: r for r in holding.regions.values() if r.sines}
        # A library that evaluates sines takes layers in front of them as well, and has one sine
        # without its cosine as quickly as polynomials have both.
        left = (r for r in totals.values() if SINES_INSIDE and (r.layered or not r.has_pairs))
        products = {region.place: region.result for region in left}
        totals = {k: region for k, region in totals.items() if k not in products}
        for k, instruction in enumerate(program.instructions):
            if not whole.isdisjoint(instruction.outputs):
                region = holding.regions.get(instruction.outputs[0])
                if region is not None and region.place not in totals:
                    slots[region.result] = evaluated(*_region(region, slots, holding, dot))
                continue
            if k in joined:
                early.update(
                    _together([program.instructions[n] for n in joined[k]], joined[k], slots)
                )
            if k in pushes and k not in early:
                early.update(_written(program, pushes[k], slots))
            if k in sums:
                early.update(_summed(sums[k], program, slots))
            values = [slots[slot] for slot in instruction.inputs]
            if k in done:
                results = early.pop(k) if k in early else _zeros(instruction, program)
            elif k in valued:
                results, written = _valued(program, valued[k], values, slots)
                early.update(written)
            elif k in kept:
                results, pull = value_and_pull(kept[k], values)
                if pull is not None:
                    ways.update((slot, (pull, out, into)) for slot, out, into in kept[k].maps)
            elif isinstance(instruction, PrimalInstruction) and id(instruction.equation) in select:
                results, places[id(instruction.equation)] = values_and_places(
                    instruction.equation, values
                )
            elif instruction.outputs and (sine := holding.sines.get(instruction.outputs[0])):
                if sine.argument not in pairs:
                    pairs[sine.argument] = _pair(sine, values[0], inexact)
                results = [pairs[sine.argument][sine.place]]
            elif instruction.outputs and (rows := holding.rows.get(instruction.outputs[0])):
                results = [_scaled_rows(rows, instruction, slots, of_partials)]
            elif not holding.repeated.isdisjoint(instruction.outputs):
                results = [_repeated(instruction, values)]
            elif not holding.apart.isdisjoint(instruction.outputs):
                results = [_summed_apart(instruction, values, of_partials)]
            elif k in totals:
                results = [_total(instruction, totals[k], slots, holding, dot)]
            elif not holding.numbers.isdisjoint(instruction.outputs):
                results = _number(instruction, values, of_numbers)
            elif not holding.vectors.isdisjoint(instruction.outputs):
                results = _execute(instruction, values, dot, of_vectors)
            elif k in products and len(values) == 2:
                results = [_product(instruction, products[k], slots)]
            else:
                results = (
                    early.pop(k) if k in early else _execute(instruction, values, dot, of_partials)
                )
            if places and isinstance(instruction, OpaqueInstruction):
                reference = instruction.reference
                results[0].places = selected_places(reference, places.get(id(reference.equation)))
            for slot, result in zip(instruction.outputs, results, strict=True):
                if slot in ways:
                    result.kept = ways[slot]
                slots[slot] = holding.apply(slot, result, inexact)
    return slots


def _together(
    instructions: Sequence[Any], places: Sequence[int], slots: Sequence[Any]
) -> dict[int, Sequence[Any]]:
    """Results of instructions that pull the same rows, by their places."""
    maps = [slots[instruction.inputs[0]] for instruction in instructions]
    arrays = [slots[slot] for slot in instructions[0].inputs[1:]]
    operations = [instruction.operation for instruction in instructions]
    found = apply_together(operations, maps, *arrays)
    return {place: [result] for place, result in zip(places, found, strict=True)}


def _written(
    program: Program, places: Sequence[int], slots: Sequence[Any]
) -> dict[int, Sequence[Any]]:
    """Maps that are written out at once, by the places of the instructions that would do so."""
    instructions: list[Any] = [program.instructions[k] for k in places]
    maps = [slots[instruction.inputs[0]] for instruction in instructions]
    found = written_together([instruction.operation for instruction in instructions], maps)
    return {k: [array] for k, array in zip(places, found, strict=True)}


def _valued(
    program: Program, places: Sequence[int], values: list[Any], slots: Sequence[Any]
) -> tuple[Sequence[Any], dict[int, Sequence[Any]]]:
    """What an equation computes, and pushed columns, by the places of what pushes them."""
    instructions: list[Any] = [program.instructions[k] for k in places]
    made = {i.outputs[0]: i for i in program.instructions if isinstance(i, OpaqueInstruction)}
    makers = [made[instruction.inputs[0]] for instruction in instructions]
    maps = [LinearMap(maker.reference, values, maker.types) for maker in makers]
    columns = [slots[i.inputs[1]] if len(i.inputs) > 1 else None for i in instructions]
    results, found = values_and_pushed([i.operation for i in instructions], maps, columns)
    return results, {k: [array] for k, array in zip(places, found, strict=True)}


def _summed(pull: SummedPulls, program: Program, slots: Sequence[Any]) -> dict[int, Sequence[Any]]:
    """Rows pulled from several outputs, added for every input, by the places of the sums' entries.

    Whatever else enters these sums is zero.
    """
    maps = [[slots[slot] for slot in own] for own in pull.maps]
    rows = [scaled(slots[s], weight) for s, weight in zip(pull.rows, pull.weights, strict=True)]
    found = apply_sums(pull.operations, maps, rows)
    shapes = [program.slots[program.instructions[k].outputs[0]].shape for k in pull.results]
    results = (lax.reshape(array, shape) for array, shape in zip(found, shapes, strict=True))
    return {k: [scaled(r, pull.coefficient)] for k, r in zip(pull.results, results, strict=True)}


def _zeros(instruction: Any, program: Program) -> Sequence[Any]:
    (slot,) = instruction.outputs
    return [jnp.zeros(program.slots[slot].shape, program.slots[slot].dtype)]


def _product(instruction: Any, expression: int, slots: Sequence[Any]) -> Array:
    """The sum of all products with an expression of sines."""
    first, second = instruction.inputs
    factor = second if first == expression else first
    total = sum_of_products(slots[expression], slots[factor])
    return scaled(total, instruction.operation.coefficient)


def _number(
    instruction: Any, values: Sequence[Array], of_numbers: Callable[..., Array]
) -> Sequence[Array]:
    """A number behind layers: a dot product, or rows times weights, summed."""
    operation = instruction.operation
    first, second = (view.labels for view in operation.reads)
    if (first < second or second < first) and not operation.real and as_exact(*values):
        return [sum_with_weights(operation, values)]
    return [operate(operation, values, instruction.dtype, of_numbers)]


def _scaled_rows(
    rows: ScaledRows, instruction: Any, slots: Sequence[Any], dot: Callable[..., Array]
) -> Array:
    """A product with its other form as the value; derivatives are those of its own form."""

    def own(operands: Sequence[Array], others: Sequence[Array]) -> Array:
        del others
        return operate(instruction.operation, operands, instruction.dtype, dot)

    def other(operands: Sequence[Array], others: Sequence[Array]) -> Array:
        del operands
        matrix, vector, right = others
        scaled = operate(rows.scaling, [matrix, vector], instruction.dtype, dot)
        return operate(rows.product, [scaled, right], instruction.dtype, dot)

    product = _valued_by(other, own)
    operands = [slots[slot] for slot in instruction.inputs]
    result: Array = product(operands, [slots[slot] for slot in rows.slots])
    return result


def _repeated(instruction: Any, operands: Sequence[Array]) -> Array:
    """A product of repeated operands; what its derivatives repeat is theirs alone.

    The derivative with respect to one operand is a sum of products with the other, and XLA's
    library takes a repeated array into a sum only where nothing else reads it. Of a sum over
    another axis than the last it makes a product of matrices whose entries lie apart; therefore
    these products are in memory before.
    """
    operation = instruction.operation
    sizes = dict(operation.sizes)

    def product(*operands: Array) -> Array:
        return operate(operation, operands, instruction.dtype)

    def wide(operand: Array, own: Read) -> Array:
        value, names = read(operand, own, sizes)
        return broadcast_labels(value, names, operation.output, sizes)

    whole = jax.custom_jvp(product)

    def differentiated(primals: Any, tangents: Any) -> tuple[Array, Array]:
        parts = [
            lax.mul(
                linear_barrier(wide(tangent, operation.reads[side])),
                wide(linear_barrier(primals[1 - side]), operation.reads[1 - side]),
            )
            for side, tangent in enumerate(tangents)
        ]
        return whole(*primals), scaled(functools.reduce(lax.add, parts), operation.coefficient)

    whole.defjvp(differentiated)
    result: Array = whole(*operands)
    return result


def _summed_apart(instruction: Any, operands: Sequence[Array], dot: Callable[..., Array]) -> Array:
    """A sum of products that are in memory before; derivatives are those of its own form."""
    operation = instruction.operation
    sizes = dict(operation.sizes)

    def as_written(*operands: Array) -> Array:
        return operate(operation, operands, instruction.dtype, dot)

    def value(*operands: Array) -> Array:
        views = [read(x, r, sizes) for x, r in zip(operands, operation.reads, strict=True)]
        names = next(own for _, own in views if own[-1] in operation.output)
        factors = promoted([broadcast_labels(x, own, names, sizes) for x, own in views])
        axes = [k for k, name in enumerate(names) if name in operation.summed]
        total = lax.reduce_sum(held(lax.mul(*factors)), axes)
        left = [name for name in names if name not in operation.summed]
        return scaled(broadcast_labels(total, left, operation.output, sizes), operation.coefficient)

    result: Array = _valued_by(value, as_written)(*operands)
    return result


def _valued_by(value: Callable[..., Array], own: Callable[..., Array]) -> Callable[..., Array]:
    """A function in another form, whose derivatives are those of its own form."""

    def differentiated(primals: Any, tangents: Any) -> tuple[Array, Array]:
        result, tangent = jax.jvp(own, primals, tangents)
        return samples_first(result), tangent

    function = jax.custom_jvp(lambda *operands: samples_first(value(*operands)))
    function.defjvp(differentiated)
    return function


def _total(
    instruction: Any,
    region: Region,
    slots: Sequence[Any],
    holding: Holding,
    dot: Callable[..., Array],
) -> Array:
    """The sum of a region with sines."""
    factors = [slots[slot] for slot in instruction.inputs if slot != region.result]
    total = summed(*_region(region, slots, holding, dot), factors)
    return scaled(total, instruction.operation.coefficient)


def _region(
    region: Region, slots: Sequence[Any], holding: Holding, dot: Callable[..., Array]
) -> tuple[Body, tuple[int, ...], list[Array]]:
    """What a region ends in as a function, the places of sines' arguments, and its inputs."""
    arguments = tuple(dict.fromkeys(argument for argument, _ in region.sines.values()))

    def body(pairs: Sequence[Pair], inputs: Sequence[Array]) -> Array:
        own = dict(zip(region.inputs, inputs, strict=True))
        for slot, (argument, place) in region.sines.items():
            own[slot] = pairs[arguments.index(argument)][place]
        for instruction in region.instructions:
            (slot,) = instruction.outputs
            values = [own[s] for s in instruction.inputs]
            (value,) = _execute(instruction, values, dot, lax.dot_general)
            own[slot] = held(value, holding.values[slot]) if slot in holding.values else value
        return own[region.result]

    return body, arguments, [slots[slot] for slot in region.inputs]


def _pair(sine: Sine, argument: Array, inputs: Sequence[Array]) -> Pair:
    """The sine and the cosine of an argument in a program with these (inexact) inputs."""
    if sine.inside:
        return sine_and_cosine_inside(argument, *inputs)
    return sine_and_cosine(argument)


def _execute(
    instruction: Any,
    values: list[Any],
    dot: Callable[..., Array],
    of_partials: Callable[..., Array],
) -> Sequence[Any]:
    """Results of an instruction.

    Args:
        instruction: the instruction.
        values: what it reads.
        dot: makes products that the function has.
        of_partials: makes products of derivatives.
    """
    if isinstance(instruction, EdgeInstruction):
        return [operate(instruction.operation, values, instruction.dtype, of_partials)]
    if isinstance(instruction, PrimalInstruction):
        if instruction.equation.name == "dot_general":
            with instruction.equation.context.manager:
                return [dot(*values, **instruction.equation.params)]
        return _evaluated(instruction.equation, values)
    if isinstance(instruction, LocalInstruction):
        return [instruction.local.fun(*values)]
    if isinstance(instruction, OpaqueInstruction):
        moving = iter(values)
        full = [next(moving) if present else None for present in instruction.present]
        return [LinearMap(instruction.reference, full, instruction.types)]
    if isinstance(instruction, CurvatureInstruction):
        return [second_derivative(instruction, values)]
    if isinstance(instruction, RowHessianInstruction):
        return row_hessian(instruction, values)
    assert isinstance(instruction, ConstantInstruction)
    return [jnp.asarray(instruction.value)]


def has_cotangent_rules(program: Program) -> bool:
    """Whether a function in a program has a rule for cotangents, `jax.custom_vjp`.

    Its derivative may take tangents in no rule of `jax.custom_jvp`, only as a part of what is
    differentiated. Such a rule is given tangents of all inputs, zeros along what does not move.
    """
    return any(
        isinstance(instruction, PrimalInstruction) and instruction.equation.holds_cotangent_rule
        for instruction in program.instructions
    )


def _evaluated(equation: Any, values: list[Any]) -> Sequence[Any]:
    """What an equation computes.

    A differentiated function with a rule for cotangents gives the value that this rule computes, as
    it does under `jax.vjp`: further derivatives are then those of the rule's code.
    """
    if not equation.has_cotangent_rule:
        return equation.evaluate(*values)
    # Only what moves is perturbed: a rule may insist that the rest is not.
    chosen = [k for k, active in enumerate(equation.active) if active]

    def along(*moving: Any) -> list[Any]:
        full = list(values)
        for k, value in zip(chosen, moving, strict=True):
            full[k] = value
        return list(equation.evaluate(*full))

    results: Sequence[Any] = jax.vjp(along, *(values[k] for k in chosen))[0]
    return results


def dense_block(
    block: Block, program: Program, slots: Sequence[Any], fixed: Collection[int] = ()
) -> Array:
    """The dense Jacobian of one output leaf with respect to one input leaf.

    Args:
        block: its structure, and the slots of its factors.
        program: the program.
        slots: what they contain.
        fixed: slots that no differentiated input enters.
    """
    shape = (*block.out_shape, *block.in_shape)
    if block.structure is None:
        return jnp.zeros(shape, block.dtype)
    structure = block.structure
    operands = at_least([slots[slot] for slot in block.slots], block.dtype)
    if are_blocks_on_diagonal(structure):
        return _term_by_term(block, operands, ())
    form = diagonals(structure, tuple(block.slots))
    unmoved = tuple([slot in fixed for slot in block.slots])
    if form is None:
        return _entry_by_entry(block, program, operands, unmoved)

    def masked(operands: Sequence[Any]) -> Array:
        return cast_to(masked_sum(form, structure, operands, block.dtype), block.dtype)

    def placed(operands: Sequence[Any]) -> Array:
        if form.is_short:
            return _term_by_term(block, operands, unmoved)
        return _entry_by_entry(block, program, operands, unmoved)

    result: Array = by_samples(masked, placed, form)(operands)
    return result


def _entry_by_entry(
    block: Block, program: Program, operands: Sequence[Any], fixed: Sequence[bool]
) -> Array:
    """The dense block of these arrays, made of its entries where that is better."""
    assert block.structure is not None
    small = block.structure.size <= MAX_GATHERED
    if is_gathered(block.structure) and not (small and is_stacked(block.structure)):
        storage = block_storage(block, program)
        how = stored_placement(storage.structure, storage.sources)
        if how is not None:
            slots = dict(zip(block.slots, operands, strict=True))
            arrays = stored_arrays(block, program, slots)
            return gathered_dense(storage.structure, how, arrays, block.dtype)
    return _term_by_term(block, operands, fixed)


def _term_by_term(block: Block, operands: Sequence[Any], fixed: Sequence[bool]) -> Array:
    """The dense block of these arrays."""
    assert block.structure is not None
    array = assemble(block.structure, operands, block.dtype, is_result=True, fixed=fixed)
    return cast_to(array, block.dtype)
