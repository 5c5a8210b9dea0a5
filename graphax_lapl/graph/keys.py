"""Keys under which equations of one trace coincide, and traces of one function."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from .calls import CUSTOM_CALLS
from .listing import Atom, Constant, Equation, Listing, as_aval
from .tangent_program import rule_program
from .tracing import is_traced
from .users_rules import is_users_rule, rule_source

__all__ = ["Operand", "Unstable", "equation_key", "jaxpr_key", "listing_key", "value_key"]

#: Types of parameters that are compared as they are.
PLAIN = frozenset({bool, int, str})
#: How many derivatives of a call with a rule of its own are compared: as many as programs take.
#: What a user's function closes over may show in the next one only; so where programs are
#: differentiated again, a rule that is not through then (it calls its own function, whose rule does
#: so again) has no key. Of JAX's own rules one derivative is compared: their hidden parameters, as
#: the order of `sinc`'s series, show there or in the function.
RULE_LEVELS = 2


class _Within(NamedTuple):
    """In how many rules a jaxpr stands, one of JAX's own among them, of a program that may move."""

    level: int = 0
    own: bool = False
    again: bool = True


_OUTSIDE = _Within()


class Unstable(Exception):
    """The trace holds Python functions whose behaviour cannot be compared."""


def listing_key(listing: Listing, again: bool = True) -> Hashable:
    """Everything that a plan and its compiled program depend on, apart from argument values.

    Args:
        listing: the program.
        again: whether what is emitted may itself be differentiated.

    Raises:
        Unstable: where an equation's parameters hold Python functions.
    """
    within = _Within(again=again)
    equations = tuple(
        [
            (
                equation.name,
                _call_key(listing, equation, within)
                if equation.name in CUSTOM_CALLS
                else None
                if equation.known_as
                else _key(equation.params, within),
                tuple([a if a.__class__ is int else _atom(a) for a in equation.inputs]),
                equation.outputs,
                equation.active,
            )
            for equation in listing.equations
        ]
    )
    types: dict[int, Hashable] = {}  # arrays of one type share it
    for v in listing.variables:
        if id(v) not in types:
            types[id(v)] = (v.shape, _name_of(v.dtype), v.weak_type)
    return (
        tuple([types[id(v)] for v in listing.variables]),
        tuple(listing.constants),
        tuple(listing.inputs),
        equations,
        tuple(_atom(atom) for atom in listing.outputs),
        tuple((variable, _key(value)) for variable, value in listing.known.items()),
        tuple((variable, _key(where)) for variable, where in listing.support.items()),
        tuple((variable, _key(numbers)) for variable, numbers in listing.exponents.items()),
        tuple((v, None if a is None else _atom(a)) for v, a in listing.value_of.items()),
        tuple(listing.vertex_of.items()),
        tuple(listing.moves_with.items()),
        tuple(sorted(listing.active)),
    )


#: NumPy puts the name of a dtype together anew each time.
_name_of = lru_cache(maxsize=256)(str)


def _atom(atom: Any) -> Hashable:
    return _key(atom.value) if isinstance(atom, Constant) else atom


def _call_key(listing: Listing, equation: Equation, within: _Within) -> Hashable:
    """A key of a call with a derivative rule of its own."""
    avals = [as_aval(listing.type_of(atom)) for atom in equation.inputs]
    try:
        return _rule_key(equation.primitive, equation.params, equation.context, avals, within)
    except Unstable:
        if not any(equation.active):
            raise  # kept for the derivative that its rule gives
        return _key(equation.params)


def _rule_key(
    primitive: Any, params: dict[str, Any], context: Any, avals: Sequence[Any], within: _Within
) -> Hashable:
    """A key under which two calls coincide where their values and derivatives do.

    Raises:
        Unstable: where that cannot be told.
    """
    if primitive.name != "custom_jvp_call":
        raise Unstable
    body = jaxpr_key(params["call_jaxpr"], within)
    key = (rule_source(params), params["num_consts"], params["symbolic_zeros"], body)
    users = is_users_rule(params)
    if within.own and not users:
        return key
    if within.level == RULE_LEVELS:
        if within.again:
            raise Unstable
        return key
    program = rule_program(primitive, params, context, avals)
    if program is None:
        raise Unstable
    return (*key, jaxpr_key(program, _Within(within.level + 1, not users, within.again)))


def _key(value: Any, within: _Within = _OUTSIDE) -> Hashable:
    if value is None or type(value) in PLAIN:
        return (type(value).__name__, value)
    if type(value) is dict and not value:
        return ()
    if is_traced(value):  # JAX remembers what a rule traced to, with constants of that time
        raise Unstable
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        return jaxpr_key(value, within)
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "addressable_shards"):
        try:
            array = np.asarray(value)
        except Exception as error:  # a key array: no value to compare
            raise Unstable from error
        return ("array", _name_of(array.dtype), array.shape, array.tobytes())
    if isinstance(value, Mapping):
        return tuple(
            (k, _key(v, within)) for k, v in sorted(value.items(), key=lambda item: str(item[0]))
        )
    if type(value) in (tuple, list):
        return tuple(_key(item, within) for item in value)
    if callable(value) and not isinstance(value, type | jax.sharding.Mesh):
        raise Unstable  # a mesh of devices may decorate a function, but is a value
    if isinstance(value, float | complex):
        return (type(value).__name__, repr(value))  # zeros of both signs are equal numbers
    try:
        hash(value)
    except TypeError as error:
        raise Unstable from error
    return (type(value).__name__, value)


def jaxpr_key(jaxpr: Any, within: _Within = _OUTSIDE) -> Hashable:
    """A key under which two jaxprs, closed or open, coincide where they compute the same.

    Args:
        jaxpr: the jaxpr.
        within: where it stands.

    Raises:
        Unstable: where an equation's parameters hold Python functions.
    """
    constants = tuple(_key(value) for value in getattr(jaxpr, "consts", ()))
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    names: dict[Any, int] = {}

    def read(atom: Any) -> Hashable:
        if hasattr(atom, "val"):
            return ("literal", _key(np.asarray(atom.val)))
        return names.setdefault(atom, len(names))

    def define(variable: Any) -> Hashable:
        return (read(variable), str(variable.aval))

    def parameters(equation: Any) -> Hashable:
        params = equation.params
        if equation.primitive.name in CUSTOM_CALLS:
            avals = [as_aval(atom.aval) for atom in equation.invars]
            try:
                return _rule_key(equation.primitive, params, equation.ctx, avals, within)
            except Unstable:
                if within.level:
                    raise
        # A rule that cannot be compared is itself: what calls the same function may be traced once.
        return _key(params, within)

    return (
        constants,
        tuple(define(v) for v in (*jaxpr.constvars, *jaxpr.invars)),
        tuple(
            (
                equation.primitive.name,
                parameters(equation),
                tuple(read(atom) for atom in equation.invars),
                tuple(define(variable) for variable in equation.outvars),
            )
            for equation in jaxpr.eqns
        ),
        tuple(read(atom) for atom in jaxpr.outvars),
    )


class Operand(Protocol):
    """What an equation reads, and whether a derivative flows through it."""

    @property
    def atom(self) -> Atom:
        """The variable or constant."""
        ...

    @property
    def active(self) -> bool:
        """Whether a derivative flows through it."""
        ...


def equation_key(equation: Any, operands: Sequence[Operand]) -> Hashable | None:
    """A key under which equal equations of one trace coincide; None where that cannot be told.

    Within a trace a Python function is itself, so it is compared by identity.
    """
    if equation.effects or not equation.outvars:
        return None
    atoms: list[Hashable] = []
    for operand in operands:
        atom = operand.atom
        if isinstance(atom, Constant):
            value = np.asarray(atom.value) if atom.shape == () else None
            if value is None or value.dtype == object:
                return None
            atoms.append(("constant", value.dtype, value.tobytes()))
        else:
            atoms.append((atom, operand.active))
    return _applied(equation.primitive.name, equation.params, tuple(atoms))


def value_key(equation: Equation, operands: tuple[int, ...]) -> Hashable | None:
    """A key under which equations of one listing have equal values; None where it has no key.

    Args:
        equation: an equation.
        operands: a number for the value of each of its inputs.
    """
    if equation.effects or not equation.outputs:
        return None
    return _applied(equation.name, equation.params, operands)


def _applied(name: str, params: dict[str, Any], operands: tuple[Hashable, ...]) -> Hashable | None:
    if not params:
        return name, (), operands
    try:
        return name, tuple(sorted([(k, _hashable(v)) for k, v in params.items()])), operands
    except TypeError:
        return None


def _hashable(value: Any) -> Hashable:
    if type(value) in (list, tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, float | complex):
        return (type(value).__name__, repr(value))  # zeros of both signs are equal numbers
    hash(value)
    return (type(value).__name__, value)
