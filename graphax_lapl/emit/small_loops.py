"""Loops over small arrays, written as loops over single numbers.

Under `jax.vmap` a loop carries arrays `(batch, 3, 3)` whose last axis is a handful of numbers, and
a CPU works on three at a time. Carried as nine numbers each of them is `(batch,)`, and all
arithmetic goes along the batch. A single sample is better off with the arrays: nine numbers are
nine times as many kernels. So which form a loop takes is decided where its batch is known.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import Any

import jax
import numpy as np
from jax import dtypes, lax
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ..rules.control_flow import scan_counts
from .innermost import of_every_sample, with_derivatives_of
from .numbers import (
    BATCH,
    CALLS,
    Numbers,
    bind,
    computed,
    in_a_row,
    joined,
    run_numbers,
    split,
)
from .placed import OutOfBounds, filled

__all__ = ["for_batches", "is_small_loop"]

#: Numbers that one step of a loop takes and returns, and that it computes.
MAX_NUMBERS = 96
MAX_COMPUTED = 1024


def for_batches(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun` for every seed, under `jax.vmap` with many samples its small loops over numbers.

    Derivatives are those of `fun`. On other devices than CPUs nothing is rewritten.

    Args:
        fun: of a seed and other arrays, returning arrays. It closes over no tracers.

    Returns:
        A function of seeds, stacked along their first axis, and the other arrays.
    """
    once = _TracedOnce(fun)

    def arrays(seeds: Any, *others: Any) -> Any:
        return jax.vmap(lambda seed: once.evaluate(jaxpr_as_fun, seed, *others))(seeds)

    def numbers(seeds: Any, *others: Any) -> Any:
        return jax.vmap(lambda seed: once.evaluate(_in_numbers, seed, *others))(seeds)

    @custom_vmap
    def chosen(*args: Any) -> Any:
        return arrays(*args)

    @chosen.def_vmap
    def _(size: Any, batched: list[bool], *args: Any) -> tuple[Any, Any]:
        axes = [0 if own else None for own in batched]
        call = jax.vmap(arrays, axes)
        if isinstance(size, int) and size >= BATCH:  # `jax.export` knows symbols too
            cpu = jax.vmap(numbers, axes)
            call = functools.partial(lax.platform_dependent, cpu=cpu, default=call)
        results = of_every_sample(call(*args), args)
        return results, jax.tree.map(lambda _: True, results)

    differentiable: Callable[..., Any] = with_derivatives_of(arrays, chosen)
    return differentiable


def is_small_loop(equation: Any) -> bool:
    """Whether an equation is a loop that `for_batches` may rewrite."""
    return bool(equation.name == "scan" and _is_small(equation.params))


class _TracedOnce:
    """A function whose program is read several times, and which is dear to trace."""

    def __init__(self, fun: Callable[..., Any]):
        self.fun = fun
        self.traced: dict[Hashable, tuple[ClosedJaxpr, Any]] = {}

    def evaluate(
        self, how: Callable[[ClosedJaxpr], Callable[..., Sequence[Any]]], *args: Any
    ) -> Any:
        """The function's results, its program evaluated by what `how` makes of it."""
        types = tuple(jax.typeof(value) for value in args)
        found = self.traced.get(types)
        if found is None:
            closed, shapes = jax.make_jaxpr(self.fun, return_shape=True)(*args)
            found = self.traced[types] = (closed, jax.tree.structure(shapes))
        closed, structure = found
        return jax.tree.unflatten(structure, how(closed)(*args))


def _in_numbers(closed: ClosedJaxpr) -> Callable[..., list[Any]]:
    """A program with its small loops evaluated number by number."""

    def numbers(*args: Any) -> list[Any]:
        return [_array(r) for r in _evaluate(closed.jaxpr, closed.consts, args)]

    return numbers


def _evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Runs a program on arrays or `_Split`s; its results are of the same kinds."""
    held = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else held[atom]

    for equation in jaxpr.eqns:
        values = [read(atom) for atom in equation.invars]
        name = equation.primitive.name
        results = None
        if name == "scan" and _is_small(equation.params):
            with contextlib.suppress(OutOfBounds):
                results = _scan(equation.params, values)
        elif name in CALLS:
            inner = equation.params[CALLS[name]]
            results = _evaluate(inner.jaxpr, inner.consts, values)
        if results is None:
            results = bind(equation, [_array(value) for value in values])
        held.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


class _Split:
    """What a loop returns: an array as its numbers, put together when it is needed."""

    def __init__(self, numbers: Numbers, steps: int):
        """Numbers with `steps` leading axes of their own, zero or one."""
        self.numbers, self.steps = numbers, steps


def _array(value: Any) -> Any:
    return joined(value.numbers, value.steps) if isinstance(value, _Split) else value


def _split(value: Any, steps: int) -> Numbers:
    """The numbers of an array, whose first `steps` axes are left to them."""
    if isinstance(value, _Split) and value.steps == steps:
        return value.numbers
    return split(_array(value), steps)


def _is_small(params: dict[str, Any]) -> bool:
    """Whether a loop's steps are small enough, and hold nothing that has no form in numbers."""
    counts = scan_counts(params)
    if counts is None:
        return False
    body = params["jaxpr"].jaxpr
    types = [atom.aval for atom in (*body.invars, *body.outvars)]
    if any(dtypes.issubdtype(type_.dtype, dtypes.extended) for type_ in types):
        return False
    ends = [math.prod(type_.shape) for type_ in types]
    if not ends or min(ends) == 0 or sum(ends) > MAX_NUMBERS:
        return False
    return 0 <= computed(body) <= MAX_COMPUTED


def _scan(params: dict[str, Any], values: Sequence[Any]) -> list[_Split]:
    """A loop that carries numbers."""
    counts = scan_counts(params)
    assert counts is not None
    constants, carries = counts
    closed = params["jaxpr"]
    types = [variable.aval for variable in closed.jaxpr.invars]
    fixed = [_split(value, 0) for value in values[:constants]]
    start = [_split(value, 0) for value in values[constants : constants + carries]]
    stacked = [_split(value, 1) for value in values[constants + carries :]]
    shapes = [type_.shape for type_ in types[constants:]]

    places: list[int] = []

    def step(carried: list[Any], moved: list[Any]) -> tuple[list[Any], list[Any]]:
        own = [*_regroup(carried, shapes[:carries]), *_regroup(moved, shapes[carries:])]
        out = run_numbers(closed.jaxpr, closed.consts, [*fixed, *own], _each_once())
        types = [atom.aval for atom in closed.jaxpr.outvars]
        flat = [in_a_row(n, type_.dtype) for n, type_ in zip(out, types, strict=True)]
        stacked = list(chain(*flat[carries:]))
        # What the way back needs twice, as a cosine and as the derivative of a sine, is kept once.
        different = list({id(number): number for number in stacked}.values())
        order = {id(number): place for place, number in enumerate(different)}
        places[:] = [order[id(number)] for number in stacked]
        return list(chain(*flat[:carries])), different

    begin = [in_a_row(n, t.dtype) for n, t in zip(start, types[constants:], strict=False)]
    last, kept = lax.scan(
        step,
        list(chain(*begin)),
        [number for numbers in stacked for number in numbers.ravel()],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    ends = [atom.aval.shape for atom in closed.jaxpr.outvars]
    return [
        *(_Split(numbers, 0) for numbers in _regroup(last, ends[:carries])),
        *(_Split(numbers, 1) for numbers in _regroup([kept[p] for p in places], ends[carries:])),
    ]


def _each_once() -> Callable[[Any, Sequence[Any]], list[Any]]:
    """Carries equations on numbers out, equal ones once."""
    found: dict[Any, tuple[Sequence[Any], list[Any]]] = {}

    def apply(equation: Any, values: Sequence[Any]) -> list[Any]:
        known = [repr(v) if isinstance(v, np.generic) else id(v) for v in values]
        key = (equation.primitive, repr(equation.params), *known)
        if key not in found:
            found[key] = values, bind(equation, values)  # operands stay alive: they are told by id
        return found[key][1]

    return apply


def _regroup(flat: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Numbers]:
    """Arrays of these shapes from all their numbers in a row."""
    own = iter(flat)
    return [filled(shape, own) for shape in shapes]
