"""A `scan` whose steps hand on nothing that moves: evaluated for all steps at once.

`jax.lax.map` is one, and a likelihood whose steps read the observation before. As a loop its
derivative is one opaque map; of all steps at once every equation has its own structure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import jaxpr_as_fun

from ..graph.listing import nested_primitives, scan_counts
from .loop_invariants import variables_of

__all__ = ["all_steps_at_once"]

#: Most numbers that the largest array of a step holds, for all steps together: a loop may be there
#: to save memory.
MAX_AT_ONCE = 1 << 14
#: What is done otherwise for several steps than for one: `jax.vmap` evaluates all branches.
DECIDING = frozenset({"cond", "while"})

#: From what a carry starts as and what all steps read: what it is before every step (in the order
#: of the steps), and after the last.
Carried = Callable[[Any, Sequence[Any], int], tuple[Any, Any]]


def all_steps_at_once(
    params: Mapping[str, Any], moving: Sequence[bool]
) -> Callable[..., list[Any]] | None:
    """What a `scan` computes from its operands, for all steps at once.

    None where a step hands something on that moves or that takes a loop, where branches depend on
    the step, or where the arrays of all steps are large.

    Args:
        params: those of its equation.
        moving: for each operand whether derivatives with respect to it are taken.
    """
    counts, body = scan_counts(dict(params)), params["jaxpr"].jaxpr
    if counts is None or not params["length"] or body.effects or len(body.outvars) == counts[1]:
        return None
    if not DECIDING.isdisjoint(nested_primitives(dict(params))):
        return None
    moved = {v for v, moves in zip(body.invars, moving, strict=True) if moves}
    largest = max((v.aval.size for e in body.eqns for v in e.outvars), default=0)
    for equation in body.eqns:
        if not moved.isdisjoint(variables_of(equation.invars)):
            moved.update(equation.outvars)
    if largest * params["length"] > MAX_AT_ONCE:
        return None
    carried = [_carried(body, counts, number, moved) for number in range(counts[1])]
    known = [way for way in carried if way is not None]
    return partial(_at_once, params, counts, known) if len(known) == len(carried) else None


def _carried(body: Any, counts: tuple[int, int], number: int, moved: set[Any]) -> Carried | None:
    """How a carry goes on: as it is, counted, or as what a step reads; None where otherwise."""
    own, result = body.invars[counts[0] + number], body.outvars[number]
    if own in moved or hasattr(result, "val") or result in moved:
        return None
    stacked = body.invars[sum(counts) :]
    if result is own:
        return _kept
    if result in stacked:
        return partial(_handed_on, stacked.index(result))
    maker = next((e for e in body.eqns if result in e.outvars), None)
    if maker is None or not jnp.issubdtype(own.aval.dtype, jnp.integer):
        return None
    name, (first, *others) = maker.primitive.name, maker.invars
    if name == "add" and hasattr(first, "val"):
        first, others = others[0], [first]
    if name not in {"add", "sub"} or first is not own or not hasattr(others[0], "val"):
        return None
    step = int(np.asarray(others[0].val))
    return partial(_counted, step if name == "add" else -step)


def _kept(start: Any, stacked: Sequence[Any], length: int) -> tuple[Any, Any]:
    del stacked
    return lax.broadcast(start, (length,)), start


def _handed_on(place: int, start: Any, stacked: Sequence[Any], length: int) -> tuple[Any, Any]:
    whole = lax.concatenate([lax.expand_dims(start, [0]), stacked[place]], 0)
    return lax.slice_in_dim(whole, 0, length), lax.index_in_dim(whole, length, keepdims=False)


def _counted(step: int, start: Any, stacked: Sequence[Any], length: int) -> tuple[Any, Any]:
    del stacked
    counted = lax.mul(lax.iota(start.dtype, length), np.asarray(step, start.dtype))
    before = lax.add(
        lax.broadcast(start, (length,)),
        lax.broadcast_in_dim(counted, (length, *start.shape), (0,)),
    )
    return before, lax.add(start, np.asarray(step * length, start.dtype))


def _at_once(
    params: Mapping[str, Any], counts: tuple[int, int], carried: Sequence[Carried], *values: Any
) -> list[Any]:
    constants, carries = counts
    fixed, start, length = values[:constants], values[constants : sum(counts)], params["length"]

    def ordered(array: Any) -> Any:
        return lax.rev(array, [0]) if params["reverse"] else array

    stacked = [ordered(array) for array in values[sum(counts) :]]
    found = [way(value, stacked, length) for way, value in zip(carried, start, strict=True)]

    def results(before: list[Any], own: list[Any]) -> list[Any]:
        return list(jaxpr_as_fun(params["jaxpr"])(*fixed, *before, *own)[carries:])

    made = jax.vmap(results, axis_size=length)([before for before, _ in found], stacked)
    return [*(last for _, last in found), *map(ordered, made)]
