"""Programs on numbers on a GPU.

A thread of a GPU that has one entry of one sample waits for the branches of its neighbours. Where
a matrix is put together sample by sample, these have other entries, and the branches are all of
them. Entry by entry, in one long row for each, they have other samples: one kernel evaluates all
rows, and a second one moves them to their places. What entries share is evaluated again in each of
them. Where that is much, all numbers are written first instead, once for a sample; a kernel of many
results takes longer to dispatch.

One kernel writes several results where they read a common array, but for numbers: each result of
numbers alone is a kernel, unless these are read from one array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .numbers import BATCH, Numbers
from .operations import is_known
from .recorded import unfolded
from .tape import Tape

__all__ = ["PLATFORMS", "Batch", "is_gpu", "of_one", "side_by_side", "suits_gpus"]

#: What JAX calls GPUs where programs are lowered, and the backend that they belong to.
PLATFORMS, BACKEND = ("cuda", "rocm"), "gpu"
#: Operations for every entry from which on rows are written, and up to which: on an H100 those of
#: 0.8 to 37 take 0.2 to 0.7 of what concatenated arrays take. Of 0.3 rows, which are as much memory
#: as the results, take 0.9.
IN_ROWS = (0.5, 40)
#: How often a GPU may evaluate an operation of a row: steps of a recursion are a power of it.
UNFOLDED = 8
#: Operations that would be repeated for every entry from which on numbers are written first.
REPEATED = 16
#: The same of few samples, and how many arrays there are at most: each is put together by a kernel
#: of its own, and dispatching kernels of many numbers takes up to 20 microseconds more.
FEW_REPEATED, FEW_ARRAYS = 80, 4
#: Of a list of arrays, returning a tree of arrays.
Run = Callable[[Sequence[Any]], Any]
#: A program of one sample, of its inputs.
OfOne = Callable[[Sequence[Any]], Sequence[Numbers]]
#: Makes a program of one sample one of a batch (see `on_numbers`).
Form = Callable[[OfOne, "Batch"], Callable[..., list[Any]]]


def is_gpu() -> bool:
    """Whether programs run on a GPU unless they are placed elsewhere."""
    return jax.default_backend() == BACKEND


def suits_gpus(tape: Tape, results: Sequence[Numbers], samples: int) -> Form | None:
    """How numbers are evaluated on a GPU, None where arrays are better.

    Args:
        tape: the program.
        results: of it.
        samples: of the batch.
    """
    entries = sum(numbers.size for numbers in results)
    arrays = sum(numbers.size > 1 for numbers in results)
    operations = tape.kernels(results)[1]
    least, most = (entries * share for share in IN_ROWS)
    if samples > 1 and 0 < arrays <= FEW_ARRAYS and least <= operations <= most:
        needed, wanted, _ = tape.needed(results)
        if unfolded(needed, wanted) <= UNFOLDED * operations:
            return in_long_rows
    if samples >= BATCH:
        return on_numbers if operations >= REPEATED * entries else None
    return on_numbers if arrays <= FEW_ARRAYS and operations >= FEW_REPEATED * entries else None


class Batch(NamedTuple):
    """A batch of samples of a program on numbers.

    Attributes:
        results: what a tape knows of the program's results.
        dtypes: theirs.
        own: for each of the program's inputs whether every sample has its own.
        size: number of samples.
    """

    results: Sequence[Numbers]
    dtypes: Sequence[Any]
    own: Sequence[bool]
    size: int

    def mapped(self, fun: Callable[[list[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
        """A function of a sample's inputs, of those of all samples."""
        axes = ([0 if moves else None for moves in self.own],)
        over_samples = jax.vmap(fun, axes, axis_size=self.size)
        return lambda inputs: over_samples(list(inputs))


def on_numbers(program: OfOne, batch: Batch) -> Callable[..., list[Any]]:
    """A program of one sample for a batch: all numbers are written, and then moved to their places.

    Args:
        program: of one sample.
        batch: the samples.

    Returns:
        A function of the inputs, returning arrays with an axis of samples in front.
    """
    results, dtypes, size = batch.results, batch.dtypes, batch.size

    @batch.mapped
    def distinct(inputs: list[Any]) -> dict[int, Any]:
        return {
            number.place: value
            for numbers, values in zip(results, program(inputs), strict=True)
            for number, value in zip(numbers.ravel(), values.ravel(), strict=True)
            if not is_known(number)
        }

    def run(*inputs: Any) -> list[Any]:
        values = lax.optimization_barrier(distinct(inputs))

        def along_batch(number: Any, dtype: Any) -> Any:
            if is_known(number):
                return jnp.full(size, number, dtype)
            return lax.convert_element_type(values[number.place], dtype)

        arrays = []
        for numbers, dtype in zip(results, dtypes, strict=True):
            entries = [along_batch(number, dtype) for number in numbers.ravel()]
            whole = jnp.stack(entries, 1) if len(entries) > 1 else entries[0]
            arrays.append(lax.reshape(whole, (size, *numbers.shape)))
        return arrays

    return run


def in_long_rows(program: OfOne, batch: Batch) -> Callable[..., list[Any]]:
    """The same with a row of all samples for each entry, and the rows moved to their places."""
    size = batch.size

    @batch.mapped
    def entries(inputs: list[Any]) -> list[list[Any]]:
        return [
            [jnp.asarray(value, dtype) for value in values.ravel()]
            for values, dtype in zip(program(inputs), batch.dtypes, strict=True)
        ]

    def run(*inputs: Any) -> list[Any]:
        rows = entries(inputs)
        # A matrix would be laid out as its transpose is: then neighbours have other entries again.
        arrays = lax.optimization_barrier([jnp.concatenate(each) for each in rows])
        return [
            lax.reshape(lax.reshape(array, (numbers.size, size)).T, (size, *numbers.shape))
            for array, numbers in zip(arrays, batch.results, strict=True)
        ]

    return run


def of_one(form: Run) -> Run:
    """The form of a batch for a single input."""

    def run(inputs: Sequence[Any]) -> Any:
        return jax.tree.map(lambda leaf: leaf[0], form([jnp.asarray(x)[None] for x in inputs]))

    return run


def side_by_side(inputs: Sequence[Any]) -> list[Any]:
    """The same numbers of one type, read from an array on a GPU."""

    def joined(*numbers: Any) -> list[Any]:
        return [*lax.optimization_barrier(jnp.stack(numbers))]

    apart = {platform: joined for platform in PLATFORMS}
    result: list[Any] = lax.platform_dependent(*inputs, default=lambda *x: [*x], **apart)
    return result
