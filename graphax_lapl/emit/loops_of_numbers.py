"""Loops that carry single numbers, each of them an array of all samples and seeds.

A batch of what a loop does for some seeds has two axes, of samples and of seeds. `jax.vmap` would
give them to a loop one after the other, and trace its body anew until it knows which numbers have
them, twice for each. Here the body is recorded once, and which of its numbers have which axes is
told by the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from ..rules.control_flow import scan_counts
from .numbers import Numbers, in_a_row, run_numbers, split
from .operations import is_known
from .placed import filled
from .recorded import Number, Operation
from .tape import Tape

__all__ = ["Axes", "InNumbers", "Led", "array_of", "scanned", "spread", "union"]

#: Which of the axes in front an array has: that of samples, and that of seeds.
Axes = tuple[bool, ...]


class Led(NamedTuple):
    """An array with some of the axes in front."""

    value: Any
    axes: Axes


class InNumbers(NamedTuple):
    """What a loop returns: an array as its numbers, put together when it is needed.

    Attributes:
        numbers: a numpy array of `Led`s without axes of their own.
        steps: how many axes of steps are in front of all others, zero or one.
    """

    numbers: Numbers
    steps: int


def union(axes: Iterable[Axes], count: int) -> Axes:
    """The axes that any has."""
    return tuple(map(any, zip((False,) * count, *axes, strict=True)))


def array_of(value: Led | InNumbers, sizes: Sequence[int]) -> Led:
    """What is in numbers, put together: the axes in front, that of steps, and its own."""
    if isinstance(value, Led):
        return value
    numbers, steps = value
    axes = union((number.axes for number in numbers.ravel()), len(sizes))
    each = [spread(number, axes, sizes, steps) for number in numbers.ravel()]
    together = jnp.moveaxis(
        jnp.stack(each, axis=-1), range(steps), range(sum(axes), sum(axes) + steps)
    )
    return Led(lax.reshape(together, (*together.shape[:-1], *numbers.shape)), axes)


def _numbers_of(value: Led | InNumbers, sizes: Sequence[int], steps: int) -> Numbers:
    """The numbers of an array, whose first axis, with `steps`, is left to them."""
    if isinstance(value, InNumbers) and value.steps == steps:
        return value.numbers
    array, axes = array_of(value, sizes)
    leading = sum(axes)
    moved = jnp.moveaxis(array, range(leading, leading + steps), range(steps))
    found = split(moved, leading + steps)
    return filled(found.shape, (Led(number, axes) for number in found.ravel()))


def spread(led: Led, axes: Axes, sizes: Sequence[int], steps: int = 0) -> Any:
    """An array with all of some axes, behind `steps` of its own and before all others."""
    if led.axes == axes:
        return led.value
    own = [has for has, wanted in zip(led.axes, axes, strict=True) if wanted]
    shape = [size for size, wanted in zip(sizes, axes, strict=True) if wanted]
    whole = jnp.shape(led.value)
    first, last = whole[:steps], whole[steps + sum(own) :]
    places = [*range(steps), *(steps + k for k, has in enumerate(own) if has)]
    places += range(steps + len(shape), steps + len(shape) + len(last))
    return lax.broadcast_in_dim(led.value, (*first, *shape, *last), places)


def scanned(
    params: dict[str, Any], operands: Sequence[Led | InNumbers], sizes: Sequence[int]
) -> list[InNumbers]:
    """What a `scan` returns, carried number by number.

    Args:
        params: of its equation; all of its body has a form in numbers.
        operands: what it is given.
        sizes: of the axes in front.
    """
    counts = scan_counts(params)
    assert counts is not None
    constants, carries = counts
    after = constants + carries
    tape, results = _recorded(params["jaxpr"])
    needed = tape.needed(results)[0]
    ends, kept = _flat(results[:carries]), _flat(results[carries:])
    # What the way back needs twice, as a cosine and as the derivative of a sine, is kept once.
    different = {_key(number): number for number in kept}
    given = [_numbers_of(operand, sizes, int(k >= after)) for k, operand in enumerate(operands)]
    fixed, begin = _flat(given[:constants]), _flat(given[constants:after])
    rows, first = _flat(given[after:]), len(fixed)
    axes = _axes([number.axes for number in (*fixed, *begin, *rows)], needed, first, ends, sizes)
    own = range(first, first + len(begin))

    def step(carried: list[Any], read: list[Any]) -> tuple[list[Any], list[Any]]:
        values = dict(enumerate([*(number.value for number in fixed), *carried, *read]))
        _compute(needed, values, axes, sizes)
        led = [_read(number, values, axes, sizes) for number in (*ends, *different.values())]
        moved = [spread(end, axes[k], sizes) for k, end in zip(own, led, strict=False)]
        return moved, [number.value for number in led[len(ends) :]]

    started = [
        spread(number, axes[k], sizes).astype(tape.numbers[k].dtype)
        for k, number in zip(own, begin, strict=True)
    ]
    options = {key: params[key] for key in ("length", "reverse", "unroll")}
    last, stacked = lax.scan(step, started, [number.value for number in rows], **options)
    carried = iter([Led(value, axes[k]) for k, value in zip(own, last, strict=True)])
    written = {
        key: Led(value, _axes_of(number, axes, sizes))
        for (key, number), value in zip(different.items(), stacked, strict=True)
    }
    found = iter([written[_key(number)] for number in kept])
    return [
        InNumbers(filled(numbers.shape, carried if k < carries else found), int(k >= carries))
        for k, numbers in enumerate(results)
    ]


def _recorded(body: Any) -> tuple[Tape, list[Numbers]]:
    """The operations of a body, and its results."""
    tape = Tape()
    given = [tape.input(v.aval.shape, v.aval.dtype, True) for v in body.jaxpr.invars]
    found = run_numbers(body.jaxpr, body.consts, given, tape.apply)
    types = [atom.aval for atom in body.jaxpr.outvars]
    return tape, [
        filled(type_.shape, iter(in_a_row(numbers, type_.dtype)))
        for numbers, type_ in zip(found, types, strict=True)
    ]


def _flat(arrays: Iterable[Numbers]) -> list[Any]:
    """All numbers of some arrays."""
    return [number for array in arrays for number in array.ravel()]


def _key(number: Any) -> Any:
    """What tells numbers apart."""
    return repr(number) if is_known(number) else number.place


def _axes(
    given: Sequence[Axes],
    needed: Sequence[Operation],
    first: int,
    ends: Sequence[Any],
    sizes: Sequence[int],
) -> dict[int, Axes]:
    """Which axes the numbers of a body have, by their places.

    Args:
        given: those of its inputs.
        needed: the operations.
        first: place of the first number that is carried.
        ends: what is carried on.
        sizes: of the axes.
    """
    found = dict(enumerate(given))
    while True:
        for operation in needed:
            own = (found[n.place] for n in operation.operands if isinstance(n, Number))
            found[operation.place] = union(own, len(sizes))
        grown = False
        for k, end in enumerate(ends):
            if isinstance(end, Number):
                both = union((found[first + k], found[end.place]), len(sizes))
                grown, found[first + k] = grown or both != found[first + k], both
        if not grown:
            return found


def _compute(
    needed: Sequence[Operation],
    values: dict[int, Any],
    axes: Mapping[int, Axes],
    sizes: Sequence[int],
) -> None:
    """Adds all that a body computes to the values of its inputs, by their places."""
    for operation in needed:
        own = axes[operation.place]
        operands = (_read(operand, values, axes, sizes) for operand in operation.operands)
        values[operation.place] = operation.call(*(spread(led, own, sizes) for led in operands))


def _read(
    number: Any, values: Mapping[int, Any], axes: Mapping[int, Axes], sizes: Sequence[int]
) -> Led:
    """A number of a body, recorded or known."""
    value = values[number.place] if isinstance(number, Number) else number
    return Led(value, _axes_of(number, axes, sizes))


def _axes_of(number: Any, axes: Mapping[int, Axes], sizes: Sequence[int]) -> Axes:
    """Which axes a number of a body has; one that is known has none."""
    return axes[number.place] if isinstance(number, Number) else (False,) * len(sizes)
