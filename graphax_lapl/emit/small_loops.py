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
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import dtypes, lax
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ..rules.control_flow import scan_counts
from .innermost import of_every_sample, with_derivatives_of
from .loops_of_numbers import Axes, InNumbers, Led, array_of, scanned, spread, union
from .numbers import BATCH, CALLS, bind, computed
from .placed import OutOfBounds

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
        def evaluate(*args: Any) -> Any:
            program = once.program([jax.typeof(value) for value in args])
            return program.structured(jaxpr_as_fun(program.closed)(*args))

        return jax.vmap(lambda seed: evaluate(seed, *others))(seeds)

    @custom_vmap
    def chosen(*args: Any) -> Any:
        return arrays(*args)

    @chosen.def_vmap
    def _(size: Any, own: list[bool], *args: Any) -> tuple[Any, Any]:
        def numbers(*args: Any) -> Any:
            led = [Led(x, (has, k == 0)) for k, (x, has) in enumerate(zip(args, own, strict=True))]
            return once.in_numbers(led, (size, args[0].shape[int(own[0])]))

        call = jax.vmap(arrays, [0 if has else None for has in own])
        if isinstance(size, int) and size >= BATCH:  # `jax.export` knows symbols too
            call = functools.partial(lax.platform_dependent, cpu=numbers, default=call)
        results = of_every_sample(call(*args), args)
        return results, jax.tree.map(lambda _: True, results)

    differentiable: Callable[..., Any] = with_derivatives_of(arrays, chosen)
    return differentiable


def is_small_loop(equation: Any) -> bool:
    """Whether an equation is a loop that `for_batches` may rewrite."""
    return bool(equation.name == "scan" and _is_small(equation.params))


class _Program(NamedTuple):
    """A traced function, and the tree of its results."""

    closed: ClosedJaxpr
    structure: Any

    def structured(self, results: Sequence[Any]) -> Any:
        """The results as the function returns them."""
        return jax.tree.unflatten(self.structure, results)


class _TracedOnce:
    """A function whose program is read several times, and which is dear to trace."""

    def __init__(self, fun: Callable[..., Any]):
        self.fun = fun
        self.traced: dict[Hashable, _Program] = {}

    def program(self, types: Sequence[Any]) -> _Program:
        """The program of arguments of some types."""
        key = tuple((type_.shape, type_.dtype, type_.weak_type) for type_ in types)
        if key not in self.traced:
            closed, shapes = jax.make_jaxpr(self.fun, return_shape=True)(*types)
            self.traced[key] = _Program(closed, jax.tree.structure(shapes))
        return self.traced[key]

    def in_numbers(self, args: Sequence[Led], sizes: Sequence[int]) -> Any:
        """The function's results with all axes in front, its small loops number by number.

        Args:
            args: with some of these axes each.
            sizes: of the axes.
        """
        types = [_type_of(arg) for arg in args]
        program = self.program(types)
        closed = program.closed
        results = _evaluated(
            closed.jaxpr, [_alone(x, sizes) for x in closed.consts] + [*args], sizes
        )
        return program.structured(
            [spread(array_of(result, sizes), (True,) * len(sizes), sizes) for result in results]
        )


def _type_of(arg: Led) -> jax.ShapeDtypeStruct:
    """The type of an array without the axes in front."""
    type_ = jax.typeof(arg.value)
    shape = type_.shape[sum(arg.axes) :]
    return jax.ShapeDtypeStruct(shape, type_.dtype, weak_type=type_.weak_type)


def _alone(value: Any, sizes: Sequence[int]) -> Led:
    return Led(value, (False,) * len(sizes))


def _evaluated(
    jaxpr: Any, values: Sequence[Led | InNumbers], sizes: Sequence[int]
) -> list[Led | InNumbers]:
    """Runs a program; `values` are those of its constants and inputs.

    Equations between loops are evaluated together, under `jax.vmap` for each axis in front.
    """
    held = dict(zip([*jaxpr.constvars, *jaxpr.invars], values, strict=True))

    def read(atom: Any) -> Led | InNumbers:
        return _alone(atom.val, sizes) if hasattr(atom, "val") else held[atom]

    waiting: list[Any] = []
    for place, equation in enumerate(jaxpr.eqns):
        if not _holds_small_loops(equation):
            waiting.append(equation)
            continue
        held.update(_between(waiting, held, _read_from(jaxpr, place), sizes))
        waiting = []
        results: Sequence[Led | InNumbers] | None = None
        operands = [read(atom) for atom in equation.invars]
        if equation.primitive.name == "scan":
            with contextlib.suppress(OutOfBounds):
                results = scanned(equation.params, operands, sizes)
        else:
            inner = equation.params[CALLS[equation.primitive.name]]
            given = [*(_alone(x, sizes) for x in inner.consts), *operands]
            results = _evaluated(inner.jaxpr, given, sizes)
        if results is None:
            waiting = [equation]
        else:
            held.update(zip(equation.outvars, results, strict=True))
    held.update(_between(waiting, held, _read_from(jaxpr, len(jaxpr.eqns)), sizes))
    return [read(atom) for atom in jaxpr.outvars]


def _read_from(jaxpr: Any, place: int) -> set[Any]:
    """The variables that a program reads from some equation on."""
    atoms = [atom for equation in jaxpr.eqns[place:] for atom in equation.invars]
    return {atom for atom in (*atoms, *jaxpr.outvars) if not hasattr(atom, "val")}


def _holds_small_loops(equation: Any) -> bool:
    """Whether an equation is a small loop, or calls a program that holds one."""
    name = equation.primitive.name
    if name == "scan":
        return _is_small(equation.params)
    return name in CALLS and any(map(_holds_small_loops, equation.params[CALLS[name]].jaxpr.eqns))


def _between(
    equations: Sequence[Any],
    held: Mapping[Any, Led | InNumbers],
    wanted: set[Any],
    sizes: Sequence[int],
) -> dict[Any, Led]:
    """What equations without small loops compute, of which some variables are read later.

    Args:
        equations: in order.
        held: what they are given.
        wanted: variables.
        sizes: of the axes in front.
    """
    axes: dict[Any, Axes] = {}
    inputs: dict[Any, Led] = {}
    for equation in equations:
        own = [atom for atom in equation.invars if not hasattr(atom, "val")]
        for atom in own:
            if atom not in axes:
                inputs[atom] = array_of(held[atom], sizes)
                axes[atom] = inputs[atom].axes
        found = union((axes[atom] for atom in own), len(sizes))
        axes.update(dict.fromkeys(equation.outvars, found))
    outputs = [v for equation in equations for v in equation.outvars if v in wanted]
    if not outputs:
        return {}

    def evaluate(*values: Any) -> list[Any]:
        return _inlined(equations, dict(zip(inputs, values, strict=True)), outputs)

    call = evaluate
    for axis in reversed(range(len(sizes))):
        into = [0 if led.axes[axis] else None for led in inputs.values()]
        if any(place is not None for place in into):
            out = [0 if axes[variable][axis] else None for variable in outputs]
            call = jax.vmap(call, into, out)
    results = call(*(led.value for led in inputs.values()))
    return {v: Led(value, axes[v]) for v, value in zip(outputs, results, strict=True)}


def _inlined(equations: Sequence[Any], held: dict[Any, Any], wanted: Sequence[Any]) -> list[Any]:
    """What equations compute; what they call stands in their place."""

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else held[atom]

    for equation in equations:
        values = [read(atom) for atom in equation.invars]
        name = equation.primitive.name
        if name in CALLS:
            inner = equation.params[CALLS[name]]
            given = dict(zip(inner.jaxpr.constvars, inner.consts, strict=True))
            given.update(zip(inner.jaxpr.invars, values, strict=True))
            results = _inlined(inner.jaxpr.eqns, given, inner.jaxpr.outvars)
        else:
            results = bind(equation, values)
        held.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in wanted]


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
