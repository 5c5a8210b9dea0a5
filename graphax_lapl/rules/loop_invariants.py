"""What the steps of a loop compute again from what no step changes, and where they sum to it.

Before the loop it is computed once: of parameters that every step picks apart or multiplies by a
matrix, the loop is then given what it reads, and what goes back to the parameters passes these
equations once. JAX moves what is known out of loops, but differentiates the rest as it stands. For
rows a number that every step multiplies an array by is repeated as often as the array has entries:
what goes back to it is then added entry by entry, and summed after the last step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..graph.listing import Equation, nested_primitives, scan_counts
from .elementwise import FINITE_SLOPES, INFINITE_SLOPES

__all__ = ["before_the_loop", "evaluated_for_rows", "steps_for_rows", "variables_of"]

#: What lays entries out, or sums them.
LINEAR = frozenset(
    """
    broadcast_in_dim concatenate copy dot_general dynamic_slice expand_dims gather iota jit pjit
    reduce_sum reshape rev slice split squeeze transpose unstack
    """.split()  # noqa: SIM905
)
#: What is computed before a loop for columns too: a loop may select away what is not finite, and
#: its zeros would meet an infinite slope.
FINITE = LINEAR | FINITE_SLOPES | {"integer_pow"}
#: Equations on numbers that arrays of the same number may be given to.
ENTRY_BY_ENTRY = FINITE_SLOPES | INFINITE_SLOPES

Equations = Sequence[Any]


def before_the_loop(
    params: Mapping[str, Any], moving: Sequence[bool], atoms: Sequence[Hashable]
) -> Callable[..., list[Any]] | None:
    """What a `scan` computes from its operands, with less to do in each step.

    None where there is no constant that moves which the loop itself would no longer read, or where
    it would read as many numbers without having spared a product, or single ones beside arrays.

    Args:
        params: those of its equation.
        moving: for each operand whether derivatives with respect to it are taken.
        atoms: what each operand is: the same one may be there twice.
    """
    counts, body = scan_counts(dict(params)), params["jaxpr"].jaxpr
    if counts is None or not params["length"] or body.effects:
        return None
    constants = body.invars[: counts[0]]
    twins = {v: constants[atoms.index(atom)] for v, atom in zip(constants, atoms, strict=False)}
    moved = [v for v, moves in zip(constants, moving, strict=False) if moves]
    freed = set(moved)
    first, rest = _freeing(body, constants, freed)
    needed = _needed(body, rest)
    made = [v for e in first for v in e.outvars if v in needed]
    if not _is_less(first, made, freed, _carries_numbers(body, counts)):
        first, rest = [], body.eqns
    twice = any(twins[variable] is not variable for variable in moved)
    return partial(_scanned, params, counts, first, rest, {}, twins) if first or twice else None


def _is_less(
    first: Equations, made: Sequence[Any], freed: Collection[Any], of_numbers: bool
) -> bool:
    """Whether steps have less to do where they read what was made of what is freed.

    Not where an array is replaced by one of its size, made entry by entry: products with seeds do
    not see what was moved, and that is little.
    """
    after, before = (sum(v.aval.size for v in group) for group in (made, freed))
    if not made or after > before:
        return False
    if of_numbers:
        return True
    products = any(equation.primitive.name == "dot_general" for equation in first)
    return (products or after < before) and all(v.aval.size > 1 for v in made)


def _freeing(body: Any, constants: Sequence[Any], freed: set[Any]) -> tuple[Equations, Equations]:
    """Equations to compute first, and the others, which read none of what is to be freed.

    What cannot be is taken out of `freed`.
    """
    while freed:
        first = _first(body, constants, freed, FINITE)
        rest = _others(body, first)
        needed = _needed(body, rest)
        if freed.isdisjoint(needed):
            return first, rest
        freed -= needed
    return [], body.eqns


def _first(
    body: Any, constants: Sequence[Any], reached: Collection[Any], names: Collection[str] | None
) -> Equations:
    """Equations that no step changes and that compute with what is `reached`."""
    same, reached = {*constants, *body.constvars}, set(reached)
    found = []
    for equation in body.eqns:
        operands = variables_of(equation.invars)
        if reached.isdisjoint(operands) or not operands <= same or equation.effects:
            continue
        own = {equation.primitive.name, *nested_primitives(equation.params)}
        if names is None or (own <= set(names) and equation.params.get("y", 1) > 0):
            found.append(equation)
            same.update(equation.outvars)
            reached.update(equation.outvars)
    return found


def _others(body: Any, first: Equations) -> Equations:
    chosen = {id(equation) for equation in first}
    return [equation for equation in body.eqns if id(equation) not in chosen]


def _needed(body: Any, equations: Iterable[Any]) -> set[Any]:
    return variables_of(body.outvars).union(*(variables_of(e.invars) for e in equations))


def variables_of(atoms: Iterable[Any]) -> set[Any]:
    """Those of the atoms of a jaxpr that are no literals."""
    return {atom for atom in atoms if not hasattr(atom, "val")}


def _carries_numbers(body: Any, counts: tuple[int, int]) -> bool:
    """Whether single numbers are carried, and nothing else is returned."""
    return len(body.outvars) == counts[1] and all(v.aval.size == 1 for v in body.outvars)


@dataclass(frozen=True)
class _Steps:
    """How the steps of a `scan` are evaluated where rows are pulled back.

    Attributes:
        first: equations that are computed once, before the loop.
        rest: the others.
        repeated: numbers that are arrays instead, by their shape.
        sums: whether steps still sum arrays to numbers that move, or compute with such numbers.
    """

    first: Equations
    rest: Equations
    repeated: dict[Any, tuple[int, ...]] = field(default_factory=dict)
    sums: bool = False


@lru_cache(maxsize=512)
def steps_for_rows(equation: Equation) -> _Steps | None:
    """How a `scan` is evaluated where rows are pulled back; None for what is none."""
    counts = scan_counts(equation.params) if equation.name == "scan" else None
    if counts is None or equation.params["jaxpr"].effects:
        return None
    body = equation.params["jaxpr"].jaxpr
    constants = body.invars[: counts[0]]
    moved = {v for v, moves in zip(constants, equation.active, strict=False) if moves}
    room = sum(v.aval.size for v in body.outvars[: counts[1]])
    first = _first(body, constants, moved, None) if equation.params["length"] else []
    if any(v.aval.size > room for e in first for v in e.outvars):
        first = []
    rest = _others(body, first)
    needed, readers = _needed(body, rest), _readers(rest)
    entering = [v for v in [*constants, *(v for e in first for v in e.outvars)] if v in needed]
    entering = [v for v in entering if v in moved or v not in constants]
    repeated: dict[Any, tuple[int, ...]] = {}
    sums = False
    for variable in entering:
        chain = (
            {} if variable.aval.shape else _repeated(variable, readers, variables_of(body.outvars))
        )
        if chain and math.prod(chain[variable]) <= room:
            repeated.update(chain)
        else:
            sums = sums or _is_summed(variable, readers)
    return _Steps(first, rest, repeated, sums)


def _readers(equations: Equations) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for equation in equations:
        for variable in variables_of(equation.invars):
            found.setdefault(variable, []).append(equation)
    return found


def _repeated(
    number: Any, readers: Mapping[Any, Equations], results: Collection[Any]
) -> dict[Any, tuple[int, ...]]:
    """The shape of the arrays that a number is met by, for it and for all numbers made of it.

    Empty where there are several shapes, or another use.
    """
    found: dict[Any, tuple[int, ...]] = {}
    shapes: set[tuple[int, ...]] = set()
    todo = [number]
    while todo:
        variable = todo.pop()
        if variable in found:
            continue
        found[variable] = ()
        own = readers.get(variable, ())
        if variable in results or not own:
            return {}
        for reader in own:
            shape = reader.outvars[0].aval.shape
            if reader.primitive.name in ENTRY_BY_ENTRY and not shape:
                todo.append(reader.outvars[0])
            elif reader.primitive.name in {"broadcast_in_dim", *ENTRY_BY_ENTRY}:
                shapes.add(shape)
            else:
                return {}
    return dict.fromkeys(found, shapes.pop()) if len(shapes) == 1 else {}


def _is_summed(variable: Any, readers: Mapping[Any, Equations]) -> bool:
    """Whether what goes back to a constant is a number, or summed or added in place."""
    return variable.aval.size == 1 or any(
        reader.primitive.name == "dot_general"
        or any(result.aval.size != variable.aval.size for result in reader.outvars)
        for reader in readers.get(variable, ())
    )


def evaluated_for_rows(equation: Equation, values: Sequence[Any]) -> list[Any]:
    """The results of an equation whose derivative is pulled back."""
    steps = steps_for_rows(equation)
    if steps is None or not (steps.first or steps.repeated):
        return equation.evaluate(*values)
    counts = scan_counts(equation.params)
    assert counts is not None
    with equation.context.manager:
        return _scanned(
            equation.params, counts, steps.first, steps.rest, steps.repeated, {}, *values
        )


def _scanned(
    params: Mapping[str, Any],
    counts: tuple[int, int],
    first: Equations,
    rest: Equations,
    repeated: Mapping[Any, tuple[int, ...]],
    twins: Mapping[Any, Any],
    *values: Any,
) -> list[Any]:
    """The results of a `scan`, of whose body the `first` equations are computed before it."""
    closed, (constants, carries) = params["jaxpr"], counts
    body = closed.jaxpr
    same = dict(zip(body.constvars, closed.consts, strict=True))
    same.update(zip(body.invars[:constants], values[:constants], strict=True))
    same.update({variable: same[twin] for variable, twin in twins.items()})
    _evaluate(first, same)
    for variable, shape in repeated.items():
        if variable in same:
            same[variable] = lax.broadcast(same[variable], shape)

    def step(carried: list[Any], stacked: list[Any]) -> tuple[list[Any], list[Any]]:
        held = {**same, **dict(zip(body.invars[constants:], [*carried, *stacked], strict=True))}
        _evaluate(rest, held, repeated)
        results = [_read(atom, held) for atom in body.outvars]
        return results[:carries], results[carries:]

    last, stacks = lax.scan(
        step,
        list(values[constants : constants + carries]),
        list(values[constants + carries :]),
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*last, *stacks]


def _evaluate(
    equations: Equations, held: dict[Any, Any], repeated: Mapping[Any, tuple[int, ...]] = {}
) -> None:
    """Carry equations out, on the values of variables, which their results join."""
    for equation in equations:
        values = [_read(atom, held) for atom in equation.invars]
        if not repeated.keys().isdisjoint(variables_of(equation.invars)):
            result = equation.outvars[0]
            if equation.primitive.name == "broadcast_in_dim":
                held[result] = values[0]
                continue
            shape = repeated.get(result, result.aval.shape)
            values = [
                value if jnp.shape(value) else jnp.full(shape, value, atom.aval.dtype)
                for value, atom in zip(values, equation.invars, strict=True)
            ]
        with equation.ctx.manager:
            bound = equation.primitive.get_bind_params(equation.params)
            made = equation.primitive.bind(*values, **bound)
        results = made if equation.primitive.multiple_results else [made]
        held.update(zip(equation.outvars, results, strict=True))


def _read(atom: Any, held: Mapping[Any, Any]) -> Any:
    return atom.val if hasattr(atom, "val") else held[atom]
