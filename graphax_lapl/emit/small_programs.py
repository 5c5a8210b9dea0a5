"""Programs on small arrays, written as programs on single numbers: large batches, single inputs.

The Jacobian of a flux with vectors of three components is arithmetic on `(batch, 3)` and
`(batch, 3, 3)` under `jax.vmap`, along axes of three. On single numbers all of it goes along the
batch (`numbers.py`), and what is worth holding is decided for the numbers (`tape.py`): products of
small matrices are sums of products then, which XLA would evaluate again for every reader.

For a single input most of the time is that of kernels, however little they do. Moves, products and
sums of arrays are kernels of their own; on single numbers none is, and a result's are one kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import dtypes, lax
from jax.extend.core import jaxpr_as_fun

from ..program.counts import local_jaxpr
from ..program.instructions import (
    CurvatureInstruction,
    EdgeInstruction,
    Instruction,
    LocalInstruction,
    OpaqueInstruction,
    PrimalInstruction,
    Program,
    RowHessianInstruction,
)
from ..program.timings import IN_MEMORY
from .chunk_sizes import chunk_size
from .chunks import can_be_in_chunks, in_chunks
from .gpu_batches import PLATFORMS, Batch, is_gpu, of_one, suits_gpus
from .holding import BARRIERS_STAND
from .innermost import batched_first, with_rule
from .joining import before_its_place
from .number_forms import FEW, FLOAT, RecordedProgram
from .numbers import (
    BATCH,
    Numbers,
    called_by,
    computed,
    equations_of,
    has_numbers,
    programs_called,
    run_numbers,
)
from .operations import is_known
from .packing import in_rows
from .placed import OutOfBounds, filled
from .scaled_columns import ScaledColumns, scaled_columns
from .sines import Pair, by_library
from .tape import SMALL, Tape, TooLong

__all__ = ["has_arrays", "has_plain_equations", "in_numbers", "is_long", "is_small_program"]

#: Most numbers that a program computes: each of them is an operation to compile.
MAX_COMPUTED = 4096
#: The same for each equation of a program of hardly anything but single numbers, which as it is
#: takes as long to compile, and the most that is recorded in any case.
COMPUTED_EACH, MAX_RECORDED = 2, 4 * MAX_COMPUTED
#: Operations of edges up to which a single input is evaluated in hardly any kernels, and operations
#: of a program up to which a GPU evaluates few samples, or layers with common weights, in numbers.
LONG = 1536
#: How many more there may be before those that are known or equal are taken out.
UNSETTLED = 2
#: The same where all results are few numbers: three quarters of what is put together from blocks of
#: a Runge-Kutta step are zeros. Larger results that are mostly zeros are better filled as arrays.
UNSETTLED_WHERE_FEW = 4

#: Folded pair by pair, the largest of a few numbers is copied into all that is fused with it, and
#: series are kernels of one thread. XLA of JAX 0.10 neither shares nor vectorises them: there such
#: programs are in numbers from so many samples on.
COPIED_PER_PAIR = frozenset({"reduce_max", "reduce_min", "lgamma", "digamma"})
MANY_SAMPLES = 2048

#: Of a list of arrays, returning a tree of arrays.
Run = Callable[[Sequence[Any]], Any]


def is_small_program(program: Program) -> bool:
    """Whether a program may be worth writing in numbers, as far as its instructions say."""
    most = _most_computed(len(program.instructions))
    return _accumulated(program) <= most and has_plain_equations(program)


def is_long(program: Program) -> bool:
    """Whether a program in numbers may be too many operations for one sample."""
    return _accumulated(program) > LONG


def _accumulated(program: Program) -> int:
    """Multiplications and additions of the edges of a program."""
    costs = [i.operation.cost for i in program.instructions if isinstance(i, EdgeInstruction)]
    return sum(cost.muls + cost.adds for cost in costs)


def has_plain_equations(program: Program) -> bool:
    """Whether nothing has effects, sees the axes that `jax.vmap` names, or has no form in numbers.

    What linear maps and second derivatives compute is found when they are traced.
    """
    for instruction in program.instructions:
        if isinstance(instruction, LocalInstruction):
            types = tuple(
                (program.slots[slot].shape, program.slots[slot].dtype)
                for slot in instruction.inputs
            )
            if computed(local_jaxpr(instruction.local.fun, types).jaxpr) < 0:
                return False
        for equation, operands in _evaluated(program, instruction):
            # What is known as a whole is a call, which need not be.
            name = str(equation.primitive.name)
            if equation.effects or not has_numbers(name, equation.params, operands):
                return False
    return True


def _evaluated(program: Program, instruction: Instruction) -> list[tuple[Any, Sequence[Any]]]:
    """The equations that an instruction evaluates or differentiates, and their operands' types."""
    if isinstance(instruction, PrimalInstruction):
        return [(instruction.equation, [program.slots[slot] for slot in instruction.inputs])]
    if isinstance(instruction, OpaqueInstruction):
        return [(instruction.reference.equation, instruction.types)]
    if isinstance(instruction, CurvatureInstruction):
        return [(instruction.equation, instruction.types)]
    if isinstance(instruction, RowHessianInstruction):
        type_of = instruction.listing.type_of
        return [(e, [type_of(atom) for atom in e.inputs]) for e in instruction.equations]
    return []


def has_arrays(program: Program) -> bool:
    """Whether any array of a program holds more than a number."""
    blocks = [block for row in program.blocks for block in row]
    shapes = [slot.shape for slot in program.slots]
    shapes += [(*block.out_shape, *block.in_shape) for block in blocks]
    return any(math.prod(shape) > 1 for shape in shapes)


def in_numbers(
    run: Run,
    plain: Run,
    arrays: bool,
    types: Any,
    one: Run | None = None,
    wide: bool = False,
) -> Callable[[Sequence[Any], bool], Any]:
    """`run`, number by number for a single input and under `jax.vmap` with many samples.

    Where much would be held for all samples, they are evaluated in chunks. Derivatives are those of
    `run`. On GPUs what many entries share is evaluated once; elsewhere nothing is rewritten.

    Args:
        run: the program, on small arrays. It closes over no tracers.
        plain: the same without held arrays, which is all the same on other devices.
        arrays: whether it has any; a program of numbers is rewritten only for chunks.
        types: shapes and dtypes of its results, inexact ones.
        one: what a single input is evaluated by where numbers do not suit it, if not by `run`.
        wide: whether most of `run` is products of matrices with common weights, wide ones for a
            batch.

    Returns:
        A function of the program's inputs, and of whether it is compiled as a part of what is
        traced: by itself a number is a call, and a single input keeps the arrays.
    """
    traced = functools.lru_cache(maxsize=4)(functools.partial(_traced, plain))

    def single(inputs: Sequence[Any]) -> Any:
        closed, structure, again = traced(_types(inputs, [False] * len(inputs)), _precision())
        small = _is_small(closed.jaxpr, 1)
        recorded = _recorded(closed, [True] * len(inputs)) if small else None
        if recorded is None or not recorded.suits_single_input(closed.jaxpr):
            return (one or run)(inputs)
        numbers = _structured(_of_one(closed, recorded), structure)
        forms = _for_gpus(closed, recorded, structure, [True] * len(inputs), 1)
        on_gpus = {platform: of_one(form) for platform, form in forms.items()}
        return lax.platform_dependent(inputs, cpu=numbers, default=again, **on_gpus)

    def many(size: Any, own: Sequence[bool], inputs: Sequence[Any]) -> Any:
        axes = ([0 if moves else None for moves in own],)
        call, staged = None, False
        few = isinstance(size, int) and size < BATCH
        if isinstance(size, int) and (arrays or not few or _may_be_staged(size)):  # symbols, too
            closed, structure, _ = traced(_types(inputs, own), _precision())
            recorded = _recorded(closed, own) if _is_small(closed.jaxpr, size) else None
            if recorded is not None:
                recorded = recorded.for_samples(closed.jaxpr, size)
                few = recorded.are_few(size)
                staged = few and not arrays and recorded.waits_for_threads(size)
                suits = recorded.suits_few_samples(closed.jaxpr, size) and (arrays or staged)
                recorded = recorded if suits or not few else None
            on_gpus: dict[str, Run] = {}
            if recorded is not None:
                on_gpus = _for_gpus(closed, recorded, structure, own, size)
            if recorded is not None and recorded.suits_arrays(closed.jaxpr, own, size, wide):
                if (
                    on_gpus and size >= BATCH and len(recorded.tape) <= LONG
                ):  # compiled in 2 seconds
                    batch = jax.vmap(run, axes)
                    call = functools.partial(lax.platform_dependent, default=batch, **on_gpus)
                recorded = None
            chunk, inside, rows = size, False, False
            if recorded is not None:
                stored = _stored(closed.jaxpr)
                inside = recorded.has_sines_inside(size, stored)
                rows = not (few or inside) and recorded.has_shared_rows(size)
                if can_be_in_chunks() and not inside:
                    chunk = chunk_size(recorded.tape, recorded.results, size, BATCH, rows, stored)
                if can_be_in_chunks() and chunk == size >= BATCH and not inside:
                    chunk = recorded.size_on_one_thread(size, rows)
                    recorded = recorded if chunk == size else recorded.many_from(chunk)
            if recorded is not None and (arrays or staged or inside or chunk < size):
                # A chunk's numbers are in the cache, and its loop runs on one core.
                in_parts = in_rows if BARRIERS_STAND else before_its_place
                join = in_parts if chunk < size else recorded.join(size, rows, inside)
                sines = by_library if inside else None
                at_once = rows and chunk == size
                columns = not (few or rows or inside) and chunk == size
                form = _of_samples(
                    closed, recorded, own, chunk, size, join, at_once, sines, columns
                )
                forms = (form, jaxpr_as_fun(closed))
                numbers, other = (_structured(form, structure) for form in forms)
                cpu = in_chunks(numbers, types, own, size, chunk) if chunk < size else numbers
                call = functools.partial(
                    lax.platform_dependent,
                    cpu=cpu,
                    default=jax.vmap(other, axes),
                    **on_gpus,
                )
        return (call or jax.vmap(run, axes))(list(inputs))

    alone = with_rule(run, many, run)
    within = batched_first(many, with_rule(single if arrays else run, many, run), run, types)
    return lambda inputs, compiled: (within if compiled else alone)(inputs)


def _types(inputs: Sequence[Any], own: Sequence[bool]) -> tuple[jax.ShapeDtypeStruct, ...]:
    """What one sample is; `own` says which inputs have an axis of samples."""
    return tuple(
        jax.ShapeDtypeStruct(x.shape[1:] if moves else x.shape, x.dtype)
        for x, moves in zip(inputs, own, strict=True)
    )


def _precision() -> Any:
    """What products of matrices are traced with where nothing else is said."""
    return jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]


class _Traced(NamedTuple):
    """A program's equations, the tree of its results, and a call of it that is not traced again."""

    closed: Any
    structure: Any
    again: Run


def _traced(plain: Run, types: Sequence[jax.ShapeDtypeStruct], precision: Any) -> _Traced:
    """What is traced of a program; `precision` is that of products."""
    del precision

    @jax.jit
    def program(inputs: Sequence[Any]) -> Any:
        return plain(inputs)

    traced = program.trace([*types])
    return _Traced(traced.jaxpr, jax.tree.structure(traced.out_info), program)


def _structured(form: Callable[..., Sequence[Any]], structure: Any) -> Run:
    """A function with a name of its own: JAX prints a program that has none to find one."""

    def structured(inputs: Sequence[Any]) -> Any:
        return jax.tree.unflatten(structure, form(*inputs))

    return structured


def _is_small(jaxpr: Any, samples: int) -> bool:
    """Whether all of a program has a form in numbers, and is not too large for it.

    A few samples that are only moved stay arrays.
    """
    atoms = [*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars]
    atoms += [variable for equation in jaxpr.eqns for variable in equation.outvars]
    if any(dtypes.issubdtype(atom.aval.dtype, dtypes.extended) for atom in atoms):
        return False
    if not all(math.prod(atom.aval.shape) for atom in atoms):
        return False
    if not BARRIERS_STAND and samples < MANY_SAMPLES and _has_any(jaxpr, COPIED_PER_PAIR):
        return False
    results = sum(math.prod(atom.aval.shape) for atom in jaxpr.outvars)
    unsettled = UNSETTLED_WHERE_FEW if results <= FEW else UNSETTLED
    least = 0 if samples >= BATCH else 1
    most = unsettled * _most_computed(equations_of(jaxpr))
    return not jaxpr.effects and least <= computed(jaxpr) <= most


def _most_computed(equations: int) -> int:
    """Up to how many numbers so many equations may compute."""
    return min(max(MAX_COMPUTED, COMPUTED_EACH * equations), MAX_RECORDED)


def _may_be_staged(samples: int) -> bool:
    """Whether kernels of single numbers may be handed to other threads, unless in stages."""
    return BARRIERS_STAND and samples * FLOAT > SMALL


def _has_any(jaxpr: Any, names: frozenset[str]) -> bool:
    """Whether a program has an equation of some names, in what it calls too."""
    own = any(equation.primitive.name in names for equation in jaxpr.eqns)
    return own or any(_has_any(called, names) for called in programs_called(jaxpr))


def _stored(jaxpr: Any) -> int:
    """How many numbers are in memory because products and sums of arrays write them."""
    total = sum(map(_stored, programs_called(jaxpr)))
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in IN_MEMORY and called_by(name, equation.params) is None:
            total += sum(math.prod(variable.aval.shape) for variable in equation.outvars)
    return total


def _recorded(closed: Any, own: Sequence[bool]) -> RecordedProgram | None:
    """One sample of a program number by number; None if too large."""
    jaxpr = closed.jaxpr
    tape = Tape(_most_computed(equations_of(jaxpr)))
    given = [
        tape.input(variable.aval.shape, variable.aval.dtype, moves)
        for variable, moves in zip(jaxpr.invars, own, strict=True)
    ]
    try:
        return RecordedProgram(tape, run_numbers(jaxpr, closed.consts, given, tape.apply))
    except (TooLong, OutOfBounds):
        return None


def _of_one(closed: Any, recorded: RecordedProgram) -> Callable[..., list[Any]]:
    """What is recorded as a function of the arrays of a single input."""
    program, join = recorded.tape.program(recorded.results, 1, 1), recorded.join_one()

    def arrays(*inputs: Any) -> list[Any]:
        found = zip(program(inputs), closed.jaxpr.outvars, strict=True)
        return [_array(numbers, atom.aval.dtype, join) for numbers, atom in found]

    return arrays


def _of_samples(
    closed: Any,
    recorded: RecordedProgram,
    own: Sequence[bool],
    chunk: int,
    size: int,
    join: Callable[[Numbers], Any],
    rows: bool,
    sines: Callable[[Any], Pair] | None,
    scaling: bool,
) -> Callable[..., list[Any]]:
    """What is recorded as a function of arrays, for chunks of a batch of some size.

    Arrays have an axis of samples in front; inputs do where every sample has its `own`. With
    `scaling`, matrices of scaled columns are multiplied with their tables.
    """
    tape, results = recorded.tape, recorded.results
    scaled: list[ScaledColumns | None] = [None] * len(results)
    if scaling:
        operations = {operation.place: operation for operation in tape.needed(results)[0]}
        scaled = [scaled_columns(operations, numbers) for numbers in results]
    wanted = [s.numbers if s else n for s, n in zip(scaled, results, strict=True)]
    program = tape.program(wanted, chunk, size, rows, sines, own)

    def arrays(*inputs: Any) -> list[Any]:
        found = []
        types = [atom.aval.dtype for atom in closed.jaxpr.outvars]
        each = zip(wanted, program(inputs), types, scaled, strict=True)
        for numbers, values, dtype, columns in each:
            of_one = functools.partial(_array, dtype=dtype, join=columns.array if columns else join)
            found.append(_over_samples(of_one, numbers, values, chunk))
        return found

    return arrays


def _array(numbers: Numbers, dtype: Any, join: Callable[[Numbers], Any]) -> Any:
    """The array of numbers, which are known or arrays without axes."""
    if all(is_known(number) for number in numbers.ravel()):
        return jnp.asarray(numbers.astype(dtype))
    return lax.convert_element_type(join(numbers), dtype)


def _over_samples(
    of_one: Callable[[Numbers], Any], numbers: Numbers, values: Numbers, samples: int
) -> Any:
    """The array of numbers for each sample; those that move have the samples along an axis.

    Args:
        of_one: makes an array of the numbers of one sample.
        numbers: recorded ones, or known.
        values: what they are.
        samples: of the batch.
    """
    pairs = [*zip(numbers.ravel(), values.ravel(), strict=True)]
    # Equal entries are the same array in there, too.
    moving = {n.place: x for n, x in pairs if not is_known(n) and n.moves}

    def one(moved: dict[int, Any]) -> Any:
        entries = (x if is_known(n) else moved.get(n.place, x) for n, x in pairs)
        return of_one(filled(numbers.shape, entries))

    if moving:
        return jax.vmap(one)(moving)
    found = one({})
    return jnp.broadcast_to(found, (samples, *found.shape))


def _for_gpus(
    closed: Any, recorded: RecordedProgram, structure: Any, own: Sequence[bool], size: int
) -> dict[str, Run]:
    """The form of a batch on GPUs, by platform; none where it is that of all other devices."""
    results = recorded.results
    if not is_gpu() or (size < BATCH and len(recorded.tape) > LONG):
        return {}
    batched = suits_gpus(recorded.tape, results, size)
    if batched is None:
        return {}
    program = recorded.tape.program(results, size, size, sines=by_library)
    dtypes = [atom.aval.dtype for atom in closed.jaxpr.outvars]
    form = batched(program, Batch(results, dtypes, own, size))
    return dict.fromkeys(PLATFORMS, _structured(form, structure))
