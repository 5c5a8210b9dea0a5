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
import numpy as np
from jax import dtypes, lax
from jax.extend.core import jaxpr_as_fun

from ..program.counts import local_jaxpr
from ..program.fusion import CACHED
from ..program.instructions import (
    ConstantInstruction,
    EdgeInstruction,
    LocalInstruction,
    PrimalInstruction,
    Program,
)
from ..program.timings import IN_MEMORY, expression_of
from .array_forms import (
    has_known_matrix,
    has_long_products,
    has_wide_arrays,
    is_compared,
    is_full,
)
from .chunks import can_be_in_chunks, in_chunks
from .gpu_batches import PLATFORMS, Batch, is_gpu, of_one, suits_gpus
from .holding import BARRIERS_STAND
from .innermost import batched_first, with_rule
from .joining import (
    before_its_place,
    in_digits,
    in_one_kernel,
    in_one_kernel_of_many,
    in_short_rows,
)
from .layers import is_layered
from .numbers import (
    BATCH,
    CALLS,
    Numbers,
    computed,
    has_numbers,
    is_known,
    run_numbers,
)
from .packing import FUSED, UNROLLED, in_rows, is_selected
from .placed import OutOfBounds
from .sines import Pair, by_library
from .tape import Tape, TooLong

__all__ = ["has_arrays", "has_plain_equations", "in_numbers", "is_long", "is_small_program"]

#: Most numbers that a program computes: each of them is an operation to compile.
MAX_COMPUTED = 4096
#: Operations of edges up to which a single input is evaluated in hardly any kernels, and operations
#: of a program up to which a GPU evaluates few samples, or layers with common weights, in numbers.
LONG = 1536
#: How many more there may be before those that are known or equal are taken out.
UNSETTLED = 2
#: The same where all results are few numbers: three quarters of what is put together from blocks of
#: a Runge-Kutta step are zeros. Larger results that are mostly zeros are better filled as arrays.
UNSETTLED_WHERE_FEW, FEW = 4, 256
#: Where at most one result in so many is not zero, and they are no few, they are so too.
FULL = 4
#: For a single input, most kernels of numbers for each one that the arrays have within ...
KERNELS = 2
#: ... and most operations that XLA writes into kernels, repeated for every reader: compiling as
#: many takes a second.
MAX_REPEATED = 6144
#: Of all results: most dear numbers where entries select theirs.
DEAR_SHARE = 0.5
#: Operations that entries of a row share, for every entry, from which on branches write rows: what
#: shares less is selected or concatenated sooner.
SHARED = 2.0
#: The same where all arrays are single rows inside of the cache.
SHARED_IN_ONE = 160.0
#: Entries up to which numbers that are only moved are concatenated.
MOVED = FUSED * FUSED
#: Columns of a matrix from which on entries of few samples select theirs: where all of its numbers
#: are one kernel, that one is vectorised then.
WIDE = FUSED + 1
#: Columns of a matrix that JAX's kernels for arrays are vectorised along without a remainder. Where
#: at most one entry in so many is not zero, so are ours, outside of the cache with a remainder too.
VECTOR, FULL_VECTORS = 8, 2
#: Entries made of products with those of a known matrix from which on arrays are, and entries of
#: such a matrix, for each of the result, from which on they are, however few the results.
MANY, KNOWN = 48, 4
#: Samples up to which programs that are mostly products with common weights stay arrays.
WIDE_PRODUCTS = 8192
#: Bytes of an array from which on XLA's runtime hands kernels that wait for nothing to a second
#: thread. An array of so many numbers is put together from more of them than it takes itself.
THREADED = 512

#: Of a list of arrays, returning a tree of arrays.
Run = Callable[[Sequence[Any]], Any]


def is_small_program(program: Program) -> bool:
    """Whether a program may be worth writing in numbers, as far as its instructions say."""
    return _accumulated(program) <= MAX_COMPUTED and has_plain_equations(program)


def is_long(program: Program) -> bool:
    """Whether a program in numbers may be too many operations for one sample."""
    return _accumulated(program) > LONG


def _accumulated(program: Program) -> int:
    """Multiplications and additions of the edges of a program."""
    costs = [i.operation.cost for i in program.instructions if isinstance(i, EdgeInstruction)]
    return sum(cost.muls + cost.adds for cost in costs)


def has_plain_equations(program: Program) -> bool:
    """Whether nothing is an opaque map, has effects, or sees the axes that `jax.vmap` names."""
    for instruction in program.instructions:
        if isinstance(instruction, PrimalInstruction):
            equation = instruction.equation
            if equation.effects or not has_numbers(equation.name, equation.params):
                return False
        elif isinstance(instruction, LocalInstruction):
            types = tuple(
                (program.slots[slot].shape, program.slots[slot].dtype)
                for slot in instruction.inputs
            )
            if computed(local_jaxpr(instruction.local.fun, types).jaxpr) < 0:
                return False
        elif not isinstance(instruction, EdgeInstruction | ConstantInstruction):
            return False
    return True


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
        closed, structure = traced(_types(inputs, [False] * len(inputs)), _precision())
        small = _is_small(closed.jaxpr, 1)
        recorded = _recorded(closed, [True] * len(inputs)) if small else None
        if recorded is None or not recorded.suits_single_input(closed.jaxpr):
            return (one or run)(inputs)
        numbers = _structured(_in_numbers(closed, recorded, 1, 1, in_digits), structure)
        forms = _for_gpus(closed, recorded, structure, [True] * len(inputs), 1)
        on_gpus = {platform: of_one(form) for platform, form in forms.items()}
        return lax.platform_dependent(inputs, cpu=numbers, default=run, **on_gpus)

    def many(size: Any, own: Sequence[bool], inputs: Sequence[Any]) -> Any:
        axes = ([0 if moves else None for moves in own],)
        call = None
        few = isinstance(size, int) and size < BATCH
        if isinstance(size, int) and (arrays or not few):  # `jax.export` knows symbols too
            closed, structure = traced(_types(inputs, own), _precision())
            recorded = _recorded(closed, own) if _is_small(closed.jaxpr, size) else None
            if recorded is not None and few and not recorded.suits_few_samples(closed.jaxpr, size):
                recorded = None
            on_gpus: dict[str, Run] = {}
            if recorded is not None:
                on_gpus = _for_gpus(closed, recorded, structure, own, size)
            if recorded is not None and recorded.suits_arrays(closed.jaxpr, own, size, wide):
                if on_gpus and not few and len(recorded.tape) <= LONG:  # compiled in 2 seconds
                    batch = jax.vmap(run, axes)
                    call = functools.partial(lax.platform_dependent, default=batch, **on_gpus)
                recorded = None
            chunk, inside, rows = size, False, False
            if recorded is not None:
                stored = _stored(closed.jaxpr)
                inside = recorded.has_sines_inside(size, stored)
                rows = not (few or inside) and recorded.has_shared_rows(size)
                if can_be_in_chunks() and not inside:
                    chunk = recorded.tape.chunk(recorded.results, size, BATCH, rows, stored)
            if recorded is not None and (arrays or inside or chunk < size):
                # A chunk's numbers are in the cache, and its loop runs on one core.
                in_parts = in_rows if BARRIERS_STAND else before_its_place
                join = in_parts if chunk < size else recorded.join(size, rows, inside)
                sines = by_library if inside else None
                at_once = rows and chunk == size
                form = _in_numbers(closed, recorded, chunk, size, join, at_once, sines)
                forms = (form, jaxpr_as_fun(closed))
                numbers, other = (_structured(form, structure) for form in forms)
                cpu = in_chunks(numbers, types, own, size, chunk) if chunk < size else None
                call = functools.partial(
                    lax.platform_dependent,
                    cpu=cpu or jax.vmap(numbers, axes),
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


def _traced(plain: Run, types: Sequence[jax.ShapeDtypeStruct], precision: Any) -> tuple[Any, Any]:
    """A program's equations, and the tree of its results; `precision` is that of products."""
    del precision
    closed, shapes = jax.make_jaxpr(plain, return_shape=True)([*types])
    return closed, jax.tree.structure(shapes)


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
    results = sum(math.prod(atom.aval.shape) for atom in jaxpr.outvars)
    unsettled = UNSETTLED_WHERE_FEW if results <= FEW else UNSETTLED
    least = 0 if samples >= BATCH else 1
    return not jaxpr.effects and least <= computed(jaxpr) <= unsettled * MAX_COMPUTED


def _stored(jaxpr: Any) -> int:
    """How many numbers are in memory because products and sums of arrays write them."""
    total = 0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in CALLS:
            total += _stored(equation.params[CALLS[name]].jaxpr)
        elif name in IN_MEMORY:
            total += sum(math.prod(variable.aval.shape) for variable in equation.outvars)
    return total


class _Recorded(NamedTuple):
    """Operations on numbers, and what they result in."""

    tape: Tape
    results: Sequence[Numbers]

    @property
    def entries(self) -> int:
        """How many numbers all results hold."""
        return sum(numbers.size for numbers in self.results)

    @property
    def operations(self) -> int:
        """How many operations XLA writes into all kernels, repeated for every reader."""
        return self.tape.kernels(self.results)[1]

    def suits_single_input(self, jaxpr: Any) -> bool:
        """Whether a single input is evaluated sooner than by a program on arrays.

        An elementwise function of an array is a kernel for what XLA keeps of it, and would be one
        for every number.
        """
        if any(math.prod(v.aval.shape) * v.aval.dtype.itemsize > THREADED for v in jaxpr.outvars):
            return False
        return self.suits_few_samples(jaxpr, 1)

    def suits_few_samples(self, jaxpr: Any, samples: int) -> bool:
        """Whether a few samples wait for fewer kernels than those of a program on arrays."""
        kernels, repeated = self.tape.kernels(self.results)
        if repeated > MAX_REPEATED and samples > 1:
            repeated = self.tape.written(self.results, samples)
        return kernels <= KERNELS * _kernels(jaxpr) and repeated <= MAX_REPEATED

    def suits_arrays(self, jaxpr: Any, own: Sequence[bool], samples: int, wide: bool) -> bool:
        """Whether arrays evaluate so many samples sooner; `wide` is that of `in_numbers`."""
        if self._is_mostly_zero(jaxpr, samples):
            return True
        if computed(jaxpr) == 0 and not self._suits_moves(samples):
            return True
        if not is_full(self.results):
            return False
        if wide and samples <= WIDE_PRODUCTS:
            return True
        if has_known_matrix(jaxpr, own, max(MANY, KNOWN * self.entries)):
            return True
        if samples < BATCH:
            return has_long_products(jaxpr, own) or self._is_scaled(jaxpr, own)
        return has_wide_arrays(jaxpr, own) or self._is_scaled(jaxpr, own)

    def _suits_moves(self, samples: int) -> bool:
        """Whether matrices of numbers that are only moved are written by one kernel."""
        outside = self._is_outside(samples, sines=False)
        return all(
            numbers.ndim > 1
            and not all(is_known(number) for number in numbers.ravel())
            and (self.entries <= MOVED or is_layered(numbers, 0, outside))
            for numbers in self.results
        )

    def _is_scaled(self, jaxpr: Any, own: Sequence[bool]) -> bool:
        """Whether most of many entries are made of products with those of a known matrix."""
        if self.entries < MANY or not has_known_matrix(jaxpr, own, self.entries // 2):
            return False
        return 2 * self.tape.scaled(self.results) > self.entries

    def _is_mostly_zero(self, jaxpr: Any, samples: int) -> bool:
        """Whether most results are zeros, which arrays are filled up with.

        They are many, or rows of whole vectors that are compared with positions.
        """
        there = sum(int(np.count_nonzero(numbers != 0)) for numbers in self.results)
        if self.entries > FEW:
            return FULL * there < self.entries
        columns = [numbers.shape[-1] if numbers.ndim > 1 else 1 for numbers in self.results]
        outside = self._is_outside(samples, sines=False)
        if not all(found >= VECTOR and (outside or found % VECTOR == 0) for found in columns):
            return False
        return FULL_VECTORS * there < self.entries and is_compared(jaxpr)

    def has_shared_rows(self, samples: int) -> bool:
        """Whether branches for every entry would evaluate much that a row needs once.

        Where all arrays are single rows, of gradients, entries are branches inside of the cache:
        more is held for them, and evaluated along the samples, unless they share very much. So they
        are beside single numbers, kernels of their own that need much of the same.
        """
        if any(numbers.size == 1 for numbers in self.results):
            return False
        in_one = all(numbers.size == numbers.shape[-1] for numbers in self.results)
        least = SHARED_IN_ONE if in_one and samples * self.entries <= CACHED else SHARED
        return self.tape.shared_in_rows(self.results) > least * self.entries

    def join(self, samples: int, rows: bool, sines: bool) -> Callable[[Numbers], Any]:
        """How one kernel puts an array together for a batch.

        What is selected from is repeated along the columns, and dear numbers that are repeated have
        a kernel of their own.

        Args:
            samples: of the batch.
            rows: whether branches write rows.
            sines: whether that kernel evaluates sines: where entries select, once for a sample.
        """
        others = in_one_kernel
        if self._may_select():
            least = 0 if samples >= BATCH else WIDE
            outside = self._is_outside(samples, sines)
            others = functools.partial(
                in_one_kernel_of_many,
                samples=samples,
                outside=outside,
                columns=least,
                operations=None if samples < BATCH or sines else self.operations,
            )
        return functools.partial(in_short_rows, others=others) if rows else others

    def has_sines_inside(self, samples: int, stored: int) -> bool:
        """Whether sines of many samples are evaluated in the kernel that reads them."""
        outside = self._is_outside(samples, sines=True)
        once = self._may_select() and all(
            found.size <= UNROLLED and is_selected(found, outside) for found in self.results
        )
        return self.tape.has_sines_inside(
            self.results, samples, once, self.has_shared_rows(samples), stored
        )

    def _may_select(self) -> bool:
        return self.tape.kernels(self.results)[0] <= DEAR_SHARE * self.entries

    def _is_outside(self, samples: int, sines: bool) -> bool:
        """Whether selections are worth it for more entries, as they are outside of the cache."""
        return samples * self.entries > CACHED or (sines and self.entries <= UNROLLED)


def _kernels(jaxpr: Any) -> int:
    """How many arrays are in memory before they are read."""
    return sum(
        _kernels(equation.params[CALLS[name]].jaxpr)
        if name in CALLS
        else expression_of([name]).kept
        for equation in jaxpr.eqns
        for name in (equation.primitive.name,)
    )


def _recorded(closed: Any, own: Sequence[bool]) -> _Recorded | None:
    """One sample of a program number by number; None if too large."""
    jaxpr = closed.jaxpr
    tape = Tape(MAX_COMPUTED)
    given = [
        tape.input(variable.aval.shape, variable.aval.dtype, moves)
        for variable, moves in zip(jaxpr.invars, own, strict=True)
    ]
    try:
        return _Recorded(tape, run_numbers(jaxpr, closed.consts, given, tape.apply))
    except (TooLong, OutOfBounds):
        return None


def _in_numbers(
    closed: Any,
    recorded: _Recorded,
    chunk: int,
    size: int,
    join: Callable[[Numbers], Any],
    rows: bool = False,
    sines: Callable[[Any], Pair] | None = None,
) -> Callable[..., list[Any]]:
    """What is recorded as a function of arrays, for chunks of a batch of some size."""
    program = recorded.tape.program(recorded.results, chunk, size, rows, sines)

    def array(numbers: Numbers, dtype: Any) -> Any:
        if all(is_known(number) for number in numbers.ravel()):
            return jnp.asarray(numbers.astype(dtype))
        return lax.convert_element_type(join(numbers), dtype)

    def arrays(*inputs: Any) -> list[Any]:
        found = zip(program(inputs), closed.jaxpr.outvars, strict=True)
        return [array(numbers, atom.aval.dtype) for numbers, atom in found]

    return arrays


def _for_gpus(
    closed: Any, recorded: _Recorded, structure: Any, own: Sequence[bool], size: int
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
